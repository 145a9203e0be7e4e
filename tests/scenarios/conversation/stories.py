"""Stories that are killed at every write: families, reviews, side questions, long histories.

Each has an agent, the people who see to its run, and what must be so in the end. Its tools are
those of `tests.crash.deeds`: every deed leaves a line in a file that outlives its process.
The people come back after a crash and ask for the same under the same request ids.
"""

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple, Protocol

from midrun import Agent, Call, Completed, ControlRefused, Midrun, Paused, Run, ask_human, tool
from midrun.agents.outcome import AskView
from midrun.core.entries import (
    FrameAbandoned,
    FramePushed,
    FrameReconstructed,
    FrameResumed,
    HistoryCondensed,
    PersonWrote,
)
from midrun.core.ids import RunId, make_call_key
from midrun.core.scheduler import CONDENSE_KEEP_MESSAGES
from midrun.core.transcript import Transcript
from midrun.core.values import TERMINAL_PHASES, Reply
from midrun.core.values import Use as Wanted
from midrun.models import ScriptedModel, Use
from midrun.models.scripted import Line
from midrun.ports.model import Finished, Piece, Prompt, Unpriced
from tests.crash.deeds import Deed, charge, deeds, hold, look, mark, put
from tests.crash.facts import becomes
from tests.scenarios.conversation.capping import capped, check_capped, raise_it
from tests.scenarios.conversation.mending import check_mended, mend, stained
from tests.scenarios.promises.seen import entries, turns

TAKEN_BACK = {"charge": "uncharge", "hold": "unhold"}
LONG_STEPS = 12


@tool(approve="queue")
async def post(call: Call, folder: str) -> str:
    """Act once, when somebody has looked at it."""
    mark(folder, "post", call)
    return "posted"


# ── people ────────────────────────────────────────────────────────────────────────────────


async def see_through(midrun: Midrun, run: Run, place: Path) -> None:
    """Decide whatever is asked, until the run has completed with "Done."."""
    while isinstance(outcome := await run.result(), Paused):
        await decide(midrun, run, outcome.asks, place)
    assert isinstance(outcome, Completed), str(outcome)
    assert outcome.output.endswith("Done."), outcome.output


async def decide(midrun: Midrun, run: Run, asks: tuple[AskView, ...], place: Path) -> None:
    """Say of every unsure call whether it left a line, and yes to everything else."""
    for ask in asks:
        owner, asked = await whose(midrun, run, ask)
        try:
            if asked.kind == "approval":
                await run.approve(ask=ask.id)
            elif asked.kind == "unsure":
                key = make_call_key(RunId(owner.id), asked.call)
                happened = any(deed.key == key for deed in deeds(place))
                await run.answer("yes" if happened else "no", ask=ask.id)
            else:
                await run.answer("red", ask=ask.id)
        except ControlRefused as error:  # it was settled on the child meanwhile
            assert error.reason in {"ask_closed", "already_answered"}, str(error)  # noqa: PT017 - only these may be met


async def whose(midrun: Midrun, run: Run, ask: AskView) -> tuple[Run, AskView]:
    """Return the run that really asks, and its own ask: a child's shows on its parents."""
    if ask.kind != "child":
        return run, ask
    assert isinstance(ask.data, dict)
    child = await midrun.get(str(ask.data["run"]))
    for inner in (await child.view()).asks:
        if inner.id == ask.data["ask"]:
            return await whose(midrun, child, inner)
    return run, ask  # the child has its answer already


def counts(place: Path) -> Counter[str]:
    """Return how often each deed was done."""
    return Counter(deed.what for deed in deeds(place))


# ── a family that completes ───────────────────────────────────────────────────────────────


def family(name: str, folder: Path) -> Agent:
    """Return a parent with two children at once, one of which has a child of its own."""
    at = str(folder)

    def member(who: str, *script: Line, children: tuple[Agent, ...] = ()) -> Agent:
        tools = [charge, put, *(c.as_tool(name=c.name.rpartition("_")[2]) for c in children)]
        return Agent(f"{name}_{who}", model=ScriptedModel(script), tools=tools)

    inner = member("inner", Use("charge", folder=at), "Inner.")
    left = member("left", Use("charge", folder=at), Use("put", folder=at), "Left.")
    right = member("right", Use("inner", task="deeper"), "Right.", children=(inner,))
    both = [Use("left", task="left"), Use("right", task="right")]
    return member("top", Use("charge", folder=at), both, "Done.", children=(left, right))


async def raise_family(midrun: Midrun, run: Run, place: Path, *, again: bool) -> None:
    """See it through."""
    del again
    await see_through(midrun, run, place)


