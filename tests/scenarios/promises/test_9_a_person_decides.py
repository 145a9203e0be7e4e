"""A person in the loop costs no process: what they decide about a call counts exactly once.

A call that needs a yes is made after it, with the arguments it was given for, and cites it.
One of which nobody knows whether it happened is made again only if a person says it did not.
"""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest

from midrun import Agent, Checkpoint, Completed, ControlRefused, Midrun, Paused
from midrun.core.entries import AskOpened, CallDone, CallStarted
from midrun.models import Use
from midrun.ports.environment import Environment
from tests.scenarios.promises.clocks import FAR, Hand
from tests.scenarios.promises.office import carried, office, script, told, written
from tests.scenarios.promises.processes import elsewhere
from tests.scenarios.promises.seen import entries, kinds, recorded
from tests.support.store_choice import kept_at
from tests.unit.runs.conftest import Opener
from tests.unit.runs.stage import ControllableTools

# ── an approval ───────────────────────────────────────────────────────────────────────────


async def test_a_call_that_needs_a_yes_is_made_after_it_and_cites_it(
    opened: Opener, log: str
) -> None:
    """The yes is for these arguments of this call; the start says which yes."""
    midrun = await opened(office(*script("pay", log)))
    run = await midrun.start("office", "go")
    view = await run.until("waiting")
    (ask,) = view.asks
    assert (ask.kind, ask.tool) == ("approval", "pay")
    assert ask.args == {"log": log, "amount": 100}
    assert written(log) == ["did first"]
    await run.approve(actor="ada")
    assert (await run.until("completed")).output == "pay: paid 100"
    assert written(log) == ["did first", "paid 100 to ada"]
    (opened_,) = await entries(run, AskOpened)
    start = (await entries(run, CallStarted))[-2]
    assert start.approval is not None
    assert start.approval.ask == ask.id
    assert start.approval.args_hash == opened_.args_hash


async def test_a_declined_call_is_never_made_and_the_agent_is_told_why(
    opened: Opener, log: str
) -> None:
    """By whom, and with the person's own reason."""
    midrun = await opened(office(*script("pay", log)))
    run = await midrun.start("office", "go")
    await run.until("waiting")
    await run.decline("too much; ask finance", actor="ada")
    output = (await run.until("completed")).output
    assert "too much; ask finance" in output
    assert "ada" in output
    assert written(log) == ["did first"]


async def test_edited_arguments_are_the_ones_that_it_is_made_with(
    opened: Opener, log: str
) -> None:
    """Exactly those: what is left out of them is not taken from the old ones."""
    midrun = await opened(office(*script("pay", log)))
    run = await midrun.start("office", "go")
    await run.until("waiting")
    await run.approve(args={"log": log, "amount": 5, "to": "bob"}, actor="ada")
    assert (await run.until("completed")).output == "pay: paid 5"
    assert written(log) == ["did first", "paid 5 to bob"]
    (opened_,) = await entries(run, AskOpened)
    start = (await entries(run, CallStarted))[-2]
    assert start.approval is not None
    assert start.approval.args_hash != opened_.args_hash


@pytest.mark.parametrize("amount", ["a lot", None, [1]])
async def test_edited_arguments_that_do_not_fit_are_refused_and_the_ask_stays_open(
    amount: object, opened: Opener, log: str
) -> None:
    """A slip of the pen must not use up the decision, nor reach the tool."""
    midrun = await opened(office(*script("pay", log)))
    run = await midrun.start("office", "go")
    await run.until("waiting")
    with pytest.raises(ControlRefused):
        await run.approve(args={"log": log, "amount": amount}, actor="ada")
    view = await run.view()
    assert (view.phase, [ask.kind for ask in view.asks]) == ("waiting", ["approval"])
    await run.approve(args={"log": log, "amount": 7}, actor="ada")
    await run.until("completed")
    assert written(log) == ["did first", "paid 7 to ada"]


async def test_only_the_audience_may_decide(opened: Opener, log: str) -> None:
    """A role is checked against the actor, whichever way they decide."""
    midrun = await opened(office(Use("wire", log=log, amount=9), told))
    run = await midrun.start("office", "go")
    (ask,) = (await run.until("waiting")).asks
    assert ask.audience == "operator"
    for deciding in (run.approve, run.decline):
        with pytest.raises(ControlRefused) as refused:
            await deciding(actor="ada")
        assert refused.value.reason == "not_allowed"
    assert written(log) == []
    await run.approve(actor="operator:olga")
    assert (await run.until("completed")).output == "wire: wired 9"


