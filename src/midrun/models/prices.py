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

PydanticModel: TypeAlias = Model[Any]  # type: ignore[explicit-any]  # with any SDK's client
"""A model of pydantic-ai."""

CHARS_PER_TOKEN: Final = 4
OUTPUT_MAX_TOKENS: Final = 4096
"""The assumed size of a reply in tokens, if the settings of the model have no `max_tokens`."""


class Prices:
    """The prices of one model. `known` is False if the list does not have it."""

    def __init__(self, model: PydanticModel) -> None:
        self._name = model.model_name
        self._provider = model.system
        self._url = _find_url(model)
        self._output_tokens = (model.settings or {}).get("max_tokens", OUTPUT_MAX_TOKENS)
        self.are_known = (
            self._compute_usage_cost(RequestUsage(input_tokens=1, output_tokens=1)) is not None
        )

    def compute_spend(self, response: ModelResponse) -> Spend | None:
        """Return the usage that the provider reports for a reply; None if it reports none."""
        usage = response.usage
        if usage.unmeasured_requests or not usage.has_values():
            return None
        cost = _compute_cost(response)
        if cost is None:
            # The response names the model with a date (`…-2026-01-15`), which the price list
            # may not have. Use the name by which the model was requested.
            cost = self._compute_usage_cost(usage)
        return Spend(tokens=usage.input_tokens + usage.output_tokens, cost=cost or 0)

    def estimate_spend(self, prompt: Prompt) -> Spend:
        """Estimate the most that a reply to `prompt` may use: the prompt and a full reply."""
        characters = len(prompt.instructions)
        characters += sum(_count_characters(turn) for turn in prompt.transcript)
        characters += sum(len(msgspec.json.encode(tool)) for tool in prompt.tools)
        input_tokens = -(-characters // CHARS_PER_TOKEN)  # divided and rounded up
        usage = RequestUsage(input_tokens=input_tokens, output_tokens=self._output_tokens)
        return Spend(
            tokens=input_tokens + self._output_tokens, cost=self._compute_usage_cost(usage) or 0
        )

    def _compute_usage_cost(self, usage: RequestUsage) -> int | None:
        return _compute_cost(
            ModelResponse(
                parts=[],
                usage=usage,
                model_name=self._name,
                provider_name=self._provider,
                provider_url=self._url,
            )
        )


def _compute_cost(response: ModelResponse) -> int | None:
    if not response.model_name:
        return None
    try:
        price = response.cost().total_price
    except Exception:  # noqa: BLE001 - a problem with the price must not lose the reply
        return None
    return int((price * 1_000_000).to_integral_value(ROUND_CEILING))


def _find_url(model: PydanticModel) -> str | None:
    try:
        return model.base_url
    except (AttributeError, UserError):  # some providers have no URL, or none before a request
        return None


def _count_characters(turn: Turn) -> int:
    characters = len(turn.text) + len(turn.thinking)
    return characters + sum(len(msgspec.json.encode(made)) for made in turn.uses)
