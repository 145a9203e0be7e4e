"""Questions, approvals, late decisions, and checkpoints that are resumed."""

import pytest

from midrun import events as ev
from midrun.agents.agent import Agent
from midrun.agents.builtin_tools import ask_human
from midrun.agents.outcome import Completed, Paused
from midrun.agents.tool import Tool, tool
from midrun.errors import CheckpointRefused, ControlRefused, NotJson
from midrun.models import ScriptedModel, Use
from midrun.runs.values import FeedEntry
from midrun.testing.run_suite.fixtures import OLGA, OpenHandle, RunSuiteFixtures


def _make_clerk(*tools: Tool, turns: object) -> Agent:
    return Agent("clerk", model=ScriptedModel(turns), tools=list(tools))  # type: ignore[arg-type]  # checked there


class DecisionTests(RunSuiteFixtures):
    """Asks, and the people who settle them."""

    async def test_an_answer_is_the_result_of_the_tool_that_asked(
        self, opened: OpenHandle
    ) -> None:
        """Without an ask id the only open ask is meant."""
        turns = [Use("ask_human", question="Which one?"), "Done."]
        mid = await opened(_make_clerk(ask_human, turns=turns))
        run = await mid.start("clerk", "go")
        view = await run.until("waiting")
        assert (view.asks[0].question, view.asks[0].kind) == ("Which one?", "question")
        outcome = await run.result()
        assert isinstance(outcome, Paused)
        assert (outcome.reason, outcome.phase) == ("question", "waiting")
        assert outcome.asks == view.asks
        (listed,) = await mid.asks()
        assert (listed.run_id, listed.id, listed.task) == (run.id, view.asks[0].id, "go")
        await run.answer({"pick": ["left", 1, 2.5, None]}, actor=OLGA)
        await run.until("completed")
        results = [
            item.entry
            async for item in run.feed()
            if isinstance(item, FeedEntry) and item.kind == "AskAnswered"
        ]
        assert "left" in str(results)
        assert await mid.asks() == ()

    async def test_events_show_the_ask_its_decision_and_the_phases(
        self, opened: OpenHandle
    ) -> None:
        """The events of a run that waits come without polling."""
        turns = [Use("ask_human", question="Go?"), "Done."]
        mid = await opened(_make_clerk(ask_human, turns=turns))
        run = await mid.start("clerk", "go", actor=OLGA)
        found: list[object] = []
        async for event in run.events():
            match event:
                case ev.AskStarted():
                    found.append((event.ask_kind, event.question, event.tool))
                case ev.AskFinished():
                    found.append((event.choice, event.value, event.by))
                case ev.PhaseChanged():
                    found.append(event.phase)
                    if event.phase == "waiting":
                        await run.answer("yes", actor=OLGA)
                case _:
                    continue
        assert found == [
            "queued",
            "running",
            ("question", "Go?", "ask_human"),
            "waiting",
            ("answer", "yes", "olga"),
            "queued",
            "running",
            "completed",
        ]

    async def test_a_value_that_is_not_json_is_refused_before_it_is_sent(
        self, opened: OpenHandle
    ) -> None:
        """The error has the path of the value."""
        mid = await opened(
            _make_clerk(ask_human, turns=[Use("ask_human", question="?"), "Done."])
        )
        run = await mid.start("clerk", "go")
        await run.until("waiting")
        with pytest.raises(NotJson) as refused:
            await run.answer({"when": object()}, actor=OLGA)
        assert refused.value.path == "$.when"

    async def test_a_late_decision_is_refused_with_the_name_of_the_first(
        self, opened: OpenHandle
    ) -> None:
        """The error also has the phase of the run."""
        turns = [[Use("ask_human", question="A?"), Use("ask_human", question="B?")], "Done."]
        mid = await opened(_make_clerk(ask_human, turns=turns))
        run = await mid.start("clerk", "go")
        first, second = (await run.until("waiting")).asks
        with pytest.raises(ControlRefused) as several:
            await run.answer("x", actor=OLGA)
        assert several.value.reason == "several_asks_open"
        await run.answer("x", ask=first.id, actor=OLGA)
        with pytest.raises(ControlRefused) as late:
            await run.answer("y", ask=first.id, actor=OLGA)
        assert (late.value.reason, late.value.by) == ("already_answered", "olga")
        assert (late.value.run, late.value.phase) == (run.id, "waiting")
        with pytest.raises(ControlRefused) as unknown:
            await run.answer("y", ask="a99", actor=OLGA)
        assert unknown.value.reason == "no_such_ask"
        await run.answer("y", ask=second.id, actor=OLGA)
        await run.until("completed")
        with pytest.raises(ControlRefused) as over:
            await run.answer("z", actor=OLGA)
        assert over.value.reason == "no_such_ask"

    async def test_an_approval_is_for_these_arguments_and_no_others(
        self, opened: OpenHandle
    ) -> None:
        """Edited arguments are validated, and the call is made with them."""
        made: list[str] = []

        @tool(approve=True)
        async def send(to: str) -> str:
            """Send a letter."""
            made.append(to)
            return "sent"

        mid = await opened(_make_clerk(send, turns=[Use("send", to="a"), "Done."]))
        run = await mid.start("clerk", "go")
        (ask,) = (await run.until("waiting")).asks
        assert (ask.kind, ask.tool, ask.args) == ("approval", "send", {"to": "a"})
        with pytest.raises(ControlRefused) as bad:
            await run.approve(args={"nobody": 1}, actor=OLGA)
        assert (bad.value.reason, bool(bad.value.detail)) == ("bad_arguments", True)
        await run.approve(args={"to": "b"}, actor=OLGA)
        await run.until("completed")
        assert made == ["b"]

    async def test_what_was_declined_is_not_made_and_the_agent_is_told_why(
        self, opened: OpenHandle
    ) -> None:
        told: list[str] = []

        @tool(approve=True)
        async def send(to: str) -> str:
            """Send a letter."""
            raise AssertionError(to)

        def turn(messages: object) -> object:
            told.append(str(messages[-1]))  # type: ignore[index]  # a transcript
            return Use("send", to="a") if len(told) == 1 else "I see."

        mid = await opened(_make_clerk(send, turns=turn))
        run = await mid.start("clerk", "go")
        await run.until("waiting")
        await run.decline("not on a Sunday", actor=OLGA)
        assert (await run.until("completed")).output == "I see."
        assert "not on a Sunday" in told[-1]

    async def test_a_checkpoint_goes_on_once(self, opened: OpenHandle) -> None:
        """The store that has the run refuses a second resume."""
        mid = await opened(
            _make_clerk(ask_human, turns=[Use("ask_human", question="?"), "Done."])
        )
        run = await mid.start("clerk", "go")
        await run.until("waiting")
        checkpoint = await run.checkpoint()
        again = await mid.resume(checkpoint, "yes", actor=OLGA)
        assert again.id == run.id
        assert isinstance(await again.result(), Completed)
        with pytest.raises(CheckpointRefused) as stale:
            await mid.resume(checkpoint, "yes", actor=OLGA)
        assert stale.value.reason == "stale_checkpoint"
        with pytest.raises(CheckpointRefused) as over:
            await run.checkpoint()
        assert over.value.reason == "checkpoint_invalid"

    async def test_a_repeated_resume_of_a_checkpoint_finds_the_run(
        self, opened: OpenHandle
    ) -> None:
        """One request id is one request."""
        mid = await opened(
            _make_clerk(ask_human, turns=[Use("ask_human", question="?"), "Done."])
        )
        run = await mid.start("clerk", "go")
        await run.until("waiting")
        checkpoint = await run.checkpoint()
        for _ in range(2):
            again = await mid.resume(checkpoint, "yes", actor=OLGA, request_id="r1")
            assert again.id == run.id
        await run.until("completed")
