"""Models by name. No provider's package is imported before somebody names a model of it."""

from typing import TYPE_CHECKING, Final, cast

from midrun.errors import Misconfigured
from midrun.ports.model import Model

if TYPE_CHECKING:  # at run time this takes a second, and pydantic-ai may not be there
    from midrun.models.provider import Provided

EXTRAS: Final = {
    "anthropic": "midrun[anthropic]",
    "openai": "midrun[openai]",
    "openai-chat": "midrun[openai]",
    "openai-responses": "midrun[openai]",
}


def model_of(model: "str | Model | Provided") -> Model:
    """Return the model that is meant: by name, one of ours, or one of pydantic-ai's.

    Raises:
        Misconfigured: it is none of these, or what it needs is missing; the text says what.
    """
    if isinstance(model, str):
        return model_named(model)
    if hasattr(model, "request_stream"):
        from midrun.models.provider import ProviderModel  # noqa: PLC0415 - for those who use it

        return ProviderModel(cast("Provided", model))
    if not hasattr(model, "stream"):
        raise Misconfigured("model", f"give a model or its name, not {type(model).__name__}")
    return model


def model_named(name: str) -> Model:
    """Return the model called `provider:model`, for example `anthropic:claude-opus-4-6`.

    Raises:
        Misconfigured: there is no such provider, or its package or its key is missing.
    """
    provider, _, model = name.partition(":")
    if not (provider and model):
        problem = "write it as provider:model, for example openai:gpt-5.2"
        raise Misconfigured(f"model {name!r}", problem)
    try:
        from midrun.models.provider import found  # noqa: PLC0415 - for those who use it

        return found(name)
    except ImportError as error:
        extra = EXTRAS.get(provider, f"pydantic-ai-slim[{provider}]")
        raise Misconfigured(f"model {name!r}", f"install {extra} ({error})") from error
