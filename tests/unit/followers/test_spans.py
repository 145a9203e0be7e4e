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
from tests.scenarios.promises.speaker import Line, Speaker
from tests.scenarios.redaction.office import PASSWORD, Office
from tests.support.processes import JOURNALS
from tests.unit.runs.stage import ControllableTools
from tools.golden.facts import RUN

STORED = sorted(JOURNALS.glob("*.jsonl"))


class Told:
    """What was emitted."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))

    @property
    def spans(self) -> tuple[ReadableSpan, ...]:
        """All spans, in the order in which they began."""
        return tuple(sorted(self.exporter.get_finished_spans(), key=_place))

    def named(self, beginning: str) -> list[ReadableSpan]:
        """Return the spans whose name begins so."""
        return [span for span in self.spans if span.name.startswith(beginning)]


def _place(span: ReadableSpan) -> tuple[int, bool]:
    return span.start_time or 0, span.parent is not None


@pytest.fixture
def told() -> Iterator[Told]:
    """Give an exporter in memory behind a provider of its own."""
    made = Told()
    yield made
    made.provider.shutdown()


@asynccontextmanager
async def followed(path: Path, told: Told, *agents: Agent) -> AsyncIterator[Midrun]:
    """Give a `Midrun` whose runs are followed."""
    with anyio.fail_after(60):
        async with (
            Midrun(f"sqlite:///{path}", agents=agents) as midrun,
            following(midrun, Spans(midrun, provider=told.provider)),
        ):
            yield midrun


async def emitted(midrun: Midrun, run: Run) -> None:
    """Wait until everything of a run that rests was emitted."""
    assert isinstance(midrun.store, HasFollowerCursors)
    head = (await midrun.store.get_row(run.id)).seq
    for _ in range(3000):
        if (await midrun.store.follower_cursors().get_cursor("spans", run.id)).seq >= head:
            return
        await anyio.sleep(0.01)
    raise AssertionError("it was never marked")


def attributes(span: ReadableSpan) -> dict[str, object]:
    """Return the attributes of a span."""
    return dict(span.attributes or {})


async def test_a_run_is_a_span_with_its_calls_in_it(path: Path, told: Told) -> None:
    """Under the names that backends know, at the times of the entries."""
    agent = ControllableTools().agent(Use("quick", name="a"), "Done.")
    async with followed(path, told, agent) as midrun:
        run = await midrun.start(agent, "Go.", thread="t1")
        await run.until("completed")
        await emitted(midrun, run)
        records = await midrun.store.read(run.id)
    (root,) = told.named("invoke_agent")
    assert [span.name for span in told.spans] == [
        "invoke_agent actor",
        "chat scripted",
        "execute_tool quick",
        "chat scripted",
    ]
    assert attributes(root) | {"midrun.epoch": 0} == {
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
    for span in told.spans[1:]:
        assert span.parent is not None
        assert span.parent.span_id == root.context.span_id
        assert attributes(span)["gen_ai.conversation.id"] == "t1"
        assert attributes(span)["midrun.outcome"] == "done"
    tool = attributes(told.named("execute_tool")[0])
    assert tool["gen_ai.tool.name"] == "quick"
    assert tool["gen_ai.tool.call.id"]
    assert root.end_time == records[-1].at * 1000
    assert all(span.status.status_code is StatusCode.UNSET for span in told.spans)


async def test_a_pause_ends_a_segment_and_the_next_is_linked_to_it(
    path: Path, told: Told
) -> None:
    """No span is open while a run waits for a week; that they belong together is visible."""
    stage = ControllableTools()
    agent = stage.agent(Use("slow", name="a"), "Done.")
    async with followed(path, told, agent) as midrun:
        run = await midrun.start(agent, "Go.")
        await stage.start("a").wait()
        await run.pause(actor="ann")
        stage.gate("a").set()
        await run.until("paused")
        await emitted(midrun, run)
        assert len(told.named("invoke_agent")) == 1
        await run.resume("Be quick.", actor="bob")
        await run.until("completed")
        await emitted(midrun, run)
    first, second = told.named("invoke_agent")
    assert first.context.trace_id != second.context.trace_id
    (link,) = second.links
    assert link.context.span_id == first.context.span_id
    assert link.context.trace_id == first.context.trace_id
    assert {attributes(s)["gen_ai.conversation.id"] for s in (first, second)} == {run.id}
    assert [attributes(s)["midrun.outcome"] for s in (first, second)] == ["paused", "completed"]
    assert [event.name for event in first.events] == ["midrun.pausing", "midrun.paused"]
    assert [event.name for event in second.events] == ["midrun.resumed"]
    assert dict(second.events[0].attributes or {})["midrun.by"] == "bob"
    assert first.end_time <= second.start_time  # type: ignore[operator]  # both have ended


async def test_the_link_survives_a_restart(path: Path, told: Told) -> None:
    """The store keeps the context of the newest segment with the mark."""
    agent = Office().agent(Use("ask"), "Thanks.")
    async with followed(path, told, agent) as midrun:
        run = await midrun.start(agent, "Ask.")
        await run.until("waiting")
        await emitted(midrun, run)
    other = Told()
    async with followed(path, other, agent) as midrun:
        again = await midrun.get(run.id)
        await again.answer("yes", actor="ann")
        await again.until("completed")
        await emitted(midrun, again)
    (first,), (second,) = told.named("invoke_agent"), other.named("invoke_agent")
    assert attributes(first)["midrun.outcome"] == "waiting"
    assert attributes(second)["midrun.segment"] == 2
    assert [link.context.span_id for link in second.links] == [first.context.span_id]
    other.provider.shutdown()


async def test_a_cancel_by_a_person_is_no_error(path: Path, told: Told) -> None:
    """Alarms are for what nobody wanted."""
    stage = ControllableTools()
    agent = stage.agent(Use("slow", name="a"), "Done.")
    async with followed(path, told, agent) as midrun:
        run = await midrun.start(agent, "Go.")
        await stage.start("a").wait()
        await run.cancel(actor="ann")
        await run.until("cancelled")
        await emitted(midrun, run)
    assert all(span.status.status_code is StatusCode.UNSET for span in told.spans)
    (root,) = told.named("invoke_agent")
    assert attributes(root)["midrun.outcome"] == "cancelled"
    assert [e.name for e in root.events] == ["midrun.cancelling", "midrun.cancelled"]
    assert attributes(told.named("execute_tool")[0])["midrun.outcome"] == "aborted"


async def test_what_fails_is_an_error_in_words_without_secrets(path: Path, told: Told) -> None:
    """Of the tool that raised; of the run only if it failed for it."""
    agent = Office().agent(Use("fail", password=PASSWORD))  # then its script is over
    async with followed(path, told, agent) as midrun:
        run = await midrun.start(agent, "Fail.")
        await run.until("failed")
        await emitted(midrun, run)
    (tool,) = told.named("execute_tool")
    assert tool.status.status_code is StatusCode.ERROR
    assert attributes(tool)["error.type"] == "ValueError"
    (root,) = told.named("invoke_agent")
    assert root.status.status_code is StatusCode.ERROR
    assert attributes(root)["error.type"]
    assert PASSWORD not in "".join(span.to_json() for span in told.spans)


async def test_usage_is_on_the_call_that_used_it(path: Path, told: Told) -> None:
    """As far as the provider has said."""
    agent = Agent("actor", model=Speaker(Line("Done.")))
    async with followed(path, told, agent) as midrun:
        run = await midrun.start(agent, "Go.")
        await run.until("completed")
        await emitted(midrun, run)
    (chat,) = told.named("chat")
    assert attributes(chat)["midrun.usage.tokens"] == 7
    assert chat.kind is trace.SpanKind.CLIENT


async def test_what_this_process_traces_itself_is_not_the_parent(
    path: Path, told: Told
) -> None:
    """A run is told of long after it happened, by whoever is at it then."""
    tracer = told.provider.get_tracer("app")
    agent = ControllableTools().agent("Done.")
    with tracer.start_as_current_span("request"):
        async with followed(path, told, agent) as midrun:
            run = await midrun.start(agent, "Go.")
            await run.until("completed")
            await emitted(midrun, run)
    (root,) = told.named("invoke_agent")
    assert root.parent is None


@pytest.mark.parametrize("journal", STORED, ids=lambda path: str(path.stem))
def test_every_stored_journal_can_be_told(journal: Path) -> None:
    """Segments do not overlap, calls lie within them, and the function is pure."""
    records = decode_lines(RUN, journal.read_bytes().splitlines())
    found = build_segments(RUN, records)
    assert found == build_segments(RUN, records)
    end = 0
    for segment in found:
        span = segment.span
        assert end <= span.start <= span.end
        end = span.end
        assert all(span.start <= call.start <= call.end <= span.end for call in segment.calls)
        assert all(span.start <= moment.at <= span.end for moment in span.events)
        assert span.attributes["midrun.outcome"]
        assert all("midrun.outcome" in call.attributes for call in segment.calls)
    ends = [segment.end for segment in found]
    assert ends == sorted(set(ends))
    assert all(Seq(1) < seq <= records[-1].seq for seq in ends)


async def test_a_run_that_was_started_in_a_trace_belongs_to_it_over_every_pause(
    path: Path, told: Told
) -> None:
    """Whoever follows a request finds the whole run, whichever process drove it."""
    stage = ControllableTools()
    agent = stage.agent(Use("read", name="x"), "Done.")
    caller = f"00-{7:032x}-{9:016x}-01"
    async with followed(path, told, agent) as midrun:
        run = await midrun.start(agent, "Go.", trace=caller)
        await stage.start("x").wait()
        await run.pause(now=True)
        await run.until("paused")
        stage.gate("x").set()
        await run.resume()
        await run.until("completed")
        await emitted(midrun, run)
    roots = told.named("invoke_agent")
    assert len(roots) == 2
    for span in told.spans:
        assert span.context.trace_id == 7
    assert all(root.parent is not None and root.parent.span_id == 9 for root in roots)
