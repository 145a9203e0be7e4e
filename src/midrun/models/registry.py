"""Find a model by name. A provider's package is imported when one of its models is used."""

from difflib import get_close_matches
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

OPENAI_PROTOCOL: Final = frozenset(
    {"alibaba", "azure", "azure-responses", "deepseek", "fireworks", "github"}
    | {"github-copilot", "heroku", "litellm", "meta", "moonshotai", "nebius", "ollama"}
    | {"openai", "openai-chat", "openai-chatgpt", "openai-codex", "openai-decisions"}
    | {"openai-responses", "openrouter", "ovhcloud", "sambanova", "system-one", "together"}
    | {"vercel", "vllm"}
)
"""Providers that speak the protocol of OpenAI, and need its package."""

WITHOUT_CHAT: Final = {
    "elevenlabs": "speech",
    "sentence-transformers": "embeddings",
    "voyageai": "embeddings",
}
"""Providers of pydantic-ai that have no models for agents → what they have instead."""

PROVIDERS: Final = tuple(sorted({*OWN_EXTRAS, *OTHER_EXTRAS, *OPENAI_PROTOCOL}))
"""All providers whose models an agent can have, without gateways (`gateway/openai`)."""


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
    if subject := WITHOUT_CHAT.get(provider.removeprefix("gateway/")):
        problem = (
            f"Cannot use provider {provider!r}: it has models for {subject}, and none that "
            "answer messages. Choose another provider."
        )
        raise Misconfigured(f"model {name!r}", problem)
    try:
        from midrun.models.provider import is_provider, make_named_model  # noqa: PLC0415 - optional dependency

        # Not only those of our table: a newer pydantic-ai may know more of them.
        if is_provider(provider):
            return make_named_model(name, base_url)
    except ImportError as error:
        if error.name != "pydantic_ai" or provider.removeprefix("gateway/") in PROVIDERS:
            problem = (
                f"Cannot import the package of provider {provider!r}: "
                f"{error.__cause__ or error}. Install {find_extra(provider)}."
            )
            raise Misconfigured(f"model {name!r}", problem) from error
    close = get_close_matches(provider, PROVIDERS, n=1)
    hint = f"Did you mean {close[0]}? " if close else ""
    problem = (
        f"Cannot find provider {provider!r}. {hint}The providers are: {', '.join(PROVIDERS)}."
    )
    raise Misconfigured(f"model {name!r}", problem)
