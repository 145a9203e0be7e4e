"""Hash chains with a key: a writer without the key cannot forge a journal.

An attacker with write access to the database can compute a new chain without a key from any
entry on. With a key this is found.
"""

import os
from argparse import Namespace
from collections.abc import Sequence
from hashlib import sha256
from hmac import digest
from pathlib import Path
from typing import Final

import apsw
import pytest

from midrun import Agent, Completed, Midrun, ask_human
from midrun.cli.settings import resolve_settings
from midrun.cli.targets import open_target
from midrun.codec.hash_chain import UNKEYED_CHAIN, HashChain
from midrun.codec.snapshot import encode_snapshot
from midrun.core.ids import RunId, Seq
from midrun.driver.journal_writer import load_run_state
from midrun.errors import JournalCorrupt, Misconfigured, StoreKeyRefused
from midrun.models import ScriptedModel, Use
from midrun.ports.store import Snapshot
from midrun.runs.verification import verify_run
from midrun.stores.memory import MemoryStore
from midrun.stores.sqlite.store import SqliteStore
from midrun.testing.postgres import Postgres

KEY: Final = b"kept where the database is not"
OTHER_KEY: Final = b"the key of another deployment"

Pairs = Sequence[tuple[bytes, bytes]]


def make_clerk() -> Agent:
    """Return an agent that makes two calls and completes."""

    async def sort(tray: int) -> str:
        """Sort a tray."""
        return f"sorted {tray}"

    model = ScriptedModel([Use("sort", tray=1), Use("sort", tray=2), "Sorted."])
    return Agent("clerk", model=model, tools=[sort])


async def complete_run(address: str, key: bytes | None = KEY) -> RunId:
    """Complete a run in a new store, and return its id."""
    async with Midrun(address, agents=[make_clerk()], chain_key=key) as midrun:
        run = await midrun.start("clerk", "Sort the mail", actor="ada")
        assert isinstance(await run.result(), Completed)
        return RunId(run.id)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.once)])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the address of a new store."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'runs.db'}"
    postgres: Postgres = request.getfixturevalue("postgres")
    return postgres.url()


# ── the links ─────────────────────────────────────────────────────────────────────────────


def test_a_keyed_link_is_the_hmac_of_the_hashed_data() -> None:
    """The documented formula, with and without a key."""
    run, lines = RunId("run_1"), [b"one", b"two"]
    first = sha256(b"midrun journal\nrun_1").digest()
    assert UNKEYED_CHAIN.make_first_link(run) == first
    assert UNKEYED_CHAIN.make_next_link(first, b"one") == sha256(first + b"one").digest()
    keyed = HashChain(KEY)
    assert keyed.make_first_link(run) == digest(KEY, first, "sha256")
    assert keyed.make_next_link(b"before", b"one") == digest(KEY, b"beforeone", "sha256")
    heads = {
        chain.compute_head(run, lines) for chain in (UNKEYED_CHAIN, keyed, HashChain(OTHER_KEY))
    }
    assert len(heads) == 3


def test_a_short_key_is_refused_and_the_repr_hides_the_key() -> None:
    """An empty environment variable must not become a key."""
    with pytest.raises(Misconfigured, match="at least 16"):
        HashChain(b"")
    with pytest.raises(Misconfigured, match="at least 16"):
        MemoryStore(key=b"too short")
    assert KEY.decode() not in repr(HashChain(KEY))
    assert KEY.hex() not in repr(HashChain(KEY))
    assert HashChain(KEY).key_id in repr(HashChain(KEY))
    assert HashChain(KEY).key_id != HashChain(OTHER_KEY).key_id


# ── the right key ─────────────────────────────────────────────────────────────────────────


async def test_a_run_with_a_keyed_chain_is_verified_with_the_key(address: str) -> None:
    run = await complete_run(address)
    async with Midrun(address, chain_key=KEY) as midrun:
        assert await midrun.verify(run)
        pairs = await midrun.store.read_lines(run)
        assert [link for _, link in pairs] == _compute_links(HashChain(KEY), run, pairs)
        assert (await midrun.store.get_row(run)).hash == pairs[-1][1]


