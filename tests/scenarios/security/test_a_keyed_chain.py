"""With a key, nobody who does not have it can write a journal that passes.

Whoever can write to the database knows how chains are made, and can make a new one from where
they like. The key is what they lack.
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
from midrun.cli.targets import open_target, resolve_settings
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
OTHER: Final = b"somebody else's, or an older one"

Pairs = Sequence[tuple[bytes, bytes]]


def clerk() -> Agent:
    """Give an agent that makes two calls and is done."""

    async def sort(tray: int) -> str:
        """Sort a tray."""
        return f"sorted {tray}"

    model = ScriptedModel([Use("sort", tray=1), Use("sort", tray=2), "Sorted."])
    return Agent("clerk", model=model, tools=[sort])


async def a_run(address: str, key: bytes | None = KEY) -> RunId:
    """Have a run made from beginning to end, and return its id."""
    async with Midrun(address, agents=[clerk()], chain_key=key) as midrun:
        run = await midrun.start("clerk", "Sort the mail", actor="ada")
        assert isinstance(await run.result(), Completed)
        return RunId(run.id)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.once)])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Give the address of a new store."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'runs.db'}"
    postgres: Postgres = request.getfixturevalue("postgres")
    return postgres.url()


# ── the links ─────────────────────────────────────────────────────────────────────────────


def test_a_link_is_an_hmac_of_what_it_is_a_hash_of_without_a_key() -> None:
    """As it is written down, so that others can check it; without a key nothing is new."""
    run, lines = RunId("run_1"), [b"one", b"two"]
    first = sha256(b"midrun journal\nrun_1").digest()
    assert UNKEYED_CHAIN.make_first_link(run) == first
    assert UNKEYED_CHAIN.make_next_link(first, b"one") == sha256(first + b"one").digest()
    keyed = HashChain(KEY)
    assert keyed.make_first_link(run) == digest(KEY, first, "sha256")
    assert keyed.make_next_link(b"before", b"one") == digest(KEY, b"beforeone", "sha256")
    heads = {
        chain.compute_head(run, lines) for chain in (UNKEYED_CHAIN, keyed, HashChain(OTHER))
    }
    assert len(heads) == 3


def test_a_key_is_long_enough_and_shows_itself_nowhere() -> None:
    """An unset variable is no key, and logs are read by many."""
    with pytest.raises(Misconfigured, match="at least 16"):
        HashChain(b"")
    with pytest.raises(Misconfigured, match="at least 16"):
        MemoryStore(key=b"too short")
    assert KEY.decode() not in repr(HashChain(KEY))
    assert KEY.hex() not in repr(HashChain(KEY))
    assert HashChain(KEY).key_id in repr(HashChain(KEY))
    assert HashChain(KEY).key_id != HashChain(OTHER).key_id


# ── the right key ─────────────────────────────────────────────────────────────────────────


async def test_a_run_is_driven_verified_and_found_again_with_the_key(address: str) -> None:
    """In the file and in Postgres."""
    run = await a_run(address)
    async with Midrun(address, chain_key=KEY) as midrun:
        assert await midrun.verify(run)
        pairs = await midrun.store.read_lines(run)
        assert [link for _, link in pairs] == _links(HashChain(KEY), run, pairs)
        assert (await midrun.store.get_row(run)).hash == pairs[-1][1]


async def test_without_a_key_not_a_byte_is_different(tmp_path: Path) -> None:
    """Journals of before are read for ever."""
    address = f"sqlite:///{tmp_path / 'runs.db'}"
    run = await a_run(address, key=None)
    async with Midrun(address) as midrun:
        pairs = await midrun.store.read_lines(run)
        link = sha256(b"midrun journal\n" + run.encode()).digest()
        for line, stored in pairs:
            link = sha256(link + line).digest()
            assert stored == link


async def test_a_checkpoint_leaves_a_keyed_store_and_comes_into_another(
    tmp_path: Path,
) -> None:
    """It is portable: the head it names is the one that anybody can follow."""

    def asker() -> Agent:
        model = ScriptedModel([Use("ask_human", question="Which tray?"), "Done."])
        return Agent("asker", model=model, tools=[ask_human])

    here, there = (f"sqlite:///{tmp_path / name}.db" for name in ("here", "there"))
    async with Midrun(here, agents=[asker()], chain_key=KEY) as midrun:
        run = await midrun.start("asker", "Ask", actor="ada")
        await run.until("waiting")
        checkpoint = await run.checkpoint()
    async with Midrun(there, agents=[asker()], chain_key=OTHER) as midrun:
        moved = await midrun.resume(checkpoint, "the left one", actor="ada")
        assert isinstance(await moved.result(), Completed)
        assert await midrun.verify(moved.id)
    async with Midrun(here, agents=[asker()], chain_key=KEY) as midrun:
        same = await midrun.resume(checkpoint, "the left one", actor="ada")
        assert isinstance(await same.result(), Completed)
        assert await midrun.verify(same.id)


# ── another key, or none ──────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("key", [None, OTHER])
async def test_a_store_is_not_opened_with_another_key_or_none(
    address: str, key: bytes | None
) -> None:
    """What this process would write looked forged to all who have the key."""
    run = await a_run(address)
    with pytest.raises(StoreKeyRefused) as refused:
        async with Midrun(address, agents=[clerk()], chain_key=key):
            raise AssertionError("opened")
    assert refused.value.kept == HashChain(KEY).key_id
    assert "MIDRUN_CHAIN_KEY" in str(refused.value)
    async with Midrun(address, chain_key=KEY) as midrun:
        assert await midrun.verify(run)


async def test_a_store_that_began_without_a_key_stays_so(address: str) -> None:
    """Else whoever takes the key's name out of a store could have it begin anew."""
    run = await a_run(address, key=None)
    with pytest.raises(StoreKeyRefused, match="Leave chain_key out"):
        async with Midrun(address, chain_key=KEY):
            raise AssertionError("opened")
    async with Midrun(address) as midrun:
        assert await midrun.verify(run)


