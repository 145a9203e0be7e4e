"""Hosted functions: the loop is code of the user, every control works, nothing is repeated."""

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import anyio
import pytest
from sse_starlette.sse import AppStatus

from midrun import Agent, Cancelled, Completed, Failed, Midrun, Paused, traits
from midrun.core.entries import CallDone, CallProposed
from midrun.core.ids import RunId
from midrun.core.values import Json
from midrun.errors import Misconfigured, StepNotDone
from midrun.hosts import FunctionRun, ModelUsage, function
from midrun.models import ScriptedModel, Use
from midrun.stops import MaxCost, MaxSteps, MaxTokens, Stop, TextMention
from midrun.testing.host_suite import (
    DONE,
    Billing,
    ScriptedReply,
    make_hosted_agent,
)
from tests.unit.hosts.suite_provider import HostContract, open_provider
from tests.unit.runs.conftest import OpenMidrun, opened, path

__all__ = ["opened", "path"]

Messages = list[dict[str, Json]]


def read_reply(reply: Json) -> dict[str, Json]:
    """Return a reply of the test's model, which is a JSON object."""
    assert isinstance(reply, dict)
    return reply


class Bench:
    """A model whose stream the test gates, and a tool that records its effects."""

    def __init__(self) -> None:
        self.prompts: list[Messages] = []
        self.effects: list[str] = []
        self.closed_streams = 0
        self.gate = anyio.Event()
        self.streaming = anyio.Event()
        self.gated = 0  # the number of the prompt whose stream waits at the gate

    async def ask(self, messages: Messages) -> AsyncIterator[object]:
        """Stream a reply that asks for the next charge, or ends."""
        self.prompts.append(messages)
        number = len(self.prompts)
        try:
            yield f"reply {number}"
            if number == self.gated:
                self.streaming.set()
                await self.gate.wait()
            yield ModelUsage(tokens=10)
            done = sum(m["role"] == "tool" for m in messages)
            yield {"role": "assistant", "content": f"reply {number}", "charge": done < 2}
        finally:
            self.closed_streams += 1

    async def charge(self, amount: int) -> str:
        """Charge the customer."""
        self.effects.append(f"charge {amount}")
        return f"charged {amount}"

    async def refund(self, _: object, args: dict[str, Json], __: Json) -> None:
        """Undo a charge."""
        self.effects.append(f"refund {args['amount']}")

    def make_agent(self, *, approve: bool = False, stop: Stop | None = None) -> Agent:
        """Return a hosted loop: model, charge, model, charge, model."""
        charge = traits(undo=self.refund, approve=approve)

        @function(name="biller", tools={"charge": charge}, stop=stop)
        async def biller(run: FunctionRun, task: str) -> str:
            messages: Messages = [{"role": "user", "content": task}]
            while True:
                reply = read_reply(await run.model(self.ask, messages))
                messages.append(reply)
                if not reply["charge"]:
                    return str(reply["content"])
                amount = 1 + sum(m["role"] == "tool" for m in messages)
                try:
                    result: Json = await run.step("charge", self.charge, amount)
                except StepNotDone as error:
                    result = f"no result: {error.problem}"
                messages.append({"role": "tool", "content": result})

        return biller


class TestContract(HostContract):
    agent_factory = "tests.unit.hosts.chat_function:make_function"
    framework = "plain function"


async def test_a_function_makes_its_calls_through_the_journal(opened: OpenMidrun) -> None:
    bench = Bench()
    midrun = await opened(bench.make_agent())
    run = await midrun.start("biller", "go")
    outcome = await run.result()
    assert isinstance(outcome, Completed)
    assert outcome.output == "reply 3"
    assert bench.effects == ["charge 1", "charge 2"]
    kinds = [type(r.entry) for r in await midrun.store.read(RunId(run.id))]
    assert kinds.count(CallProposed) == kinds.count(CallDone) == 5


