"""Promise 10: caps pause.

At a cap on steps, calls, tokens, cost, time or repetition, or at another stop condition, the
run pauses and asks. It continues when the cap is raised; a condition without a bound needs only
a resume. Conditions compose with `|`, `&` and `~`.
"""

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import anyio
import pytest

from midrun import (
    Agent,
    Call,
    Checkpoint,
    Completed,
    ControlRefused,
    Midrun,
    Misconfigured,
    Paused,
    Run,
    tool,
)
from midrun.core.entries import CallSealed, CapReached, StopEvaluated
from midrun.core.ids import CallId, Micros
from midrun.models import Use
from midrun.models.scripted import Cue, Line
from midrun.ports.environment import Environment
from midrun.stops import (
    Custom,
    MaxCost,
    MaxSteps,
    MaxTime,
    MaxTokens,
    MaxToolCalls,
    Repeats,
    Stop,
    TextMention,
)
from midrun.testing.controllable_tools import ControllableTools
from midrun.text.entries import JournalDescriber
from tests.scenarios.promises import stop_conditions
from tests.scenarios.promises.log_agent import get_script, log_agent
from tests.scenarios.promises.models import PricedModel
from tests.support.clocks import YEAR_LEASE, ManualClock, StartableClock
from tests.support.run_journal import read_entries, read_journal, read_kinds
from tests.support.store_choice import get_store_url
from tests.unit.runs.conftest import OpenMidrun


def call_quick(*names: str) -> list[Use]:
    """Return one turn for each name: a call of `quick`."""
    return [Use("quick", name=name) for name in names]


async def wait_for_cap(run: Run) -> None:
    """Wait until the run has paused at a cap."""
    outcome = await run.result()
    assert isinstance(outcome, Paused), outcome
    assert (outcome.phase, outcome.reason) == ("paused", "cap")


async def read_caps(run: Run) -> dict[str, tuple[float, float]]:
    """Return the usage and the bound of each cap, as the view shows them."""
    return {cap.name: (cap.used, cap.cap) for cap in (await run.view()).caps}


def build_priced_agent(tools: ControllableTools, model: PricedModel, stop: Stop) -> Agent:
    """Return an agent whose model has a price."""
    return Agent("actor", model=model, tools=tools.tools(), stop=stop)


# ── each cap pauses the run until it is raised ────────────────────────────────────────────

CAPS: dict[str, tuple[Stop, tuple[float, float], float]] = {
    "steps": (MaxSteps(2), (2, 2), 9),
    "tool_calls": (MaxToolCalls(2), (2, 2), 9),
    "tokens": (MaxTokens(300), (200, 300), 1000),
    "cost": (MaxCost(usd=0.03), (0.02, 0.03), 1.0),
}


@pytest.mark.parametrize("name", CAPS)
async def test_a_run_pauses_at_a_cap_and_continues_only_when_it_is_raised(
    name: str, opened: OpenMidrun
) -> None:
    """A plain resume would reach the cap again, so it is refused; the refusal names the cap."""
    stop, used, more = CAPS[name]
    tools = ControllableTools()
    model = PricedModel([*call_quick("a", "b", "c"), "Done."])
    midrun = await opened(build_priced_agent(tools, model, stop))
    run = await midrun.start("actor", "go")
    await wait_for_cap(run)
    assert tools.completed == ["a", "b"]
    assert (await read_caps(run))[name] == used
    assert (await run.view()).reason == "cap"
    for control in (run.resume(), run.resume("hurry"), run.redirect("hurry")):
        with pytest.raises(ControlRefused) as refused:
            await control
        assert refused.value.reason == "cap_reached"
        assert refused.value.by == name
    assert model.calls == 2  # the refused controls made no call
    await run.raise_cap(**{name: more})  # type: ignore[arg-type]  # a cap, not the actor
    await run.resume()
    await run.until("completed")
    assert tools.completed == ["a", "b", "c"]


@pytest.mark.parametrize("name", CAPS)
async def test_resume_can_raise_the_cap(name: str, opened: OpenMidrun) -> None:
    """Both are applied, or neither: a cap that is too low changes nothing."""
    stop, _, more = CAPS[name]
    tools = ControllableTools()
    midrun = await opened(
        build_priced_agent(tools, PricedModel([*call_quick("a", "b", "c"), "Done."]), stop)
    )
    run = await midrun.start("actor", "go")
    await wait_for_cap(run)
    before = (await run.view()).seq
    for caps, why in (({name: 0.0}, "cap_not_raised"), ({"patience": 9.0}, "no_such_cap")):
        with pytest.raises(ControlRefused) as refused:
            await run.resume(caps=caps)
        assert refused.value.reason == why
    assert (await run.view()).seq == before
    await run.resume(caps={name: more}, actor="ada")
    await run.until("completed")
    assert tools.completed == ["a", "b", "c"]


