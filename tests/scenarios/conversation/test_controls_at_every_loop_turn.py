"""A control at every turn of the event loop, over runs with children and over a review.

At every moment, on the parent or on a child, all runs must end, no call is made twice, the
effects are undone where they must be, and all journals keep their invariants.

`make test` sends the control at every third turn, `make nightly` at the turns in between.
"""

from collections.abc import Awaitable, Callable
from typing import TypeAlias

import anyio
import pytest
from anyio.lowlevel import checkpoint

from midrun import Agent, Call, ControlRefused, Midrun, Run, Tool, tool
from midrun.core.transcript import Transcript
from midrun.core.values import TERMINAL_PHASES, Json
from midrun.models import ScriptedModel, Use
from midrun.models.scripted import Line
from midrun.stores.memory import MemoryStore
from tests.scenarios.conversation.toolkit import OPERATOR
from tests.support.run_journal import wait_for_child

TIME_LIMIT_SECONDS = 60
TOO_LATE_REASONS = {
    "already_completed",
    "is_completed",
    "ask_closed",
    "already_answered",
    "no_such_ask",
}
LATE_MOMENTS = 3  # stop after so many moments in a row that came too late
STRIDE = 3
EVERY_TURN = pytest.mark.parametrize(
    "first_turn", [0, *(pytest.param(n, marks=pytest.mark.nightly) for n in range(1, STRIDE))]
)


class EffectRecord:
    """The effects of the tools: `effect_keys` has the key of each effect that is not undone."""

    def __init__(self) -> None:
        self.started_keys: list[str] = []
        self.effect_keys: list[str] = []

    def tools(self) -> list[Tool]:
        """Return tools that take effect between two turns of the event loop."""

        async def unmake(call: Call, args: Json, result: Json) -> None:
            del args, result
            await checkpoint()
            self.effect_keys = [key for key in self.effect_keys if key != call.original]

        async def make(call: Call, name: str) -> str:
            """Make something."""
            self.started_keys.append(call.key)
            await checkpoint()
            self.effect_keys.append(call.key)
            await checkpoint()
            return name

        return [
            tool(make, name="make", undo=unmake),
            tool(make, name="post", approve="queue", undo=unmake),
        ]


def make_family(effects: EffectRecord) -> Agent:
    """Return a parent with two children at once, one of which has a child of its own."""

    def make_member(
        name: str, next_turn: Callable[[set[str]], Line], *children: Agent
    ) -> Agent:
        def play_next(messages: Transcript) -> Line:
            return next_turn({use.tool for turn in messages for use in turn.uses})

        tools = [*effects.tools(), *(child.as_tool() for child in children)]
        return Agent(name, model=ScriptedModel(play_next), tools=tools)

    inner = make_member(
        "inner", lambda used_tools: "Inner." if used_tools else Use("make", name="inner")
    )
    left = make_member(
        "left", lambda used_tools: "Left." if used_tools else Use("make", name="left")
    )
    right = make_member(
        "right", lambda used_tools: "Right." if used_tools else Use("inner", task=""), inner
    )
    both = [Use("left", task=""), Use("right", task="")]

    def top(used_tools: set[str]) -> Line:
        if not used_tools:
            return Use("make", name="top")
        return "Done." if "left" in used_tools else both

    return make_member("top", top, left, right)


SendControl: TypeAlias = Callable[[Midrun, Run], Awaitable[None]]


async def pause(_: Midrun, run: Run) -> None:
    """Pause, and resume when the run is paused."""
    await run.pause(actor="ada")
    assert not (await run.until("paused")).in_flight
    await run.resume(actor="ada")


async def pause_now(_: Midrun, run: Run) -> None:
    """Pause now, and resume when the run is paused."""
    await run.pause(now=True, actor="ada")
    assert not (await run.until("paused")).in_flight
    await run.resume(actor="ada")


async def pause_and_withdraw(_: Midrun, run: Run) -> None:
    """Pause, and resume before the run is paused."""
    await run.pause(actor="ada")
    await run.resume(actor="ada")


async def take_over(_: Midrun, run: Run) -> None:
    """Take over, write, and hand back."""
    await run.take_over(actor="ada")
    await run.until("paused")
    await run.write("Hm.", actor="ada")
    await run.hand_back(actor="ada")


