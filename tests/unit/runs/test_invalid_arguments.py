"""Invalid arguments are refused with the name of the argument, and nothing is appended."""

from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from math import inf, nan

import pytest

from midrun import Agent, ControlRefused, Midrun, Misconfigured, Paused, Run, ask_human, tool
from midrun.errors import CheckpointRefused
from midrun.models import ScriptedModel, Use
from midrun.stops import MaxCost, MaxSteps, MaxTime, MaxTokens, Repeats
from midrun.testing.controllable_tools import ControllableTools
from tests.unit.runs.conftest import OpenMidrun

InvalidCall = Callable[[Run], Awaitable[object]]


INVALID_CALLS: dict[str, InvalidCall] = {
    "redirect": lambda run: run.redirect(None),  # type: ignore[arg-type]
    "say": lambda run: run.say(3),  # type: ignore[arg-type]
    "hold": lambda run: run.pause(hold=5),  # type: ignore[arg-type]
    "request_id": lambda run: run.pause(request_id=7),  # type: ignore[arg-type]
    "reason": lambda run: run.pause(reason=b"x"),  # type: ignore[arg-type]
    "actor": lambda run: run.pause(actor=5),  # type: ignore[arg-type]
    "instruction": lambda run: run.resume(7),  # type: ignore[arg-type]
    "at": lambda run: run.say("Later.", at=datetime(2030, 1, 1)),  # noqa: DTZ001 - without a time zone
    "caps['steps']": lambda run: run.raise_cap(steps=nan),
    "caps['time']": lambda run: run.raise_cap(time=inf),
    "caps['cost']": lambda run: run.resume(caps={"cost": "4"}),  # type: ignore[dict-item]
    "caps['tokens']": lambda run: run.raise_cap(tokens=-1),
    "expires": lambda run: run.checkpoint(expires=timedelta(0)),
    "ask": lambda run: run.answer("this", ask=5),  # type: ignore[arg-type]
    "seq": lambda run: run.fork("x"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("where", INVALID_CALLS)
async def test_an_invalid_argument_is_named_and_changes_nothing(where: str) -> None:
    """The error names the argument as the caller wrote it."""
    model = ScriptedModel([Use("ask_human", question="Which?"), "So."])
    agent = Agent("asker", model=model, tools=[ask_human])
    async with Midrun("memory://", agents=[agent]) as midrun:
        run = await midrun.start(agent, "Ask.")
        before = await run.until("waiting")
        with pytest.raises(Misconfigured) as caught:
            await INVALID_CALLS[where](run)
        assert caught.value.where == where
        assert (await run.view()).seq == before.seq


@pytest.mark.parametrize("scope", ["", "agent", "label:", "tag:x", "a\0b"])
async def test_a_halt_whose_scope_covers_nothing_is_refused(scope: str) -> None:
    """An operator in a hurry must not believe that such a halt is in force."""
    async with Midrun("memory://") as midrun:
        with pytest.raises(Misconfigured, match="scope"):
            await midrun.halt("Fire.", scope=scope, actor="operator:olga")
        assert not await midrun.store.list_halts()


LONG_NAME = "x" * 3_000_000


@pytest.mark.parametrize(
    ("where", "call"),
    {
        "thread": lambda mid: mid.start("asker", "Go.", thread=LONG_NAME),
        "labels": lambda mid: mid.start("asker", "Go.", labels=["fine", LONG_NAME]),
        "actor": lambda mid: mid.start("asker", "Go.", actor=LONG_NAME),
        "label": lambda mid: mid.runs(label=LONG_NAME),
        "scope": lambda mid: mid.halt("Fire.", scope=f"label:{LONG_NAME}", actor="olga"),
        "reason": lambda mid: mid.halt(LONG_NAME, actor="olga"),
    }.items(),
)
async def test_a_name_that_is_too_long_is_refused_with_its_argument(
    where: str, call: Callable[[Midrun], Awaitable[object]]
) -> None:
    """Postgres cannot index such a name, and every list would have to show it."""
    agent = Agent("asker", model=ScriptedModel(["So."]))
    async with Midrun("memory://", agents=[agent]) as midrun:
        with pytest.raises(Misconfigured, match="characters, got 3000") as caught:
            await call(midrun)
        assert caught.value.where == where
        assert not (await midrun.runs()).items
        with pytest.raises(Misconfigured, match="must be at most 32, got 33"):
            await midrun.start("asker", "Go.", labels=[str(n) for n in range(33)])


@pytest.mark.parametrize(
    ("agents", "kind"),
    [
        (Agent("a", model=ScriptedModel([])), "Agent"),
        ("a", "str"),
        (["a"], "str"),
        (None, "NoneType"),
    ],
)
def test_agents_that_are_not_a_list_of_agents_are_refused(agents: object, kind: str) -> None:
    """A single agent without brackets is the usual mistake."""
    with pytest.raises(Misconfigured, match=f"must be a list of Agent, got {kind}; write"):
        Midrun("memory://", agents=agents)  # type: ignore[arg-type]  # the point of the test


async def test_an_unknown_agent_is_refused_with_the_names_of_the_known_ones() -> None:
    reader = Agent("reader", model=ScriptedModel(["So."]))
    other = Agent("reader", model=ScriptedModel(["No."]))
    async with Midrun("memory://", agents=[reader]) as midrun:
        with pytest.raises(Misconfigured, match=r"one of this Midrun \(reader\), got 'raeder'"):
            await midrun.start("raeder", "Go.")
        with pytest.raises(Misconfigured, match="got another agent of the name 'reader'"):
            await midrun.start(other, "Go.")


@pytest.mark.parametrize("limit", [0, -1, "5", None, True])
async def test_a_limit_that_is_not_a_positive_int_is_refused(limit: int) -> None:
    """The error is about the argument, not one that the store raises for it."""
    async with Midrun("memory://") as midrun:
        with pytest.raises(Misconfigured, match="limit"):
            await midrun.runs(limit=limit)


@pytest.mark.parametrize("argument", ["task", "thread", "request_id", "labels", "actor"])
async def test_an_unpaired_surrogate_is_refused_in_every_text(argument: str) -> None:
    """A model or a terminal may cut an emoji in two."""
    agent = Agent("a", model=ScriptedModel(["So."]))
    texts = dict.fromkeys(("task", "thread", "request_id", "actor"), "x") | {argument: "\ud83d"}
    labels = [texts.pop("labels")] if argument == "labels" else []
    async with Midrun("memory://", agents=[agent]) as midrun:
        with pytest.raises(Misconfigured, match="half of a character"):
            await midrun.start(agent, **texts, labels=labels)  # type: ignore[arg-type]
        assert not (await midrun.runs()).items


@pytest.mark.parametrize("seq", [-1, 0, 10**9])
async def test_a_fork_at_a_seq_that_is_no_boundary_is_refused(seq: int) -> None:
    """The refusal has the phase of the run, and does not say that no fork is possible."""
    agent = Agent("a", model=ScriptedModel(["So."]))
    async with Midrun("memory://", agents=[agent]) as midrun:
        run = await midrun.start(agent, "Go.")
        await run.until("completed")
        with pytest.raises(ControlRefused) as caught:
            await run.fork(seq)
        assert caught.value.reason == "not_a_boundary"
        assert caught.value.phase == "completed"
        assert "nothing is possible" not in str(caught.value)
        with pytest.raises(ControlRefused, match="Allowed now: fork"):
            await run.pause()


@pytest.mark.parametrize(
    ("value", "message"),
    [("{}", r"pass Checkpoint.from_json\(text\)"), (7, "must be a Checkpoint, got int")],
)
async def test_a_checkpoint_of_another_type_is_refused(value: object, message: str) -> None:
    """For text, the error names the function that parses it."""
    agent = Agent("a", model=ScriptedModel(["So."]))
    with pytest.raises(Misconfigured, match=message):
        await agent.resume(value)  # type: ignore[arg-type]


async def test_a_checkpoint_of_another_agent_is_refused() -> None:
    """Without a store there is no run to take a new checkpoint from, so the advice differs."""
    model = ScriptedModel([Use("ask_human", question="Which?"), "So."])
    paused = await Agent("asker", model=model, tools=[ask_human]).run("Ask.")
    assert isinstance(paused, Paused)
    other = Agent("other", model=model, tools=[ask_human])
    with pytest.raises(CheckpointRefused, match="Resume it with its own agent"):
        await other.resume(paused.checkpoint, "red")


def test_the_repr_of_an_agent_counts_its_tools() -> None:
    """Every agent has the plan tool; one tool is in the singular."""
    agent = Agent("a", model=ScriptedModel(["So."]))
    assert repr(agent).endswith("1 tool>")


async def test_a_request_id_that_is_reused_for_another_start_is_refused() -> None:
    """The refusal names the run that was started with the id; that run is not changed."""
    agent = Agent("a", model=ScriptedModel(["So."]))
    async with Midrun("memory://", agents=[agent]) as midrun:
        run = await midrun.start(agent, "Go.", request_id="r1")
        await run.until("completed")
        with pytest.raises(ControlRefused, match="started otherwise") as caught:
            await midrun.start(agent, "Else.", request_id="r1")
        assert (caught.value.run, caught.value.phase) == (run.id, "completed")


@pytest.mark.parametrize(
    "make",
    [
        lambda: MaxSteps(-1),
        lambda: MaxSteps(1.5),  # type: ignore[arg-type]
        lambda: MaxTokens("3"),  # type: ignore[arg-type]
        lambda: Repeats(0),
        lambda: MaxCost(nan),
        lambda: MaxTime(seconds=-1),
        lambda: MaxTime(minutes=inf),
    ],
)
def test_an_invalid_stop_condition_is_refused_when_it_is_created(
    make: Callable[[], object],
) -> None:
    """Later the run would pause before its first step, or fail."""
    with pytest.raises(ValueError, match=r"must be (an int|a finite)"):
        make()


async def test_an_unknown_option_of_a_control_is_an_error(opened: OpenMidrun) -> None:
    """`undoo="all"` must not silently undo less than the caller asked for."""
    tools = ControllableTools()
    midrun = await opened(tools.agent("Done."))
    run = await midrun.start("actor", "go")
    with pytest.raises(TypeError, match="undoo"):
        await run.cancel(undoo="all")  # type: ignore[call-arg]  # the typo under test
    with pytest.raises(Misconfigured, match="in_flight or all"):
        await run.cancel(undo="some")  # type: ignore[arg-type]  # an invalid value


def test_a_timeout_of_a_tool_in_a_thread_is_refused() -> None:
    """A thread cannot be stopped."""

    @tool(in_process=True, timeout=timedelta(seconds=1))
    def block() -> None:
        """Block."""

    with pytest.raises(Misconfigured, match="Cannot enforce the timeout"):
        Agent("actor", model=ScriptedModel(["x"]), tools=[block])


async def test_a_resume_with_an_invalid_instruction_does_not_apply_the_answer(
    opened: OpenMidrun,
) -> None:
    """The checkpoint is resumed as a whole, or not at all."""
    model = ScriptedModel([Use("ask_human", question="Which?"), "Done."])
    agent = Agent("actor", model=model, tools=[ask_human])
    paused = await agent.run("go")
    midrun = await opened(agent)
    with pytest.raises(ControlRefused):
        await midrun.resume(paused.checkpoint, "red", instruction="   ")  # type: ignore[union-attr]  # it is paused
    assert not (await midrun.runs()).items