async def check_family(_: Midrun, __: Run, place: Path) -> None:
    """Three charges, each once; every run of it has ended."""
    done = deeds(place)
    charged = [deed.key for deed in done if deed.what == "charge"]
    assert len(charged) == len(set(charged)) == 3, done
    assert len({deed.key for deed in done if deed.what == "put"}) == 1
    assert not counts(place)["uncharge"]


# ── a family that is cancelled ────────────────────────────────────────────────────────────


def cut_off(name: str, folder: Path) -> Agent:
    """Return three generations; the youngest is held up, to be cancelled there."""
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


def regretted(name: str, folder: Path) -> Agent:
    """Return a parent that is cancelled after its child has done its work and completed."""
    at = str(folder)
    script: list[Line] = [Use("charge", folder=at), "Charged."]
    aide = Agent(f"{name}_aide", model=ScriptedModel(script), tools=[charge])
    turns_: list[Line] = [
        Use("charge", folder=at),
        Use("aide", task="too"),
        Use("hold", folder=at),
    ]
    tools = [charge, hold, aide.as_tool(name="aide")]
    return Agent(f"{name}_top", model=ScriptedModel(turns_), tools=tools)


async def cut_it_off(_: Midrun, run: Run, place: Path, *, again: bool) -> None:
    """Cancel when the youngest is held up, or at once where somebody had died over it."""
    if not again:
        await becomes(lambda: counts(place)["hold"] > 0)
    await run.cancel(undo="all", request_id="cancel")
    await run.until("cancelled")


async def check_cut_off(_: Midrun, run: Run, place: Path) -> None:
    """Everything is taken back, what came last first, over all generations."""
    done = deeds(place)
    made = [deed for deed in done if deed.what in TAKEN_BACK]
    assert len({deed.key for deed in made}) == len(made), done
    back: dict[str, Deed] = {}
    for deed in done:
        if deed.what in TAKEN_BACK.values():
            back.setdefault(deed.of, deed)
    assert {deed.key for deed in made} <= set(back), done
    order = [of for of in back if of in {deed.key for deed in made}]
    assert order == [deed.key for deed in reversed(made)], done
    report = await run.report()
    assert report.clean, str(report)


# ── a review ──────────────────────────────────────────────────────────────────────────────


def review(name: str, folder: Path) -> Agent:
    """Return an agent that proposes one call, makes another, and waits for the first."""
    at = str(folder)

    def cue(messages: Transcript) -> Line:
        if not messages.assistant_turn_count:
            return [Use("post", folder=at), Use("charge", folder=at)]
        return "Done."

    return Agent(f"{name}_top", model=ScriptedModel(cue), tools=[post, charge])


async def check_review(_: Midrun, run: Run, place: Path) -> None:
    """Both were made once, and the agent has heard of the reviewed one once."""
    assert (counts(place)["post"], counts(place)["charge"]) == (1, 1), deeds(place)
    assert len([turn for turn in await turns(run) if turn.kind == "outcome"]) == 1


# ── a side question ───────────────────────────────────────────────────────────────────────

SIDE = "What was that?"


def aside(name: str, folder: Path) -> Agent:
    """Return an agent that follows a plan, and answers what it is asked on the way."""
    at = str(folder)
    work = {
        "plan": Use("plan", items=["Charge", "Look"]),
        "charge": Use("charge", folder=at),
        "look": Use("look", folder=at),
    }

    def cue(messages: Transcript) -> Line:
        asked = [n for n, turn in enumerate(messages) if turn.text == SIDE]
        replies = [t for t in messages[asked[0] :] if _spoken(t.role)] if asked else []
        if asked and all(turn.interrupted for turn in replies):
            return "It was nothing."
        made = {use.tool for turn in messages for use in turn.uses}
        return next((use for tool_, use in work.items() if tool_ not in made), "Done.")

    return Agent(f"{name}_top", model=ScriptedModel(cue), tools=[charge, look])


def _spoken(role: str) -> bool:
    return role == "assistant"


async def ask_aside(midrun: Midrun, run: Run, place: Path, *, again: bool) -> None:
    """Ask while it works; who comes back asks the same question."""
    del again
    await run.say(SIDE, request_id="side")
    await see_through(midrun, run, place)


async def check_aside(_: Midrun, run: Run, place: Path) -> None:
    """It was asked once and answered once, and every held thought came back."""
    assert counts(place)["charge"] == 1, deeds(place)
    said = [turn.text for turn in await turns(run)]
    assert said.count(SIDE) == 1
    assert len([text for text in said if "It was nothing." in text]) == 1
    pushed = len(await entries(run, FramePushed))
    back = len(await entries(run, FrameResumed)) + len(await entries(run, FrameReconstructed))
    assert pushed == back
    assert not await entries(run, FrameAbandoned)


# ── a person at the wheel ─────────────────────────────────────────────────────────────────