async def halt(midrun: Midrun, run: Run) -> None:
    """Halt this run alone, and lift the halt when it has taken effect."""
    await midrun.halt("stop", scope=f"run:{run.id}", actor=OPERATOR)
    while (view := await run.view()).phase not in TERMINAL_PHASES:
        if view.phase == "halted" and not view.in_flight:
            break
        await checkpoint()
    await midrun.lift(scope=f"run:{run.id}", actor=OPERATOR)


async def halt_all(midrun: Midrun, run: Run) -> None:
    """Halt all runs, and lift the halt when it has taken effect."""
    await midrun.halt("stop", actor=OPERATOR)
    while (view := await run.view()).phase not in TERMINAL_PHASES:
        if view.phase == "halted" and not view.in_flight:
            break
        await checkpoint()
    await midrun.lift(actor=OPERATOR)


async def say(_: Midrun, run: Run) -> None:
    """Ask a side question."""
    await run.say("What day is it?", urgency="now")


async def redirect(_: Midrun, run: Run) -> None:
    """Redirect at the next step."""
    await run.redirect("Go on")


NON_ABORTING_CONTROLS: dict[str, SendControl] = {
    "pause": pause,
    "pause and withdraw": pause_and_withdraw,
    "take over": take_over,
    "say": say,
    "redirect": redirect,
}
"""These abort no tool call: all effects exist in the end, each once."""

ABORTING_CONTROLS: dict[str, SendControl] = {
    "pause now": pause_now,
    "halt": halt,
    "halt all": halt_all,
}
"""These abort calls in flight: an effect may be missing in the end, but none exists twice."""


async def control_family(
    send_control: SendControl, turns: int, *, child: str = "", expect_all: bool = True
) -> bool:
    """Send a control `turns` turns after the start; return False if it came too late."""
    effects, store = EffectRecord(), MemoryStore()
    was_in_time = True
    with anyio.fail_after(TIME_LIMIT_SECONDS):
        async with Midrun(store, agents=[make_family(effects)]) as midrun:
            run = await midrun.start("top", "go")
            target = await wait_for_child(midrun, run, child) if child else run
            for _ in range(turns):
                await checkpoint()
            try:
                await send_control(midrun, target)
            except ControlRefused as refusal:
                assert refusal.reason in TOO_LATE_REASONS, str(refusal)  # noqa: PT017 - otherwise it came in time
                was_in_time = False
            await run.until("completed")
            await check_all_ended(midrun)
    assert len(effects.effect_keys) == len(set(effects.effect_keys)), effects.effect_keys
    if expect_all:
        assert (
            len(set(effects.started_keys))
            == len(effects.started_keys)
            == len(effects.effect_keys)
            == 3
        )
    return was_in_time


async def check_all_ended(midrun: Midrun) -> None:
    """Check that every run has ended, and that its journal is valid."""
    for row in (await midrun.runs()).items:
        assert row.phase in TERMINAL_PHASES, f"{row.agent} is {row.phase}"
        verdict = await midrun.verify(row.run_id)
        assert verdict, str(verdict)


async def repeat_at_every_turn(
    send_after: Callable[[int], Awaitable[bool]], first_turn: int
) -> int:
    """Send a control at every third turn; return the first turn that is too late."""
    late_count, turn = 0, first_turn
    while late_count < LATE_MOMENTS:
        late_count = 0 if await send_after(turn) else late_count + 1
        turn += STRIDE
    return turn - late_count * STRIDE


@pytest.mark.slow
@EVERY_TURN
@pytest.mark.parametrize("name", NON_ABORTING_CONTROLS)
async def test_a_control_of_the_parent_that_aborts_nothing_loses_no_call(
    name: str, first_turn: int
) -> None:
    """The four runs make three calls, each once."""

    async def send_after(turns: int) -> bool:
        # A redirect drops the calls that have not started.
        return await control_family(
            NON_ABORTING_CONTROLS[name], turns, expect_all=name != "redirect"
        )

    assert await repeat_at_every_turn(send_after, first_turn) > 10


@pytest.mark.slow
@EVERY_TURN
@pytest.mark.parametrize("name", ["pause", "pause and withdraw", "redirect", "say"])
async def test_a_control_of_a_child_that_aborts_nothing_loses_no_call(
    name: str, first_turn: int
) -> None:
    """The control is sent to the child that has a child of its own."""

    async def send_after(turns: int) -> bool:
        expect_all = name != "redirect"
        return await control_family(
            NON_ABORTING_CONTROLS[name], turns, child="c4", expect_all=expect_all
        )

    assert await repeat_at_every_turn(send_after, first_turn) > 5


