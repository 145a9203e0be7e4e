"""Whoever begins to watch in the middle of a sentence is given all of it, and no word twice."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, aclosing
from pathlib import Path

import anyio
import httpx2
import pytest
from msgspec.structs import replace

from midrun import Midrun
from midrun.core.ids import CallId, RunId
from midrun.driver.delta import Delta, Saying
from midrun.driver.live import BACKLOG, Live
from midrun.driver.notifications import Bell
from midrun.driver.redaction import Screen, Vault
from midrun.runs.values import FeedItem
from midrun.server import app
from tests.browser.stage import Hold, Stage
from tests.scenarios.live.processes import other
from tests.unit.server.conftest import listening
from tests.unit.server.listening import Heard, heard

PATIENCE = 60
RUN, CALL = RunId("run_1"), CallId("c1")
TOKEN = "t" * 43


@pytest.fixture
async def _bounded() -> AsyncIterator[None]:
    with anyio.fail_after(PATIENCE):
        yield


class Reader:
    """One who watches a run, and has nothing but deltas to go by."""

    def __init__(self, feed: AsyncGenerator[FeedItem, None]) -> None:
        self.text = ""
        self._feed = feed

    async def reads(self, text: str) -> None:
        """Go on until the text is there, word for word."""
        while self.text != text:
            item = await anext(self._feed)
            if isinstance(item, Delta) and item.kind == "text":
                self.text = item.text if item.opening else self.text + item.text
            assert text.startswith(self.text), "no word twice, and none missing"


def delta(text: str, *, opening: bool = False) -> Delta:
    """Return what a model says."""
    return Delta(run=RUN, call=CALL, kind="text", text=text, opening=opening)


@pytest.mark.usefixtures("_bounded")
async def test_a_feed_that_is_opened_in_mid_sentence_has_all_of_it(stage: Stage) -> None:
    """In the process that drives; also from an entry on that came before it."""
    agent = stage.play(["One two ", Hold("mid"), "three four.", Hold("end")])
    async with Midrun("memory://", agents=[agent]) as mid, AsyncExitStack() as stack:
        run = await mid.start("actor", "Go.")
        await stage.start("mid").wait()
        after = (await run.view()).seq
        feeds = [await stack.enter_async_context(aclosing(run.feed(n))) for n in (0, after)]
        readers = [Reader(feed) for feed in feeds]
        for reader in readers:
            await reader.reads("One two  ")
        stage.gate("mid").set()
        await stage.start("end").wait()
        for reader in readers:
            await reader.reads("One two  three four. ")
        stage.release_all()
        await run.until("completed")
        over = [i async for i in run.feed(after) if isinstance(i, Delta)]
        assert over == [], "what has ended is an entry"


@pytest.mark.usefixtures("_bounded")
async def test_another_process_is_given_it_and_given_it_again(tmp_path: Path) -> None:
    """Also when it stops watching for a moment: nobody else knows that it did."""
    path = tmp_path / "runs.db"
    async with other("drive", path) as driver, Midrun(f"sqlite:///{path}") as here:
        run = await here.get(await driver.hear())
        await driver.tell("One ", "two ")
        async with aclosing(run.feed()) as feed:
            await Reader(feed).reads("One two ")
            async with aclosing(run.feed()) as second:
                await Reader(second).reads("One two ")
        async with aclosing(run.feed()) as feed:
            reader = Reader(feed)
            await reader.reads("One two ")
            await driver.tell("three.")
            await reader.reads("One two three.")
        await driver.tell("end")
        assert (await run.until("completed")).output == "One two three."


@pytest.mark.usefixtures("_bounded")
async def test_every_stream_of_a_server_has_it(stage: Stage) -> None:
    """The first one who comes, the second, and the one who stays when the first leaves."""
    agent = stage.play(["One two ", Hold("mid"), "three.", Hold("end")])
    mid = Midrun("memory://", agents=[agent])
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with (
        mid,
        listening(app(mid, token=TOKEN)) as port,
        httpx2.AsyncClient(
            base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=PATIENCE
        ) as client,
        AsyncExitStack() as stack,
    ):
        run = await mid.start("actor", "Go.")
        await stage.start("mid").wait()
        path = f"/v1/runs/{run.id}/events"
        async with heard(client, path) as first:
            await Reader(_deltas(first)).reads("One two  ")
            second = await stack.enter_async_context(heard(client, path))
            reader = Reader(_deltas(second))
            await reader.reads("One two  ")
        stage.gate("mid").set()
        await stage.start("end").wait()
        await reader.reads("One two  three. ")
        stage.release_all()
        await run.until("completed")


async def _deltas(events: AsyncIterator[Heard]) -> AsyncGenerator[FeedItem, None]:
    async for event in events:
        if event.event == "model.delta":
            assert isinstance(event.data, dict)
            yield delta(str(event.data["text"]), opening=bool(event.data["opening"]))


def test_who_is_too_slow_begins_again() -> None:
    """What cannot be kept for them is joined to all that was said."""
    live = Live()
    with live.under_way(RUN, CALL), live.watch(RUN, Bell()) as deltas:
        for number in range(BACKLOG + 1):
            live.tell(delta(f"{number} "))
        live.tell(delta("end"))
        whole = "".join(f"{n} " for n in range(BACKLOG + 1))
        assert list(deltas) == [delta(whole, opening=True), delta("end")]


def test_what_a_fenced_attempt_leaves_is_not_taken_for_the_next_one() -> None:
    """Two of one call in one process: the older one ends last."""
    live = Live()
    old = live.under_way(RUN, CALL)
    old.__enter__()
    live.tell(delta("old"))
    with live.under_way(RUN, CALL):
        live.tell(delta("new"))
        old.__exit__(None, None, None)
        with live.watch(RUN, Bell()) as deltas:
            assert list(deltas) == [delta("new", opening=True)]
    with live.watch(RUN, Bell()) as deltas:
        assert not deltas


def test_an_opening_shows_no_secret_and_holds_back_what_may_be_one() -> None:
    """As if its words had been judged one by one; for those who have heard them, too."""
    vault = Vault(True, b"k")  # noqa: FBT003 - as the user says it
    placeholder = vault.of(RUN).cover("hunter2-hunter2")
    live = Live(screen=Screen(vault))
    with live.under_way(RUN, CALL), live.watch(RUN, Bell()) as first:
        live.tell(delta("It is hunter2-hunter2, or hunter2"))
        with live.watch(RUN, Bell()) as second:
            shown = delta(f"It is {placeholder}, or ")
            assert list(first) == [shown]
            assert list(second) == [replace(shown, opening=True)]
            live.tell(delta("-hunter2."))
            for deltas in (first, second):
                assert deltas[-1] == delta(f"{placeholder}.")


def test_only_the_last_line_of_a_tool_is_told_again() -> None:
    """A note replaces the one before it, and so do the arguments of the next call."""
    saying = Saying()
    for kind, text, tool in (
        ("note", "page 1", "read"),
        ("note", "page 2", "read"),
        ("args", '{"a"', "first"),
        ("args", ":1}", "first"),
        ("args", "{", "second"),
    ):
        saying.add(Delta(run=RUN, call=CALL, kind=kind, text=text, tool=tool))  # type: ignore[arg-type]  # one of them
    told = [(opening.kind, opening.text, opening.tool) for opening in saying.openings()]
    assert told == [("note", "page 2", "read"), ("args", "{", "second")]


@pytest.fixture
def stage() -> Stage:
    """Give a stage."""
    return Stage()


def test_another_attempt_begins_with_an_opening() -> None:
    """What the last one said may still be on somebody's page, or on its way there."""
    live = Live()
    with live.watch(RUN, Bell()) as deltas:
        with live.under_way(RUN, CALL):
            live.tell(delta("One "))
        with live.under_way(RUN, CALL, again=True):
            live.tell(delta("Uno "))
            live.tell(delta("due"))
        assert list(deltas) == [delta("One "), delta("Uno ", opening=True), delta("due")]


def test_another_attempt_whose_first_words_are_held_back_loses_none_of_them() -> None:
    """They may be the beginning of a secret until more is said; then they come, all of them."""
    vault = Vault(True, b"k")  # noqa: FBT003 - as the user says it
    vault.of(RUN).cover("Uno-due-tre-quattro")
    live = Live(screen=Screen(vault))
    with live.watch(RUN, Bell()) as deltas, live.under_way(RUN, CALL, again=True):
        live.tell(delta("Uno"))
        assert list(deltas) == []
        live.tell(delta(" and "))
        live.tell(delta("more"))
        assert list(deltas) == [delta("Uno and ", opening=True), delta("more")]
