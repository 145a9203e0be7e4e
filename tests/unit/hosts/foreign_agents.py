"""Agents of other frameworks for the host suite, as their documentation writes them.

Each function imports its framework itself: a process of a test needs only one of them.
"""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from google.adk.models import BaseLlm
    from langchain_core.language_models import BaseChatModel
    from strands.models.model import Model


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


def make_openai_agent(url: str, charge: Callable[[int], Awaitable[str]]) -> object:
    """Return an agent of the OpenAI Agents SDK that uses the responses protocol."""
    from agents import Agent, OpenAIResponsesModel, function_tool  # noqa: PLC0415 - see above
    from openai import AsyncOpenAI  # noqa: PLC0415

    client = AsyncOpenAI(base_url=f"{url}/v1", api_key="none")
    return Agent(
        name="biller",
        instructions="Charge the customers.",
        model=OpenAIResponsesModel("gpt-5.2", client),
        tools=[function_tool(charge)],
    )


def make_openai_chat_agent(url: str, charge: Callable[[int], Awaitable[str]]) -> object:
    """Return an agent of the OpenAI Agents SDK that uses the chat protocol."""
    from agents import Agent, OpenAIChatCompletionsModel, function_tool  # noqa: PLC0415 - see above
    from openai import AsyncOpenAI  # noqa: PLC0415

    client = AsyncOpenAI(base_url=f"{url}/v1", api_key="none")
    return Agent(
        name="biller",
        instructions="Charge the customers.",
        model=OpenAIChatCompletionsModel("gpt-5.2", client),
        tools=[function_tool(charge)],
    )


def make_strands_agent(url: str, charge: Callable[[int], Awaitable[str]]) -> object:
    """Return an agent of Strands that uses the chat protocol of OpenAI."""
    from strands import Agent, tool  # noqa: PLC0415 - see above

    model = make_strands_model(url)
    return Agent(model, tools=[tool(charge)], system_prompt="Charge the customers.")


def make_strands_model(url: str) -> "Model":
    """Return a model of Strands that uses the chat protocol of OpenAI."""
    from strands.models.openai import OpenAIModel  # noqa: PLC0415 - see above

    options = {"base_url": f"{url}/v1", "api_key": "none", "max_retries": 0}
    return OpenAIModel(client_args=options, model_id="gpt-5.2")


def make_adk_agent(url: str, charge: Callable[[int], Awaitable[str]]) -> object:
    """Return an agent of Google ADK that uses the protocol of Gemini."""
    from google.adk.agents import LlmAgent  # noqa: PLC0415 - see above

    model = make_gemini_model(url)
    return LlmAgent(
        name="biller", model=model, instruction="Charge the customers.", tools=[charge]
    )


def make_gemini_model(url: str) -> "BaseLlm":
    """Return a model of Google ADK that uses the protocol of Gemini."""
    from google.adk.models import Gemini  # noqa: PLC0415 - see above

    return Gemini(model="gemini-3.5-flash", base_url=url, client_kwargs={"api_key": "none"})


def make_chat_model(url: str) -> "BaseChatModel":
    """Return a model of LangChain that uses the chat protocol of OpenAI."""
    from langchain_openai import ChatOpenAI  # noqa: PLC0415 - see above
    from pydantic import SecretStr  # noqa: PLC0415

    return ChatOpenAI(
        model="gpt-5.2", base_url=f"{url}/v1", api_key=SecretStr("none"), max_retries=0
    )


def make_graph(url: str, charge: Callable[[int], Awaitable[str]]) -> object:
    """Return a graph of LangGraph with a model node and a node of tools."""
    from langchain_core.tools import tool  # noqa: PLC0415 - see above
    from langgraph.graph import START, MessagesState, StateGraph  # noqa: PLC0415
    from langgraph.prebuilt import ToolNode, tools_condition  # noqa: PLC0415

    charge_tool = tool(charge)
    model = make_chat_model(url).bind_tools([charge_tool])

    async def think(state: MessagesState) -> dict[str, object]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    graph = StateGraph(MessagesState)
    graph.add_node("think", think)
    graph.add_node("tools", ToolNode([charge_tool]))
    graph.add_edge(START, "think")
    graph.add_conditional_edges("think", tools_condition)
    graph.add_edge("tools", "think")
    return graph.compile()