async def test_a_cap_can_be_raised_before_it_is_reached(opened: OpenMidrun) -> None:
    tools = ControllableTools()
    agent = tools.agent(Use("slow", name="a"), *call_quick("b"), "Done.", stop=MaxSteps(1))
    midrun = await opened(agent)
    run = await midrun.start("actor", "go")
    await tools.start("a").wait()
    await run.raise_cap(steps=5)
    assert await read_caps(run) == {"steps": (1, 5)}
    tools.gate("a").set()
    await run.until("completed")


async def test_a_raised_cap_pauses_the_run_when_it_is_reached_again(opened: OpenMidrun) -> None:
    tools = ControllableTools()
    midrun = await opened(tools.agent(*call_quick("a", "b", "c"), "Done.", stop=MaxSteps(1)))
    run = await midrun.start("actor", "go")
    for bound in (2, 3):
        await wait_for_cap(run)
        await run.resume(caps={"steps": bound})
        await run.until("paused")
    await wait_for_cap(run)
    assert tools.completed == ["a", "b", "c"]
    await run.cancel()
    assert (await run.until("cancelled")).phase == "cancelled"


async def test_a_run_that_completes_at_its_cap_does_not_pause(opened: OpenMidrun) -> None:
    """A cap is checked before the next step, and there is none."""
    tools = ControllableTools()
    midrun = await opened(tools.agent(*call_quick("a"), "Done.", stop=MaxSteps(2)))
    run = await midrun.start("actor", "go")
    assert (await run.until("completed", "paused")).phase == "completed"


async def test_a_cap_of_the_run_replaces_that_of_the_agent(opened: OpenMidrun) -> None:
    tools = ControllableTools()
    midrun = await opened(tools.agent(*call_quick("a", "b"), "Done.", stop=MaxSteps(40)))
    run = await midrun.start("actor", "go", stop=MaxSteps(1))
    await wait_for_cap(run)
    view = await run.view()
    assert (view.stop, await read_caps(run)) == ("at most 1 steps", {"steps": (1, 1)})


async def test_usage_and_raised_cap_are_kept_for_another_process(
    opened: OpenMidrun, path: Path
) -> None:
    """Both are in the journal."""
    tools = ControllableTools()
    turns = (*call_quick("a", "b", "c"), "Done.")
    async with Midrun(
        get_store_url(path), agents=[tools.agent(*turns, stop=MaxSteps(1))]
    ) as midrun:
        run = await midrun.start("actor", "go")
        await wait_for_cap(run)
        await run.raise_cap(steps=2)
    again = await opened(tools.agent(*turns, stop=MaxSteps(1)))
    run = await again.get(run.id)
    assert await read_caps(run) == {"steps": (1, 2)}
    await run.resume()
    await wait_for_cap(run)
    assert tools.completed == ["a", "b"]


# ── within one reply ──────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("stop", "names", "made", "caps"),
    [
        (MaxToolCalls(3), "abcdef", "abc", {"tool_calls": 99}),
        (MaxSteps(9) | MaxToolCalls(3), "abcdef", "abc", {"tool_calls": 99}),
        (Repeats(3), "aaab", "aaa", None),
        (Repeats(2), "ababc", "abab", None),
    ],
)
async def test_a_cap_on_calls_holds_within_one_reply(
    stop: Stop, names: str, made: str, caps: dict[str, float] | None, opened: OpenMidrun
) -> None:
    """A reply may ask for any number of calls; those beyond the cap wait for the resume."""
    tools = ControllableTools()
    midrun = await opened(tools.agent(call_quick(*names), "Done.", stop=stop))
    run = await midrun.start("actor", "go")
    await wait_for_cap(run)
    assert "".join(sorted(tools.completed)) == "".join(sorted(made))
    await run.resume(caps=caps)
    assert (await run.until("completed")).output == "Done."
    assert "".join(sorted(tools.completed)) == "".join(sorted(names))
    assert await midrun.verify(run.id)