async def test_a_pause_closes_the_stream_and_another_process_continues_with_new_words(
    opened: OpenMidrun,
) -> None:
    bench = Bench()
    bench.gated = 2
    first = await opened(bench.make_agent())
    run = await first.start("biller", "go")
    await bench.streaming.wait()
    await run.pause()
    await run.until("paused")
    assert bench.closed_streams == 2
    assert bench.effects == ["charge 1"]
    second = await opened(bench.make_agent())
    run = await second.get(run.id)
    await run.resume("Charge gently", actor="ada")
    outcome = await run.result()
    assert isinstance(outcome, Completed)
    # The finished model call and the finished charge were not made again.
    assert bench.effects == ["charge 1", "charge 2"]
    assert len(bench.prompts) == 4
    contents = [m["content"] for m in bench.prompts[2]]
    assert contents[-3] == "reply 2"  # the interrupted text
    assert contents[-1] == "Charge gently"
    # In place at every later call.
    assert [m["content"] for m in bench.prompts[3]][: len(contents)] == contents


async def test_a_redirect_stops_the_model_call_and_is_read_by_the_next(
    opened: OpenMidrun,
) -> None:
    bench = Bench()
    bench.gated = 1
    midrun = await opened(bench.make_agent())
    run = await midrun.start("biller", "go")
    await bench.streaming.wait()
    await run.redirect("Another way")
    assert isinstance(await run.result(), Completed)
    assert bench.prompts[1][-1]["content"] == "Another way"
    assert bench.effects == ["charge 1", "charge 2"]


async def test_words_after_the_last_reply_are_read_before_the_run_ends(
    opened: OpenMidrun,
) -> None:
    bench = Bench()
    returned, go_on = anyio.Event(), anyio.Event()

    @function(name="talker")
    async def talker(run: FunctionRun, task: str) -> str:
        reply = read_reply(await run.model(bench.ask, [{"role": "user", "content": task}]))
        returned.set()
        await go_on.wait()
        return str(reply["content"])

    midrun = await opened(talker)
    run = await midrun.start("talker", "go")
    await returned.wait()
    await run.redirect("In French")
    go_on.set()
    outcome = await run.result()
    assert isinstance(outcome, Completed)
    assert [m["content"] for m in bench.prompts[1]] == ["go", "reply 1", "In French"]
    assert outcome.output == "reply 2"


@pytest.mark.parametrize("control", ["redirect", "say"])
@pytest.mark.parametrize("reads", [True, False])
async def test_words_during_the_last_step_are_read_or_shown_as_not_read(
    opened: OpenMidrun, reads: bool, control: str
) -> None:
    bench = Bench()
    entered, go_on = anyio.Event(), anyio.Event()

    async def send() -> str:
        entered.set()
        await go_on.wait()
        return "sent"

    @function(name="talker")
    async def talker(run: FunctionRun, task: str) -> str:
        await run.model(bench.ask, [{"role": "user", "content": task}])
        await run.step("send", send)
        unread = await run.read_messages() if reads else []
        return ", ".join(str(message["content"]) for message in unread)

    midrun = await opened(talker)
    run = await midrun.start("talker", "go")
    await entered.wait()
    await getattr(run, control)("In French")
    go_on.set()
    view = await run.until("completed")
    assert view.output == ("In French" if reads else "")
    assert view.status.note == ("" if reads else "1 message was not read")
    assert len(bench.prompts) == 1


async def test_words_after_all_messages_were_read_are_read_as_well(
    opened: OpenMidrun,
) -> None:
    """The function is run again, and its reading call is repeated."""
    returned, go_on = anyio.Event(), anyio.Event()
    sent: list[int] = []

    async def send() -> None:
        sent.append(1)

    @function(name="talker")
    async def talker(run: FunctionRun, task: str) -> str:
        await run.step("send", send)
        unread = await run.read_messages()
        returned.set()
        await go_on.wait()
        return f"{task}: {', '.join(str(message['content']) for message in unread)}"

    midrun = await opened(talker)
    run = await midrun.start("talker", "go")
    await returned.wait()
    await run.redirect("In French")
    go_on.set()
    assert (await run.until("completed")).output == "go: In French"
    assert sent == [1]


