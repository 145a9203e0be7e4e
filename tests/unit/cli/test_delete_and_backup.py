"""The commands `delete`, `backup` and `restore`."""

import errno
import os
import pty
import signal
import subprocess
import sys
import threading
from argparse import Namespace
from pathlib import Path
from typing import Final, cast

import anyio.lowlevel
import anyio.to_thread
import apsw
import pytest

from midrun import File, Midrun
from midrun.cli.backup_commands import _use_store
from midrun.cli.delete_commands import _confirm
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


@pytest.mark.parametrize("place", ["midrun_at_store", "midrun_at_server"])
def test_runs_are_deleted_by_user_agent_label_and_tenant(
    midrun_at_server: CommandRunner, place: str, request: pytest.FixtureRequest
) -> None:
    """All options that are given must match."""
    midrun: CommandRunner = request.getfixturevalue(place)
    runs = [start_run(midrun_at_server, "searcher", "--label", label) for label in "xyz"]
    owner = str(midrun("show", runs[0], "--json").values[0]["started_by"])
    for words in (
        ("--user", "nemo"),
        ("--agent", "nemo", "--user", owner),
        ("--label", "x", "--agent", "nemo"),
        ("--tenant", "nemo", "--label", "x"),
    ):
        assert "no run to delete" in midrun("delete", *words).out
    for run, words in zip(
        runs,
        (
            ("--user", owner, "--label", "x"),
            ("--agent", "searcher", "--label", "y"),
            ("--label", "z", "--tenant", ""),
        ),
        strict=True,
    ):
        assert midrun("delete", *words, "--yes", "--json").values == [{"deleted": 1}]
        assert "erased by" in midrun("verify", run).out


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


async def test_ctrl_c_at_the_question_waits_for_no_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A thread that reads the terminal would keep the process alive until Enter is pressed."""
    before = threading.enumerate()
    person, terminal = pty.openpty()
    with os.fdopen(terminal) as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_confirm, Namespace(yes=False), "Delete it")
            await anyio.wait_all_tasks_blocked()
            started = [each for each in threading.enumerate() if each not in before]
            tasks.cancel_scope.cancel()
        os.write(person, b"\n")
    os.close(person)
    assert started == []


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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "point"),
    [("backup", "open"), ("backup", "fsync"), ("backup", "link"), ("restore", "fsync")],
)
def test_a_killed_backup_or_restore_leaves_a_whole_file_or_none(
    midrun_at_store: CommandRunner,
    midrun_at_server: CommandRunner,
    tmp_path: Path,
    command: str,
    point: str,
) -> None:
    """The next attempt removes the partial copy, which may be as large as the store."""
    run = start_run(midrun_at_server)
    again = CommandRunner(midrun_at_store._capsys, "--store", f"sqlite:///{tmp_path}/a.db")
    made, target = midrun_at_store, tmp_path / "first.backup"
    if command == "restore":
        assert midrun_at_store("backup", str(target)).code == 0
        made, target = again, tmp_path / "a.db"
    words = [command, str(tmp_path / "first.backup")]
    program = [sys.executable, "-c", DIE_AFTER, point, *words, *made.target]
    killed = subprocess.run(program, check=False)  # noqa: S603 - our own program
    assert killed.returncode == -signal.SIGKILL
    if not target.exists():
        assert point in {"open", "fsync"}
        assert made(*words).code == 0
    assert made(*words).code == 2  # not replaced
    assert not list(tmp_path.glob(".*partial*"))
    checked = CommandRunner(midrun_at_store._capsys, "--store", f"sqlite:///{target}")
    assert checked("verify", run).code == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a small disk")
def test_a_full_disk_is_named_by_the_file_that_did_not_fit(
    midrun_at_store: CommandRunner, midrun_at_server: CommandRunner, tmp_path: Path
) -> None:
    """And not by the store that was read, whose disk has room."""
    start_run(midrun_at_server)
    backup, small = tmp_path / "runs.backup", tmp_path / "small"
    assert midrun_at_store("backup", str(backup)).code == 0
    small.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=60k", "tmpfs", str(small)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:  # noqa: S603 - fixed
        pytest.skip("no disk can be mounted here")
    try:
        made = midrun_at_store("backup", str(small / "b.backup"))
        again = CommandRunner(midrun_at_store._capsys, "--store", f"sqlite:///{small}/a.db")
        restored = again("restore", str(backup))
        assert not list(small.iterdir())
    finally:
        subprocess.run(["umount", str(small)], check=True)  # noqa: S603, S607 - fixed
    assert (made.code, restored.code) == (1, 1)
    assert f"Cannot write to store {small}/b.backup: the disk is full. Free" in made.err
    assert f"Cannot write to store {small}/a.db: the disk is full. Free" in restored.err


def test_an_error_of_a_file_names_that_file(
    midrun_at_store: CommandRunner,
    midrun_at_server: CommandRunner,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    start_run(midrun_at_server)
    backup, long = tmp_path / "runs.backup", tmp_path / ("b" * 250)
    assert midrun_at_store("backup", str(backup)).code == 0
    made = midrun_at_store("backup", str(long))  # no room for the name of a temporary file
    assert made.code == 1
    assert f"Cannot reach store {long}: File name too long" in made.err
    text = tmp_path / "text"
    text.write_text("no database")
    other = CommandRunner(midrun_at_store._capsys, "--store", f"sqlite:///{tmp_path}/b.db")
    assert f"Cannot use store {text}: not a SQLite" in other("restore", str(text)).err

    def refuse(source: Path, _: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", os.fspath(source))

    monkeypatch.setattr("shutil.copyfile", refuse)  # root, who runs these tests, may read all
    again = CommandRunner(midrun_at_store._capsys, "--store", f"sqlite:///{tmp_path}/a.db")
    refused = again("restore", str(backup))
    assert f"Cannot reach store {backup}: Permission denied" in refused.err


DIE_AFTER: Final = """
import os, runpy, signal, sys

point, *words = sys.argv[1:]
do = getattr(os, point)

def die_after(path, *arguments, **options):
    do(path, *arguments, **options)
    if isinstance(path, int) or "partial" in os.fspath(path):
        os.kill(os.getpid(), signal.SIGKILL)

setattr(os, point, die_after)
sys.argv = ["midrun", *words]
runpy.run_module("midrun", run_name="__main__")
"""
"""Run a command in a process that dies after its first call of a function for a copy."""


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
