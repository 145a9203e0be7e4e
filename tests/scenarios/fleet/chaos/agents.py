"""The agents of the chaos run: Midrun's own, a hosted function, one of another framework.

Each agent computes its next reply from the transcript alone, so it goes on in any process.
"""

import json
from collections.abc import AsyncIterator, Sequence
from functools import partial
from secrets import token_hex
from typing import TYPE_CHECKING, Final, cast

import anyio

from midrun import Agent, Tool, ask_human, host, traits
from midrun.core.transcript import Transcript, Turn
from midrun.core.values import Json
from midrun.errors import StepNotDone
from midrun.hosts import FunctionRun, function
from midrun.models import ScriptedModel, Use
from midrun.models.scripted import Line
from tests.scenarios.fleet.chaos import tools as t
from tests.scenarios.fleet.chaos.plan import HELPER_STEPS, TASK_START

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage
    from pydantic_ai.models.function import AgentInfo, DeltaToolCalls


# ── scripts ──────────────────────────────────────────────────────────────────


def find_steps(turns: Sequence[Turn]) -> tuple[list[str], int]:
    """Return the steps of the newest task, and how many replies were made since."""
    for back, turn in enumerate(reversed(turns)):
        if turn.role == "user" and turn.text.startswith(TASK_START):
            steps = turn.text.removeprefix(TASK_START).splitlines()[0].split()[1:]
            replies = [t for t in turns[len(turns) - back :] if t.role == "assistant"]
            return steps, len(replies)
    return [], 0


def play_script(folder: str, transcript: Transcript) -> Line:
    """Return the next reply of `clerk` or `helper`."""
    turns = list(transcript)
    steps, done = find_steps(turns)
    if done >= len(steps):
        return f"Done with {len(steps)} steps."
    line: list[str | Use] = [f"Step {done}, word by word. "]
    for step in steps[done].split("+"):
        if step == "helper":
            line.append(Use("helper", task=f"{TASK_START}child {' '.join(HELPER_STEPS)}"))
        elif step == "ask_human":
            line.append(Use("ask_human", question=f"May step {done} go on?"))
        else:
            line.append(Use(step, folder=folder))
    return line


def make_clerk(folder: str, *, version: int) -> Agent:
    """Return the agent with all kinds of tools; version 2 has other instructions and a tool."""
    model = ScriptedModel(partial(play_script, folder), chunk_delay=0.002)
    tools: list[Tool] = [
        *(t.look, t.pay, t.spend, t.order, t.draft, t.press, t.lock, t.publish)
    ]
    tools += [t.attach, t.crawl, t.stumble]
    newer = [t.rest] if version > 1 else []
    helper = Agent("helper", model=model, tools=[t.pay, t.draft, t.order, t.publish, *newer])
    return Agent(
        "clerk",
        model=model,
        instructions=f"You are version {version}.",
        tools=[*tools, *newer, ask_human, helper.as_tool()],
    )


# ── a hosted function ────────────────────────────────────────────────────────


async def ask_model(messages: list[dict[str, Json]]) -> AsyncIterator[object]:
    """Stream a reply; the script of `biller` decides on its own what comes next."""
    for word in ("One ", "word ", "after ", "the ", "other."):
        await anyio.sleep(0.002)
        yield word
    yield {"role": "assistant", "content": f"after {len(messages)}"}


STEP_FUNCTIONS: Final = {
    "pay": t.pay_ticket,
    "draft": t.draft_ticket,
    "press": t.press_ticket,
}


def make_biller(folder: str) -> Agent:
    """Return the hosted function."""
    undoable = {step: traits(undo=t.undo_ticket) for step in ("draft", "press")}

    @function(name="biller", tools=undoable)
    async def biller(run: FunctionRun, task: str) -> str:
        messages: list[dict[str, Json]] = [{"role": "user", "content": task}]
        for number, step in enumerate(task.removeprefix(TASK_START).split()[1:]):
            messages.append(cast("dict[str, Json]", await run.model(ask_model, messages)))
            try:
                if step == "ask":
                    result = await run.ask(f"May step {number} go on?")
                else:
                    ticket = f"{run.id}/{number}"
                    result = await run.step(step, STEP_FUNCTIONS[step], folder, ticket)
            except StepNotDone as problem:
                result = str(problem)
            messages.append({"role": "tool", "content": result})
        return f"Done with {len(messages)} messages."

    return biller


# ── a hosted agent of Pydantic AI ────────────────────────────────────────────


def make_guest(folder: str) -> Agent:
    """Return an agent of Pydantic AI, made one of Midrun's."""
    # The package takes seconds to import, and only some plans need it.
    from pydantic_ai import Agent as PydanticAgent  # noqa: PLC0415
    from pydantic_ai.messages import ModelResponse, UserPromptPart  # noqa: PLC0415
    from pydantic_ai.models.function import DeltaToolCall, FunctionModel  # noqa: PLC0415

    async def stream(
        messages: "list[ModelMessage]", info: "AgentInfo"
    ) -> "AsyncIterator[str | DeltaToolCalls]":
        del info
        parts = [part for message in messages for part in message.parts]
        texts = [str(part.content) for part in parts if isinstance(part, UserPromptPart)]
        task = next(text for text in texts if text.startswith(TASK_START))
        word, *steps = task.removeprefix(TASK_START).split()
        done = sum(isinstance(message, ModelResponse) for message in messages)
        if done >= len(steps):
            yield "Done."
            return
        # The reply is journaled before the call is made, so the ticket may be random.
        args = json.dumps({"folder": folder, "ticket": f"{word}/{token_hex(8)}"})
        yield {0: DeltaToolCall(name=steps[done], json_args=args)}

    agent = PydanticAgent(FunctionModel(stream_function=stream))
    agent.tool_plain(name="pay")(t.pay_ticket)
    agent.tool_plain(name="draft")(t.draft_ticket)
    return host(agent, name="guest", tools={"draft": traits(undo=t.undo_ticket)})


def make_agents(folder: str, *, version: int = 1, has_guest: bool = False) -> list[Agent]:
    """Return all agents of a worker of this version."""
    agents = [make_clerk(folder, version=version), make_biller(folder)]
    return [*agents, make_guest(folder)] if has_guest else agents