async def test_the_chain_without_a_key_has_not_changed(tmp_path: Path) -> None:
    """Journals of older versions must stay valid."""
    address = f"sqlite:///{tmp_path / 'runs.db'}"
    run = await complete_run(address, key=None)
    async with Midrun(address) as midrun:
        pairs = await midrun.store.read_lines(run)
        link = sha256(b"midrun journal\n" + run.encode()).digest()
        for line, stored in pairs:
            link = sha256(link + line).digest()
            assert stored == link


async def test_a_checkpoint_moves_between_stores_with_different_keys(
    tmp_path: Path,
) -> None:
    """The head in a checkpoint is computed without a key."""

    def make_asker() -> Agent:
        model = ScriptedModel([Use("ask_human", question="Which tray?"), "Done."])
        return Agent("asker", model=model, tools=[ask_human])

    source, target = (f"sqlite:///{tmp_path / name}.db" for name in ("source", "target"))
    async with Midrun(source, agents=[make_asker()], chain_key=KEY) as midrun:
        run = await midrun.start("asker", "Ask", actor="ada")
        await run.until("waiting")
        checkpoint = await run.checkpoint()
    async with Midrun(target, agents=[make_asker()], chain_key=OTHER_KEY) as midrun:
        moved = await midrun.resume(checkpoint, "the left one", actor="ada")
        assert isinstance(await moved.result(), Completed)
        assert await midrun.verify(moved.id)
    async with Midrun(source, agents=[make_asker()], chain_key=KEY) as midrun:
        same = await midrun.resume(checkpoint, "the left one", actor="ada")
        assert isinstance(await same.result(), Completed)
        assert await midrun.verify(same.id)


# ── another key, or none ──────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("key", [None, OTHER_KEY])
async def test_a_store_is_not_opened_with_another_key_or_none(
    address: str, key: bytes | None
) -> None:
    """Entries of this process would look forged to all processes with the key."""
    run = await complete_run(address)
    with pytest.raises(StoreKeyRefused) as refused:
        async with Midrun(address, agents=[make_clerk()], chain_key=key):
            raise AssertionError("opened")
    assert refused.value.kept == HashChain(KEY).key_id
    assert "MIDRUN_CHAIN_KEY" in str(refused.value)
    async with Midrun(address, chain_key=KEY) as midrun:
        assert await midrun.verify(run)


async def test_a_store_without_a_key_cannot_get_one(address: str) -> None:
    """Else an attacker could remove the key id, and let the store begin again."""
    run = await complete_run(address, key=None)
    with pytest.raises(StoreKeyRefused, match="Leave chain_key out"):
        async with Midrun(address, chain_key=KEY):
            raise AssertionError("opened")
    async with Midrun(address) as midrun:
        assert await midrun.verify(run)


async def test_a_chain_key_for_a_store_object_is_refused() -> None:
    """The store has its own key; the given one would not be used."""
    with pytest.raises(Misconfigured, match="chain_key"):
        async with Midrun(MemoryStore(), chain_key=KEY):
            raise AssertionError("opened")


