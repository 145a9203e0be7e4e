"""The spend of a hosted agent's reply: counted in the format of its provider, with a price."""

import sys
from types import SimpleNamespace

import pytest
from langchain_core.messages import AIMessage

from midrun.core.values import Spend
from midrun.hosts.langchain_calls import make_message_spend
from midrun.models.prices import make_bedrock_spend, make_gemini_spend, make_spend


def test_a_reply_of_a_known_model_has_its_price() -> None:
    spend = make_spend("claude-sonnet-4-5", input_tokens=1_000_000, output_tokens=100_000)
    assert spend is not None
    assert spend.tokens == 1_100_000
    assert spend.cost > 1_000_000  # more than a dollar
    assert spend.unpriced_tokens == 0


def test_cached_tokens_cost_less() -> None:
    plain = make_spend("gpt-5", input_tokens=10_000, output_tokens=1)
    cached = make_spend("gpt-5", input_tokens=10_000, output_tokens=1, cached_tokens=9_000)
    assert plain is not None
    assert cached is not None
    assert 0 < cached.cost < plain.cost


@pytest.mark.parametrize("model", ["", "a-model-of-our-own"])
def test_tokens_without_a_price_are_unpriced(model: str) -> None:
    spend = make_spend(model, input_tokens=10, output_tokens=5)
    assert spend == Spend(tokens=15, input_tokens=10, output_tokens=5, unpriced_tokens=15)


def test_tokens_are_unpriced_without_the_price_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "genai_prices", None)  # as if it were not installed
    spend = make_spend("gpt-5", input_tokens=10, output_tokens=5)
    assert spend is not None
    assert (spend.cost, spend.unpriced_tokens) == (0, 15)


def test_a_reply_without_counts_has_no_spend() -> None:
    assert make_spend("gpt-5", input_tokens=0, output_tokens=0) is None


@pytest.mark.parametrize("model", ["openai/gpt-5", "us.amazon.nova-pro-v1:0"])
def test_names_of_routers_and_of_bedrock_are_found(model: str) -> None:
    spend = make_spend(model, input_tokens=1_000, output_tokens=5)
    assert spend is not None
    assert spend.cost > 0


def test_thinking_of_gemini_is_output() -> None:
    usage = SimpleNamespace(
        prompt_token_count=100,
        total_token_count=190,
        cached_content_token_count=40,
        thoughts_token_count=60,
    )
    spend = make_gemini_spend("gemini-2.5-flash", usage)
    assert spend is not None
    assert (spend.input_tokens, spend.output_tokens) == (100, 90)
    assert (spend.cached_tokens, spend.thinking_tokens) == (40, 60)


def test_cached_tokens_of_bedrock_are_input() -> None:
    spend = make_bedrock_spend(
        "gpt-5",
        {"inputTokens": 10, "outputTokens": 5, "totalTokens": 115, "cacheReadInputTokens": 100},
    )
    assert spend is not None
    assert (spend.input_tokens, spend.output_tokens, spend.cached_tokens) == (110, 5, 100)


def test_a_message_of_langchain_is_counted_with_its_model() -> None:
    reply = AIMessage(
        "Hi",
        response_metadata={"model_name": "gpt-5"},
        usage_metadata={
            "input_tokens": 100,
            "output_tokens": 20,
            "total_tokens": 120,
            "input_token_details": {"cache_read": 80},
            "output_token_details": {"reasoning": 15},
        },
    )
    spend = make_message_spend(reply)
    assert spend is not None
    assert (spend.tokens, spend.cached_tokens, spend.thinking_tokens) == (120, 80, 15)
    assert spend.cost > 0
    assert make_message_spend(AIMessage("Hi")) is None
