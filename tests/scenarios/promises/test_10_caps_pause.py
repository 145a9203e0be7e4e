"""Caps pause.

Steps, calls, tokens, money, time, repetition: a run that reaches a cap pauses and asks, instead
of being killed. It goes on when somebody raises the cap. Caps are always visible.
"""

from datetime import timedelta
from pathlib import Path

import anyio
import pytest

from midrun import Agent, Call, ControlRefused, Midrun, Misconfigured, tool
from midrun.core.entries import CallSealed, CapReached
from midrun.core.ids import CallId, Micros
from midrun.models import Use
from midrun.ports.environment import Environment
from midrun.stops import MaxCost, MaxSteps, MaxTime, MaxTokens, MaxToolCalls, Repeats, Stop
from midrun.text.entries import JournalDescriber
from tests.scenarios.promises.caps import capped, shown, uses
from tests.scenarios.promises.clocks import FAR, Hand, Stopped
from tests.scenarios.promises.office import office, script
from tests.scenarios.promises.priced import Priced
from tests.scenarios.promises.seen import entries, journal
from tests.support.store_choice import kept_at
from tests.unit.runs.conftest import Opener
from tests.unit.runs.stage import ControllableTools


def priced(stage: ControllableTools, model: Priced, stop: Stop) -> Agent:
    """Return an agent that pays for its words."""
    return Agent("actor", model=model, tools=stage.tools(), stop=stop)


# ── every cap: it pauses, it is named, and only raising it lets the run go on ─────────────

BOUNDED: dict[str, tuple[Stop, tuple[float, float], float]] = {
    "steps": (MaxSteps(2), (2, 2), 9),
    "tool_calls": (MaxToolCalls(2), (2, 2), 9),
    "tokens": (MaxTokens(300), (200, 300), 1000),
    "cost": (MaxCost(usd=0.03), (0.02, 0.03), 1.0),
}


@pytest.mark.parametrize("name", BOUNDED)
async def test_at_a_cap_the_run_pauses_and_only_raising_it_lets_it_go_on(
    name: str, opened: Opener
) -> None:
    """A bare resume would only hit it again, so it is refused by name."""
    stop, used, more = BOUNDED[name]
    stage = ControllableTools()
    model = Priced([*uses("a", "b", "c"), "Done."])
    midrun = await opened(priced(stage, model, stop))
    run = await midrun.start("actor", "go")
    await capped(run)
    assert stage.completed == ["a", "b"]
    assert (await shown(run))[name] == used
    assert (await run.view()).reason == "cap"
    for going_on in (run.resume(), run.resume("hurry"), run.redirect("hurry")):
        with pytest.raises(ControlRefused) as refused:
            await going_on
        assert refused.value.reason == "cap_reached"
        assert refused.value.by == name  # which one to raise
    assert model.spoken == 2  # nothing was spent on finding out
    await run.raise_cap(**{name: more})  # type: ignore[arg-type]  # a cap, not who asks
    await run.resume()
    await run.until("completed")
    assert stage.completed == ["a", "b", "c"]


@pytest.mark.parametrize("name", BOUNDED)
async def test_a_cap_is_raised_with_the_resumption_in_one_go(name: str, opened: Opener) -> None:
    """Both or neither: too little is refused and changes nothing."""
    stop, _, more = BOUNDED[name]
    stage = ControllableTools()
    midrun = await opened(priced(stage, Priced([*uses("a", "b", "c"), "Done."]), stop))
    run = await midrun.start("actor", "go")
    await capped(run)
    before = (await run.view()).seq
    for caps, why in (({name: 0.0}, "cap_not_raised"), ({"patience": 9.0}, "no_such_cap")):
        with pytest.raises(ControlRefused) as refused:
            await run.resume(caps=caps)
        assert refused.value.reason == why
    assert (await run.view()).seq == before
    await run.resume(caps={name: more}, actor="ada")
    await run.until("completed")
    assert stage.completed == ["a", "b", "c"]


async def test_a_cap_can_be_raised_before_it_is_reached(opened: Opener) -> None:
    """Whoever sees it coming need not wait for the pause."""
    stage = ControllableTools()
    agent = stage.agent(Use("slow", name="a"), *uses("b"), "Done.", stop=MaxSteps(1))
    midrun = await opened(agent)
    run = await midrun.start("actor", "go")
    await stage.start("a").wait()
    await run.raise_cap(steps=5)
    assert await shown(run) == {"steps": (1, 5)}
    stage.gate("a").set()
    await run.until("completed")