async def test_an_approval_gates_a_step_and_a_decline_reaches_the_function(
    opened: OpenMidrun,
) -> None:
    bench = Bench()
    midrun = await opened(bench.make_agent(approve=True))
    run = await midrun.start("biller", "go")
    view = await run.until("waiting")
    assert bench.effects == []
    await run.approve(ask=view.asks[0].id, actor="ada", args={"amount": 7})
    first = view.asks[0].id
    while not view.asks or view.asks[0].id == first:
        view = await run.view()
    assert bench.effects == ["charge 7"]
    await run.decline(ask=view.asks[0].id, actor="ada", reason="too much")
    assert isinstance(await run.result(), Completed)
    assert bench.effects == ["charge 7"]
    assert "too much" in str(bench.prompts[2][-1]["content"])


async def test_a_cancel_undoes_the_steps_in_reverse(opened: OpenMidrun) -> None:
    bench = Bench()
    bench.gated = 3
    midrun = await opened(bench.make_agent())
    run = await midrun.start("biller", "go")
    await bench.streaming.wait()
    await run.cancel(undo="all")
    assert isinstance(await run.result(), Cancelled)
    assert bench.effects[2:] == ["refund 2", "refund 1"]
    assert bench.closed_streams == 3


@pytest.mark.parametrize("stop", [MaxSteps(2), MaxTokens(20)], ids=str)
async def test_a_cap_pauses_before_the_next_model_call(opened: OpenMidrun, stop: Stop) -> None:
    bench = Bench()
    midrun = await opened(bench.make_agent(stop=stop))
    run = await midrun.start("biller", "go")
    view = await run.until("paused")
    assert view.reason == "cap"
    assert len(bench.prompts) == 2
    await run.resume(caps={"steps" if isinstance(stop, MaxSteps) else "tokens": 900})
    assert isinstance(await run.result(), Completed)
    assert len(bench.prompts) == 3


async def test_a_question_rests_without_the_program(opened: OpenMidrun) -> None:
    stopped = 0

    @function(name="asker")
    async def asker(run: FunctionRun, _: str) -> str:
        nonlocal stopped
        try:
            answer = await run.ask("Which one?", ["a", "b"])
        except BaseException:
            stopped += 1
            raise
        return f"chose {answer}"

    midrun = await opened(asker)
    run = await midrun.start("asker", "go")
    view = await run.until("waiting")
    assert stopped == 1
    await run.answer("b", ask=view.asks[0].id)
    outcome = await run.result()
    assert isinstance(outcome, Completed)
    assert outcome.output == "chose b"


async def test_a_function_that_departs_from_its_journal_fails_and_names_both_calls(
    opened: OpenMidrun,
) -> None:
    bench = Bench()
    names = ["charge", "refund"]

    @function(name="fickle")
    async def fickle(run: FunctionRun, _: str) -> str:
        await run.step(names[0], bench.charge, amount=1)
        return str(await run.ask("Go on?"))

    midrun = await opened(fickle)
    run = await midrun.start("fickle", "go")
    view = await run.until("waiting")
    names.reverse()
    await run.answer("yes", ask=view.asks[0].id)
    outcome = await run.result()
    assert isinstance(outcome, Failed)
    assert "charge(amount=1)" in outcome.error
    assert "refund(amount=1)" in outcome.error
    names.reverse()
    await run.resume()
    assert isinstance(await run.result(), Completed)
    assert bench.effects == ["charge 1"]


