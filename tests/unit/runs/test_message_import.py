"""Histories of other libraries: each format becomes the same conversation."""

import asyncio

import pytest
from pydantic_ai.messages import (
    ImageUrl,
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    SystemPromptPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)

from midrun import Agent, Completed, Midrun, Misconfigured
from midrun.core.entries import RunStarted
from midrun.core.transcript import Transcript
from midrun.models import ScriptedModel
from midrun.runs.message_import import import_history
from tests.support.run_journal import read_entries

OPENAI_CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "Find cats."}]},
    {
        "role": "assistant",
        "content": "I look.",
        "tool_calls": [
            {
                "id": "c1",
                "type": "function",
                "function": {"name": "find", "arguments": '{"q": 1}'},
            }
        ],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "two"},
    {"role": "assistant", "content": "Two cats."},
]
OPENAI_RESPONSES = [
    {"role": "developer", "content": "Be brief."},
    {"role": "user", "content": "Find cats."},
    {"type": "reasoning", "summary": []},
    {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "I look."}],
    },
    {"type": "function_call", "call_id": "c1", "name": "find", "arguments": '{"q": 1}'},
    {"type": "function_call_output", "call_id": "c1", "output": "two"},
    {"role": "assistant", "content": "Two cats."},
]
ANTHROPIC = [
    {"role": "user", "content": "Find cats."},
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "Hm.", "signature": "s"},
            {"type": "text", "text": "I look."},
            {"type": "tool_use", "id": "c1", "name": "find", "input": {"q": 1}},
        ],
    },
    {
        "role": "user",
        "content": [
            {
                "type": "tool_result",
                "tool_use_id": "c1",
                "content": [{"type": "text", "text": "two"}],
            }
        ],
    },
    {"role": "assistant", "content": "Two cats."},
]
PYDANTIC_AI: list[ModelMessage] = [
    ModelRequest(parts=[SystemPromptPart("Be brief."), UserPromptPart("Find cats.")]),
    ModelResponse(
        parts=[
            ThinkingPart("Hm."),
            TextPart("I look."),
            ToolCallPart("find", {"q": 1}, tool_call_id="c1"),
        ]
    ),
    ModelRequest(parts=[ToolReturnPart("find", "two", tool_call_id="c1")]),
    ModelResponse(parts=[TextPart("Two cats.")]),
]
FORMATS = {
    "openai chat": OPENAI_CHAT,
    "openai responses": OPENAI_RESPONSES,
    "anthropic": ANTHROPIC,
    "pydantic-ai": PYDANTIC_AI,
    "pydantic-ai as JSON": ModelMessagesTypeAdapter.dump_python(PYDANTIC_AI, mode="json"),
}


@pytest.mark.parametrize("messages", FORMATS.values(), ids=FORMATS)
def test_each_format_becomes_the_same_conversation(messages: list[object]) -> None:
    user, asked, answer = import_history(messages)
    assert (user.role, user.text) == ("user", "Find cats.")
    assert (asked.role, asked.text) == ("assistant", "I look.")
    (call,) = asked.made
    assert (call.tool, call.args, call.result, call.problem) == ("find", {"q": 1}, "two", "")
    assert (answer.role, answer.text) == ("assistant", "Two cats.")


@pytest.mark.parametrize(
    ("messages", "advice"),
    [
        ("hello", "history must be a list of messages"),
        ([{"text": "hello"}], r"history\[0\]: Cannot import it: it is no message"),
        ([{"role": "tool", "tool_call_id": "x", "content": ""}], "that it did not make"),
        ([{"role": "user", "content": [{"type": "image"}]}], "of the type 'image'"),
        ([ModelRequest(parts=[UserPromptPart([ImageUrl("http://x")])])], "cannot be imported"),
    ],
)
def test_a_history_that_cannot_be_imported_is_refused(messages: object, advice: str) -> None:
    """A part that is left out in silence would change the conversation."""
    with pytest.raises(Misconfigured, match=advice):
        import_history(messages)


async def test_a_run_starts_with_an_imported_history() -> None:
    """The agent reads it before its task, and secrets in it are not journaled."""
    seen: list[str] = []

    def answer(messages: Transcript) -> str:
        seen.extend(turn.text for turn in messages)
        return "Done."

    agent = Agent("a", model=ScriptedModel(answer))
    key = "sk-proj-" + "a1B2" * 12
    history = [*OPENAI_CHAT, {"role": "user", "content": f"My key is {key}"}]
    async with Midrun("memory://", agents=[agent]) as midrun:
        run = await midrun.start(agent, "And dogs?", history=history)
        await run.until("completed")
        (started,) = await read_entries(run, RunStarted)
        with pytest.raises(Misconfigured, match="with a thread"):
            await midrun.start(agent, "go", history=history, thread="t")
    assert seen[:3] == ["Find cats.", "I look.", "Two cats."]
    assert seen[-1] == "And dogs?"
    assert key not in str(started)


# ── the other ways to run an agent in memory ─────────────────────────────────


def test_run_sync_runs_an_agent_from_code_that_is_not_async() -> None:
    agent = Agent("a", model=ScriptedModel(lambda messages: messages[0].text))
    outcome = agent.run_sync("go", history=[{"role": "user", "content": "before"}])
    assert isinstance(outcome, Completed)
    assert outcome.output == "before"


async def test_run_sync_runs_in_a_thread_of_an_async_program() -> None:
    """A thread of `asyncio.to_thread` has the context variables of the event loop."""
    agent = Agent("a", model=ScriptedModel(["Done."]))
    assert isinstance(await asyncio.to_thread(agent.run_sync, "go"), Completed)


async def test_run_sync_in_an_event_loop_says_what_to_write() -> None:
    with pytest.raises(Misconfigured, match=r"Write await agent.run\(…\)"):
        Agent("a", model=ScriptedModel(["Done."])).run_sync("go")