async def test_a_file_from_before_there_were_keys_has_none(tmp_path: Path) -> None:
    """Its runs are chained without one."""
    path = tmp_path / "runs.db"
    await a_run(f"sqlite:///{path}", key=None)
    with apsw.Connection(str(path)) as db:
        db.execute("DROP TABLE chains")
    with pytest.raises(StoreKeyRefused):
        SqliteStore(path, key=KEY)
    await SqliteStore(path).close()


async def test_a_store_that_is_open_has_its_key_already() -> None:
    """A key that was not used must not look as if it were."""
    with pytest.raises(Misconfigured, match="chain_key"):
        async with Midrun(MemoryStore(), chain_key=KEY):
            raise AssertionError("opened")


async def test_the_command_has_the_key_from_its_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not from its arguments, which everybody on the machine can read."""
    address = f"sqlite:///{tmp_path / 'runs.db'}"
    run = await a_run(address)
    args = Namespace(store=address, url=None, actor=None)
    monkeypatch.delenv("MIDRUN_POSTGRES", raising=False)  # it is put back; `settle` takes all
    resolve_settings(args)
    with pytest.raises(StoreKeyRefused):
        async with open_target(args):
            raise AssertionError("opened")
    monkeypatch.setenv("MIDRUN_CHAIN_KEY", KEY.decode())
    resolve_settings(args)
    assert "MIDRUN_CHAIN_KEY" not in os.environ  # where tools in this process would find it
    async with open_target(args) as midrun:
        assert await midrun.verify(run)


# ── a hand in the database ────────────────────────────────────────────────────────────────


def _links(chain: HashChain, run: RunId, pairs: Pairs) -> list[bytes]:
    lines = [line for line, _ in pairs]
    return [chain.compute_head(run, lines[:n]) for n in range(1, len(lines) + 1)]


def _rewritten(run: RunId, pairs: Pairs, seq: int) -> Pairs:
    """Make a new chain from `seq` on, as anybody can; of the same lines: only it tells."""
    made = list(pairs[: seq - 1])
    link = made[-1][1] if made else UNKEYED_CHAIN.make_first_link(run)
    for line, _ in pairs[seq - 1 :]:
        link = UNKEYED_CHAIN.make_next_link(link, line)
        made.append((line, link))
    return made


def put(path: Path, run: RunId, pairs: Pairs) -> None:
    """Have the database hold `pairs` as the journal of `run`, head and all."""
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
async def test_who_makes_a_new_chain_without_the_key_is_found_where_they_began(
    tmp_path: Path,
) -> None:
    """At every entry, the first one too, by who verifies and by who only reads."""
    path = tmp_path / "runs.db"
    run = await a_run(f"sqlite:///{path}")
    store = SqliteStore(path, key=KEY)
    pairs = list(await store.read_lines(run))
    for seq in range(1, len(pairs) + 1):
        put(path, run, _rewritten(run, pairs, seq))
        found = await verify_run(store, run)
        assert not found
        assert [problem.seq for problem in found.problems] == [seq]
        with pytest.raises(JournalCorrupt) as corrupt:
            await store.read(run)
        assert corrupt.value.seq == seq
    put(path, run, pairs)
    assert await verify_run(store, run)
    await store.close()


@pytest.mark.spoils_journals
async def test_without_a_key_the_same_hand_is_not_found(tmp_path: Path) -> None:
    """What the key is for; and that the forger of these tests knows the trade."""
    path = tmp_path / "runs.db"
    run = await a_run(f"sqlite:///{path}", key=None)
    store = SqliteStore(path)
    pairs = list(await store.read_lines(run))
    link, made = UNKEYED_CHAIN.make_first_link(run), []
    for line, _ in pairs:
        data = line.replace(b"sorted 1", b"burnt 1!")
        link = UNKEYED_CHAIN.make_next_link(link, data)
        made.append((data, link))
    assert made != pairs
    put(path, run, made)
    assert await verify_run(store, run)
    await store.close()


async def test_a_snapshot_that_was_put_there_without_the_key_is_not_used(
    tmp_path: Path,
) -> None:
    """A state is what a driver acts on: a forged cache would be as good as a forged journal."""
    path = tmp_path / "runs.db"
    run = await a_run(f"sqlite:///{path}")
    store = SqliteStore(path, key=KEY)
    state, row = await load_run_state(store, run), await store.get_row(run)
    true = Snapshot(seq=Seq(row.seq), hash=row.hash, body=encode_snapshot(state))
    await store.save_snapshot(run, true)
    assert await store.load_snapshot(run) == true
    with apsw.Connection(str(path)) as db:
        db.execute("UPDATE snapshots SET body = ?", (true.body,))
    assert await store.load_snapshot(run) is None
    with apsw.Connection(str(path)) as db:
        db.execute(
            "UPDATE snapshots SET body = ?",
            (HashChain(OTHER).seal_snapshot(true.hash, true.body),),
        )
    assert await store.load_snapshot(run) is None
    await store.close()