async def test_sixty_calls_of_one_reply_stop_at_ten(opened: OpenMidrun) -> None:
    """The status, the button and the sentence of the entry name the calls that are not made."""
    tools = ControllableTools()
    names = [f"n{number}" for number in range(60)]
    midrun = await opened(tools.agent(call_quick(*names), "Done.", stop=MaxToolCalls(10)))
    run = await midrun.start("actor", "go")
    await wait_for_cap(run)
    assert sorted(tools.completed) == sorted(names[:10])
    assert await read_caps(run) == {"tool_calls": (10, 10)}
    view = await run.view()
    unmade = "50 calls are not made yet: “Quick”, “Quick”"
    assert view.status.note.startswith(unmade)
    assert unmade in view.controls["pause"].consequence
    reader = JournalDescriber(run.id)
    sentences = [str(reader.describe_next(e, Micros(0))) for e in await read_journal(run)]
    (reached,) = [sentence for sentence in sentences if "reached a cap" in sentence]
    assert "50 calls are not made yet: quick #11, quick #12, " in reached
    assert reached.endswith(" and 40 more")


async def test_an_instruction_with_the_raised_cap_drops_the_calls_beyond_it(
    opened: OpenMidrun,
) -> None:
    tools = ControllableTools()
    agent = tools.agent(call_quick("a", "b", "c"), "Fine.", stop=MaxToolCalls(1))
    midrun = await opened(agent)
    run = await midrun.start("actor", "go")
    await wait_for_cap(run)
    await run.resume("Leave the others", caps={"tool_calls": 9})
    await run.until("completed")
    assert tools.completed == ["a"]
    sealed = await read_entries(run, CallSealed)
    assert [entry.call for entry in sealed] == [CallId("c3"), CallId("c4")]
    assert all("the run was redirected" in entry.why for entry in sealed)
    assert await midrun.verify(run.id)


# ── cost ──────────────────────────────────────────────────────────────────────────────────


async def test_the_possible_cost_of_a_call_is_reserved_while_it_runs(
    opened: OpenMidrun,
) -> None:
    """Otherwise calls in flight could exceed a cap together. Later the real cost counts."""
    tools, gate = ControllableTools(), anyio.Event()
    model = PricedModel(["Done."], gate)
    midrun = await opened(build_priced_agent(tools, model, MaxCost(usd=1)))
    run = await midrun.start("actor", "go")
    await model.called.wait()
    view = await run.view()
    assert (view.usage.reserved_usd, view.usage.reserved_tokens) == (0.015, 150)
    assert await read_caps(run) == {"cost": (0.015, 1)}
    gate.set()
    usage = (await run.until("completed")).usage
    assert (usage.cost_usd, usage.tokens) == (0.01, 100)
    assert (usage.reserved_usd, usage.reserved_tokens) == (0, 0)


async def test_a_call_that_could_exceed_the_cap_is_not_made(opened: OpenMidrun) -> None:
    """The reservation decides, also for the first call."""
    tools = ControllableTools()
    model = PricedModel(["Done."])
    midrun = await opened(build_priced_agent(tools, model, MaxCost(usd=0.012)))
    run = await midrun.start("actor", "go")
    await wait_for_cap(run)
    assert (model.calls, await read_caps(run)) == (0, {"cost": (0, 0.012)})
    await run.resume(caps={"cost": 0.015})
    await run.until("completed")


@pytest.mark.parametrize("stop", [MaxCost(usd=1), MaxSteps(5) | MaxCost(usd=1)])
async def test_max_cost_is_refused_for_a_model_without_a_price(
    stop: Stop, opened: OpenMidrun
) -> None:
    """The cap could not be enforced."""
    agent = ControllableTools().agent("Done.")
    midrun = await opened(agent)
    with pytest.raises(Misconfigured, match=r"scripted.*MaxCost"):
        await midrun.start("actor", "go", stop=stop)
    with pytest.raises(Misconfigured, match=r"scripted.*MaxCost"):
        await agent.run("go", stop=stop)
    assert not (await midrun.runs()).items


# ── time ──────────────────────────────────────────────────────────────────────────────────


def open_with_clock(path: Path, clock: ManualClock | StartableClock, *agents: Agent) -> Midrun:
    """Return a `Midrun` that uses `clock`."""
    outside = Environment(clock=clock, lease=YEAR_LEASE)
    return Midrun(get_store_url(path), agents=agents, outside=outside)