async def test_a_cap_that_was_raised_too_little_holds_again(opened: Opener) -> None:
    """Every pause at a cap is a new one."""
    stage = ControllableTools()
    midrun = await opened(stage.agent(*uses("a", "b", "c"), "Done.", stop=MaxSteps(1)))
    run = await midrun.start("actor", "go")
    for bound in (2, 3):
        await capped(run)
        await run.resume(caps={"steps": bound})
        await run.until("paused")
    await capped(run)
    assert stage.completed == ["a", "b", "c"]
    await run.cancel()
    assert (await run.until("cancelled")).phase == "cancelled"


async def test_a_run_that_is_done_at_its_cap_is_done(opened: Opener) -> None:
    """A cap stands before the next step, and there is none."""
    stage = ControllableTools()
    midrun = await opened(stage.agent(*uses("a"), "Done.", stop=MaxSteps(2)))
    run = await midrun.start("actor", "go")
    assert (await run.until("completed", "paused")).phase == "completed"


async def test_a_cap_of_the_run_stands_in_for_that_of_the_agent(opened: Opener) -> None:
    """And it is the one that is shown."""
    stage = ControllableTools()
    midrun = await opened(stage.agent(*uses("a", "b"), "Done.", stop=MaxSteps(40)))
    run = await midrun.start("actor", "go", stop=MaxSteps(1))
    await capped(run)
    view = await run.view()
    assert (view.stop, await shown(run)) == ("at most 1 steps", {"steps": (1, 1)})


async def test_what_was_used_and_the_cap_survive_another_process(
    opened: Opener, path: Path
) -> None:
    """The meter is in the journal: a restart does not start it anew."""
    stage = ControllableTools()
    turns = (*uses("a", "b", "c"), "Done.")
    async with Midrun(kept_at(path), agents=[stage.agent(*turns, stop=MaxSteps(1))]) as midrun:
        run = await midrun.start("actor", "go")
        await capped(run)
        await run.raise_cap(steps=2)
    again = await opened(stage.agent(*turns, stop=MaxSteps(1)))
    run = await again.get(run.id)
    assert await shown(run) == {"steps": (1, 2)}
    await run.resume()
    await capped(run)
    assert stage.completed == ["a", "b"]


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
    stop: Stop, names: str, made: str, caps: dict[str, float] | None, opened: Opener
) -> None:
    """One reply may ask for any number of calls; those beyond the cap wait for a person."""
    stage = ControllableTools()
    midrun = await opened(stage.agent(uses(*names), "Done.", stop=stop))
    run = await midrun.start("actor", "go")
    await capped(run)
    assert "".join(sorted(stage.completed)) == "".join(sorted(made))
    await run.resume(caps=caps)
    assert (await run.until("completed")).output == "Done."
    assert "".join(sorted(stage.completed)) == "".join(sorted(names))
    assert await midrun.verify(run.id)


async def test_sixty_calls_of_one_reply_stop_at_ten(opened: Opener) -> None:
    """And the run says which calls it has not made, where it says that it is at its cap."""
    stage = ControllableTools()
    names = [f"n{number}" for number in range(60)]
    midrun = await opened(stage.agent(uses(*names), "Done.", stop=MaxToolCalls(10)))
    run = await midrun.start("actor", "go")
    await capped(run)
    assert sorted(stage.completed) == sorted(names[:10])
    assert await shown(run) == {"tool_calls": (10, 10)}
    view = await run.view()
    waiting = "50 calls are not made yet: quick, quick"
    assert view.sign.note.startswith(waiting)
    assert waiting in view.controls["pause"].consequence
    reader = JournalDescriber(run.id)
    told = [str(reader.describe_next(entry, Micros(0))) for entry in await journal(run)]
    (reached,) = [sentence for sentence in told if "reached a cap" in sentence]
    assert "50 calls are not made yet: quick #11, quick #12, " in reached
    assert reached.endswith(" and 40 more")


async def test_calls_beyond_a_cap_can_be_given_up(opened: Opener) -> None:
    """A new instruction with the raised cap drops them; the agent is told so."""
    stage = ControllableTools()
    agent = stage.agent(uses("a", "b", "c"), "Fine.", stop=MaxToolCalls(1))
    midrun = await opened(agent)
    run = await midrun.start("actor", "go")
    await capped(run)
    await run.resume("Leave the others", caps={"tool_calls": 9})
    await run.until("completed")
    assert stage.completed == ["a"]
    assert [(sealed.call, sealed.why) for sealed in await entries(run, CallSealed)] == [
        (CallId("c3"), "not executed: the run was redirected"),
        (CallId("c4"), "not executed: the run was redirected"),
    ]
    assert await midrun.verify(run.id)


# ── money ─────────────────────────────────────────────────────────────────────────────────


