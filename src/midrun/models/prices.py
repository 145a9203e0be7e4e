"""What a reply costs, and what the next may cost at most.

Prices come from the list that pydantic-ai carries. Money is in millionths of a dollar, rounded
up: a cap that is kept on the safe side is kept.
"""

from decimal import ROUND_CEILING
from typing import Any, Final, TypeAlias

import msgspec
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import ModelResponse
from pydantic_ai.models import Model
from pydantic_ai.usage import RequestUsage

from midrun.core.transcript import Turn
from midrun.core.values import Spend
from midrun.ports.model import Prompt

Provided: TypeAlias = Model[Any]  # type: ignore[explicit-any]  # with any SDK's client
"""A model of pydantic-ai."""

CHARACTERS_A_TOKEN: Final = 4
OUTPUT_MAX: Final = 4096
"""Tokens that a reply is expected to stay below where its settings do not say."""


class Prices:
    """The prices of one model. `known` tells whether there are any."""

    def __init__(self, provided: Provided) -> None:
        self._name = provided.model_name
        self._provider = provided.system
        self._url = _url(provided)
        self._output = (provided.settings or {}).get("max_tokens", OUTPUT_MAX)
        self.known = self._cost(RequestUsage(input_tokens=1, output_tokens=1)) is not None

    def spent(self, response: ModelResponse) -> Spend | None:
        """Return what the provider says a reply used, or None if it does not say."""
        usage = response.usage
        if usage.unmeasured_requests or not usage.has_values():
            return None
        cost = _cost(response)
        if cost is None:  # providers answer under dated names that a list may not have
            cost = self._cost(usage)
        return Spend(tokens=usage.input_tokens + usage.output_tokens, cost=cost or 0)

    def reserve(self, prompt: Prompt) -> Spend:
        """Return what answering may use: all of the prompt, and as much as may be said."""
        characters = len(prompt.instructions)
        characters += sum(_characters(turn) for turn in prompt.transcript)
        characters += sum(len(msgspec.json.encode(tool)) for tool in prompt.tools)
        asked = -(-characters // CHARACTERS_A_TOKEN)
        cost = self._cost(RequestUsage(input_tokens=asked, output_tokens=self._output))
        return Spend(tokens=asked + self._output, cost=cost or 0)

    def _cost(self, usage: RequestUsage) -> int | None:
        return _cost(
            ModelResponse(
                parts=[],
                usage=usage,
                model_name=self._name,
                provider_name=self._provider,
                provider_url=self._url,
            )
        )


def _cost(response: ModelResponse) -> int | None:
    if not response.model_name:
        return None
    try:
        price = response.cost().total_price
    except Exception:  # noqa: BLE001 - a reply that is paid for is not lost over its price
        return None
    return int((price * 1_000_000).to_integral_value(ROUND_CEILING))


def _url(provided: Provided) -> str | None:
    try:
        return provided.base_url
    except (AttributeError, UserError):  # some providers are not at a URL, or not yet
        return None


def _characters(turn: Turn) -> int:
    said = len(turn.text) + len(turn.thinking)
    return said + sum(len(msgspec.json.encode(made)) for made in turn.uses)
