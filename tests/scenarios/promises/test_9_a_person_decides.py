"""Promise 9, for decisions of a person about a call: each counts once.

A call that needs an approval is made after it, with the approved arguments, and cites it. A
call with an unknown outcome is repeated only if a person says that it did not happen.
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
from midrun.testing.controllable_tools import ControllableTools
from tests.scenarios.promises.log_agent import (
    get_script,
    log_agent,
    read_log,
    reload_checkpoint,
)
from tests.scenarios.promises.other_process import run_in_other_process
from tests.support.clocks import YEAR_LEASE, ManualClock
from tests.support.gated_model import repeat_results
from tests.support.run_journal import read_entries, read_kinds, wait_for_entry
from tests.support.store_choice import get_store_url
from tests.unit.runs.conftest import OpenMidrun

# ── approvals ─────────────────────────────────────────────────────────────────────────────


async def test_a_call_starts_after_its_approval_and_cites_it(
    opened: OpenMidrun, log: str
) -> None:
    """The approval is for this call with these arguments, by their hash."""
    midrun = await opened(log_agent(*get_script("pay", log)))
    run = await midrun.start("logger", "go")
    view = await run.until("waiting")
    (ask,) = view.asks
    assert (ask.kind, ask.tool) == ("approval", "pay")
    assert ask.args == {"log": log, "amount": 100}
    assert read_log(log) == ["did first"]
    await run.approve(actor="ada")
    assert (await run.until("completed")).output == "pay: paid 100"
    assert read_log(log) == ["did first", "paid 100 to ada"]
    (opened_ask,) = await read_entries(run, AskOpened)
    start = (await read_entries(run, CallStarted))[-2]
    assert start.approval is not None
    assert start.approval.ask == ask.id
    assert start.approval.args_hash == opened_ask.args_hash


async def test_a_declined_call_is_never_made_and_the_agent_is_told_why(
    opened: OpenMidrun, log: str
) -> None:
    """The agent gets the actor and the reason."""
    midrun = await opened(log_agent(*get_script("pay", log)))
    run = await midrun.start("logger", "go")
    await run.until("waiting")
    await run.decline("too much; ask finance", actor="ada")
    output = (await run.until("completed")).output
    assert "too much; ask finance" in output
    assert "ada" in output
    assert read_log(log) == ["did first"]


async def test_a_call_is_made_with_the_edited_arguments(opened: OpenMidrun, log: str) -> None:
    """They replace all original arguments; the two sets are not merged."""
    midrun = await opened(log_agent(*get_script("pay", log)))
    run = await midrun.start("logger", "go")
    await run.until("waiting")
    await run.approve(args={"log": log, "amount": 5, "to": "bob"}, actor="ada")
    assert (await run.until("completed")).output == "pay: paid 5"
    assert read_log(log) == ["did first", "paid 5 to bob"]
    (opened_ask,) = await read_entries(run, AskOpened)
    start = (await read_entries(run, CallStarted))[-2]
    assert start.approval is not None
    assert start.approval.args_hash != opened_ask.args_hash


@pytest.mark.parametrize("amount", ["a lot", None, [1]])
async def test_edited_arguments_that_do_not_fit_are_refused_and_the_ask_stays_open(
    amount: object, opened: OpenMidrun, log: str
) -> None:
    midrun = await opened(log_agent(*get_script("pay", log)))
    run = await midrun.start("logger", "go")
    await run.until("waiting")
    with pytest.raises(ControlRefused):
        await run.approve(args={"log": log, "amount": amount}, actor="ada")
    view = await run.view()
    assert (view.phase, [ask.kind for ask in view.asks]) == ("waiting", ["approval"])
    await run.approve(args={"log": log, "amount": 7}, actor="ada")
    await run.until("completed")
    assert read_log(log) == ["did first", "paid 7 to ada"]


async def test_only_the_audience_may_decide(opened: OpenMidrun, log: str) -> None:
    midrun = await opened(log_agent(Use("wire", log=log, amount=9), repeat_results))
    run = await midrun.start("logger", "go")
    (ask,) = (await run.until("waiting")).asks
    assert ask.audience == "operator"
    for decide in (run.approve, run.decline):
        with pytest.raises(ControlRefused) as refused:
            await decide(actor="ada")
        assert refused.value.reason == "not_allowed"
    assert read_log(log) == []
    await run.approve(actor="operator:olga")
    assert (await run.until("completed")).output == "wire: wired 9"


async def test_four_eyes_exclude_the_person_who_started_the_run(
    opened: OpenMidrun, log: str
) -> None:
    """The person is excluded in each role."""
    midrun = await opened(log_agent(Use("sign", log=log, name="lease"), repeat_results))
    run = await midrun.start("logger", "go", actor="ada")
    await run.until("waiting")
    for actor in ("ada", "operator:ada"):
        with pytest.raises(ControlRefused) as refused:
            await run.approve(actor=actor)
        assert refused.value.reason == "not_allowed"
    assert read_log(log) == []
    await run.approve(actor="bob")
    await run.until("completed")
    assert read_log(log) == ["signed lease"]


async def test_four_eyes_exclude_the_operator_who_makes_the_call_by_hand(
    opened: OpenMidrun, log: str
) -> None:
    """An operator who takes over proposes the call, so another person approves it."""
    midrun = await opened(log_agent(*get_script("ask_async", log)))
    run = await midrun.start("logger", "go", actor="ada")
    await run.until("waiting")
    await run.take_over(actor="operator:olga")
    await run.until("paused")
    await run.use_tool("sign", {"log": log, "name": "lease"}, actor="operator:olga")
    ask = await wait_for_entry(run, AskOpened, 2)
    with pytest.raises(ControlRefused, match="only another person may decide") as refused:
        await run.approve(ask=ask.ask, actor="operator:olga")
    assert refused.value.reason == "not_allowed"
    assert read_log(log) == ["asked Refund?"]
    await run.approve(ask=ask.ask, actor="operator:omar")
    await wait_for_entry(run, CallDone, 2)
    assert read_log(log) == ["asked Refund?", "signed lease"]
    assert await midrun.verify(run.id)


async def test_four_eyes_need_a_third_person_for_an_edit(opened: OpenMidrun, log: str) -> None:
    """The person who edits the arguments has proposed them."""
    midrun = await opened(log_agent(Use("sign", log=log, name="lease"), repeat_results))
    run = await midrun.start("logger", "go", actor="ada")
    await run.until("waiting")
    await run.approve(args={"log": log, "name": "deed"}, actor="bob")
    second = await wait_for_entry(run, AskOpened, 2)
    for excluded in ("ada", "bob"):
        with pytest.raises(ControlRefused):
            await run.approve(ask=second.ask, actor=excluded)
    assert read_log(log) == []
    await run.approve(ask=second.ask, actor="cyd")
    await run.until("completed")
    assert read_log(log) == ["signed deed"]
    assert await midrun.verify(run.id)


async def test_an_answer_does_not_decide_an_approval(opened: OpenMidrun, log: str) -> None:
    midrun = await opened(log_agent(*get_script("pay", log)))
    run = await midrun.start("logger", "go")
    await run.until("waiting")
    with pytest.raises(ControlRefused) as refused:
        await run.answer("yes")
    assert refused.value.reason == "not_a_question"


async def test_approve_and_decline_do_not_answer_a_question(
    opened: OpenMidrun, log: str
) -> None:
    midrun = await opened(log_agent(*get_script("ask_async", log)))
    run = await midrun.start("logger", "go")
    await run.until("waiting")
    for decide in (run.approve, run.decline):
        with pytest.raises(ControlRefused) as refused:
            await decide()
        assert refused.value.reason == "not_an_approval"


async def test_an_approval_given_without_a_worker_stays_valid(
    opened: OpenMidrun, path: Path, log: str
) -> None:
    """The next worker makes the call without a second ask."""
    agent = log_agent(*get_script("pay", log))
    async with Midrun(get_store_url(path), agents=[agent]) as midrun:
        run = await midrun.start("logger", "go")
        await run.until("waiting")
    without_agents = await opened()
    assert (await (await without_agents.get(run.id)).approve(actor="ada")).phase == "queued"
    driven = await run_in_other_process("drive", "pay", log, path, "terminal", "waiting")
    assert driven == {"phase": "completed"}
    assert read_log(log) == ["did first", "paid 100 to ada"]
    assert (await read_kinds(await without_agents.get(run.id))).count("AskOpened") == 1


@pytest.mark.parametrize(
    ("answer", "paid"),
    [
        (True, ["paid 100 to ada"]),
        ({"approved": True}, ["paid 100 to ada"]),
        (False, []),
        ({"approved": False, "reason": "no money"}, []),
        ({"approved": "yes"}, []),  # only `true` approves
        ("yes", []),
    ],
)
async def test_an_approval_is_decided_through_a_checkpoint_too(
    answer: object, paid: list[str], log: str
) -> None:
    """Without a store the decision is an argument of `resume`."""
    paused = await log_agent(*get_script("pay", log)).run("go")
    assert isinstance(paused, Paused)
    assert paused.reason == "approval"
    again = await log_agent(*get_script("pay", log)).resume(reload_checkpoint(paused), answer)
    assert isinstance(again, Completed)
    assert read_log(log) == ["did first", *paid]


async def test_edited_arguments_are_accepted_through_a_checkpoint_too(log: str) -> None:
    paused = await log_agent(*get_script("pay", log)).run("go")
    edited = {"approved": True, "args": {"log": log, "amount": 1}}
    again = await log_agent(*get_script("pay", log)).resume(reload_checkpoint(paused), edited)
    assert isinstance(again, Completed)
    assert read_log(log) == ["did first", "paid 1 to ada"]


# ── approvals that expire ─────────────────────────────────────────────────────────────────


def build_agent_with_ask_ttl(log: str) -> Agent:
    """Return the log agent with one hour to decide about `pay`."""
    agent = log_agent(*get_script("pay", log))
    limit = timedelta(hours=1) // timedelta(microseconds=1)
    tools = [
        replace(tool, traits=msgspec.structs.replace(tool.traits, ask_ttl=limit))
        if tool.name == "pay"
        else tool
        for tool in agent.tools.values()
    ]
    return Agent("logger", model=agent.model, tools=tools)


async def test_an_approval_that_expires_counts_as_declined(path: Path, log: str) -> None:
    """The agent is told; a later decision is refused."""
    clock = ManualClock()
    outside = Environment(clock=clock, lease=YEAR_LEASE)
    async with Midrun(
        get_store_url(path), agents=[build_agent_with_ask_ttl(log)], outside=outside
    ) as midrun:
        run = await midrun.start("logger", "go")
        (ask,) = (await run.until("waiting")).asks
        assert ask.expires_at == clock.now + 3_600_000_000
        clock.advance(timedelta(hours=2))
        with pytest.raises(ControlRefused) as refused:
            await run.approve(ask=ask.id, actor="ada")  # no worker has closed it yet
        assert refused.value.reason == "ask_closed"
        assert "no decision in time" in (await run.until("completed")).output
        assert await midrun.verify(run.id)
    assert read_log(log) == ["did first"]


async def test_an_approval_that_expires_before_its_call_starts_is_asked_for_again(
    path: Path, log: str
) -> None:
    """It was given in time, but no worker drove the run before it expired."""
    clock = ManualClock()
    outside = Environment(clock=clock, lease=YEAR_LEASE)
    address = get_store_url(path)
    async with Midrun(
        address, agents=[build_agent_with_ask_ttl(log)], outside=outside
    ) as midrun:
        run = await midrun.start("logger", "go")
        await run.until("waiting")
    async with Midrun(address, outside=outside) as without_agents:
        await (await without_agents.get(run.id)).approve(actor="ada")
    clock.advance(timedelta(hours=2))
    async with Midrun(
        address, agents=[build_agent_with_ask_ttl(log)], outside=outside
    ) as midrun:
        run = await midrun.get(run.id)
        (again,) = (await run.until("waiting", "completed")).asks
        assert read_log(log) == ["did first"]
        await run.approve(ask=again.id, actor="bob")
        await run.until("completed")
        assert await midrun.verify(run.id)
    assert read_log(log) == ["did first", "paid 100 to ada"]


# ── unknown outcomes ──────────────────────────────────────────────────────────────────────


async def reach_unsure_ask(opened: OpenMidrun, tools: ControllableTools) -> tuple[Midrun, str]:
    """Start a run, and bring it to the question about a call with an unknown outcome."""
    midrun = await opened(tools.agent(Use("slow", name="a"), repeat_results))
    run = await midrun.start("actor", "go")
    await tools.start("a").wait()
    await run.pause()
    await run.force_pause()
    await run.resume()
    await run.until("waiting")
    return midrun, run.id


@pytest.mark.parametrize(
    ("answer", "called", "output"),
    [
        ("yes", ["a"], "slow: None"),
        ("no", ["a", "a"], "slow: a done"),
        ("unknown", ["a"], "it is unknown"),
    ],
)
async def test_a_person_settles_a_call_with_an_unknown_outcome(
    answer: str, called: list[str], output: str, opened: OpenMidrun
) -> None:
    """The call is repeated only if the person says that it did not happen."""
    tools = ControllableTools()
    midrun, run_id = await reach_unsure_ask(opened, tools)
    run = await midrun.get(run_id)
    outcome = await run.result()
    assert isinstance(outcome, Paused)
    assert (outcome.reason, outcome.asks[0].tool) == ("unsure", "slow")
    with pytest.raises(ControlRefused) as refused:
        await run.answer("perhaps")
    assert refused.value.reason == "not_an_outcome"
    tools.gate("a").set()
    await run.answer(answer, actor="ada")
    assert output in (await run.until("completed")).output
    assert tools.called == called


async def test_a_checkpoint_keeps_the_question_about_an_unknown_call(
    opened: OpenMidrun,
) -> None:
    tools = ControllableTools()
    midrun, run_id = await reach_unsure_ask(opened, tools)
    checkpoint = await (await midrun.get(run_id)).checkpoint()
    agent = tools.agent(Use("slow", name="a"), repeat_results)
    outcome = await agent.resume(Checkpoint.from_json(checkpoint.to_json()), "yes")
    assert isinstance(outcome, Completed)
    assert tools.called == ["a"]