async def test_the_command_line_takes_the_key_from_its_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All users of the machine can read the arguments of a process."""
    address = f"sqlite:///{tmp_path / 'runs.db'}"
    run = await complete_run(address)
    args = Namespace(store=address, url=None, actor=None)
    monkeypatch.delenv(
        "MIDRUN_POSTGRES", raising=False
    )  # `resolve_settings` removes it; monkeypatch restores it
    resolve_settings(args)
    with pytest.raises(StoreKeyRefused):
        async with open_target(args):
            raise AssertionError("opened")
    monkeypatch.setenv("MIDRUN_CHAIN_KEY", KEY.decode())
    resolve_settings(args)
    assert "MIDRUN_CHAIN_KEY" not in os.environ  # tools in this process could read it
    async with open_target(args) as midrun:
        assert await midrun.verify(run)


# ── an attacker with write access to the database ─────────────────────────────────────────


def _compute_links(chain: HashChain, run: RunId, pairs: Pairs) -> list[bytes]:
    lines = [line for line, _ in pairs]
    return [chain.compute_head(run, lines[:n]) for n in range(1, len(lines) + 1)]


def _rewrite_chain(run: RunId, pairs: Pairs, seq: int) -> Pairs:
    """Compute a new chain without a key from `seq` on, over the same lines."""
    made = list(pairs[: seq - 1])
    link = made[-1][1] if made else UNKEYED_CHAIN.make_first_link(run)
    for line, _ in pairs[seq - 1 :]:
        link = UNKEYED_CHAIN.make_next_link(link, line)
        made.append((line, link))
    return made


def overwrite_journal(path: Path, run: RunId, pairs: Pairs) -> None:
    """Replace the lines and hashes of `run` in the database, and the hash of its row."""
    with apsw.Connection(str(path)) as db:
        db.execute("DROP TRIGGER IF EXISTS entries_do_not_change")
        number = db.execute("SELECT no FROM runs WHERE run = ?", (run,)).get
        for seq, (line, link) in enumerate(pairs, start=1):
            db.execute(
                "UPDATE entries SET line = ?, hash = ? WHERE no = ? AND seq = ?",
                (line, link, number, seq),
            )
        db.execute("UPDATE runs SET hash = ? WHERE no = ?", (pairs[-1][1], number))


@pytest.mark.spoils_journals
async def test_a_chain_that_was_rewritten_without_the_key_is_found_at_its_first_entry(
    tmp_path: Path,
) -> None:
    """At every entry, by `verify` and by an ordinary read."""
    path = tmp_path / "runs.db"
    run = await complete_run(f"sqlite:///{path}")
    store = SqliteStore(path, key=KEY)
    pairs = list(await store.read_lines(run))
    for seq in range(1, len(pairs) + 1):
        overwrite_journal(path, run, _rewrite_chain(run, pairs, seq))
        found = await verify_run(store, run)
        assert not found
        assert [problem.seq for problem in found.problems] == [seq]
        with pytest.raises(JournalCorrupt) as corrupt:
            await store.read(run)
        assert corrupt.value.seq == seq
    overwrite_journal(path, run, pairs)
    assert await verify_run(store, run)
    await store.close()


@pytest.mark.spoils_journals
async def test_a_rewritten_chain_is_not_found_without_a_key(tmp_path: Path) -> None:
    """The counterpart of the test above: the forgery itself is correct."""
    path = tmp_path / "runs.db"
    run = await complete_run(f"sqlite:///{path}", key=None)
    store = SqliteStore(path)
    pairs = list(await store.read_lines(run))
    link, made = UNKEYED_CHAIN.make_first_link(run), []
    for line, _ in pairs:
        data = line.replace(b"sorted 1", b"burnt 1!")
        link = UNKEYED_CHAIN.make_next_link(link, data)
        made.append((data, link))
    assert made != pairs
    overwrite_journal(path, run, made)
    assert await verify_run(store, run)
    await store.close()


async def test_a_snapshot_that_was_written_without_the_key_is_ignored(
    tmp_path: Path,
) -> None:
    """A worker acts on the state in it, so a forged snapshot is a forged journal."""
    path = tmp_path / "runs.db"
    run = await complete_run(f"sqlite:///{path}")
    store = SqliteStore(path, key=KEY)
    state, row = await load_run_state(store, run), await store.get_row(run)
    genuine = Snapshot(seq=Seq(row.seq), hash=row.hash, body=encode_snapshot(state))
    await store.save_snapshot(run, genuine)
    assert await store.load_snapshot(run) == genuine
    with apsw.Connection(str(path)) as db:
        db.execute("UPDATE snapshots SET body = ?", (genuine.body,))
    assert await store.load_snapshot(run) is None
    with apsw.Connection(str(path)) as db:
        db.execute(
            "UPDATE snapshots SET body = ?",
            (HashChain(OTHER_KEY).seal_snapshot(genuine.hash, genuine.body),),
        )
    assert await store.load_snapshot(run) is None
    await store.close()
