"""Spans: one for each segment of a run, with its calls, linked across pauses."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from midrun import Agent, Midrun
from midrun.codec.journal import decode_lines
from midrun.core.ids import Seq
from midrun.followers import following
from midrun.followers.span_builder import build_segments
from midrun.followers.spans import Spans
from midrun.models import Use
from midrun.ports.follower_cursors import HasFollowerCursors
from midrun.runs.run import Run
from midrun.testing.controllable_tools import ControllableTools
from tests.support.gated_model import GatedModel, GatedReply
from tests.support.paths import JOURNALS
from tests.support.secret_tools import PASSWORD, SecretTools
from tools.golden.facts import RUN

STORED_JOURNALS = sorted(JOURNALS.glob("*.jsonl"))


class SpanRecorder:
    """Records emitted spans in memory."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))

    @property
    def spans(self) -> tuple[ReadableSpan, ...]:
        """All spans, in the order of their start."""
        return tuple(sorted(self.exporter.get_finished_spans(), key=get_sort_key))

    def find_spans(self, prefix: str) -> list[ReadableSpan]:
        """Return the spans whose name starts with the prefix."""
        return [span for span in self.spans if span.name.startswith(prefix)]


def get_sort_key(span: ReadableSpan) -> tuple[int, bool]:
    return span.start_time or 0, span.parent is not None


@pytest.fixture
def recorder() -> Iterator[SpanRecorder]:
    """Return a recorder with a tracer provider of its own."""
    recorder = SpanRecorder()
    yield recorder
    recorder.provider.shutdown()


@asynccontextmanager
async def open_midrun(
    path: Path, recorder: SpanRecorder, *agents: Agent
) -> AsyncIterator[Midrun]:
    """Open a `Midrun` whose runs are emitted as spans."""
    with anyio.fail_after(60):
        async with (
            Midrun(f"sqlite:///{path}", agents=agents) as midrun,
            following(midrun, Spans(midrun, provider=recorder.provider)),
        ):
            yield midrun


async def wait_until_emitted(midrun: Midrun, run: Run) -> None:
    """Wait until all entries of a resting run are emitted."""
    assert isinstance(midrun.store, HasFollowerCursors)
    head = (await midrun.store.get_row(run.id)).seq
    for _ in range(3000):
        if (await midrun.store.follower_cursors().get_cursor("spans", run.id)).seq >= head:
            return
        await anyio.sleep(0.01)
    raise AssertionError("the cursor was not moved")


def get_attributes(span: ReadableSpan) -> dict[str, object]:
    return dict(span.attributes or {})


async def test_a_run_is_a_span_that_contains_the_spans_of_its_calls(
    path: Path, recorder: SpanRecorder
) -> None:
    """Attributes have the names of the GenAI conventions; times are those of the entries."""
    agent = ControllableTools().agent(Use("quick", name="a"), "Done.")
    async with open_midrun(path, recorder, agent) as midrun:
        run = await midrun.start(agent, "Go.", thread="t1")
        await run.until("completed")
        await wait_until_emitted(midrun, run)
        records = await midrun.store.read(run.id)
    (root,) = recorder.find_spans("invoke_agent")
    assert [span.name for span in recorder.spans] == [
        "invoke_agent actor",
        "chat scripted",
        "execute_tool quick",
        "chat scripted",
    ]
    assert get_attributes(root) | {"midrun.epoch": 0} == {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": "actor",
        "gen_ai.conversation.id": "t1",
        "gen_ai.request.model": "scripted",
        "midrun.run.id": run.id,
        "midrun.segment": 1,
        "midrun.epoch": 0,
        "midrun.outcome": "completed",
    }
    assert root.parent is None
    for span in recorder.spans[1:]:
        assert span.parent is not None
        assert span.parent.span_id == root.context.span_id
        assert get_attributes(span)["gen_ai.conversation.id"] == "t1"
        assert get_attributes(span)["midrun.outcome"] == "done"
    tool = get_attributes(recorder.find_spans("execute_tool")[0])
    assert tool["gen_ai.tool.name"] == "quick"
    assert tool["gen_ai.tool.call.id"]
    assert root.end_time == records[-1].at * 1000
    assert all(span.status.status_code is StatusCode.UNSET for span in recorder.spans)


