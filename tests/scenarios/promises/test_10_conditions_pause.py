"""Caps pause, and so does any other condition: repetition, what the agent says, one's own.

Conditions compose with `|`, `&` and `~`. One that has no bound to raise lets go when somebody
resumes the run; one that says so ends the run instead.
"""

from collections.abc import Sequence

import pytest

from midrun import Checkpoint, Completed, ControlRefused, Misconfigured, Paused
from midrun.core.entries import CapReached, VerdictGiven
from midrun.models import Use
from midrun.models.scripted import Cue, Line
from midrun.stops import Custom, MaxSteps, MaxToolCalls, Repeats, Stop, TextMention
from tests.scenarios.promises import conditions
from tests.scenarios.promises.caps import capped, shown, uses
from tests.scenarios.promises.seen import entries, kinds
from tests.unit.runs.conftest import Opener
from tests.unit.runs.stage import ControllableTools

# ── repetition ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("n", "names"),
    [(3, "aaa"), (2, "abab"), (3, "ababab"), (2, "abcabc"), (2, "abcdabcd"), (2, "xyabab")],
)
async def test_going_round_in_circles_pauses(n: int, names: str, opened: Opener) -> None:
    """The same call, or a cycle of up to four, and not a call later."""
    stage = ControllableTools()
    midrun = await opened(stage.agent(*uses(*names, "z"), "Done.", stop=Repeats(n)))
    run = await midrun.start("actor", "go")
    await capped(run)
    assert "".join(stage.completed) == names
    await run.resume("Try something else")  # there is no bound to raise: saying so is enough
    await run.until("completed")
    assert "".join(stage.completed) == names + "z"


@pytest.mark.parametrize("names", ["aabbaa", "abcba", "abcdeabcde"])
async def test_calls_that_only_look_alike_do_not_pause(names: str, opened: Opener) -> None:
    """Other arguments are another call."""
    stage = ControllableTools()
    midrun = await opened(stage.agent(*uses(*names), "Done.", stop=Repeats(3)))
    run = await midrun.start("actor", "go")
    assert (await run.until("completed", "paused")).phase == "completed"


async def test_how_often_it_has_repeated_itself_is_shown(opened: Opener) -> None:
    """As for any other cap: used, and bound."""
    stage = ControllableTools()
    midrun = await opened(stage.agent(*uses("x", "a", "a", "a"), "Done.", stop=Repeats(3)))
    run = await midrun.start("actor", "go")
    await capped(run)
    assert await shown(run) == {"repeats": (3, 3)}


# ── what the agent says, and conditions of one's own ──────────────────────────────────────


@pytest.mark.parametrize("stop", [TextMention("READY"), Custom(conditions.two_calls)])
async def test_a_condition_without_a_bound_pauses_once_for_what_it_has_seen(
    stop: Stop, opened: Opener
) -> None:
    """There is nothing to raise, so a bare resume goes on, and one more step at least."""
    stage = ControllableTools()
    turns: list[Line] = [*uses("a"), ["I am ready now. ", *uses("b")], *uses("c"), "Done."]
    midrun = await opened(stage.agent(*turns, stop=stop))
    run = await midrun.start("actor", "go")
    await capped(run)
    assert stage.completed == ["a", "b"]
    await run.resume()
    outcome = await run.result()
    assert stage.completed == ["a", "b", "c"]
    if isinstance(outcome, Paused):  # two calls were two calls after the next step as well
        await run.resume()
    await run.until("completed")


@pytest.mark.parametrize(
    "stop",
    [
        TextMention("ready", then="complete"),
        MaxSteps(40) | TextMention("ready", then="complete"),
        Custom(conditions.two_calls, then="complete"),
        Custom(conditions.two_steps, then="complete"),
    ],
)
async def test_a_condition_may_say_that_the_run_is_done(stop: Stop, opened: Opener) -> None:
    """What the agent said last is its answer; the calls of that step are made."""
    stage = ControllableTools()
    turns: list[Line] = [*uses("a"), ["All ready. ", *uses("b")], *uses("never")]
    midrun = await opened(stage.agent(*turns, stop=stop))
    run = await midrun.start("actor", "go")
    outcome = await run.result()
    assert isinstance(outcome, Completed)
    assert outcome.output == "All ready. "
    assert stage.completed == ["a", "b"]


