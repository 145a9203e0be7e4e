"""Controls: pause, resume, redirect, cancel, caps, withdraw, halt."""

from datetime import timedelta

import pytest

from midrun.agents.agent import Agent
from midrun.agents.outcome import Cancelled, Completed, Paused
from midrun.agents.tool import tool
from midrun.agents.tool_context import Call
from midrun.errors import ControlRefused, Misconfigured
from midrun.models import ScriptedModel, Use
from midrun.stops import MaxSteps
from midrun.testing.controllable_tools import ControllableTools
from midrun.testing.run_suite.fixtures import (
    OLGA,
    OpenHandle,
    RunSuiteFixtures,
    list_entry_kinds,
)


class ControlTests(RunSuiteFixtures):
    """The controls of a person over a run."""

    async def test_a_pause_waits_for_its_boundary_and_a_resume_repeats_nothing(
        self, opened: OpenHandle, stage: ControllableTools
    ) -> None:
        """The receipt tells a requested pause from one that has happened."""
        mid = await opened(stage.agent(Use("slow", name="a"), Use("quick", name="b"), "Done."))
        run = await mid.start("actor", "go")
        await stage.start("a").wait()
        receipt = await run.pause(actor=OLGA, reason="lunch")
        assert (receipt.phase, receipt.applied, receipt.already) == ("pausing", False, None)
        assert receipt.by == "olga"
        assert [call.tool for call in (await run.view()).in_flight] == ["slow"]
        stage.gate("a").set()
        assert (await run.until("paused")).phase_by == "olga"
        again = await run.pause(actor=OLGA)
        assert (again.already, again.by, again.applied) == ("already_paused", "olga", True)
        assert (await run.resume(actor=OLGA)).phase == "queued"
        await run.until("completed")
        assert stage.completed == ["a", "b"]

    async def test_pause_now_stops_the_call(
        self, opened: OpenHandle, stage: ControllableTools
    ) -> None:
        """The outcome has a checkpoint to continue from."""
        mid = await opened(stage.agent(Use("slow", name="a"), "Told so."))
        run = await mid.start("actor", "go")
        await stage.start("a").wait()
        await run.pause(now=True, actor=OLGA)
        outcome = await run.result()
        assert isinstance(outcome, Paused)
        assert (outcome.phase, outcome.reason, outcome.run_id) == ("paused", "user", run.id)
        assert outcome.checkpoint.head_seq == (await run.view()).seq
        assert stage.stopped == ["a"]

    async def test_a_pause_with_a_hold_expires(
        self, opened: OpenHandle, stage: ControllableTools
    ) -> None:
        mid = await opened(stage.agent(Use("slow", name="a"), "Done."))
        run = await mid.start("actor", "go")
        await stage.start("a").wait()
        with pytest.raises(Misconfigured):
            await run.pause(hold=timedelta(0), actor=OLGA)
        await run.pause(now=True, hold=timedelta(milliseconds=50), actor=OLGA)
        # If the worker is slow, the pause expires before it has aborted the call.
        stage.gate("a").set()
        assert (await run.until("completed")).output == "Done."

    async def test_a_pause_that_pends_is_withdrawn_by_a_resume(
        self, opened: OpenHandle, stage: ControllableTools
    ) -> None:
        """The call in flight is not disturbed."""
        mid = await opened(stage.agent(Use("slow", name="a"), "Done."))
        run = await mid.start("actor", "go")
        await stage.start("a").wait()
        await run.pause(actor=OLGA)
        assert (await run.resume(actor=OLGA)).phase == "running"
        stage.gate("a").set()
        await run.until("completed")
        assert "PauseWithdrawn" in await list_entry_kinds(run)

    async def test_a_second_resume_is_a_no_op_unless_it_says_something(
        self, opened: OpenHandle, stage: ControllableTools
    ) -> None:
        """A resume with an instruction is refused: a no-op would lose the instruction."""
        mid = await opened(stage.agent(Use("slow", name="a"), "Done."))
        run = await mid.start("actor", "go")
        await stage.start("a").wait()
        assert (await run.resume(actor=OLGA)).already == "already_running"
        with pytest.raises(ControlRefused) as refused:
            await run.resume("Be quick.", actor=OLGA)
        assert refused.value.reason == "not_paused"
        assert "pause" in refused.value.allowed

    async def test_a_redirect_waits_for_its_step_and_can_be_withdrawn(
        self, opened: OpenHandle, stage: ControllableTools
    ) -> None:
        """It is pending until it is applied."""
        mid = await opened(stage.agent(Use("slow", name="a"), "Done."))
        run = await mid.start("actor", "go")
        await stage.start("a").wait()
        receipt = await run.redirect("Left.", actor=OLGA)
        assert not receipt.applied
        (pending,) = (await run.view()).pending
        assert (pending.seq, pending.text, pending.by) == (receipt.seq, "Left.", "olga")
        await run.withdraw(receipt.seq, actor=OLGA, reason="no, right")
        assert (await run.view()).pending == ()
        with pytest.raises(ControlRefused) as refused:
            await run.withdraw(receipt.seq, actor=OLGA)
        assert refused.value.control == "withdraw"

    async def test_a_redirect_now_stops_the_call_and_reaches_the_model(
        self, opened: OpenHandle, stage: ControllableTools
    ) -> None:
        """The model's next message is the instruction."""
        heard: list[str] = []

        def turn(messages: object) -> object:
            heard.append(messages[-1].text)  # type: ignore[index]  # a transcript
            return Use("slow", name="a") if len(heard) == 1 else "On the new course."

        mid = await opened(stage.agent(turn, turn))
        run = await mid.start("actor", "go")
        await stage.start("a").wait()
        await run.redirect("Use the 2026 figures", when="now", actor=OLGA)
        outcome = await run.result()
        assert isinstance(outcome, Completed)
        assert heard[-1] == "Use the 2026 figures"
        assert stage.stopped == ["a"]

    @pytest.mark.parametrize("control", ["resume", "redirect"])
    async def test_a_paused_run_goes_on_with_an_instruction(
        self, opened: OpenHandle, stage: ControllableTools, control: str
    ) -> None:
        """A resume with an instruction and a redirect do the same."""
        mid = await opened(stage.agent(Use("slow", name="a"), "Done."))
        run = await mid.start("actor", control)
        await stage.start("a").wait()
        await run.pause(now=True, actor=OLGA)
        await run.until("paused")
        await getattr(run, control)("Only the first page.", actor=OLGA)
        await run.until("completed")
        assert "RunResumed" in await list_entry_kinds(run)

    async def test_a_cancel_undoes_what_it_should_and_says_so(
        self, opened: OpenHandle, stage: ControllableTools
    ) -> None:
        """The outcome has the same report as `run.report()`."""
        turns = [Use("draft", name="one"), Use("lock", name="l"), Use("slow_draft", name="two")]
        mid = await opened(stage.agent(*turns, "never"))
        run = await mid.start("actor", "go")
        await stage.start("two").wait()
        assert (await run.cancel(actor=OLGA, reason="enough")).phase == "cancelling"
        outcome = await run.result()
        assert isinstance(outcome, Cancelled)
        assert outcome.report == await run.report()
        assert [deed.args for deed in outcome.report.undone] == ['{"name":"two"}']
        assert [deed.tool for deed in outcome.report.done] == ["draft"]
        assert [deed.tool for deed in outcome.report.released] == ["lock"]
        assert outcome.report.clean
        assert "## Done and kept" in str(outcome.report)
        assert (stage.undone, stage.released) == (["two"], ["l"])
        assert (await run.cancel(actor=OLGA)).already == "already_cancelled"

    async def test_a_cancel_of_everything_undoes_in_reverse_order(
        self, opened: OpenHandle, stage: ControllableTools
    ) -> None:
        turns = [Use("draft", name="1"), Use("draft", name="2"), Use("slow", name="x")]
        mid = await opened(stage.agent(*turns, "never"))
        run = await mid.start("actor", "go")
        await stage.start("x").wait()
        offer = (await run.view()).controls["cancel"]
        assert offer.enabled
        await run.cancel(undo="all", actor=OLGA)
        await run.until("terminal")
        assert stage.undone == ["2", "1"]

    @pytest.mark.slow  # an undo is tried several times before it counts as failed
    async def test_an_undo_that_failed_is_tried_again_or_taken_as_it_is(
        self, opened: OpenHandle, stage: ControllableTools
    ) -> None:
        """The residue is recorded until an operator accepts it."""
        broken = True

        async def mend(_: Call, __: object, ___: object) -> None:
            if broken:
                raise RuntimeError("the printer is on fire")

        printing = tool(stage._slow, name="print", undo=mend)  # noqa: SLF001 - as the stage's own
        model = ScriptedModel([Use("print", name="p"), "never"])
        mid = await opened(Agent("printer", model=model, tools=[printing]))
        run = await mid.start("printer", "go")
        await stage.start("p").wait()
        await run.cancel(actor=OLGA)
        await run.until("cancelled")
        assert [deed.tool for deed in (await run.report()).not_undone] == ["print"]
        broken = False
        await run.retry_undo(actor=OLGA)
        await run.until("cancelled")
        assert (await run.report()).clean
        with pytest.raises(ControlRefused):
            await run.accept_residue(actor=OLGA)

    async def test_a_cap_pauses_and_has_to_be_raised(
        self, opened: OpenHandle, stage: ControllableTools
    ) -> None:
        """A resume without caps is refused; so is a cap that is unknown or not higher."""
        mid = await opened(stage.agent(Use("quick", name="a"), Use("quick", name="b"), "Done."))
        run = await mid.start("actor", "go", stop=MaxSteps(1))
        view = await run.until("paused")
        assert (view.reason, view.caps[0].name, view.caps[0].cap) == ("cap", "steps", 1)
        with pytest.raises(ControlRefused) as refused:
            await run.resume(actor=OLGA)
        assert refused.value.reason == "cap_reached"
        with pytest.raises(ControlRefused) as refused:
            await run.raise_cap(tokens=10, actor=OLGA)
        assert refused.value.reason == "no_such_cap"
        with pytest.raises(ControlRefused) as refused:
            await run.raise_cap(steps=1, actor=OLGA)
        assert refused.value.reason == "cap_not_raised"
        with pytest.raises(Misconfigured):
            await run.raise_cap(steps=-1, actor=OLGA)
        await run.raise_cap(steps=2, actor=OLGA)
        await run.resume(actor=OLGA)
        await run.until("paused")
        await run.resume(caps={"steps": 9}, actor=OLGA)
        assert (await run.until("completed")).caps[0].cap == 9

    async def test_a_forced_pause_gives_up_an_unresponsive_call(
        self, opened: OpenHandle, stage: ControllableTools
    ) -> None:
        """Its outcome becomes unknown, and the run waits for a person to settle it."""
        mid = await opened(stage.agent(Use("slow", name="a"), "Done."))
        run = await mid.start("actor", "go")
        await stage.start("a").wait()
        with pytest.raises(ControlRefused) as refused:
            await run.force_pause(actor=OLGA)
        assert (refused.value.control, refused.value.phase) == ("force_pause", "running")
        await run.pause(actor=OLGA)
        await run.force_pause(actor=OLGA)
        await run.until("paused")
        assert [deed.tool for deed in (await run.report()).unsure] == ["slow"]
        await run.resume(actor=OLGA)
        (ask,) = (await run.until("waiting")).asks
        assert ask.kind == "unsure"
        await run.answer("yes", actor=OLGA)
        await run.until("completed")

    async def test_an_operator_halts_and_lifts(
        self, opened: OpenHandle, stage: ControllableTools
    ) -> None:
        """Nothing starts under a halt; then the run continues where it was."""
        mid = await opened(stage.agent(Use("quick", name="a"), "Done."))
        await mid.halt("fire", scope="label:kitchen", actor=OLGA)
        run = await mid.start("actor", "go", labels=["kitchen"])
        await run.until("halted")
        outcome = await run.result()
        assert isinstance(outcome, Paused)
        assert (outcome.reason, outcome.phase, stage.called) == ("halted", "halted", [])
        assert await mid.lift(scope="label:kitchen", actor=OLGA)
        assert not await mid.lift(scope="label:kitchen", actor=OLGA)
        await run.until("completed")
