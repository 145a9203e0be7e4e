"""The histories of a thread are stored once, and tampering with a shared part is found."""

from pathlib import Path

import apsw
import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from midrun.codec.journal import encode_entry
from midrun.core.ids import RunId
from midrun.core.run_head import Head
from midrun.core.values import Message, Phase
from midrun.errors import JournalCorrupt
from midrun.ports.store import Store
from midrun.stores.chunks import join_line, list_chunk_hashes, split_line
from midrun.stores.postgres.store import PostgresStore
from midrun.stores.sqlite.store import SqliteStore
from midrun.testing.postgres import Postgres
from midrun.testing.store_suite.fixtures import make_started
from midrun.testing.store_suite.threads import make_history

RUNS = 40


async def start_thread(store: Store) -> int:
    """Start runs that each contain the history of all before; return the newest's size."""
    for number in range(RUNS):
        first = replace(make_started(), history=make_history(number))
        head = Head(phase=Phase.QUEUED, thread="t")
        await store.create(RunId(f"r{number}"), [first], head=head)
    ((line, _),) = await store.read_lines(RunId(f"r{RUNS - 1}"))
    return len(line)


async def test_a_thread_takes_little_more_room_than_its_newest_run(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "runs.db")
    newest = await start_thread(store)
    await store.close()
    stored = "SELECT sum(length(line)) FROM entries"
    shared = "SELECT sum(length(body)) FROM chunks"
    with apsw.Connection(str(tmp_path / "runs.db")) as db:
        sizes = [db.execute(query).get for query in (stored, shared)]
    assert sum(sizes) < 3 * newest  # with a copy for each run it would be 20 times


@pytest.mark.once
async def test_a_thread_in_postgres_takes_little_more_room_than_its_newest_run(
    postgres: Postgres,
) -> None:
    url = postgres.url()
    store = await PostgresStore.open(url)
    newest = await start_thread(store)
    await store.close()
    stored = "SELECT sum(length(line)) FROM midrun_entries"
    shared = "SELECT sum(length(body)) FROM midrun_chunks"
    with psycopg.connect(url) as db:
        sizes = [db.execute(query).fetchall()[0][0] for query in (stored, shared)]
    assert sum(sizes) < 3 * newest


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE chunks SET body = CAST(replace(body, 'words', 'swords') AS BLOB)",
        "DELETE FROM chunks WHERE rowid = (SELECT max(rowid) FROM chunks)",
    ],
)
async def test_a_chunk_that_was_changed_or_removed_is_found(
    tmp_path: Path, change: str
) -> None:
    store = SqliteStore(tmp_path / "runs.db")
    await start_thread(store)
    await store.close()
    with apsw.Connection(str(tmp_path / "runs.db")) as db:
        db.execute(change)
    store = SqliteStore(tmp_path / "runs.db")
    with pytest.raises(JournalCorrupt):
        await store.read(RunId(f"r{RUNS - 1}"))
    await store.close()


TEXTS = st.text(max_size=30).flatmap(lambda t: st.integers(0, 300).map(lambda n: t * n))


@given(st.lists(TEXTS, max_size=30))
def test_a_line_that_was_split_is_joined_byte_for_byte(texts: list[str]) -> None:
    history = tuple(Message(role="user", text=text) for text in texts)
    line = encode_entry(replace(make_started(), history=history))
    stored, chunks = split_line(line)
    assert join_line(stored, chunks) == line
    assert set(list_chunk_hashes(stored)) == set(chunks)


@pytest.mark.parametrize("stored", [b"#", b"#[]", b'#["",["zz"],""]', b'#["\xff",[],""]'])
def test_a_malformed_reference_line_is_returned_unchanged(stored: bytes) -> None:
    """Verification of the hash chain then reports the line."""
    assert not list_chunk_hashes(stored)
    assert join_line(stored, {}) == stored
