"""The models that pydantic-ai knows by name."""

from pydantic_ai.exceptions import UserError
from pydantic_ai.models import infer_model, known_model_names
from pydantic_ai.providers import infer_provider_class

from midrun.errors import Misconfigured
from midrun.models.provider import ProviderModel


def found(name: str) -> ProviderModel:
    """Return the model of that name, which has a provider and a colon in it.

    Raises:
        Misconfigured: there is no such provider, or it lacks its key.
        ImportError: the provider's package is not installed.
    """
    provider = name.partition(":")[0]
    try:
        infer_provider_class(provider)
    except ValueError as error:
        problem = f"no provider is called {provider!r}; there are {', '.join(_providers())}"
        raise Misconfigured(f"model {name!r}", problem) from error
    try:
        return ProviderModel(infer_model(name))
    except UserError as error:
        raise Misconfigured(f"model {name!r}", str(error)) from error


def _providers() -> list[str]:
    """Return the providers by name, without the gateways to them."""
    named = {name.partition(":")[0] for name in known_model_names() if ":" in name}
    return sorted(provider for provider in named if "/" not in provider)