async def test_four_eyes_are_those_of_somebody_else(opened: Opener, log: str) -> None:
    """Whoever started the run cannot let through what it does, in whatever role."""
    midrun = await opened(office(Use("sign", log=log, name="lease"), told))
    run = await midrun.start("office", "go", actor="ada")
    await run.until("waiting")
    for own in ("ada", "operator:ada"):
        with pytest.raises(ControlRefused) as refused:
            await run.approve(actor=own)
        assert refused.value.reason == "not_allowed"
    assert written(log) == []
    await run.approve(actor="bob")
    await run.until("completed")
    assert written(log) == ["signed lease"]


async def test_four_eyes_exclude_who_makes_the_call_by_hand(opened: Opener, log: str) -> None:
    """An operator who takes over proposes the call, and needs another one to approve it."""
    midrun = await opened(office(*script("ask_async", log)))
    run = await midrun.start("office", "go", actor="ada")
    await run.until("waiting")
    await run.take_over(actor="operator:olga")
    await run.until("paused")
    await run.use_tool("sign", {"log": log, "name": "lease"}, actor="operator:olga")
    ask = await recorded(run, AskOpened, 2)
    with pytest.raises(ControlRefused, match="only another person may decide") as refused:
        await run.approve(ask=ask.ask, actor="operator:olga")
    assert refused.value.reason == "not_allowed"
    assert written(log) == ["asked Refund?"]
    await run.approve(ask=ask.ask, actor="operator:omar")
    await recorded(run, CallDone, 2)
    assert written(log) == ["asked Refund?", "signed lease"]
    assert await midrun.verify(run.id)


async def test_four_eyes_put_an_edit_to_another_person(opened: Opener, log: str) -> None:
    """Who changes the arguments has proposed them: a third person approves what is made."""
    midrun = await opened(office(Use("sign", log=log, name="lease"), told))
    run = await midrun.start("office", "go", actor="ada")
    await run.until("waiting")
    await run.approve(args={"log": log, "name": "deed"}, actor="bob")
    second = await recorded(run, AskOpened, 2)
    for excluded in ("ada", "bob"):
        with pytest.raises(ControlRefused):
            await run.approve(ask=second.ask, actor=excluded)
    assert written(log) == []
    await run.approve(ask=second.ask, actor="cyd")
    await run.until("completed")
    assert written(log) == ["signed deed"]
    assert await midrun.verify(run.id)


async def test_an_approval_is_not_decided_by_an_answer(opened: Opener, log: str) -> None:
    """A "yes" to it decides nothing by accident."""
    midrun = await opened(office(*script("pay", log)))
    run = await midrun.start("office", "go")
    await run.until("waiting")
    with pytest.raises(ControlRefused) as refused:
        await run.answer("yes")
    assert refused.value.reason == "not_a_question"


async def test_a_question_is_not_answered_by_a_yes_to_the_call(
    opened: Opener, log: str
) -> None:
    """Nor by a no: it asked for something else."""
    midrun = await opened(office(*script("ask_async", log)))
    run = await midrun.start("office", "go")
    await run.until("waiting")
    for deciding in (run.approve, run.decline):
        with pytest.raises(ControlRefused) as refused:
            await deciding()
        assert refused.value.reason == "not_an_approval"


async def test_a_yes_given_while_nobody_drives_the_run_stays_valid(
    opened: Opener, path: Path, log: str
) -> None:
    """The process died between the yes and the start: nobody is asked twice."""
    agent = office(*script("pay", log))
    async with Midrun(kept_at(path), agents=[agent]) as midrun:
        run = await midrun.start("office", "go")
        await run.until("waiting")
    desk = await opened()
    assert (await (await desk.get(run.id)).approve(actor="ada")).phase == "queued"
    said = await elsewhere("drive", "pay", log, path, "terminal", "waiting")
    assert said == {"phase": "completed"}
    assert written(log) == ["did first", "paid 100 to ada"]
    assert (await kinds(await desk.get(run.id))).count("AskOpened") == 1


@pytest.mark.parametrize(
    ("answer", "paid"),
    [
        (True, ["paid 100 to ada"]),
        ({"approved": True}, ["paid 100 to ada"]),
        (False, []),
        ({"approved": False, "reason": "no money"}, []),
        ({"approved": "yes"}, []),  # not a clear yes is no yes
        ("yes", []),
    ],
)
async def test_an_approval_is_decided_through_a_checkpoint_too(
    answer: object, paid: list[str], log: str
) -> None:
    """Without a store the decision comes with the resumption."""
    paused = await office(*script("pay", log)).run("go")
    assert isinstance(paused, Paused)
    assert paused.reason == "approval"
    again = await office(*script("pay", log)).resume(carried(paused), answer)
    assert isinstance(again, Completed)
    assert written(log) == ["did first", *paid]


