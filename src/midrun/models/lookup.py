"""The models that pydantic-ai knows by name."""

import re
from typing import Final

from pydantic_ai.exceptions import UserError
from pydantic_ai.models import infer_model, known_model_names
from pydantic_ai.providers import infer_provider_class

from midrun.errors import Misconfigured
from midrun.models.provider import ProviderModel

_VARIABLE: Final = re.compile(r"`([A-Z][A-Z0-9]*_[A-Z0-9_]+)`")


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
        raise Misconfigured(f"model {name!r}", _advice(provider, str(error))) from error


def _advice(provider: str, problem: str) -> str:
    """Return the remedy for a setting that pydantic-ai reports as missing.

    Its own text speaks of its own classes; of that only the variables are of use here.
    """
    variables = list(dict.fromkeys(_VARIABLE.findall(problem)))
    if not variables:
        return problem
    return (
        f"Cannot reach {provider}: {' or '.join(variables)} is not set. Set this environment "
        "variable for the process that drives the run (midrun run, serve or worker). Without a "
        "key, midrun.models.ScriptedModel plays a model."
    )


def _providers() -> list[str]:
    """Return the providers by name, without the gateways to them."""
    named = {name.partition(":")[0] for name in known_model_names() if ":" in name}
    return sorted(provider for provider in named if "/" not in provider)
