"""The commands `delete`, `backup` and `restore`."""

import os
import pty
from pathlib import Path
from typing import cast

import anyio.lowlevel
import anyio.to_thread
import apsw
import pytest

from midrun import File, Midrun
from midrun.cli.backup_commands import _use_store
from midrun.cli.settings import Keys
from midrun.errors import StoreClosed
from midrun.ports.store import RunQuery
from midrun.stores.encryption import format_key, make_key
from midrun.testing.controllable_tools import ControllableTools
from tests.unit.cli.command_runner import APP, CommandRunner

pytestmark = pytest.mark.usefixtures("gate", "open_gate")


def start_run(midrun: CommandRunner, agent: str = "searcher", *words: str) -> str:
    """Start a run that the server drives until it rests, and return its id."""
    result = midrun("run", agent, "Find cats", "--json", *words)
    return cast("str", result.values[-1]["run_id"])


def test_a_run_is_deleted_and_verified_as_erased(
    midrun_at_store: CommandRunner, midrun_at_server: CommandRunner
) -> None:
    run, other = start_run(midrun_at_server), start_run(midrun_at_server)
    refused = midrun_at_server("delete", run)
    assert refused.code == 2
    assert "pass --yes" in refused.err
    deleted = midrun_at_server("delete", run, "--reason", "GDPR", "--yes")
    assert (deleted.code, "erased by" in deleted.out) == (0, True)
    assert midrun_at_store("delete", other, "--actor", "ann", "--yes").code == 0
    for midrun in (midrun_at_store, midrun_at_server):
        shown = midrun("show", run)
        assert shown.code == 1
        assert "deleted it (GDPR)" in shown.err
        assert "list the runs" not in shown.err
        verified = midrun("verify", run)
        assert verified.code == 0
        assert "erased by" in verified.out
    assert "erased by ann" in midrun_at_server("verify", other).out


@pytest.mark.parametrize("place", ["midrun_at_store", "midrun_at_server"])
def test_runs_are_deleted_by_thread_and_age(
    midrun_at_server: CommandRunner, place: str, request: pytest.FixtureRequest
) -> None:
    midrun: CommandRunner = request.getfixturevalue(place)
    for thread in ("t", "t", "u"):
        start_run(midrun_at_server, "searcher", "--thread", thread)
    assert "no run to delete" in midrun("delete", "--older-than", "90d").out
    refused = midrun("delete", "--thread", "t")
    assert refused.code == 2
    assert "Delete 2 runs" in refused.err
    assert midrun("delete", "--thread", "t", "--yes").out.startswith("deleted 2 runs")
    old = midrun("delete", "--thread", "u", "--older-than", "0s", "--yes", "--json")
    assert old.values == [{"deleted": 1}]


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ([], "needs RUN, or at least one of"),
        (["3f2a", "--thread", "t"], "not both"),
        (["--older-than", "90"], "such as 90d"),
    ],
)
def test_wrong_selections_are_refused(
    midrun_at_server: CommandRunner, words: list[str], problem: str
) -> None:
    result = midrun_at_server("delete", *words, "--yes")
    assert result.code == 2
    assert problem in result.err


@pytest.mark.parametrize(("answer", "code"), [("y\n", 0), ("n\n", 1)])
def test_a_person_confirms_the_deletion(
    midrun_at_server: CommandRunner, monkeypatch: pytest.MonkeyPatch, answer: str, code: int
) -> None:
    run = start_run(midrun_at_server)
    person, terminal = pty.openpty()
    os.write(person, answer.encode())
    with os.fdopen(terminal) as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        result = midrun_at_server("delete", run)
    os.close(person)
    assert "cannot be undone. [y/N]" in result.err
    assert result.code == code
    assert midrun_at_server("show", run).code == 1 - code


def test_a_backup_is_restored_beside_the_store(
    midrun_at_store: CommandRunner, midrun_at_server: CommandRunner, tmp_path: Path
) -> None:
    """The server goes on meanwhile; the restored runs are halted until an operator lifts it."""
    run, deleted = start_run(midrun_at_server), start_run(midrun_at_server)
    midrun_at_server("delete", deleted, "--yes")
    file, again = tmp_path / "runs.backup", f"sqlite:///{tmp_path / 'again.db'}"
    made = midrun_at_store("backup", str(file))
    assert (made.code, "runs verified, all clean" in made.out) == (0, True)
    assert file.stat().st_mode & 0o777 == 0o600
    assert sorted(path.name for path in tmp_path.glob("*backup*")) == ["runs.backup"]
    taken = midrun_at_store("backup", str(file))
    assert (taken.code, "is not replaced" in taken.err) == (2, True)
    later = start_run(midrun_at_server)
    at_copy = CommandRunner(midrun_at_store._capsys, "--store", again)
    restored = at_copy("restore", str(file), "--actor", "ann")
    assert (restored.code, "runs verified, all clean" in restored.out) == (0, True)
    assert at_copy("verify", run).code == 0
    assert " backup runs.backup" in midrun_at_store("audit").out
    assert "ann: restore runs.backup" in at_copy("audit").out
    assert "erased by" in at_copy("verify", deleted).out
    assert at_copy("show", later).code == 1
    assert at_copy("lift").code == 0
    refused = at_copy("restore", str(file))
    assert (refused.code, "is not replaced" in refused.err) == (2, True)


