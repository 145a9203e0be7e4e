"""Agents of other frameworks for the host suite, as their documentation writes them."""

from collections.abc import Awaitable, Callable

from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider


def make_pydantic_ai_agent(url: str, charge: Callable[[int], Awaitable[str]]) -> object:
    """Return an agent of Pydantic AI that uses the chat protocol of OpenAI."""
    provider = OpenAIProvider(base_url=f"{url}/v1", api_key="none")
    model = OpenAIChatModel("gpt-5.2", provider=provider)
    return Agent(model, instructions="Charge the customers.", tools=[charge])
