"""Side questions and held topics, threads, forks, and taking over."""

from datetime import timedelta
from hashlib import sha256

import pytest

from midrun.agents.file import File
from midrun.errors import ControlRefused, Misconfigured
from midrun.models import Use
from midrun.testing.controllable_tools import ControllableTools
from midrun.testing.run_suite.fixtures import (
    OLGA,
    OpenHandle,
    RunSuiteFixtures,
    list_entry_kinds,
)


class ConversationTests(RunSuiteFixtures):
    """Messages to a run, and the topics that they interrupt."""

    async def test_a_side_question_is_acknowledged_answered_and_left_behind(
        self, opened: OpenHandle, stage: ControllableTools
    ) -> None:
        """The interrupted topic is held meanwhile, and then resumed."""
        turns = [Use("slow", name="a"), Use("slow", name="q"), "An answer.", "Done."]
        mid = await opened(stage.agent(*turns))
        run = await mid.start("actor", "go")
        await stage.start("a").wait()
        receipt = await run.say("How is it going?", actor=OLGA)
        assert not receipt.applied
        assert receipt.acknowledgement
        stage.gate("a").set()
        await stage.start("q").wait()
        (frame,) = (await run.view()).frames
        assert frame.goal == "go"
        with pytest.raises(ControlRefused) as refused:
            await run.drop_frame("f99", actor=OLGA)
        assert refused.value.reason in {"no_such_frame", "not_on_top"}
        await run.drop_frame(frame.id, actor=OLGA, reason="never mind")
        assert (await run.view()).frames == ()
        with pytest.raises(ControlRefused):
            await run.resume_frame(frame.id, actor=OLGA)
        stage.gate("q").set()
        await run.until("completed")
        assert "FrameAbandoned" in await list_entry_kinds(run)

    async def test_what_can_wait_waits_until_the_end(
        self, opened: OpenHandle, stage: ControllableTools
    ) -> None:
        """`later` interrupts nothing; a message for a later time does not keep the run open."""
        mid = await opened(stage.agent(Use("slow", name="a"), "Done.", "And that."))
        run = await mid.start("actor", "go")
        await stage.start("a").wait()
        await run.say("And then?", urgency="later", actor=OLGA)
        with pytest.raises(Misconfigured):
            await run.say("x", urgency="soon", actor=OLGA)  # type: ignore[arg-type]  # that is the slip
        noted = await run.say("Tomorrow.", at=timedelta(days=1), actor=OLGA)
        assert [p.text for p in (await run.view()).pending] == ["And then?", "Tomorrow."]
        await run.withdraw(noted.seq, actor=OLGA)
        stage.gate("a").set()
        assert "MessageTaken" in await list_entry_kinds(run)

    async def test_a_thread_remembers_what_was_said_in_it(
        self, opened: OpenHandle, stage: ControllableTools
    ) -> None:
        heard: list[str] = []

        def turn(messages: object) -> str:
            heard.append(" | ".join(m.text for m in messages))  # type: ignore[attr-defined]  # a transcript
            return f"Said {len(heard)}."

        mid = await opened(stage.agent(turn, turn, turn))
        for task in ("One", "Two"):
            run = await mid.start("actor", task, thread="t")
            assert (await run.until("completed")).thread == "t"
        other = await mid.start("actor", "Three", thread="another")
        await other.until("completed")
        assert "Said 1." in heard[1]
        assert "Said" not in heard[2]

    async def test_a_fork_continues_from_a_boundary_as_a_run_of_its_own(
        self, opened: OpenHandle, stage: ControllableTools
    ) -> None:
        """The original does not change; one request id makes one fork. It takes files."""
        mid = await opened(stage.agent(Use("quick", name="a"), "Done.", "Again."))
        run = await mid.start("actor", "go")
        await run.until("completed")
        before = (await run.view()).seq
        files = [File("plan.txt", "text/plain", b"first")]
        made = await run.fork(instruction="And now?", files=files, actor=OLGA, request_id="f1")
        assert made.id != run.id
        assert (await made.until("completed")).task == "And now?"
        assert (await made.file(sha256(b"first").hexdigest())).data == b"first"
        assert (await run.view()).seq == before
        same = await run.fork(instruction="And now?", files=files, actor=OLGA, request_id="f1")
        assert same.id == made.id
        with pytest.raises(ControlRefused) as reused:
            await run.fork(instruction="Else?", actor=OLGA, request_id="f1")
        assert reused.value.reason == "request_id_reused"
        with pytest.raises(ControlRefused) as refused:
            await run.fork(3, actor=OLGA)
        assert (refused.value.control, refused.value.reason) == ("fork", "not_a_boundary")

    async def test_a_person_takes_over_and_hands_back(
        self, opened: OpenHandle, stage: ControllableTools
    ) -> None:
        """Their text is the assistant's; their tool calls are dispatched like any call."""
        mid = await opened(stage.agent(Use("slow", name="x"), "Done."))
        run = await mid.start("actor", "go")
        await stage.start("x").wait()
        with pytest.raises(ControlRefused) as early:
            await run.write("Hello.", actor=OLGA)
        assert early.value.control == "write"
        taken = await run.take_over(actor=OLGA)
        assert (taken.phase, taken.applied) == ("pausing", False)
        stage.gate("x").set()
        assert (await run.until("paused")).reason == "taken_over"
        await run.write("Hello, a person.", actor=OLGA)
        with pytest.raises(ControlRefused) as held:
            await run.resume(actor=OLGA)
        assert held.value.reason == "taken_over"
        with pytest.raises(ControlRefused) as bad:
            await run.use_tool("quick", {"nobody": 1}, actor=OLGA)
        assert bad.value.reason == "bad_arguments"
        await run.use_tool("quick", {"name": "by hand"}, actor=OLGA)
        await run.until("paused")
        await run.hand_back("Carry on.", actor=OLGA)
        await run.until("completed")
        assert stage.completed == ["x", "by hand"]
