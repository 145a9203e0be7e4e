"""Scenarios for crash tests: children, reviews, side questions, caps, long histories.

Each scenario has an agent, a function that sends the controls, and a check of the end. The
tools are those of `tests.crash.recording_tools`: each call adds a line to a file that survives
its process. After a crash the same controls are sent again, with the same request ids.
"""

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple, Protocol

from midrun import Agent, Call, Completed, ControlRefused, Midrun, Paused, Run, ask_human, tool
from midrun.agents.outcome import AskView
from midrun.core.entries import (
    AskAnswered,
    CapRaised,
    CapReached,
    FrameAbandoned,
    FramePushed,
    FrameReconstructed,
    FrameResumed,
    HandedOff,
    HistoryCondensed,
    PersonWrote,
)
from midrun.core.ids import RunId, make_call_key
from midrun.core.transcript import CONDENSE_KEEP_MESSAGES, Transcript
from midrun.core.values import TERMINAL_PHASES, Reply
from midrun.core.values import RequestedCall as ToolUse
from midrun.models import ScriptedModel, Use
from midrun.models.scripted import Line
from midrun.ports.model import Finished, Piece, Prompt, Unpriced
from midrun.stops import MaxSteps
from tests.crash.recording_tools import (
    ToolAction,
    charge,
    hold,
    look,
    put,
    read_actions,
    record_action,
)
from tests.support.conditions import wait_until
from tests.support.run_journal import read_entries, read_turns

UNDO_OF = {"charge": "uncharge", "hold": "unhold"}
LONG_HISTORY_STEPS = 12


@tool(approve="queue")
async def post(call: Call, folder: str) -> str:
    """Act once, after a review."""
    record_action(folder, "post", call)
    return "posted"


# ── controls ──────────────────────────────────────────────────────────────────────────────


async def complete_run(midrun: Midrun, run: Run, folder: Path) -> None:
    """Settle every ask until the run has completed with "Done."."""
    while isinstance(outcome := await run.result(), Paused):
        await settle_asks(midrun, run, outcome.asks, folder)
    assert isinstance(outcome, Completed), str(outcome)
    assert outcome.output.endswith("Done."), outcome.output


async def settle_asks(
    midrun: Midrun, run: Run, asks: tuple[AskView, ...], folder: Path
) -> None:
    """Settle unsure calls by their line in the file, and approve or answer the rest."""
    for ask in asks:
        owner, own_ask = await find_asking_run(midrun, run, ask)
        try:
            if own_ask.kind == "approval":
                await run.approve(ask=ask.id)
            elif own_ask.kind == "unsure":
                key = make_call_key(RunId(owner.id), own_ask.call)
                happened = any(deed.key == key for deed in read_actions(folder))
                await run.answer("yes" if happened else "no", ask=ask.id)
            else:
                await run.answer("red", ask=ask.id)
        except ControlRefused as error:  # the ask was settled on the child meanwhile
            assert error.reason in {"ask_closed", "already_answered"}, str(error)  # noqa: PT017 - no other refusal is possible


async def find_asking_run(midrun: Midrun, run: Run, ask: AskView) -> tuple[Run, AskView]:
    """Return the run that opened the ask, and its own ask; a parent shows those of children."""
    if ask.kind != "child":
        return run, ask
    assert isinstance(ask.data, dict)
    child = await midrun.get(str(ask.data["run"]))
    for child_ask in (await child.view()).asks:
        if child_ask.id == ask.data["ask"]:
            return await find_asking_run(midrun, child, child_ask)
    return run, ask  # the child has got its answer


def count_effects(folder: Path) -> Counter[str]:
    """Return the number of lines in the file for each kind of effect."""
    return Counter(deed.name for deed in read_actions(folder))


# ── children that complete ────────────────────────────────────────────────────────────────