async def test_a_pause_ends_a_segment_and_the_next_segment_links_to_it(
    path: Path, recorder: SpanRecorder
) -> None:
    """A run that waits for a week must not have an open span."""
    tools = ControllableTools()
    agent = tools.agent(Use("slow", name="a"), "Done.")
    async with open_midrun(path, recorder, agent) as midrun:
        run = await midrun.start(agent, "Go.")
        await tools.start("a").wait()
        await run.pause(actor="ann")
        tools.gate("a").set()
        await run.until("paused")
        await wait_until_emitted(midrun, run)
        assert len(recorder.find_spans("invoke_agent")) == 1
        await run.resume("Be quick.", actor="bob")
        await run.until("completed")
        await wait_until_emitted(midrun, run)
    first, second = recorder.find_spans("invoke_agent")
    assert first.context.trace_id != second.context.trace_id
    (link,) = second.links
    assert link.context.span_id == first.context.span_id
    assert link.context.trace_id == first.context.trace_id
    assert {get_attributes(s)["gen_ai.conversation.id"] for s in (first, second)} == {run.id}
    assert [get_attributes(s)["midrun.outcome"] for s in (first, second)] == [
        "paused",
        "completed",
    ]
    assert [event.name for event in first.events] == ["midrun.pausing", "midrun.paused"]
    assert [event.name for event in second.events] == ["midrun.resumed"]
    assert dict(second.events[0].attributes or {})["midrun.by"] == "bob"
    assert first.end_time <= second.start_time  # type: ignore[operator]  # both have ended


async def test_the_link_between_segments_survives_a_restart(
    path: Path, recorder: SpanRecorder
) -> None:
    """The store keeps the context of the newest segment with the cursor."""
    agent = SecretTools().make_agent(Use("ask"), "Thanks.")
    async with open_midrun(path, recorder, agent) as midrun:
        run = await midrun.start(agent, "Ask.")
        await run.until("waiting")
        await wait_until_emitted(midrun, run)
    other = SpanRecorder()
    async with open_midrun(path, other, agent) as midrun:
        again = await midrun.get(run.id)
        await again.answer("yes", actor="ann")
        await again.until("completed")
        await wait_until_emitted(midrun, again)
    (first,), (second,) = recorder.find_spans("invoke_agent"), other.find_spans("invoke_agent")
    assert get_attributes(first)["midrun.outcome"] == "waiting"
    assert get_attributes(second)["midrun.segment"] == 2
    assert [link.context.span_id for link in second.links] == [first.context.span_id]
    other.provider.shutdown()


async def test_the_span_of_a_cancelled_run_has_no_error_status(
    path: Path, recorder: SpanRecorder
) -> None:
    """An alarm is for unintended ends."""
    tools = ControllableTools()
    agent = tools.agent(Use("slow", name="a"), "Done.")
    async with open_midrun(path, recorder, agent) as midrun:
        run = await midrun.start(agent, "Go.")
        await tools.start("a").wait()
        await run.cancel(actor="ann")
        await run.until("cancelled")
        await wait_until_emitted(midrun, run)
    assert all(span.status.status_code is StatusCode.UNSET for span in recorder.spans)
    (root,) = recorder.find_spans("invoke_agent")
    assert get_attributes(root)["midrun.outcome"] == "cancelled"
    assert [e.name for e in root.events] == ["midrun.cancelling", "midrun.cancelled"]
    assert get_attributes(recorder.find_spans("execute_tool")[0])["midrun.outcome"] == "aborted"


async def test_the_span_of_a_failure_has_an_error_status_without_secrets(
    path: Path, recorder: SpanRecorder
) -> None:
    """The run's span has it only because the run failed, too."""
    agent = SecretTools().make_agent(Use("fail", password=PASSWORD))  # then its script ends
    async with open_midrun(path, recorder, agent) as midrun:
        run = await midrun.start(agent, "Fail.")
        await run.until("failed")
        await wait_until_emitted(midrun, run)
    (tool,) = recorder.find_spans("execute_tool")
    assert tool.status.status_code is StatusCode.ERROR
    assert get_attributes(tool)["error.type"] == "ValueError"
    (root,) = recorder.find_spans("invoke_agent")
    assert root.status.status_code is StatusCode.ERROR
    assert get_attributes(root)["error.type"]
    assert PASSWORD not in "".join(span.to_json() for span in recorder.spans)