async def test_branches_keep_their_positions_when_their_order_changes(
    opened: OpenMidrun,
) -> None:
    """Two branches run in parallel; after the restart the other one is first."""
    made: list[str] = []
    order = ["left", "right"]

    async def work(name: str, part: int) -> str:
        made.append(f"{name}{part}")
        return f"{name}{part}"

    @function(name="splitter")
    async def splitter(run: FunctionRun, _: str) -> str:
        results: dict[str, list[Json]] = {}

        async def run_branch(name: str) -> None:
            branch = run.branch(name)
            results[name] = [await branch.step("work", work, name, part) for part in (1, 2)]

        async with anyio.create_task_group() as group:
            for name in order:
                group.start_soon(run_branch, name)
        answer = await run.ask("Done?")
        return f"{results['left'] + results['right']} {answer}"

    midrun = await opened(splitter)
    run = await midrun.start("splitter", "go")
    view = await run.until("waiting")
    order.reverse()
    await run.answer("yes", ask=view.asks[0].id)
    outcome = await run.result()
    assert isinstance(outcome, Completed)
    assert outcome.output == "['left1', 'left2', 'right1', 'right2'] yes"
    assert sorted(made) == ["left1", "left2", "right1", "right2"]


async def test_other_branches_go_on_while_one_waits_for_a_person(opened: OpenMidrun) -> None:
    bench = Bench()

    @function(name="payer", tools={"pay": traits(approve=True)})
    async def payer(run: FunctionRun, _: str) -> str:
        async def pay() -> None:
            await run.branch("pay").step("pay", bench.charge, amount=9)

        async def count() -> None:
            branch = run.branch("count")
            for amount in (1, 2, 3):
                await branch.step("charge", bench.charge, amount=amount)

        async with anyio.create_task_group() as group:
            group.start_soon(pay)
            group.start_soon(count)
        return "done"

    midrun = await opened(payer)
    run = await midrun.start("payer", "go")
    view = await run.until("waiting")
    assert bench.effects == ["charge 1", "charge 2", "charge 3"]
    await run.approve(ask=view.asks[0].id)
    assert isinstance(await run.result(), Completed)
    assert bench.effects[3:] == ["charge 9"]


async def test_words_reach_all_parallel_model_calls(opened: OpenMidrun) -> None:
    """After the pause, the second call starts in a later turn; it reads the words, too."""
    prompts: list[list[Json]] = []
    both, left_again = anyio.Event(), anyio.Event()

    async def ask(messages: Messages) -> AsyncIterator[object]:
        prompts.append([m["content"] for m in messages])
        yield "text"
        if len(prompts) == 2:
            both.set()
        if len(prompts) <= 2:
            await anyio.sleep_forever()
        left_again.set()

    @function(name="pair")
    async def pair(run: FunctionRun, _: str) -> str:
        async def talk(name: str) -> None:
            if name == "right" and both.is_set():
                await left_again.wait()
            await run.branch(name).model(ask, [{"role": "user", "content": name}])

        async with anyio.create_task_group() as group:
            group.start_soon(talk, "left")
            group.start_soon(talk, "right")
        return str(await run.model(ask, [{"role": "user", "content": "last"}]))

    midrun = await opened(pair)
    run = await midrun.start("pair", "go")
    await both.wait()
    await run.pause()
    await run.until("paused")
    await run.resume("In French")
    assert isinstance(await run.result(), Completed)
    assert [(p[0], p[-1]) for p in prompts[2:]] == [
        ("left", "In French"),
        ("right", "In French"),
        ("last", "last"),  # the branches have read it, and have given it to the function
    ]


async def test_an_exception_of_the_function_fails_the_run_which_can_be_resumed(
    opened: OpenMidrun,
) -> None:
    bench = Bench()
    broken = True

    @function(name="breaker")
    async def breaker(run: FunctionRun, _: str) -> str:
        await run.step("charge", bench.charge, amount=1)
        if broken:
            raise RuntimeError("no more paper")
        return "done"

    midrun = await opened(breaker)
    run = await midrun.start("breaker", "go")
    outcome = await run.result()
    assert isinstance(outcome, Failed)
    assert outcome.error == "RuntimeError: no more paper"
    broken = False
    await run.resume()
    assert isinstance(await run.result(), Completed)
    assert bench.effects == ["charge 1"]