async def test_what_a_call_may_cost_is_set_aside_while_it_is_made(opened: Opener) -> None:
    """So that calls in flight cannot break a cap together; then only what it cost counts."""
    stage, gate = ControllableTools(), anyio.Event()
    model = Priced(["Done."], gate)
    midrun = await opened(priced(stage, model, MaxCost(usd=1)))
    run = await midrun.start("actor", "go")
    await model.began.wait()
    view = await run.view()
    assert (view.usage.reserved_usd, view.usage.reserved_tokens) == (0.015, 150)
    assert await shown(run) == {"cost": (0.015, 1)}
    gate.set()
    usage = (await run.until("completed")).usage
    assert (usage.cost_usd, usage.tokens) == (0.01, 100)
    assert (usage.reserved_usd, usage.reserved_tokens) == (0, 0)


async def test_a_call_that_could_break_the_cap_is_not_made(opened: Opener) -> None:
    """Not even the first one: what it may cost decides, not what it would have cost."""
    stage = ControllableTools()
    model = Priced(["Done."])
    midrun = await opened(priced(stage, model, MaxCost(usd=0.012)))
    run = await midrun.start("actor", "go")
    await capped(run)
    assert (model.spoken, await shown(run)) == (0, {"cost": (0, 0.012)})
    await run.resume(caps={"cost": 0.015})
    await run.until("completed")


@pytest.mark.parametrize("stop", [MaxCost(usd=1), MaxSteps(5) | MaxCost(usd=1)])
async def test_a_model_without_a_price_refuses_a_cap_on_money_by_name(
    stop: Stop, opened: Opener
) -> None:
    """A cap that cannot be kept must not look as if it were."""
    agent = ControllableTools().agent("Done.")
    midrun = await opened(agent)
    with pytest.raises(Misconfigured, match=r"scripted.*MaxCost"):
        await midrun.start("actor", "go", stop=stop)
    with pytest.raises(Misconfigured, match=r"scripted.*MaxCost"):
        await agent.run("go", stop=stop)
    assert not (await midrun.runs()).items


# ── time ──────────────────────────────────────────────────────────────────────────────────


def timed(path: Path, clock: Hand | Stopped, *agents: Agent) -> Midrun:
    """Return a `Midrun` that goes by `clock`."""
    outside = Environment(clock=clock, lease=FAR)
    return Midrun(kept_at(path), agents=agents, outside=outside)


async def test_time_at_work_is_capped(path: Path) -> None:
    """And shown in seconds."""
    stage, clock = ControllableTools(), Hand()

    @tool
    async def think(call: Call, seconds: int) -> str:
        """Take time."""
        del call
        clock.move(timedelta(seconds=seconds))
        return "thought"

    turns = [Use("think", seconds=40), Use("think", seconds=30), "Done."]
    agent = stage.agent(*turns, stop=MaxTime(minutes=1))
    agent = Agent("actor", model=agent.model, tools=[think], stop=agent.stop)
    async with timed(path, clock, agent) as midrun:
        run = await midrun.start("actor", "go")
        await capped(run)
        assert await shown(run) == {"time": (70, 60)}
        with pytest.raises(ControlRefused) as refused:
            await run.resume()
        assert refused.value.reason == "cap_reached"
        clock.move(timedelta(days=3))  # at rest, time does not count
        assert await shown(run) == {"time": (70, 60)}
        await run.resume(caps={"time": 100})
        view = await run.until("completed")
        assert view.elapsed == 70
        assert await midrun.verify(run.id)


async def test_time_is_up_also_in_the_middle_of_a_call(path: Path) -> None:
    """The call finishes, as in any pause, and is not made again."""
    stage, clock = ControllableTools(), Stopped()
    agent = stage.agent(Use("slow", name="a"), *uses("b"), "Done.", stop=MaxTime(seconds=0.1))
    async with timed(path, clock, agent) as midrun:
        run = await midrun.start("actor", "go")
        await stage.start("a").wait()
        clock.run()
        await run.until("pausing")
        assert stage.completed == []
        stage.gate("a").set()
        await capped(run)
        assert stage.completed == ["a"]
        assert (await entries(run, CapReached))[0].cap == "time"
        await run.resume(caps={"time": 10**9})
        await run.until("completed")
        assert stage.called == ["a", "b"]
        assert await midrun.verify(run.id)


async def test_the_time_that_a_person_takes_does_not_count(path: Path, tmp_path: Path) -> None:
    """Nobody is at work in a run that waits."""
    clock, log = Hand(), str(tmp_path / "book.txt")
    agent = office(*script("ask_async", log), stop=MaxTime(minutes=1))
    async with timed(path, clock, agent) as midrun:
        run = await midrun.start("office", "go")
        await run.until("waiting")
        clock.move(timedelta(days=30))
        await run.answer("at last")
        view = await run.until("completed", "paused")
        assert (view.phase, view.output) == ("completed", "ask_async: at last")