async def test_token_usage_is_on_the_span_of_its_model_call(
    path: Path, recorder: SpanRecorder
) -> None:
    agent = Agent("actor", model=GatedModel(GatedReply("Done.")))
    async with open_midrun(path, recorder, agent) as midrun:
        run = await midrun.start(agent, "Go.")
        await run.until("completed")
        await wait_until_emitted(midrun, run)
    (chat,) = recorder.find_spans("chat")
    assert get_attributes(chat)["midrun.usage.tokens"] == 7
    assert chat.kind is trace.SpanKind.CLIENT


async def test_the_current_span_of_the_process_is_not_the_parent(
    path: Path, recorder: SpanRecorder
) -> None:
    """A run is emitted long after it ran, perhaps by another process."""
    tracer = recorder.provider.get_tracer("app")
    agent = ControllableTools().agent("Done.")
    with tracer.start_as_current_span("request"):
        async with open_midrun(path, recorder, agent) as midrun:
            run = await midrun.start(agent, "Go.")
            await run.until("completed")
            await wait_until_emitted(midrun, run)
    (root,) = recorder.find_spans("invoke_agent")
    assert root.parent is None


def test_each_model_call_has_the_agent_and_the_model_that_made_it() -> None:
    """After a handoff they are others."""
    (journal,) = (path for path in STORED_JOURNALS if path.stem == "a_handoff_and_a_cancel")
    records = decode_lines(RUN, journal.read_bytes().splitlines())
    segments = build_segments(RUN, records, models={"clerk": "x:small", "desk": "x:large"})
    chats = [
        (call.attributes.get("gen_ai.agent.name", ""), call.attributes["gen_ai.request.model"])
        for call in segments[0].calls
        if call.attributes["gen_ai.operation.name"] == "chat"
    ]
    small, large = ("", "x:small"), ("desk", "x:large")
    assert chats == [small, large, large, small, large]


@pytest.mark.parametrize("journal", STORED_JOURNALS, ids=lambda path: str(path.stem))
def test_every_stored_journal_has_consistent_segments(journal: Path) -> None:
    """Segments do not overlap and contain their calls; the function is pure."""
    records = decode_lines(RUN, journal.read_bytes().splitlines())
    segments = build_segments(RUN, records)
    assert segments == build_segments(RUN, records)
    end = 0
    for segment in segments:
        span = segment.span
        assert end <= span.start <= span.end
        end = span.end
        assert all(span.start <= call.start <= call.end <= span.end for call in segment.calls)
        assert all(span.start <= moment.at <= span.end for moment in span.events)
        assert span.attributes["midrun.outcome"]
        assert all("midrun.outcome" in call.attributes for call in segment.calls)
    ends = [segment.end for segment in segments]
    assert ends == sorted(set(ends))
    assert all(Seq(1) < seq <= records[-1].seq for seq in ends)


async def test_all_segments_of_a_run_belong_to_the_trace_of_its_caller(
    path: Path, recorder: SpanRecorder
) -> None:
    """The trace of a request shows the whole run, also after a pause."""
    tools = ControllableTools()
    agent = tools.agent(Use("read", name="x"), "Done.")
    caller = f"00-{7:032x}-{9:016x}-01"
    async with open_midrun(path, recorder, agent) as midrun:
        run = await midrun.start(agent, "Go.", trace=caller)
        await tools.start("x").wait()
        await run.pause(now=True)
        await run.until("paused")
        tools.gate("x").set()
        await run.resume()
        await run.until("completed")
        await wait_until_emitted(midrun, run)
    roots = recorder.find_spans("invoke_agent")
    assert len(roots) == 2
    for span in recorder.spans:
        assert span.context.trace_id == 7
    assert all(root.parent is not None and root.parent.span_id == 9 for root in roots)
