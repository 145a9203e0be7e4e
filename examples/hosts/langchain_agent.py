"""The weather agent of LangChain's quick start, paused, redirected and approved by Midrun.

python examples/hosts/langchain_agent.py

The agent is as its documentation writes it, apart from the model: it is scripted, so that no
key is needed. Midrun's part is below.
"""

import anyio
from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult

from midrun import Completed, Midrun, host, traits
from midrun.stops import MaxSteps

# ── the agent, as it was ─────────────────────────────────────────────────────────────────────


async def get_weather(city: str) -> str:
    """Get weather for a given city."""
    return f"It's always sunny in {city}!"


class PlayedModel(BaseChatModel):  # type: ignore[explicit-any]  # of its base
    """Asks for the weather of the city that was named last, then repeats it."""

    @property
    def _llm_type(self) -> str:
        return "played"

    def bind_tools(self, tools: object, **options: object) -> "PlayedModel":
        """Accept all tools."""
        del tools, options
        return self

    def _generate(
        self, messages: list[BaseMessage], *args: object, **options: object
    ) -> ChatResult:
        del args, options
        city = [m.text for m in messages if isinstance(m, HumanMessage)][-1].split()[-1]
        results = [
            str(m.text) for m in messages if isinstance(m, ToolMessage) and city in m.text
        ]
        call = {"name": "get_weather", "args": {"city": city}, "id": city, "type": "tool_call"}
        reply = AIMessage(results[-1]) if results else AIMessage("", tool_calls=[call])
        return ChatResult(generations=[ChatGeneration(message=reply)])


agent = create_agent(
    model=PlayedModel(),
    tools=[get_weather],
    system_prompt="You are a helpful assistant",
)

# ── Midrun ───────────────────────────────────────────────────────────────────────────────────

weather = host(
    agent,
    name="weather",
    tools={"get_weather": traits(read_only=True, approve=True)},
    stop=MaxSteps(1),
)


async def main() -> None:
    """Approve a call, redirect the agent at its cap, and let it finish."""
    async with Midrun("memory://", agents=[weather]) as midrun:
        run = await midrun.start(weather, "What is the weather in Paris")
        print("waiting:", (await run.until("waiting")).asks[0].args)
        await run.approve(actor="olga")
        print("paused:", (await run.until("paused")).reason)
        await run.resume("Better take Rome", caps={"steps": 9}, actor="olga")
        print("waiting:", (await run.until("waiting")).asks[0].args)
        await run.approve(actor="olga")
        outcome = await run.result()
        assert isinstance(outcome, Completed)
        print("completed:", outcome.output)


if __name__ == "__main__":
    anyio.run(main)