def make_family_agent(name: str, folder: Path) -> Agent:
    """Return a parent with two children at once, one of which has a child of its own."""
    at = str(folder)

    def make_member(role: str, *script: Line, children: tuple[Agent, ...] = ()) -> Agent:
        tools = [charge, put, *(c.as_tool(name=c.name.rpartition("_")[2]) for c in children)]
        return Agent(f"{name}_{role}", model=ScriptedModel(script), tools=tools)

    inner = make_member("inner", Use("charge", folder=at), "Inner.")
    left = make_member("left", Use("charge", folder=at), Use("put", folder=at), "Left.")
    right = make_member("right", Use("inner", task="deeper"), "Right.", children=(inner,))
    both = [Use("left", task="left"), Use("right", task="right")]
    return make_member("top", Use("charge", folder=at), both, "Done.", children=(left, right))


async def send_no_controls(
    midrun: Midrun, run: Run, folder: Path, *, after_crash: bool
) -> None:
    """Send no control of its own; only settle asks."""
    del after_crash
    await complete_run(midrun, run, folder)


async def check_family(_: Midrun, __: Run, folder: Path) -> None:
    """Check that each of the three charges was made once, and none was undone."""
    done = read_actions(folder)
    charged = [deed.key for deed in done if deed.name == "charge"]
    assert len(charged) == len(set(charged)) == 3, done
    assert len({deed.key for deed in done if deed.name == "put"}) == 1
    assert not count_effects(folder)["uncharge"]


# ── children that are cancelled ───────────────────────────────────────────────────────────


def make_cancelled_family_agent(name: str, folder: Path) -> Agent:
    """Return three generations; the call of the youngest does not end."""
    at = str(folder)
    tools = [charge, hold]
    inner = Agent(
        f"{name}_inner",
        model=ScriptedModel([Use("charge", folder=at), Use("hold", folder=at)]),
        tools=tools,
    )
    middle = Agent(
        f"{name}_middle",
        model=ScriptedModel([Use("charge", folder=at), Use("inner", task="deeper")]),
        tools=[*tools, inner.as_tool(name="inner")],
    )
    return Agent(
        f"{name}_top",
        model=ScriptedModel([Use("charge", folder=at), Use("middle", task="deep")]),
        tools=[*tools, middle.as_tool(name="middle")],
    )


def make_completed_child_agent(name: str, folder: Path) -> Agent:
    """Return a parent whose child has completed, and whose own call does not end."""
    at = str(folder)
    child_script: list[Line] = [Use("charge", folder=at), "Charged."]
    child = Agent(f"{name}_aide", model=ScriptedModel(child_script), tools=[charge])
    script: list[Line] = [
        Use("charge", folder=at),
        Use("aide", task="too"),
        Use("hold", folder=at),
    ]
    tools = [charge, hold, child.as_tool(name="aide")]
    return Agent(f"{name}_top", model=ScriptedModel(script), tools=tools)


async def cancel_run(_: Midrun, run: Run, folder: Path, *, after_crash: bool) -> None:
    """Cancel when the last call is in flight; after a crash, cancel at once."""
    if not after_crash:
        await wait_until(lambda: count_effects(folder)["hold"] > 0)
    await run.cancel(undo="all", request_id="cancel")
    await run.until("cancelled")


async def check_undone(_: Midrun, run: Run, folder: Path) -> None:
    """Check that all calls of all generations were undone, in reverse order."""
    done = read_actions(folder)
    made = [deed for deed in done if deed.name in UNDO_OF]
    assert len({deed.key for deed in made}) == len(made), done
    undone: dict[str, ToolAction] = {}
    for deed in done:
        if deed.name in UNDO_OF.values():
            undone.setdefault(deed.original_key, deed)
    assert {deed.key for deed in made} <= set(undone), done
    order = [of for of in undone if of in {deed.key for deed in made}]
    assert order == [deed.key for deed in reversed(made)], done
    report = await run.report()
    assert report.clean, str(report)


# ── a review ──────────────────────────────────────────────────────────────────────────────


def make_review_agent(name: str, folder: Path) -> Agent:
    """Return an agent that makes one call with a queued review, and one without."""
    at = str(folder)

    def next_turn(messages: Transcript) -> Line:
        if not messages.assistant_turn_count:
            return [Use("post", folder=at), Use("charge", folder=at)]
        return "Done."

    return Agent(f"{name}_top", model=ScriptedModel(next_turn), tools=[post, charge])