async def test_working_time_is_capped(path: Path) -> None:
    """The view shows it in seconds. Time at rest does not count."""
    tools, clock = ControllableTools(), ManualClock()

    @tool
    async def think(call: Call, seconds: int) -> str:
        """Move the clock."""
        del call
        clock.advance(timedelta(seconds=seconds))
        return "thought"

    turns = [Use("think", seconds=40), Use("think", seconds=30), "Done."]
    agent = tools.agent(*turns, stop=MaxTime(minutes=1))
    agent = Agent("actor", model=agent.model, tools=[think], stop=agent.stop)
    async with open_with_clock(path, clock, agent) as midrun:
        run = await midrun.start("actor", "go")
        await wait_for_cap(run)
        assert await read_caps(run) == {"time": (70, 60)}
        with pytest.raises(ControlRefused) as refused:
            await run.resume()
        assert refused.value.reason == "cap_reached"
        clock.advance(timedelta(days=3))  # the run is paused
        assert await read_caps(run) == {"time": (70, 60)}
        await run.resume(caps={"time": 100})
        view = await run.until("completed")
        assert view.elapsed == 70
        assert await midrun.verify(run.id)


async def test_a_time_cap_can_be_reached_during_a_call(path: Path) -> None:
    """The call finishes, as in any pause, and is not repeated."""
    tools, clock = ControllableTools(), StartableClock()
    agent = tools.agent(
        Use("slow", name="a"), *call_quick("b"), "Done.", stop=MaxTime(seconds=0.1)
    )
    async with open_with_clock(path, clock, agent) as midrun:
        run = await midrun.start("actor", "go")
        await tools.start("a").wait()
        clock.start()
        await run.until("pausing")
        assert tools.completed == []
        tools.gate("a").set()
        await wait_for_cap(run)
        assert tools.completed == ["a"]
        assert (await read_entries(run, CapReached))[0].cap == "time"
        await run.resume(caps={"time": 10**9})
        await run.until("completed")
        assert tools.called == ["a", "b"]
        assert await midrun.verify(run.id)


async def test_time_spent_waiting_for_a_person_does_not_count(
    path: Path, tmp_path: Path
) -> None:
    clock, log = ManualClock(), str(tmp_path / "log.txt")
    agent = log_agent(*get_script("ask_async", log), stop=MaxTime(minutes=1))
    async with open_with_clock(path, clock, agent) as midrun:
        run = await midrun.start("logger", "go")
        await run.until("waiting")
        clock.advance(timedelta(days=30))
        await run.answer("at last")
        view = await run.until("completed", "paused")
        assert (view.phase, view.output) == ("completed", "ask_async: at last")


# ── repetition ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("n", "names"),
    [(3, "aaa"), (2, "abab"), (3, "ababab"), (2, "abcabc"), (2, "abcdabcd"), (2, "xyabab")],
)
async def test_repeated_calls_pause_the_run(n: int, names: str, opened: OpenMidrun) -> None:
    """A repetition is the same call, or a cycle of up to four; the next call is not made."""
    tools = ControllableTools()
    midrun = await opened(tools.agent(*call_quick(*names, "z"), "Done.", stop=Repeats(n)))
    run = await midrun.start("actor", "go")
    await wait_for_cap(run)
    assert "".join(tools.completed) == names
    await run.resume("Try something else")  # there is no bound to raise
    await run.until("completed")
    assert "".join(tools.completed) == names + "z"


@pytest.mark.parametrize("names", ["aabbaa", "abcba", "abcdeabcde"])
async def test_calls_that_are_no_repetition_do_not_pause(
    names: str, opened: OpenMidrun
) -> None:
    """A call with other arguments is another call."""
    tools = ControllableTools()
    midrun = await opened(tools.agent(*call_quick(*names), "Done.", stop=Repeats(3)))
    run = await midrun.start("actor", "go")
    assert (await run.until("completed", "paused")).phase == "completed"


async def test_the_view_shows_the_number_of_repetitions(opened: OpenMidrun) -> None:
    tools = ControllableTools()
    midrun = await opened(
        tools.agent(*call_quick("x", "a", "a", "a"), "Done.", stop=Repeats(3))
    )
    run = await midrun.start("actor", "go")
    await wait_for_cap(run)
    assert await read_caps(run) == {"repeats": (3, 3)}


# ── text of the agent, and custom conditions ──────────────────────────────────────────────


@pytest.mark.parametrize("stop", [TextMention("READY"), Custom(stop_conditions.two_calls)])
async def test_a_condition_without_a_bound_pauses_and_a_resume_continues(
    stop: Stop, opened: OpenMidrun
) -> None:
    """There is no bound to raise. After the resume at least one more step is made."""
    tools = ControllableTools()
    turns: list[Line] = [
        *call_quick("a"),
        ["I am ready now. ", *call_quick("b")],
        *call_quick("c"),
        "Done.",
    ]
    midrun = await opened(tools.agent(*turns, stop=stop))
    run = await midrun.start("actor", "go")
    await wait_for_cap(run)
    assert tools.completed == ["a", "b"]
    await run.resume()
    outcome = await run.result()
    assert tools.completed == ["a", "b", "c"]
    if isinstance(outcome, Paused):  # `two_calls` is still true after the next step
        await run.resume()
    await run.until("completed")