def test_only_a_whole_backup_is_restored(
    midrun_at_store: CommandRunner, midrun_at_server: CommandRunner, tmp_path: Path
) -> None:
    start_run(midrun_at_server)
    file = tmp_path / "runs.backup"
    midrun_at_store("backup", str(file))
    at_copy = CommandRunner(midrun_at_store._capsys, "--store", f"sqlite:///{tmp_path}/a.db")
    db = apsw.Connection(str(file))
    db.execute("PRAGMA user_version = 999")
    db.close()
    newer = at_copy("restore", str(file))
    assert (newer.code, "belongs to a newer midrun" in newer.err) == (1, True)
    file.write_bytes(file.read_bytes()[:40_000])
    assert at_copy("restore", str(file)).code == 1
    assert at_copy("restore", str(APP)).code == 1
    assert at_copy("restore", str(tmp_path / "none")).code == 2
    (tmp_path / "a.db-wal").touch()
    assert "a.db-wal exists" in at_copy("restore", str(file)).err
    (tmp_path / "a.db-wal").unlink()
    assert not list(tmp_path.glob("*a.db*"))
    assert at_copy("restore").code == 2


async def test_a_cancelled_command_closes_its_store(tmp_path: Path) -> None:
    keys = Keys(key=None, chain_key=None, encryption_keys=())
    with anyio.CancelScope() as scope:
        async with _use_store(f"sqlite:///{tmp_path / 'runs.db'}", keys) as store:
            scope.cancel()
            await anyio.lowlevel.checkpoint()
    assert scope.cancelled_caught
    with pytest.raises(StoreClosed):
        await store.list_runs(RunQuery())


@pytest.mark.once
async def test_an_encrypted_store_is_backed_up_without_its_keys_and_restored_with_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The machine with the backups needs no key, and finds a damaged entry all the same."""
    secret, old, new = "Quillfeather", make_key(), make_key()
    url, again = (f"sqlite:///{tmp_path}/{name}.db" for name in ("runs", "again"))
    agent = ControllableTools().agent(f"Done with {secret}.", "Done.")
    runs: list[str] = []
    for keys in ([old], [new, old]):  # the key was rotated between the two runs
        notes = File("a.txt", "text/plain", f"notes {len(runs)}".encode())
        async with Midrun(url, agents=[agent], encryption_keys=keys) as midrun:
            run = await midrun.start(agent, f"Call {secret}", files=[notes])
            await run.until("completed")
            runs.append(run.id)
    file, keys_file = tmp_path / "runs.backup", tmp_path / "keys.txt"
    keys_file.write_text("".join(f"{format_key(key)}\n" for key in (new, old)))
    at_store = CommandRunner(capsys, "--store", url)
    at_copy = CommandRunner(capsys, "--store", again)

    def use_commands() -> None:
        made = at_store("backup", str(file))
        assert (made.code, "2 runs verified, all clean" in made.out) == (0, True)
        assert secret.encode() not in file.read_bytes()
        restored = at_copy("restore", str(file))
        assert (restored.code, "2 runs verified, all clean" in restored.out) == (0, True)

    await anyio.to_thread.run_sync(use_commands)
    async with Midrun(again, agents=[agent], encryption_keys=[new, old]) as midrun:
        for run_id in runs:
            assert await midrun.verify(run_id)
        first = await midrun.get(runs[0])
        assert (await first.view()).output == f"Done with {secret}."
        assert [halt.scope for halt in await midrun.store.list_halts()] == ["all"]
    async with Midrun(again, encryption_keys=[new]) as midrun:  # the old key was lost
        assert (await midrun.verify(runs[0])).missing_key
        assert not (await midrun.verify(runs[1])).missing_key
    db = apsw.Connection(str(file))
    db.execute("DROP TRIGGER entries_do_not_change")
    db.execute("UPDATE entries SET line = CAST(line || ' ' AS BLOB) WHERE id = 3")
    db.close()
    third = CommandRunner(capsys, "--store", f"sqlite:///{tmp_path}/third.db")
    damaged = await anyio.to_thread.run_sync(third, "restore", str(file))
    assert (damaged.code, "1 with problems" in damaged.out) == (1, True)
