"""Agents of other frameworks for the host suite, as their documentation writes them.

Each function imports its framework itself: a process of a test needs only one of them.
"""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel


def make_pydantic_ai_agent(url: str, charge: Callable[[int], Awaitable[str]]) -> object:
    """Return an agent of Pydantic AI that uses the chat protocol of OpenAI."""
    from pydantic_ai import Agent  # noqa: PLC0415 - see above
    from pydantic_ai.models.openai import OpenAIChatModel  # noqa: PLC0415
    from pydantic_ai.providers.openai import OpenAIProvider  # noqa: PLC0415

    provider = OpenAIProvider(base_url=f"{url}/v1", api_key="none")
    model = OpenAIChatModel("gpt-5.2", provider=provider)
    return Agent(model, instructions="Charge the customers.", tools=[charge])


def make_langchain_agent(url: str, charge: Callable[[int], Awaitable[str]]) -> object:
    """Return an agent of LangChain that uses the chat protocol of OpenAI."""
    from langchain.agents import create_agent  # noqa: PLC0415 - see above

    return create_agent(make_chat_model(url), [charge], system_prompt="Charge the customers.")


def make_chat_model(url: str) -> "BaseChatModel":
    """Return a model of LangChain that uses the chat protocol of OpenAI."""
    from langchain_openai import ChatOpenAI  # noqa: PLC0415 - see above
    from pydantic import SecretStr  # noqa: PLC0415

    return ChatOpenAI(
        model="gpt-5.2", base_url=f"{url}/v1", api_key=SecretStr("none"), max_retries=0
    )