def wheel(name: str, folder: Path) -> Agent:
    """Return an agent that asks, and ends when it has its answer."""
    del folder
    turns_: list[Line] = [Use("ask_human", question="Which?"), "Done."]
    return Agent(f"{name}_top", model=ScriptedModel(turns_), tools=[ask_human, charge])


async def take_the_wheel(midrun: Midrun, run: Run, place: Path, *, again: bool) -> None:
    """Take over, write, use a tool, hand back, answer: each under its own request id."""
    del again
    await run.result()  # it waits, or is wherever the last process had brought it
    await run.take_over(actor="ada", request_id="take")
    await run.write("Let me.", actor="ada", request_id="write")
    await run.use_tool("charge", {"folder": str(place)}, actor="ada", request_id="use")
    outcome = await run.result()
    if isinstance(outcome, Paused):
        doubts = tuple(ask for ask in outcome.asks if ask.kind == "unsure")
        await decide(midrun, run, doubts, place)
    await run.hand_back(actor="ada", request_id="back")
    await see_through(midrun, run, place)


async def check_wheel(_: Midrun, run: Run, place: Path) -> None:
    """The person wrote once, and made the call once."""
    assert counts(place)["charge"] == 1, deeds(place)
    assert len(await entries(run, PersonWrote)) == 1


# ── a long history ────────────────────────────────────────────────────────────────────────


class Wordy(Unpriced):
    """Charges `LONG_STEPS` times, and says that each prompt was longer than its window."""

    name = "wordy"

    def __init__(self, folder: str) -> None:
        self._folder = folder

    @asynccontextmanager
    async def stream(self, prompt: Prompt) -> AsyncIterator[AsyncIterator[Piece | Finished]]:
        """Make a step, or a summary."""
        pieces = self._pieces(prompt)
        try:
            yield pieces
        finally:
            await pieces.aclose()  # type: ignore[attr-defined]  # it is a generator

    async def _pieces(self, prompt: Prompt) -> AsyncIterator[Piece | Finished]:
        if prompt.runtime_request:
            yield Finished(reply=Reply(text="In short: on we go."))
        elif prompt.transcript.assistant_turn_count < LONG_STEPS:
            use = Wanted(tool="charge", args={"folder": self._folder})
            yield Finished(reply=Reply(text="On.", uses=(use,), window=100))
        else:
            yield Finished(reply=Reply(text="Done.", window=100))


def long(name: str, folder: Path) -> Agent:
    """Return an agent whose history is condensed again and again."""
    return Agent(f"{name}_top", model=Wordy(str(folder)), tools=[charge], window=10)


async def check_long(_: Midrun, run: Run, place: Path) -> None:
    """Every step was made once, and the model's view is short."""
    charged = [deed.key for deed in deeds(place)]
    assert len(charged) == len(set(charged)) == LONG_STEPS, deeds(place)
    assert await entries(run, HistoryCondensed)
    assert len(await turns(run)) <= CONDENSE_KEEP_MESSAGES + 4


# ── all of them ───────────────────────────────────────────────────────────────────────────


class People(Protocol):
    """Who sees to a run until it has ended; `again`: after somebody died over it."""

    async def __call__(
        self, midrun: Midrun, run: Run, place: Path, /, *, again: bool
    ) -> None: ...


class Story(NamedTuple):
    """An agent for a case and its folder, the people, and what must be so in the end."""

    agent: Callable[[str, Path], Agent]
    people: People
    check: Callable[[Midrun, Run, Path], Awaitable[None]]


STORIES = {
    "family": Story(family, raise_family, check_family),
    "cut_off": Story(cut_off, cut_it_off, check_cut_off),
    "regretted": Story(regretted, cut_it_off, check_cut_off),
    "mended": Story(stained, mend, check_mended),
    "review": Story(review, raise_family, check_review),
    "aside": Story(aside, ask_aside, check_aside),
    "wheel": Story(wheel, take_the_wheel, check_wheel),
    "capped": Story(capped, raise_it, check_capped),
    "long": Story(long, raise_family, check_long),
}


def generations(agent: Agent) -> list[Agent]:
    """Return the agent, its children, and theirs."""
    inner = (one.agent for one in agent.tools.values() if isinstance(one.agent, Agent))
    return [agent, *(each for child in inner for each in generations(child))]


async def runs_of(midrun: Midrun, agent: Agent) -> list[Run]:
    """Return every run of the family, all of which must have ended."""
    found: list[Run] = []
    for member in generations(agent):
        rows = (await midrun.runs(agent=member.name)).items
        assert len(rows) <= 1, f"{member.name} has {len(rows)} runs"
        for row in rows:
            assert row.phase in TERMINAL_PHASES, f"{member.name} is {row.phase}"
            found.append(await midrun.get(row.run_id))
    return found
