"""Press stop while a tool pays, with and without Midrun, and print what happened.

    .venv/bin/python -m bench.peers.programs.stops

Each framework has one agent with one blocking tool, which notes that it began, waits a moment,
and notes that it has paid. The program stops the agent while the tool waits, in the way that
the framework offers, watches the notes, and resumes. Then it does the same with the same agent
under `midrun.host`. The model asks for the payment until it sees a result of it.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event
from typing import Final

import anyio
from agents import Agent as OpenAIAgent
from agents import Runner, SQLiteSession, function_tool, set_tracing_disabled
from agents.testing import ModelStep, ScriptedModel, assistant_message, function_call
from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langgraph.checkpoint.memory import InMemorySaver
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai import CancellationToken
from pydantic_ai.exceptions import RunCancelled
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import DeltaToolCall, FunctionModel

from bench.figures import format_table
from midrun import Midrun, host

TOOL_WAITS_S: Final = 1.0
WATCHED_S: Final = 3.0
TASK: Final = "Pay the invoice"


# ── the tool and its notes ───────────────────────────────────────────────────


def pay(notes: str) -> str:
    """Pay an invoice: note the beginning, wait for the bank, note the payment."""
    with Path(notes).open("a") as file:
        file.write("began\n")
    Event().wait(TOOL_WAITS_S)
    with Path(notes).open("a") as file:
        file.write("paid\n")
    return "paid"


def count_notes(notes: str, word: str) -> int:
    """Return how often the tool has noted `word`."""
    return Path(notes).read_text().split().count(word) if Path(notes).exists() else 0


async def wait_for_notes(notes: str, word: str, within_s: float) -> int:
    """Wait until the tool has noted `word`; return the number of such notes."""
    with anyio.move_on_after(within_s):
        while not count_notes(notes, word):  # noqa: ASYNC110 - notes of another process
            await anyio.sleep(0.01)
    return count_notes(notes, word)


# ── the agents ───────────────────────────────────────────────────────────────


class PayingChatModel(BaseChatModel):
    """A model of LangChain that asks for the payment until it sees a result."""

    notes: str

    @property
    def _llm_type(self) -> str:
        return "paying"

    def bind_tools(self, *_: object, **__: object) -> "PayingChatModel":
        """Return the model; it knows the tool."""
        return self

    def _generate(self, messages: list, *_: object, **__: object) -> ChatResult:
        call = {"name": "pay", "args": {"notes": self.notes}, "id": "c1", "type": "tool_call"}
        has_result = any(isinstance(message, ToolMessage) for message in messages)
        reply = AIMessage("Done.") if has_result else AIMessage("", tool_calls=[call])
        return ChatResult(generations=[ChatGeneration(message=reply)])


def make_langchain_agent(notes: str, saver: InMemorySaver | None = None) -> object:
    """Return an agent of LangChain, which is a graph of LangGraph."""
    return create_agent(PayingChatModel(notes=notes), [pay], checkpointer=saver)


def make_openai_agent(notes: str) -> OpenAIAgent:
    """Return an agent of the OpenAI Agents SDK."""

    def respond(call: object) -> list:
        has_result = "function_call_output" in str(call.input)
        asked = function_call("pay", {"notes": notes}, call_id="c1")
        return ModelStep([assistant_message("Done.") if has_result else asked])

    model = ScriptedModel([ModelStep.respond(respond) for _ in range(9)])
    return OpenAIAgent(name="payer", model=model, tools=[function_tool(pay)])


def make_pydantic_agent(notes: str) -> PydanticAgent:
    """Return an agent of Pydantic AI."""

    def has_result(messages: list) -> bool:
        parts = (part for message in messages for part in message.parts)
        return any(isinstance(part, ToolReturnPart) for part in parts)

    def reply(messages: list, _: object) -> ModelResponse:
        call = ToolCallPart("pay", {"notes": notes})
        return ModelResponse([TextPart("Done.") if has_result(messages) else call])

    async def stream(messages: list, _: object) -> object:
        yield (
            "Done."
            if has_result(messages)
            else {0: DeltaToolCall(name="pay", json_args=f'{{"notes": "{notes}"}}')}
        )

    return PydanticAgent(FunctionModel(reply, stream_function=stream), tools=[pay])


# ── without Midrun ───────────────────────────────────────────────────────────


async def stop_langgraph(notes: str) -> Callable[[], Awaitable[object]]:
    """Cancel the task, as LangGraph documents; return a resume from the checkpoint."""
    agent = make_langchain_agent(notes, InMemorySaver())
    config = {"configurable": {"thread_id": "1"}}
    task = asyncio.ensure_future(  # noqa: TID251 - what users of the framework do
        agent.ainvoke({"messages": [("user", TASK)]}, config)
    )
    await wait_for_notes(notes, "began", WATCHED_S)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    return lambda: agent.ainvoke(None, config)


async def stop_openai(notes: str) -> Callable[[], Awaitable[object]]:
    """Cancel the streamed run at once; return a new run with the same session."""
    agent, session = make_openai_agent(notes), SQLiteSession("1")
    result = Runner.run_streamed(agent, TASK, session=session)
    async with anyio.create_task_group() as group:

        async def read() -> None:
            async for _ in result.stream_events():
                pass

        group.start_soon(read)
        await wait_for_notes(notes, "began", WATCHED_S)
        result.cancel()
    return lambda: Runner.run(agent, "Go on", session=session)


async def stop_pydantic(notes: str) -> Callable[[], Awaitable[object]]:
    """Cancel with a token; return a new run with the history of the cancelled one."""
    agent, token, history = make_pydantic_agent(notes), CancellationToken(), []
    async with anyio.create_task_group() as group:

        async def run() -> None:
            try:
                await agent.run(TASK, cancellation_token=token)
            except RunCancelled as cancelled:
                history.extend(cancelled.all_messages())

        group.start_soon(run)
        await wait_for_notes(notes, "began", WATCHED_S)
        token.cancel()
    return lambda: agent.run("Go on", message_history=history)


# ── with Midrun ──────────────────────────────────────────────────────────────


async def stop_hosted(
    make_agent: Callable[[str], object], notes: str
) -> Callable[[], Awaitable[object]]:
    """Pause now; return a resume by another `Midrun` on the same file."""
    url = f"sqlite:///{notes}.db"
    async with Midrun(url, agents=[host(make_agent(notes), name="payer")]) as midrun:
        run = await midrun.start("payer", TASK)
        await wait_for_notes(notes, "began", WATCHED_S)
        await run.pause(now=True)
        await run.until("paused")

    async def resume() -> None:
        async with Midrun(url, agents=[host(make_agent(notes), name="payer")]) as midrun:
            again = await midrun.get(run.id)
            await again.resume()
            await again.until("completed")

    return resume


# ── the table ────────────────────────────────────────────────────────────────

Stop = Callable[[str], Awaitable[Callable[[], Awaitable[object]]]]

SUBJECTS: Final[dict[str, tuple[Stop, str]]] = {
    "LangGraph": (stop_langgraph, "langgraph"),
    "LangGraph + Midrun": (partial(stop_hosted, make_langchain_agent), "langgraph"),
    "OpenAI Agents": (stop_openai, "openai-agents"),
    "OpenAI Agents + Midrun": (partial(stop_hosted, make_openai_agent), "openai-agents"),
    "Pydantic AI": (stop_pydantic, "pydantic-ai-slim"),
    "Pydantic AI + Midrun": (partial(stop_hosted, make_pydantic_agent), "pydantic-ai-slim"),
}
HEADINGS: Final = ("", "version", "paid after the stop", "tool started again by the resume")


async def measure(name: str) -> tuple[str, ...]:
    """Stop and resume one subject, and return its row."""
    stop, package = SUBJECTS[name]
    with TemporaryDirectory() as folder:
        notes = f"{folder}/notes"
        resume = await stop(notes)
        paid = await wait_for_notes(notes, "paid", WATCHED_S)
        began = count_notes(notes, "began")
        await resume()
        again = count_notes(notes, "began") - began
    return name, version(package), "yes" if paid else "no", "yes" if again else "no"


async def main() -> None:
    """Print one row for each framework, alone and with Midrun."""
    set_tracing_disabled(True)
    rows = [HEADINGS, *[await measure(name) for name in SUBJECTS]]
    print(format_table(rows, markdown=True))
    print(f"\n{datetime.now(UTC):%d %B %Y}")  # noqa: TID251 - the date of the table


if __name__ == "__main__":
    anyio.run(main)