async def test_edited_arguments_come_through_a_checkpoint_too(log: str) -> None:
    """As they do with a store."""
    paused = await office(*script("pay", log)).run("go")
    edited = {"approved": True, "args": {"log": log, "amount": 1}}
    again = await office(*script("pay", log)).resume(carried(paused), edited)
    assert isinstance(again, Completed)
    assert written(log) == ["did first", "paid 1 to ada"]


# ── an approval that expires ──────────────────────────────────────────────────────────────


def hasty(log: str) -> Agent:
    """Return an office in which a decision is wanted within the hour."""
    whole = office(*script("pay", log))
    limit = timedelta(hours=1) // timedelta(microseconds=1)
    tools = [
        replace(tool, traits=msgspec.structs.replace(tool.traits, ask_ttl=limit))
        if tool.name == "pay"
        else tool
        for tool in whole.tools.values()
    ]
    return Agent("office", model=whole.model, tools=tools)


async def test_an_approval_that_nobody_decides_in_time_is_a_no(path: Path, log: str) -> None:
    """The agent is told so; whoever decides after it learns that it is over."""
    clock = Hand()
    outside = Environment(clock=clock, lease=FAR)
    async with Midrun(kept_at(path), agents=[hasty(log)], outside=outside) as midrun:
        run = await midrun.start("office", "go")
        (ask,) = (await run.until("waiting")).asks
        assert ask.expires_at == clock.now + 3_600_000_000
        clock.move(timedelta(hours=2))
        with pytest.raises(ControlRefused) as refused:
            await run.approve(ask=ask.id, actor="ada")  # nobody has looked at the clock yet
        assert refused.value.reason == "ask_closed"
        assert "nobody decided in time" in (await run.until("completed")).output
        assert await midrun.verify(run.id)
    assert written(log) == ["did first"]


async def test_a_yes_that_has_expired_before_the_call_is_made_is_asked_for_again(
    path: Path, log: str
) -> None:
    """Given in time, but nobody drove the run until it was over: it is not used any more."""
    clock = Hand()
    outside = Environment(clock=clock, lease=FAR)
    address = kept_at(path)
    async with Midrun(address, agents=[hasty(log)], outside=outside) as midrun:
        run = await midrun.start("office", "go")
        await run.until("waiting")
    async with Midrun(address, outside=outside) as desk:
        await (await desk.get(run.id)).approve(actor="ada")
    clock.move(timedelta(hours=2))
    async with Midrun(address, agents=[hasty(log)], outside=outside) as midrun:
        run = await midrun.get(run.id)
        (again,) = (await run.until("waiting", "completed")).asks
        assert written(log) == ["did first"]
        await run.approve(ask=again.id, actor="bob")
        await run.until("completed")
        assert await midrun.verify(run.id)
    assert written(log) == ["did first", "paid 100 to ada"]


# ── what nobody knows ─────────────────────────────────────────────────────────────────────


async def doubtful(opened: Opener, stage: ControllableTools) -> tuple[Midrun, str]:
    """Bring a run to where nobody knows whether a call took effect, and a person is asked."""
    midrun = await opened(stage.agent(Use("slow", name="a"), told))
    run = await midrun.start("actor", "go")
    await stage.start("a").wait()
    await run.pause()
    await run.force_pause()
    await run.resume()
    await run.until("waiting")
    return midrun, run.id


@pytest.mark.parametrize(
    ("said", "entered", "heard"),
    [
        ("yes", ["a"], "slow: None"),
        ("no", ["a", "a"], "slow: a done"),
        ("unknown", ["a"], "nobody can say"),
    ],
)
async def test_a_person_says_what_became_of_a_call_that_nobody_knows(
    said: str, entered: list[str], heard: str, opened: Opener
) -> None:
    """Made again only if the person says that it was not made."""
    stage = ControllableTools()
    midrun, run_id = await doubtful(opened, stage)
    run = await midrun.get(run_id)
    outcome = await run.result()
    assert isinstance(outcome, Paused)
    assert (outcome.reason, outcome.asks[0].tool) == ("unsure", "slow")
    with pytest.raises(ControlRefused) as refused:
        await run.answer("perhaps")
    assert refused.value.reason == "not_an_outcome"
    stage.gate("a").set()
    await run.answer(said, actor="ada")
    assert heard in (await run.until("completed")).output
    assert stage.called == entered


async def test_the_doubt_travels_in_a_checkpoint(opened: Opener) -> None:
    """Another process asks the same question, and takes the same answers."""
    stage = ControllableTools()
    midrun, run_id = await doubtful(opened, stage)
    checkpoint = await (await midrun.get(run_id)).checkpoint()
    agent = stage.agent(Use("slow", name="a"), told)
    outcome = await agent.resume(Checkpoint.from_json(checkpoint.to_json()), "yes")
    assert isinstance(outcome, Completed)
    assert stage.called == ["a"]
