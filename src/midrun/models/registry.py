"""Find a model by name. A provider's package is imported when one of its models is used."""

from typing import TYPE_CHECKING, Final, cast

from midrun.errors import Misconfigured
from midrun.ports.model import Model

if TYPE_CHECKING:  # the import takes a second, and pydantic-ai may not be installed
    from midrun.models.provider import PydanticModel

OWN_EXTRAS: Final = {
    "anthropic": "anthropic",
    "google": "google",
    "google-cloud": "google",
}
"""Providers → the extra of this package. Most others speak the protocol of OpenAI."""

OTHER_EXTRAS: Final = frozenset(
    {"bedrock", "bedrock-mantle", "cerebras", "cohere", "crusoe", "groq", "huggingface"}
    | {"mistral", "snowflake", "typesafe", "xai", "zai"}
)
"""Providers with a package of their own, which is an extra of pydantic-ai."""


def find_extra(provider: str) -> str:
    """Return the extra to install for the models of `provider`."""
    name = provider.removeprefix("gateway/")
    if name in OTHER_EXTRAS:
        return f"pydantic-ai-slim[{name}]"
    return f"midrun[{OWN_EXTRAS.get(name, 'openai')}]"


def model_of(model: "str | Model | PydanticModel", base_url: str | None = None) -> Model:
    """Return a midrun model for a name, a midrun model or a model of pydantic-ai.

    `base_url` is the address of the server of a model that is given by its name.

    Raises:
        Misconfigured: It is none of these, or a package or an API key is missing.
    """
    if isinstance(model, str):
        return model_named(model, base_url)
    if hasattr(model, "request_stream"):
        from midrun.models.provider import ProviderModel  # noqa: PLC0415 - optional dependency

        return ProviderModel(cast("PydanticModel", model))
    if not hasattr(model, "stream"):
        problem = f'must be a model or "provider:model", got {type(model).__name__}'
        raise Misconfigured("model", problem)
    return model


def model_named(name: str, base_url: str | None = None) -> Model:
    """Return the model with the name `provider:model`, as `anthropic:claude-opus-4-6`.

    `base_url` is the address of its server, if it is not that of the provider: Ollama, vLLM, a
    proxy, or any server that speaks the protocol of the provider.

    Raises:
        Misconfigured: There is no such provider, or its package or API key is missing.
    """
    provider, _, model = name.partition(":")
    if not (provider and model):
        problem = f"must be provider:model, for example openai:gpt-5.2, got {name!r}"
        raise Misconfigured("model", problem)
    try:
        from midrun.models.provider import make_named_model  # noqa: PLC0415 - optional dependency

        return make_named_model(name, base_url)
    except ImportError as error:
        extra = find_extra(provider)
        if error.name == "pydantic_ai" and not provider.startswith(("openai", "anthropic")):
            # Without the package, its list of providers is not known either.
            problem = (
                f"Cannot use provider {provider!r}: pydantic-ai is not installed. Install "
                f"{extra}, if there is such a provider."
            )
            raise Misconfigured(f"model {name!r}", problem) from error
        problem = f"Cannot import the package of the provider: {error}. Install {extra}."
        raise Misconfigured(f"model {name!r}", problem) from error