@pytest.mark.slow
@EVERY_TURN
@pytest.mark.parametrize("child", ["", "c4"])
@pytest.mark.parametrize("name", ABORTING_CONTROLS)
async def test_a_control_that_aborts_calls_leaves_no_effect_twice(
    name: str, child: str, first_turn: int
) -> None:
    """An aborted call may have taken effect in part, so its effect may be missing."""
    moments = 60
    for turns in range(first_turn, moments, STRIDE):
        await control_family(ABORTING_CONTROLS[name], turns, child=child, expect_all=False)


@pytest.mark.slow
@EVERY_TURN
@pytest.mark.parametrize("undo", ["in_flight", "all"])
async def test_a_cancel_of_the_parent_ends_all_its_descendants(
    undo: str, first_turn: int
) -> None:
    """With `all`, no effect is left, except those of children that had completed before."""

    async def send_after(turns: int) -> bool:
        effects = EffectRecord()
        with anyio.fail_after(TIME_LIMIT_SECONDS):
            async with Midrun(MemoryStore(), agents=[make_family(effects)]) as midrun:
                run = await midrun.start("top", "go")
                for _ in range(turns):
                    await checkpoint()
                try:
                    await run.cancel(undo=undo)  # type: ignore[arg-type]  # one of two
                except ControlRefused as refusal:
                    assert refusal.reason in TOO_LATE_REASONS, str(refusal)  # noqa: PT017 - as above
                    await run.until("completed")
                    return False
                await run.until("cancelled")
                started_before = list(effects.started_keys)
                await check_all_ended(midrun)
                rows = (await midrun.runs()).items
                kept_count = sum(row.phase == "completed" for row in rows)
                assert effects.started_keys == started_before
        assert len(effects.started_keys) == len(set(effects.started_keys))
        if undo == "all":
            assert len(effects.effect_keys) <= kept_count
        return True

    assert await repeat_at_every_turn(send_after, first_turn) > 10


# ── a review ──────────────────────────────────────────────────────────────────────────────


def make_review_agent(effects: EffectRecord) -> Agent:
    """Return an agent that makes one call with a queued review, and one without."""

    def next_turn(messages: Transcript) -> Line:
        if not messages.assistant_turn_count:
            return [Use("post", name="post"), Use("make", name="make")]
        return "Done."

    return Agent("top", model=ScriptedModel(next_turn), tools=effects.tools())


@pytest.mark.slow
@EVERY_TURN
@pytest.mark.parametrize("name", [*NON_ABORTING_CONTROLS, *ABORTING_CONTROLS])
async def test_a_control_after_the_approval_of_a_review_makes_the_call_at_most_once(
    name: str, first_turn: int
) -> None:
    """The approved call is made unless the control redirects the run or aborts calls."""
    send_control = {**NON_ABORTING_CONTROLS, **ABORTING_CONTROLS}[name]

    async def send_after(turns: int) -> bool:
        effects = EffectRecord()
        was_in_time = True
        with anyio.fail_after(TIME_LIMIT_SECONDS):
            async with Midrun(MemoryStore(), agents=[make_review_agent(effects)]) as midrun:
                run = await midrun.start("top", "go")
                while not (asks := (await run.view()).asks):
                    await checkpoint()
                await run.approve(ask=asks[0].id)
                for _ in range(turns):
                    await checkpoint()
                try:
                    await send_control(midrun, run)
                except ControlRefused as refusal:
                    assert refusal.reason in TOO_LATE_REASONS, str(refusal)  # noqa: PT017 - as above
                    was_in_time = False
                while (view := await run.until("completed", "waiting")).phase == "waiting":
                    for ask in view.asks:
                        await run.answer("no" if not effects.effect_keys else "yes", ask=ask.id)
                await check_all_ended(midrun)
        assert len(effects.effect_keys) == len(set(effects.effect_keys)) <= 2
        if name in {"pause", "pause and withdraw", "take over", "say"}:
            assert len(effects.effect_keys) == 2
        return was_in_time and turns < 60

    assert await repeat_at_every_turn(send_after, first_turn) > 5