async def check_review(_: Midrun, run: Run, folder: Path) -> None:
    """Check that both calls were made once, and that one outcome was reported."""
    effects = count_effects(folder)
    assert (effects["post"], effects["charge"]) == (1, 1), effects
    assert len([turn for turn in await read_turns(run) if turn.kind == "outcome"]) == 1


# ── a side question ───────────────────────────────────────────────────────────────────────

SIDE_QUESTION = "What was that?"


def make_side_question_agent(name: str, folder: Path) -> Agent:
    """Return an agent that follows a plan, and answers a side question."""
    at = str(folder)
    work = {
        "plan": Use("plan", items=["Charge", "Look"]),
        "charge": Use("charge", folder=at),
        "look": Use("look", folder=at),
    }

    def next_turn(messages: Transcript) -> Line:
        asked = [n for n, turn in enumerate(messages) if turn.text == SIDE_QUESTION]
        later = messages[asked[0] :] if asked else []
        replies = [turn for turn in later if turn.role == "assistant"]
        if asked and all(turn.interrupted for turn in replies):  # not answered yet
            return "It was nothing."
        made = {use.tool for turn in messages for use in turn.uses}
        return next((use for tool_, use in work.items() if tool_ not in made), "Done.")

    return Agent(f"{name}_top", model=ScriptedModel(next_turn), tools=[charge, look])


async def ask_side_question(
    midrun: Midrun, run: Run, folder: Path, *, after_crash: bool
) -> None:
    """Ask the side question, and see the run complete."""
    del after_crash
    await run.say(SIDE_QUESTION, request_id="side")
    await complete_run(midrun, run, folder)


async def check_side_question(_: Midrun, run: Run, folder: Path) -> None:
    """Check that the question was answered once, and that every held topic came back."""
    assert count_effects(folder)["charge"] == 1, read_actions(folder)
    texts = [turn.text for turn in await read_turns(run)]
    assert texts.count(SIDE_QUESTION) == 1
    assert len([text for text in texts if "It was nothing." in text]) == 1
    pushed_count = len(await read_entries(run, FramePushed))
    resumed = len(await read_entries(run, FrameResumed))
    assert pushed_count == resumed + len(await read_entries(run, FrameReconstructed))
    assert not await read_entries(run, FrameAbandoned)


# ── a handoff ─────────────────────────────────────────────────────────────────────────────


def make_handoff_agent(name: str, folder: Path) -> Agent:
    """Return an agent that charges and hands off to one that charges with its own tool."""
    at = str(folder)
    script: list[Line] = [Use("charge", folder=at), Use("put", folder=at), "Done."]
    desk = Agent(f"{name}_desk", model=ScriptedModel(script), tools=[charge, put])
    first: list[Line] = [Use("charge", folder=at), Use(f"hand_off_to_{name}_desk")]
    tools = [charge]
    return Agent(f"{name}_top", model=ScriptedModel(first), tools=tools, handoffs=[desk])


async def check_handoff(_: Midrun, run: Run, folder: Path) -> None:
    """Check that the second agent spoke last, and that each call was made once."""
    (handed_off,) = await read_entries(run, HandedOff)
    assert (await run.view()).speaker == handed_off.agent
    charged = [deed.key for deed in read_actions(folder) if deed.name == "charge"]
    assert len(charged) == len(set(charged)) == 2, read_actions(folder)


# ── take-over ─────────────────────────────────────────────────────────────────────────────


def make_take_over_agent(name: str, folder: Path) -> Agent:
    """Return an agent that asks a question, and ends after the answer."""
    del folder
    script: list[Line] = [Use("ask_human", question="Which?"), "Done."]
    return Agent(f"{name}_top", model=ScriptedModel(script), tools=[ask_human, charge])


async def take_over_run(midrun: Midrun, run: Run, folder: Path, *, after_crash: bool) -> None:
    """Take over, write, use a tool, hand back and answer, with a request id each."""
    del after_crash
    await run.result()  # the last process may have brought it further
    await run.take_over(actor="ada", request_id="take")
    await run.write("Let me.", actor="ada", request_id="write")
    await run.use_tool("charge", {"folder": str(folder)}, actor="ada", request_id="use")
    outcome = await run.result()
    if isinstance(outcome, Paused):
        unsure = tuple(ask for ask in outcome.asks if ask.kind == "unsure")
        await settle_asks(midrun, run, unsure, folder)
    await run.hand_back(actor="ada", request_id="back")
    await complete_run(midrun, run, folder)