@pytest.mark.parametrize(
    "stop",
    [
        TextMention("ready", then="complete"),
        MaxSteps(40) | TextMention("ready", then="complete"),
        Custom(stop_conditions.two_calls, then="complete"),
        Custom(stop_conditions.two_steps, then="complete"),
    ],
)
async def test_a_condition_with_then_complete_completes_the_run(
    stop: Stop, opened: OpenMidrun
) -> None:
    """The last text of the agent is the output; the calls of that step are made."""
    tools = ControllableTools()
    turns: list[Line] = [
        *call_quick("a"),
        ["All ready. ", *call_quick("b")],
        *call_quick("never"),
    ]
    midrun = await opened(tools.agent(*turns, stop=stop))
    run = await midrun.start("actor", "go")
    outcome = await run.result()
    assert isinstance(outcome, Completed)
    assert outcome.output == "All ready. "
    assert tools.completed == ["a", "b"]


async def test_the_verdicts_of_a_custom_condition_are_journaled(opened: OpenMidrun) -> None:
    """The function is called once per boundary; a replay does not call it again."""
    tools = ControllableTools()
    midrun = await opened(
        tools.agent(*call_quick("a", "b"), "Done.", stop=Custom(stop_conditions.two_calls))
    )
    run = await midrun.start("actor", "go")
    await wait_for_cap(run)
    verdicts = [entry.met for entry in await read_entries(run, StopEvaluated)]
    assert verdicts == [False, False, True]


async def test_a_custom_condition_that_cannot_be_imported_is_refused() -> None:
    """Another process that resumes the run finds the function by its name only."""
    with pytest.raises(Misconfigured, match="top of a module"):
        Custom(lambda _: True)


# ── composed conditions ───────────────────────────────────────────────────────────────────

READY_SCRIPT: Sequence[Line | Cue] = (
    ["Busy. ", Use("quick", name="a")],
    ["Busy. ", Use("quick", name="b")],
    ["Ready. ", Use("quick", name="c")],
    ["Ready. ", Use("quick", name="d")],
    "Done.",
)


@pytest.mark.parametrize(
    ("stop", "completed"),
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
async def test_conditions_compose_in_any_order(
    stop: Stop, completed: str, opened: OpenMidrun
) -> None:
    tools = ControllableTools()
    midrun = await opened(tools.agent(*READY_SCRIPT, stop=stop))
    run = await midrun.start("actor", "go")
    await wait_for_cap(run)
    assert "".join(tools.completed) == completed
    assert (await run.view()).stop == str(stop)


async def test_a_cap_within_a_composed_condition_is_raised_by_its_name(
    opened: OpenMidrun,
) -> None:
    """The view lists all caps of the condition."""
    tools = ControllableTools()
    stop = (MaxSteps(3) & TextMention("ready")) | MaxToolCalls(40)
    midrun = await opened(tools.agent(*READY_SCRIPT, stop=stop))
    run = await midrun.start("actor", "go")
    await wait_for_cap(run)
    assert await read_caps(run) == {"steps": (3, 3), "tool_calls": (3, 40)}
    with pytest.raises(ControlRefused) as refused:
        await run.resume(caps={"tool_calls": 50})  # the reached cap is `steps`
    assert refused.value.reason == "cap_reached"
    await run.resume(caps={"steps": 9})
    await run.until("completed")


async def test_a_cap_pauses_a_run_without_a_store_too() -> None:
    """The checkpoint keeps the cap."""
    tools = ControllableTools()
    agent = tools.agent(*call_quick("a", "b"), "Done.", stop=MaxSteps(1))
    outcome = await agent.run("go")
    assert isinstance(outcome, Paused)
    assert outcome.reason == "cap"
    with pytest.raises(ControlRefused) as refused:
        await agent.resume(Checkpoint.from_json(outcome.checkpoint.to_json()))
    assert refused.value.reason == "cap_reached"
    assert tools.completed == ["a"]


async def test_the_reached_cap_and_the_pause_are_two_entries(opened: OpenMidrun) -> None:
    tools = ControllableTools()
    midrun = await opened(tools.agent(*call_quick("a", "b"), "Done.", stop=MaxSteps(1)))
    run = await midrun.start("actor", "go")
    await wait_for_cap(run)
    (reached,) = await read_entries(run, CapReached)
    assert (reached.stop, reached.cap) == ("at most 1 steps", "steps")
    assert (await read_kinds(run))[-2:] == ["CapReached", "RunPaused"]
