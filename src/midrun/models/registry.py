"""Find a model by name. A provider's package is imported when one of its models is used."""

from typing import TYPE_CHECKING, Final, cast

from midrun.errors import Misconfigured
from midrun.ports.model import Model

if TYPE_CHECKING:  # the import takes a second, and pydantic-ai may not be installed
    from midrun.models.provider import PydanticModel

EXTRA_BY_PROVIDER: Final = {
    "anthropic": "midrun[anthropic]",
    "openai": "midrun[openai]",
    "openai-chat": "midrun[openai]",
    "openai-responses": "midrun[openai]",
}


def model_of(model: "str | Model | PydanticModel") -> Model:
    """Return a midrun model for a name, a midrun model or a model of pydantic-ai.

    Raises:
        Misconfigured: It is none of these, or a package or an API key is missing.
    """
    if isinstance(model, str):
        return model_named(model)
    if hasattr(model, "request_stream"):
        from midrun.models.provider import ProviderModel  # noqa: PLC0415 - optional dependency

        return ProviderModel(cast("PydanticModel", model))
    if not hasattr(model, "stream"):
        problem = f'must be a model or "provider:model", got {type(model).__name__}'
        raise Misconfigured("model", problem)
    return model


def model_named(name: str) -> Model:
    """Return the model with the name `provider:model`, as `anthropic:claude-opus-4-6`.

    Raises:
        Misconfigured: There is no such provider, or its package or API key is missing.
    """
    provider, _, model = name.partition(":")
    if not (provider and model):
        problem = f"must be provider:model, for example openai:gpt-5.2, got {name!r}"
        raise Misconfigured("model", problem)
    try:
        from midrun.models.provider import make_named_model  # noqa: PLC0415 - optional dependency

        return make_named_model(name)
    except ImportError as error:
        extra = EXTRA_BY_PROVIDER.get(provider)
        if extra is None and error.name == "pydantic_ai":
            # Without the package, its list of providers is not known either.
            problem = (
                f"Cannot use provider {provider!r}: pydantic-ai is not installed. Install "
                f"midrun[openai], midrun[anthropic], or pydantic-ai-slim[{provider}] if there "
                "is such a provider."
            )
            raise Misconfigured(f"model {name!r}", problem) from error
        extra = extra or f"pydantic-ai-slim[{provider}]"
        problem = f"Cannot import the package of the provider: {error}. Install {extra}."
        raise Misconfigured(f"model {name!r}", problem) from error
