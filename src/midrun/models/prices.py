"""The cost of a reply, and an upper estimate of the cost of the next one.

Prices come from the list in pydantic-ai. Amounts are in millionths of a dollar and are rounded
up, so that rounding can never let a run exceed its cost cap.
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
"""The assumed size of a reply in tokens, if the settings of the model have no `max_tokens`."""


class Prices:
    """The prices of one model. `known` is False if the list does not have it."""

    def __init__(self, provided: Provided) -> None:
        self._name = provided.model_name
        self._provider = provided.system
        self._url = _url(provided)
        self._output = (provided.settings or {}).get("max_tokens", OUTPUT_MAX)
        self.known = self._cost(RequestUsage(input_tokens=1, output_tokens=1)) is not None

    def spent(self, response: ModelResponse) -> Spend | None:
        """Return the usage that the provider reports for a reply; None if it reports none."""
        usage = response.usage
        if usage.unmeasured_requests or not usage.has_values():
            return None
        cost = _cost(response)
        if cost is None:
            # The response names the model with a date (`…-2026-01-15`), which the price list
            # may not have. Use the name by which the model was requested.
            cost = self._cost(usage)
        return Spend(tokens=usage.input_tokens + usage.output_tokens, cost=cost or 0)

    def reserve(self, prompt: Prompt) -> Spend:
        """Estimate the most that a reply to `prompt` may use: the prompt and a full reply."""
        characters = len(prompt.instructions)
        characters += sum(_characters(turn) for turn in prompt.transcript)
        characters += sum(len(msgspec.json.encode(tool)) for tool in prompt.tools)
        input_tokens = -(-characters // CHARACTERS_A_TOKEN)  # divided and rounded up
        usage = RequestUsage(input_tokens=input_tokens, output_tokens=self._output)
        return Spend(tokens=input_tokens + self._output, cost=self._cost(usage) or 0)

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
    except Exception:  # noqa: BLE001 - a problem with the price must not lose the reply
        return None
    return int((price * 1_000_000).to_integral_value(ROUND_CEILING))


def _url(provided: Provided) -> str | None:
    try:
        return provided.base_url
    except (AttributeError, UserError):  # some providers have no URL, or none before a request
        return None


def _characters(turn: Turn) -> int:
    characters = len(turn.text) + len(turn.thinking)
    return characters + sum(len(msgspec.json.encode(made)) for made in turn.uses)