async def test_a_hosted_function_is_a_child_run_of_another_agent(opened: OpenMidrun) -> None:
    bench = Bench()
    model = ScriptedModel([Use("biller", task="bill"), "Done."])
    parent = Agent("parent", model=model, tools=[bench.make_agent().as_tool()])
    midrun = await opened(parent)
    run = await midrun.start("parent", "go")
    assert isinstance(await run.result(), Completed)
    assert bench.effects == ["charge 1", "charge 2"]


async def test_another_function_is_not_called_for_a_journaled_call(opened: OpenMidrun) -> None:
    """The journal has an open call; the changed program makes another one in its place."""
    bench = Bench()
    names = ["charge", "wipe"]

    @function(name="changed", tools={"charge": traits(approve=True)})
    async def changed(run: FunctionRun, _: str) -> str:
        return str(await run.step(names[0], bench.charge, amount=5))

    midrun = await opened(changed)
    run = await midrun.start("changed", "go")
    view = await run.until("waiting")
    names.reverse()
    await run.approve(ask=view.asks[0].id)
    outcome = await run.result()
    assert isinstance(outcome, Failed)
    assert (outcome.code, bench.effects) == ("program_departed", [])


async def test_a_function_that_is_stopped_makes_no_more_steps(opened: OpenMidrun) -> None:
    """Its `finally` wants to make a step; that is made when it is run again."""
    bench = Bench()

    @function(name="tidy", tools={"pay": traits(approve=True)}, grace=timedelta(seconds=0.2))
    async def tidy(run: FunctionRun, _: str) -> str:
        try:
            await run.step("pay", bench.charge, amount=1)
        finally:
            await run.step("release", bench.charge, amount=2)
        return "done"

    midrun = await opened(tidy)
    run = await midrun.start("tidy", "go")
    view = await run.until("waiting")
    assert bench.effects == []
    await run.approve(ask=view.asks[0].id)
    assert isinstance(await run.result(), Completed)
    assert bench.effects == ["charge 1", "charge 2"]


async def test_a_stop_condition_completes_the_run_before_the_next_model_call(
    opened: OpenMidrun,
) -> None:
    bench = Bench()
    midrun = await opened(bench.make_agent(stop=TextMention("reply 1", then="complete")))
    run = await midrun.start("biller", "go")
    outcome = await run.result()
    assert isinstance(outcome, Completed)
    assert (outcome.output, len(bench.prompts)) == ("reply 1", 1)


async def test_a_branch_name_cannot_be_used_twice(opened: OpenMidrun) -> None:
    """Its calls would have the positions of the first branch, and would not be made."""
    bench = Bench()

    @function(name="twice")
    async def twice(run: FunctionRun, _: str) -> str:
        for amount in (1, 2):
            await run.branch("work").step("charge", bench.charge, amount)
        return "done"

    midrun = await opened(twice)
    run = await midrun.start("twice", "go")
    outcome = await run.result()
    assert isinstance(outcome, Failed)
    assert "two calls at position work/1" in outcome.error


async def test_an_output_that_cannot_be_stored_fails_the_run(opened: OpenMidrun) -> None:
    @function(name="garbled")
    async def garbled(_: FunctionRun, __: str) -> str:
        return "\ud800"

    midrun = await opened(garbled)
    run = await midrun.start("garbled", "go")
    outcome = await run.result()
    assert isinstance(outcome, Failed)
    assert outcome.code == "program_failed"


async def test_a_model_function_that_returns_no_stream_is_refused(opened: OpenMidrun) -> None:
    @function(name="blocking")
    async def blocking(run: FunctionRun, _: str) -> str:
        return str(await run.model(lambda _: "text", []))

    midrun = await opened(blocking)
    run = await midrun.start("blocking", "go")
    outcome = await run.result()
    assert isinstance(outcome, Failed)
    assert "must be an async generator or an async function" in outcome.error