async def test_what_a_condition_of_ones_own_said_is_on_record(opened: Opener) -> None:
    """Somebody's function is asked once per boundary; a replay does not ask it again."""
    stage = ControllableTools()
    midrun = await opened(
        stage.agent(*uses("a", "b"), "Done.", stop=Custom(conditions.two_calls))
    )
    run = await midrun.start("actor", "go")
    await capped(run)
    said = [entry.met for entry in await entries(run, VerdictGiven)]
    assert said == [False, False, True]


async def test_a_condition_that_no_other_process_could_find_is_refused() -> None:
    """A run may be resumed anywhere, and a function travels by its name only."""
    with pytest.raises(Misconfigured, match="top of a module"):
        Custom(lambda _: True)


# ── together ──────────────────────────────────────────────────────────────────────────────

READY: Sequence[Line | Cue] = (
    ["Busy. ", Use("quick", name="a")],
    ["Busy. ", Use("quick", name="b")],
    ["Ready. ", Use("quick", name="c")],
    ["Ready. ", Use("quick", name="d")],
    "Done.",
)


@pytest.mark.parametrize(
    ("stop", "did"),
    [
        (MaxSteps(2) | TextMention("ready"), "ab"),
        (TextMention("ready") | MaxSteps(9), "abc"),
        (MaxSteps(1) & TextMention("ready"), "abc"),
        (MaxSteps(4) & TextMention("ready"), "abcd"),
        (MaxSteps(1) & ~TextMention("busy"), "abc"),
        ((MaxSteps(4) | MaxToolCalls(2)) & ~TextMention("done"), "ab"),
        (~(TextMention("busy") | ~MaxSteps(1)), "abc"),
    ],
)
async def test_conditions_compose_in_any_order(stop: Stop, did: str, opened: Opener) -> None:
    """With `|`, `&` and `~`, in any order."""
    stage = ControllableTools()
    midrun = await opened(stage.agent(*READY, stop=stop))
    run = await midrun.start("actor", "go")
    await capped(run)
    assert "".join(stage.completed) == did
    assert (await run.view()).stop == str(stop)


async def test_a_cap_within_a_composed_condition_is_raised_by_its_name(opened: Opener) -> None:
    """All of them are shown, whichever was reached."""
    stage = ControllableTools()
    stop = (MaxSteps(3) & TextMention("ready")) | MaxToolCalls(40)
    midrun = await opened(stage.agent(*READY, stop=stop))
    run = await midrun.start("actor", "go")
    await capped(run)
    assert await shown(run) == {"steps": (3, 3), "tool_calls": (3, 40)}
    with pytest.raises(ControlRefused) as refused:
        await run.resume(caps={"tool_calls": 50})  # not the one that holds it
    assert refused.value.reason == "cap_reached"
    await run.resume(caps={"steps": 9})
    await run.until("completed")


async def test_a_cap_holds_without_a_store_too() -> None:
    """The outcome says so, and its checkpoint keeps the cap."""
    stage = ControllableTools()
    agent = stage.agent(*uses("a", "b"), "Done.", stop=MaxSteps(1))
    outcome = await agent.run("go")
    assert isinstance(outcome, Paused)
    assert outcome.reason == "cap"
    with pytest.raises(ControlRefused) as refused:
        await agent.resume(Checkpoint.from_json(outcome.checkpoint.to_json()))
    assert refused.value.reason == "cap_reached"
    assert stage.completed == ["a"]


async def test_reaching_a_cap_is_on_record_with_its_words(opened: Opener) -> None:
    """Asked for and happened are two facts here as well."""
    stage = ControllableTools()
    midrun = await opened(stage.agent(*uses("a", "b"), "Done.", stop=MaxSteps(1)))
    run = await midrun.start("actor", "go")
    await capped(run)
    (reached,) = await entries(run, CapReached)
    assert (reached.stop, reached.cap) == ("at most 1 steps", "steps")
    assert (await kinds(run))[-2:] == ["CapReached", "RunPaused"]
