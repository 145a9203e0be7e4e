"""Live output of a run: late watchers, retries, redaction, and the outbox for other processes.

A watcher that joins in the middle of a reply first gets an *opening*, a delta with all text so
far. After it, no text is missing and none comes twice.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, contextmanager
from pathlib import Path

import anyio
import httpx2
import pytest
from msgspec.structs import replace

from midrun import Agent, Midrun
from midrun.core.ids import CallId, RunId
from midrun.core.values import Reply
from midrun.driver.delta import Delta, LiveTranscript
from midrun.driver.live import (
    OUTBOX_MAX_CHARS,
    OUTBOX_MAX_DELTAS,
    WATCHER_MAX_DELTAS,
    LiveOutput,
    Outbox,
    unpack_deltas,
)
from midrun.driver.notifications import Wakeup
from midrun.driver.redaction import LiveRedactor, SecretRegistry
from midrun.errors import ModelFailed
from midrun.ports.model import Finished, Piece, Prompt, Unpriced
from midrun.runs.values import FeedItem
from midrun.server import app
from tests.browser.stage import Hold, Stage
from tests.scenarios.live.child_process import start_child
from tests.unit.server.conftest import serve_on_loopback
from tests.unit.server.sse_stream import SseEvent, open_event_stream

HTTP_TIMEOUT_SECONDS = 60
RUN, CALL = RunId("run_1"), CallId("c1")
TOKEN = "t" * 43


class FeedReader:
    """Rebuilds the text of a run from the deltas of its feed."""

    def __init__(self, feed: AsyncGenerator[FeedItem, None]) -> None:
        self.text = ""
        self._feed = feed

    async def read_until(self, text: str) -> None:
        """Read on until the text is complete."""
        while self.text != text:
            item = await anext(self._feed)
            if isinstance(item, Delta) and item.kind == "text":
                self.text = item.text if item.opening else self.text + item.text
            assert text.startswith(self.text), "text is missing or came twice"


def make_delta(
    text: str,
    *,
    kind: str = "text",
    run: str = RUN,
    call: str = CALL,
    opening: bool = False,
) -> Delta:
    """Return a delta, by default one of the text of a model."""
    return Delta(run=RunId(run), call=CallId(call), kind=kind, text=text, opening=opening)  # type: ignore[arg-type]  # one of the literals


@pytest.fixture
def stage() -> Stage:
    return Stage()


@pytest.mark.usefixtures("_time_limit")
async def test_a_feed_that_is_opened_during_a_reply_has_all_of_its_text(stage: Stage) -> None:
    """In the driving process, for a feed from the start and one from the newest entry."""
    agent = stage.play(["One two ", Hold("mid"), "three four.", Hold("end")])
    async with Midrun("memory://", agents=[agent]) as midrun, AsyncExitStack() as stack:
        run = await midrun.start("actor", "Go.")
        await stage.start("mid").wait()
        after = (await run.view()).seq
        feeds = [await stack.enter_async_context(aclosing(run.feed(n))) for n in (0, after)]
        readers = [FeedReader(feed) for feed in feeds]
        for reader in readers:
            await reader.read_until("One two ")
        stage.gate("mid").set()
        await stage.start("end").wait()
        for reader in readers:
            await reader.read_until("One two three four.")
        stage.open_all_gates()
        await run.until("completed")
        deltas = [i async for i in run.feed(after) if isinstance(i, Delta)]
        assert deltas == [], "the feed of an ended run has only entries"


@pytest.mark.usefixtures("_time_limit")
async def test_a_watcher_in_another_process_gets_an_opening_each_time_it_returns(
    tmp_path: Path,
) -> None:
    """The driving process does not learn that the watcher stopped for a moment."""
    path = tmp_path / "runs.db"
    async with start_child("drive", path) as driver, Midrun(f"sqlite:///{path}") as midrun:
        run = await midrun.get(await driver.read_line())
        await driver.send_lines("One ", "two ")
        async with aclosing(run.feed()) as feed:
            await FeedReader(feed).read_until("One two ")
            async with aclosing(run.feed()) as second:
                await FeedReader(second).read_until("One two ")
        async with aclosing(run.feed()) as feed:
            reader = FeedReader(feed)
            await reader.read_until("One two ")
            await driver.send_lines("three.")
            await reader.read_until("One two three.")
        await driver.send_lines("end")
        assert (await run.until("completed")).output == "One two three."


@pytest.mark.usefixtures("_time_limit")
async def test_every_event_stream_of_a_server_starts_with_an_opening(stage: Stage) -> None:
    """The second stream joins during the reply, and stays when the first one closes."""
    agent = stage.play(["One two ", Hold("mid"), "three.", Hold("end")])
    midrun = Midrun("memory://", agents=[agent])
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with (
        midrun,
        serve_on_loopback(app(midrun, token=TOKEN)) as port,
        httpx2.AsyncClient(
            base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=HTTP_TIMEOUT_SECONDS
        ) as client,
        AsyncExitStack() as stack,
    ):
        run = await midrun.start("actor", "Go.")
        await stage.start("mid").wait()
        path = f"/v1/runs/{run.id}/events"
        async with open_event_stream(client, path) as first:
            await FeedReader(_deltas(first)).read_until("One two ")
            second = await stack.enter_async_context(open_event_stream(client, path))
            reader = FeedReader(_deltas(second))
            await reader.read_until("One two ")
        stage.gate("mid").set()
        await stage.start("end").wait()
        await reader.read_until("One two three.")
        stage.open_all_gates()
        await run.until("completed")


async def _deltas(events: AsyncIterator[SseEvent]) -> AsyncGenerator[FeedItem, None]:
    async for event in events:
        if event.event == "model.delta":
            assert isinstance(event.data, dict)
            yield make_delta(str(event.data["text"]), opening=bool(event.data["opening"]))


@contextmanager
def _track_call(live: LiveOutput, *, is_retry: bool = False) -> Iterator[None]:
    transcript = live.begin_call(RUN, CALL, is_retry=is_retry)
    yield
    live.end_call(RUN, CALL, transcript)


def test_a_watcher_that_is_too_slow_gets_an_opening() -> None:
    """Deltas over the limit are dropped; all text so far replaces them."""
    live = LiveOutput()
    with _track_call(live), live.watch(RUN, Wakeup()) as deltas:
        for number in range(WATCHER_MAX_DELTAS + 1):
            live.send(make_delta(f"{number} "))
        live.send(make_delta("end"))
        whole = "".join(f"{n} " for n in range(WATCHER_MAX_DELTAS + 1))
        assert list(deltas) == [make_delta(whole, opening=True), make_delta("end")]


def test_the_output_of_a_fenced_attempt_is_not_part_of_the_next_one() -> None:
    """Two attempts of one call in one process; the older one ends last."""
    live = LiveOutput()
    old = _track_call(live)
    old.__enter__()
    live.send(make_delta("old"))
    with _track_call(live):
        live.send(make_delta("new"))
        old.__exit__(None, None, None)
        with live.watch(RUN, Wakeup()) as deltas:
            assert list(deltas) == [make_delta("new", opening=True)]
    with live.watch(RUN, Wakeup()) as deltas:
        assert not deltas


def test_an_opening_is_redacted_and_holds_back_a_possible_secret() -> None:
    """Both watchers get the redacted text, the one who was there and the one who joined."""
    secrets = SecretRegistry(True, b"k")  # noqa: FBT003 - redact=True
    placeholder = secrets.get_run(RUN).redact("hunter2-hunter2")
    live = LiveOutput(redactor=LiveRedactor(secrets))
    with _track_call(live), live.watch(RUN, Wakeup()) as first:
        live.send(make_delta("It is hunter2-hunter2, or hunter2"))
        with live.watch(RUN, Wakeup()) as second:
            shown = make_delta(f"It is {placeholder}, or ")
            assert list(first) == [shown]
            assert list(second) == [replace(shown, opening=True)]
            live.send(make_delta("-hunter2."))
            for deltas in (first, second):
                assert deltas[-1] == make_delta(f"{placeholder}.")


def test_an_opening_has_only_the_last_note_and_the_arguments_of_the_last_call() -> None:
    """A note replaces the note before it, and so do the arguments of the next call."""
    transcript = LiveTranscript()
    for kind, text, tool in (
        ("note", "page 1", "read"),
        ("note", "page 2", "read"),
        ("args", '{"a"', "first"),
        ("args", ":1}", "first"),
        ("args", "{", "second"),
    ):
        transcript.add(Delta(run=RUN, call=CALL, kind=kind, text=text, tool=tool))  # type: ignore[arg-type]  # one of the literals
    openings = [(one.kind, one.text, one.tool) for one in transcript.snapshot()]
    assert openings == [("note", "page 2", "read"), ("args", "{", "second")]


def test_a_second_attempt_starts_with_an_opening() -> None:
    """The text of the first attempt may still be on a page, or on its way there."""
    live = LiveOutput()
    with live.watch(RUN, Wakeup()) as deltas:
        with _track_call(live):
            live.send(make_delta("One "))
        with _track_call(live, is_retry=True):
            live.send(make_delta("Uno "))
            live.send(make_delta("due"))
        assert list(deltas) == [
            make_delta("One "),
            make_delta("Uno ", opening=True),
            make_delta("due"),
        ]


def test_text_that_a_second_attempt_held_back_comes_with_its_opening() -> None:
    """The first words may be the start of a secret until more text follows."""
    secrets = SecretRegistry(True, b"k")  # noqa: FBT003 - redact=True
    secrets.get_run(RUN).redact("Uno-due-tre-quattro")
    live = LiveOutput(redactor=LiveRedactor(secrets))
    with live.watch(RUN, Wakeup()) as deltas, _track_call(live, is_retry=True):
        live.send(make_delta("Uno"))
        assert list(deltas) == []
        live.send(make_delta(" and "))
        live.send(make_delta("more"))
        assert list(deltas) == [make_delta("Uno and ", opening=True), make_delta("more")]


class FailsFirstModel(Unpriced):
    """A model whose first attempt fails; the second ends when the test has seen its text."""

    name = "fails_first"

    def __init__(self) -> None:
        self.calls = 0
        self.shown = anyio.Event()

    @asynccontextmanager
    async def stream(self, prompt: Prompt) -> AsyncIterator[AsyncIterator[Piece | Finished]]:
        """Fail, or speak."""
        del prompt
        yield self._pieces()

    async def _pieces(self) -> AsyncIterator[Piece | Finished]:
        self.calls += 1
        if self.calls == 1:
            raise ModelFailed("fails_first", "overloaded", "come back", True)  # noqa: FBT003 - transient
        yield Piece(kind="text", text="Said at last.")
        await self.shown.wait()
        yield Finished(reply=Reply(text="Said at last."))


async def test_a_feed_shows_the_output_of_a_second_attempt(tmp_path: Path) -> None:
    """The first attempt has ended, but the call has not."""
    model = FailsFirstModel()
    agent = Agent("actor", model=model)
    with anyio.fail_after(60):
        async with Midrun(f"sqlite:///{tmp_path / 'runs.db'}", agents=[agent]) as midrun:
            run = await midrun.start(agent, "Go.")
            async with aclosing(run.feed()) as feed:
                async for item in feed:
                    if isinstance(item, Delta):
                        assert item.text == "Said at last."
                        model.shown.set()
            assert model.calls == 2


# ── the outbox: deltas that wait for a watcher in another process ──────────────────────────


def drain_outbox(outbox: Outbox) -> list[Delta]:
    """Send every message, and return the deltas in them."""
    found: list[Delta] = []
    while outbox:
        found += unpack_deltas(outbox.get_next_message())
        outbox.mark_sent()
    return found


def test_the_outbox_joins_text_deltas_of_one_call() -> None:
    """A datagram for each token would cost more than the token."""
    outbox = Outbox(1000)
    for word in ("a ", "b ", "c"):
        outbox.add(make_delta(word))
    assert drain_outbox(outbox) == [make_delta("a b c")]


def test_the_outbox_joins_interleaved_deltas_per_run() -> None:
    outbox = Outbox(10_000)
    for word in ("a", "b"):
        for run in ("run_1", "run_2"):
            outbox.add(make_delta(word, run=run))
    assert drain_outbox(outbox) == [
        make_delta("ab", run="run_1"),
        make_delta("ab", run="run_2"),
    ]


def test_the_outbox_does_not_join_deltas_of_other_kinds_or_calls() -> None:
    """Two notes are two lines, and thinking is not text."""
    deltas = [
        make_delta("a"),
        make_delta("b", kind="thinking"),
        make_delta("c"),
        make_delta("d", call="c2"),
        make_delta("e", kind="note"),
        make_delta("f", kind="note"),
        make_delta("", kind="not_responding"),
    ]
    outbox = Outbox(10_000)
    for one in deltas:
        outbox.add(one)
    assert drain_outbox(outbox) == deltas


def test_no_message_is_longer_than_the_limit() -> None:
    """The limit holds for the encoded JSON, which may be longer than the text."""
    for text in ("x" * 5000, "\0" * 5000, "é" * 5000, '"' * 5000):
        outbox = Outbox(1000)
        outbox.add(make_delta(text))
        found: list[Delta] = []
        while outbox:
            assert len(outbox.get_next_message()) <= 1000
            found += unpack_deltas(outbox.get_next_message())
            outbox.mark_sent()
        assert "".join(one.text for one in found) == text


def test_many_small_deltas_share_a_message() -> None:
    outbox = Outbox(1000)
    for n in range(20):
        outbox.add(make_delta(str(n), kind="note"))
    messages = 0
    while outbox:
        assert len(outbox.get_next_message()) <= 1000
        messages += 1
        outbox.mark_sent()
    assert 1 < messages < 10


def test_a_message_that_was_not_sent_is_returned_again_unchanged() -> None:
    """A delta that is added meanwhile goes into the next message."""
    outbox = Outbox(1000)
    outbox.add(make_delta("a"))
    message = outbox.get_next_message()
    outbox.add(make_delta("b"))
    assert outbox.get_next_message() == message
    assert [one.text for one in drain_outbox(outbox)] == ["a", "b"]


def test_the_outbox_drops_everything_when_it_is_full() -> None:
    """`add` returns False then, so that the sender knows that it must send an opening."""
    outbox = Outbox(60_000)
    for _ in range(1000):
        assert outbox.add(make_delta("x" * 1000)) == bool(outbox)
        assert outbox._char_count <= OUTBOX_MAX_CHARS + 1000
    for n in range(1000):
        assert outbox.add(make_delta(str(n), kind="note")) == bool(outbox)
        assert len(outbox._queue) <= OUTBOX_MAX_DELTAS
    assert drain_outbox(outbox)[-1].text == "999"


def test_a_long_opening_does_not_count_against_later_deltas() -> None:
    """Otherwise a watcher that joins a long reply would lose it and get all of it each time."""
    outbox = Outbox(60_000)
    opening = replace(make_delta("x" * 2 * OUTBOX_MAX_CHARS), opening=True)
    assert outbox.add(opening)
    assert outbox.add(make_delta("y"))
    first, *rest = drain_outbox(outbox)
    assert first.opening
    assert not any(part.opening for part in rest)
    assert "".join(part.text for part in (first, *rest)) == opening.text + "y"


def test_an_opening_is_not_joined_to_earlier_deltas() -> None:
    """Later deltas are joined to the opening."""
    outbox = Outbox(60_000)
    for one in (make_delta("b"), replace(make_delta("ab"), opening=True), make_delta("c")):
        assert outbox.add(one)
    assert drain_outbox(outbox) == [make_delta("b"), replace(make_delta("abc"), opening=True)]


def test_a_lone_surrogate_does_not_stop_later_deltas() -> None:
    """A tool may note any string. This one cannot be encoded as UTF-8."""
    outbox = Outbox(1000)
    outbox.add(make_delta("\ud800", kind="note"))
    outbox.add(make_delta("fine", kind="note"))
    assert [one.text for one in drain_outbox(outbox)] == ["", "fine"]


def test_lines_that_cannot_be_decoded_are_ignored() -> None:
    """Another version of Midrun may use the same file."""
    good = b'{"run":"run_1","call":"c1","kind":"text","text":"x"}'
    noise = (
        b"\xff\n{}\n[]\n" + b"[" * 100_000 + b'\n{"run":1,"call":"c","kind":"text"}\n\n' + good
    )
    assert [one.text for one in unpack_deltas(noise)] == ["x"]


def test_without_a_relay_a_run_has_no_watchers_elsewhere() -> None:
    """A store in memory has no relay."""
    live = LiveOutput()
    live.send(make_delta("x"))
    assert not live.is_watched(RUN)