async def check_take_over(_: Midrun, run: Run, folder: Path) -> None:
    """Check that the person wrote once and made the call once."""
    assert count_effects(folder)["charge"] == 1, read_actions(folder)
    assert len(await read_entries(run, PersonWrote)) == 1


# ── a long history ────────────────────────────────────────────────────────────────────────


class LongHistoryModel(Unpriced):
    """A model that makes `LONG_HISTORY_STEPS` steps, with prompts larger than its window."""

    name = "long_history"

    def __init__(self, folder: str) -> None:
        self._folder = folder

    @asynccontextmanager
    async def stream(self, prompt: Prompt) -> AsyncIterator[AsyncIterator[Piece | Finished]]:
        """Stream a step, or a summary."""
        pieces = self._pieces(prompt)
        try:
            yield pieces
        finally:
            await pieces.aclose()  # type: ignore[attr-defined]  # it is a generator

    async def _pieces(self, prompt: Prompt) -> AsyncIterator[Piece | Finished]:
        if prompt.runtime_request:
            yield Finished(reply=Reply(text="Summary."))
        elif prompt.transcript.assistant_turn_count < LONG_HISTORY_STEPS:
            use = ToolUse(tool="charge", args={"folder": self._folder})
            yield Finished(reply=Reply(text="On.", uses=(use,), prompt_tokens=100))
        else:
            yield Finished(reply=Reply(text="Done.", prompt_tokens=100))


def make_long_history_agent(name: str, folder: Path) -> Agent:
    """Return an agent whose history is condensed several times."""
    return Agent(f"{name}_top", model=LongHistoryModel(str(folder)), tools=[charge], window=10)


async def check_long_history(_: Midrun, run: Run, folder: Path) -> None:
    """Check that every step was made once, and that the transcript is short."""
    charged = [deed.key for deed in read_actions(folder)]
    assert len(charged) == len(set(charged)) == LONG_HISTORY_STEPS, read_actions(folder)
    assert await read_entries(run, HistoryCondensed)
    assert len(await read_turns(run)) <= CONDENSE_KEEP_MESSAGES + 4


# ── a failed undo that is retried ─────────────────────────────────────────────────────────


CLEANABLE = "cleanable"
"""The file whose existence lets the undo of `stain` succeed."""


async def clean_off(call: Call, args: dict[str, str], _: object) -> None:
    """Undo a stain, if the file `CLEANABLE` exists."""
    if not (Path(args["folder"]) / CLEANABLE).exists():
        raise OSError("cannot clean")
    record_action(args["folder"], "cleaned", call)


@tool(undo=clean_off)
async def stain(call: Call, folder: str) -> str:
    """Leave a stain."""
    record_action(folder, "stain", call)
    return "stained"


def make_stain_agent(name: str, folder: Path) -> Agent:
    """Return a parent whose child has completed, and whose own call does not end."""
    at = str(folder)
    child_script: list[Line] = [Use("stain", folder=at), "Stained."]
    child = Agent(f"{name}_aide", model=ScriptedModel(child_script), tools=[stain])
    script: list[Line] = [Use("aide", task="too"), Use("hold", folder=at)]
    tools = [hold, child.as_tool(name="aide")]
    return Agent(f"{name}_top", model=ScriptedModel(script), tools=tools)


async def cancel_and_retry_undo(
    _: Midrun, run: Run, folder: Path, *, after_crash: bool
) -> None:
    """Cancel, let the undo succeed, and retry it on the parent."""
    if not after_crash:
        await wait_until(lambda: any(deed.name == "hold" for deed in read_actions(folder)))
    await run.cancel(undo="all", request_id="cancel")
    await run.until("cancelled")
    (folder / CLEANABLE).touch()
    try:
        await run.retry_undo(actor="operator:olga", request_id="retry")
    except ControlRefused as error:  # the cancel came before the call
        assert error.reason == "no_residue", str(error)  # noqa: PT017 - no other refusal is possible
    await run.until("cancelled")


