"""The weather agent of the quick start of Google ADK, paused and approved by Midrun.

python examples/hosts/adk_agent.py

The agent is as its documentation writes it, apart from the model: it is scripted, so that no
key is needed. Midrun's part is below.
"""

from collections.abc import AsyncGenerator

import anyio
from google.adk.agents import LlmAgent
from google.adk.models import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.genai import types

from midrun import Completed, Midrun, host, traits
from midrun.stops import MaxSteps

# ── the agent, as it was ─────────────────────────────────────────────────────────────────────


async def get_weather(city: str) -> dict[str, str]:
    """Retrieve the current weather report for a specified city.

    Args:
        city: The name of the city for which to retrieve the weather report.
    """
    return {"status": "success", "report": f"The weather in {city} is sunny."}


class PlayedModel(BaseLlm):  # type: ignore[explicit-any]  # of its base
    """Asks for the weather of the city that was named last, then repeats it."""

    async def generate_content_async(
        self,
        llm_request: LlmRequest,
        stream: bool = False,  # noqa: FBT001, FBT002 - of its base
    ) -> AsyncGenerator[LlmResponse]:
        """Give a call, or the answer."""
        del stream
        parts = [part for content in llm_request.contents for part in content.parts or []]
        city = [part.text for part in parts if part.text][-1].split()[-1]
        reports = [
            str((part.function_response.response or {}).get("report"))
            for part in parts
            if part.function_response
        ]
        known = [report for report in reports if city in report]
        call = types.FunctionCall(name="get_weather", args={"city": city})
        part = types.Part(text=known[-1]) if known else types.Part(function_call=call)
        yield LlmResponse(content=types.Content(role="model", parts=[part]))


root_agent = LlmAgent(
    name="weather_time_agent",
    model=PlayedModel(model="played"),
    description="Agent to answer questions about the time and weather in a city.",
    instruction="You are a helpful agent who can answer questions about the weather in a city.",
    tools=[get_weather],
)

# ── Midrun ───────────────────────────────────────────────────────────────────────────────────

weather = host(
    root_agent,
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