async def test_a_shield_in_a_step_is_respected(opened: OpenMidrun) -> None:
    entered, leave, commits = anyio.Event(), anyio.Event(), list[str]()

    async def commit() -> str:
        with anyio.CancelScope(shield=True):
            entered.set()
            await leave.wait()
            commits.append("done")
        return "committed"

    @function(name="committer")
    async def committer(run: FunctionRun, _: str) -> str:
        return str(await run.step("commit", commit))

    midrun = await opened(committer)
    run = await midrun.start("committer", "go")
    await entered.wait()
    await run.pause(now=True)
    leave.set()
    await run.until("paused")
    assert commits == ["done"]


def test_a_function_with_wrong_parameters_is_refused_by_name() -> None:
    with pytest.raises(Misconfigured, match=r"function alone must take two arguments"):

        @function(name="alone")  # type: ignore[arg-type]  # that is the point
        async def alone(_: FunctionRun) -> str:
            return ""


# ── caps on the cost ─────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "factory",
    ["foreign_agents:make_graph", "chat_process:make_process"],
    ids=["graph", "process"],
)
async def test_a_cap_on_cost_counts_the_replies_of_a_program(
    factory: str, tmp_path: Path
) -> None:
    """The price is known with the first reply: its call is made, and no other."""
    async with open_provider(ScriptedReply(charges=(1,)), DONE) as provider:
        made = f"tests.unit.hosts.{factory}"
        billing = Billing(tmp_path)
        agent = make_hosted_agent(made, provider.url, billing, stop=MaxCost(0.000_001))
        async with Midrun("memory://", agents=[agent]) as midrun:
            run = await midrun.start(agent, "Charge 1")
            view = await run.until("paused", "failed")
            assert (view.phase, view.reason) == ("paused", "cap")
            assert view.usage.cost_usd
            await run.resume(caps={"cost": 1.0})
            await run.until("completed")
        assert billing.read_effects() == [1]


async def test_a_process_gets_its_results_after_a_signal_to_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that drains waits for its calls; `sse_starlette` would cut their answers off."""
    monkeypatch.setattr(AppStatus, "should_exit", True)
    async with open_provider(ScriptedReply(charges=(1,)), DONE) as provider:
        billing, made = Billing(tmp_path), "tests.unit.hosts.chat_process:make_process"
        agent = make_hosted_agent(made, provider.url, billing, stop=None)
        async with Midrun("memory://", agents=[agent]) as midrun:
            run = await midrun.start(agent, "Charge 1")
            assert (await run.until("completed", "failed")).phase == "completed"
        assert billing.read_effects() == [1]


@pytest.mark.parametrize(
    ("usage", "end"),
    [
        (ModelUsage(tokens=10, cost_usd=1.5), "cap"),
        (ModelUsage(model="gpt-5.2", input_tokens=900_000, output_tokens=90_000), "cap"),
        (ModelUsage(tokens=10), "no_price"),
        (ModelUsage(model="unheard-of", input_tokens=9, output_tokens=9), "no_price"),
        (None, "no_price"),
    ],
)
async def test_a_cap_on_cost_counts_the_usage_that_a_function_reports(
    usage: ModelUsage | None, end: str
) -> None:
    async def ask(messages: Messages) -> AsyncIterator[object]:
        del messages
        yield "Hello"
        if usage is not None:
            yield usage

    async def talk(run: FunctionRun, task: str) -> str:
        for _ in range(9):
            await run.model(ask, [{"role": "user", "content": task}])
        return "done"

    outcome = await function(stop=MaxCost(1.0))(talk).run("Go")
    if end == "cap":
        assert isinstance(outcome, Paused)
        assert outcome.reason == "cap"
    else:
        assert isinstance(outcome, Failed)
        assert outcome.code == "no_price"
        assert "Use MaxTokens" in outcome.error