async def check_retried_undo(_: Midrun, run: Run, folder: Path) -> None:
    """Check that every stain was undone under one key, and that the report is clean."""
    done = read_actions(folder)
    cleaned = [deed for deed in done if deed.name == "cleaned"]
    assert {deed.key for deed in done if deed.name == "stain"} <= {
        d.original_key for d in cleaned
    }, done
    assert len({deed.key for deed in cleaned}) <= 1, done
    report = await run.report()
    assert report.clean, str(report)


# ── a cap ─────────────────────────────────────────────────────────────────────────────────


def make_capped_agent(name: str, folder: Path) -> Agent:
    """Return an agent that asks a question and then reaches its cap."""
    at = str(folder)
    script: list[Line] = [
        Use("put", folder=at),
        Use("ask_human", question="Which?"),
        Use("put", folder=at),
        "Done.",
    ]
    model, stop = ScriptedModel(script), MaxSteps(2)
    return Agent(f"{name}_top", model=model, tools=[put, ask_human], stop=stop)


async def raise_cap(_: Midrun, run: Run, __: Path, *, after_crash: bool) -> None:
    """Answer the question and raise the cap; the request ids make each happen once."""
    del after_crash
    while not isinstance(outcome := await run.result(), Completed):
        assert isinstance(outcome, Paused), str(outcome)
        if outcome.reason == "question":
            await run.answer("red", request_id="answer")
        else:
            assert outcome.reason == "cap", str(outcome)
            await run.resume(caps={"steps": 9}, request_id="raise")
    assert outcome.output == "Done."


async def check_capped(_: Midrun, run: Run, folder: Path) -> None:
    """Check that the run paused once at its cap, and made each call once."""
    for kind in (AskAnswered, CapReached, CapRaised):
        assert len(await read_entries(run, kind)) == 1, kind
    assert len({deed.key for deed in read_actions(folder)}) == 2, read_actions(folder)
    assert (await run.view()).step == 4


# ── all scenarios ─────────────────────────────────────────────────────────────────────────


class SendControls(Protocol):
    """Sends the controls until the run has ended; `after_crash` if a process died before."""

    async def __call__(
        self, midrun: Midrun, run: Run, folder: Path, /, *, after_crash: bool
    ) -> None: ...


class CrashScenario(NamedTuple):
    """An agent for a case and its folder, its controls, and a check of the end."""

    agent: Callable[[str, Path], Agent]
    send_controls: SendControls
    check: Callable[[Midrun, Run, Path], Awaitable[None]]


SCENARIOS = {
    "children": CrashScenario(make_family_agent, send_no_controls, check_family),
    "cancelled_children": CrashScenario(make_cancelled_family_agent, cancel_run, check_undone),
    "cancelled_after_child": CrashScenario(
        make_completed_child_agent, cancel_run, check_undone
    ),
    "retried_undo": CrashScenario(make_stain_agent, cancel_and_retry_undo, check_retried_undo),
    "review": CrashScenario(make_review_agent, send_no_controls, check_review),
    "side_question": CrashScenario(
        make_side_question_agent, ask_side_question, check_side_question
    ),
    "handoff": CrashScenario(make_handoff_agent, send_no_controls, check_handoff),
    "take_over": CrashScenario(make_take_over_agent, take_over_run, check_take_over),
    "cap": CrashScenario(make_capped_agent, raise_cap, check_capped),
    "long_history": CrashScenario(
        make_long_history_agent, send_no_controls, check_long_history
    ),
}


def list_agents(agent: Agent) -> list[Agent]:
    """Return the agent and all its descendants."""
    inner = (one.agent for one in agent.tools.values() if isinstance(one.agent, Agent))
    return [agent, *(each for child in inner for each in list_agents(child))]


async def read_family_runs(midrun: Midrun, agent: Agent) -> list[Run]:
    """Return the runs of the agent and its descendants, all of which must have ended."""
    runs: list[Run] = []
    for member in list_agents(agent):
        rows = (await midrun.runs(agent=member.name)).items
        assert len(rows) <= 1, f"{member.name} has {len(rows)} runs"
        for row in rows:
            assert row.phase in TERMINAL_PHASES, f"{member.name} is {row.phase}"
            runs.append(await midrun.get(row.run_id))
    return runs
