"""The spend of a reply: the tokens that its provider counted, and their price.

Models of Midrun have their prices from pydantic-ai. This module is for hosted agents, whose
frameworks report tokens and the name of a model, each in its own form. The prices are those of
the package genai-prices. If it is not installed, or does not know the model, the tokens are
counted as unpriced, and people see *cost unknown* instead of a cost that is too low.
"""

from decimal import ROUND_CEILING
from functools import cached_property
from typing import Final, Protocol, Required, TypedDict

import msgspec

from midrun.core.transcript import CHARS_PER_TOKEN
from midrun.core.values import NO_SPEND, Spend
from midrun.ports.model import Prompt

MICROS_PER_DOLLAR: Final = 1_000_000

OUTPUT_MAX_TOKENS: Final = 4096
"""The assumed size of a reply in tokens, if the settings of the model have no `max_tokens`."""


class BedrockUsage(TypedDict, total=False):
    """The usage of a reply, as the Converse API of Bedrock has it, and Strands."""

    inputTokens: Required[int]
    outputTokens: Required[int]
    totalTokens: Required[int]
    cacheReadInputTokens: int
    cacheWriteInputTokens: int


class GeminiUsage(Protocol):
    """The usage of a reply, as `GenerateContentResponse.usage_metadata` has it."""

    prompt_token_count: int | None
    total_token_count: int | None
    cached_content_token_count: int | None
    thoughts_token_count: int | None


def make_spend(
    model: str,
    *,
    input_tokens: int,
    output_tokens: int,
    cached_tokens: int = 0,
    cache_write_tokens: int = 0,
    thinking_tokens: int = 0,
) -> Spend | None:
    """Return the spend of one reply; None if the provider reported no tokens.

    `input_tokens` includes tokens that were read from the provider's cache or written to it,
    and `output_tokens` includes thinking. Count them so if the provider counts them apart.
    """
    tokens = input_tokens + output_tokens
    if not tokens:
        return None
    cost = _compute_cost(
        model,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        cache_read_tokens=min(cached_tokens, input_tokens),
        cache_write_tokens=cache_write_tokens,
    )
    return Spend(
        tokens=tokens,
        cost=cost or 0,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        cached_tokens=cached_tokens,
        thinking_tokens=thinking_tokens,
        unpriced_tokens=tokens if cost is None else 0,
    )


class NamedModelPrices:
    """The prices of a model of which only the name is known, for caps on the cost.

    It is a base class of models; the price is looked up when it is needed.
    """

    priced_name: str = ""

    @property
    def priced(self) -> bool:
        """Whether the cost of a call is known."""
        return self._has_price

    @cached_property
    def _has_price(self) -> bool:
        return bool(self.priced_name) and self._estimate_cost(1, 1) is not None

    def reserve(self, prompt: Prompt) -> Spend:
        """Estimate the most that a reply to `prompt` may cost; nothing without a price."""
        if not self.priced:
            return NO_SPEND
        characters = len(prompt.instructions) + sum(
            len(turn.text) + len(turn.thinking) + len(msgspec.json.encode(turn.uses))
            for turn in prompt.transcript
        )
        input_tokens = -(-characters // CHARS_PER_TOKEN)  # divided and rounded up
        output_tokens = prompt.settings.max_tokens or OUTPUT_MAX_TOKENS
        cost = self._estimate_cost(input_tokens, output_tokens)
        return Spend(tokens=input_tokens + output_tokens, cost=cost or 0)

    def _estimate_cost(self, input_tokens: int, output_tokens: int) -> int | None:
        counts = {"input_tokens": input_tokens, "output_tokens": output_tokens}
        return _compute_cost(self.priced_name, **counts)


def make_gemini_spend(model: str, usage: GeminiUsage) -> Spend | None:
    """Return the spend of a reply whose usage is in the format of Gemini."""
    input_tokens = usage.prompt_token_count or 0
    return make_spend(
        model,
        input_tokens=input_tokens,
        # The count of the candidates does not include thinking, but the total does.
        output_tokens=max((usage.total_token_count or 0) - input_tokens, 0),
        cached_tokens=usage.cached_content_token_count or 0,
        thinking_tokens=usage.thoughts_token_count or 0,
    )


def make_bedrock_spend(model: str, usage: BedrockUsage) -> Spend | None:
    """Return the spend of a reply whose usage is in the format of Bedrock."""
    output_tokens = usage["outputTokens"]
    return make_spend(
        model,
        # The count of the input does not include cached tokens, but the total does.
        input_tokens=max(usage["inputTokens"], usage["totalTokens"] - output_tokens),
        output_tokens=output_tokens,
        cached_tokens=usage.get("cacheReadInputTokens", 0),
        cache_write_tokens=usage.get("cacheWriteInputTokens", 0),
    )


def _compute_cost(model: str, **counts: int) -> int | None:
    """Return the cost in millionths of a dollar, rounded up; None if it is not known."""
    try:
        from genai_prices import Usage, calc_price  # noqa: PLC0415 - an optional package
    except ImportError:
        return None
    usage = Usage(**counts)
    # The list has models by their own names (`gpt-5`, not `openai/gpt-5` as routers say), and
    # ids of Bedrock (`us.amazon.nova-pro-v1:0`) under their provider only.
    short = model.rpartition("/")[2]
    for name, provider in ((model, None), (short, None), (short, "aws")):
        try:
            price = calc_price(usage, name, provider_id=provider).total_price
        except Exception:  # noqa: BLE001, S112 - a problem with the price must not lose the reply
            continue
        return int((price * MICROS_PER_DOLLAR).to_integral_value(ROUND_CEILING))
    return None
