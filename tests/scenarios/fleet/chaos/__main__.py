"""Play plans of chaos, one after the other; print the seed and the plan of each.

python -m tests.scenarios.fleet.chaos --seed 7 --count 20

The exit code is 1 if a check has found a problem. The same seed plays the same plan again.
"""

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from urllib.parse import quote

import anyio
import apsw

from midrun.testing.postgres import Postgres, running
from tests.scenarios.fleet.chaos.checks import LEFTOVER_TABLES, Checks, CountRows
from tests.scenarios.fleet.chaos.plan import Plan, make_plan
from tests.scenarios.fleet.chaos.play import Play
from tests.scenarios.fleet.chaos.processes import adopt_orphans, wait_for_orphans
from tests.unit.stores.postgres.faulty_proxy import run_proxy

DISK_SIZE = "48m"
SCHEMA = "chaos"
FILES_OF_STORE = {"runs.db", "runs.db-wal", "runs.db-shm"}


@contextmanager
def mount_disk() -> Iterator[Path | None]:
    """Mount a small file system; None if this process may not do that."""
    folder = Path(mkdtemp(prefix="chaos-disk-", dir="/tmp"))
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_SIZE}", "tmpfs", str(folder)]
    try:
        mounted = (
            shutil.which("mount") is not None
            and not subprocess.run(  # noqa: S603
                command, check=False, capture_output=True
            ).returncode
        )
        try:
            yield folder if mounted else None
        finally:
            if mounted:
                subprocess.run(["umount", "--lazy", str(folder)], check=True)  # noqa: S603, S607
    finally:
        folder.rmdir()


async def play_on_sqlite(plan: Plan, folder: Path) -> Play:
    """Play a plan on a SQLite file, on a file system of its own if the plan fills it."""
    with mount_disk() as disk:
        if plan.has_full_disk and disk is None:
            print("  the disk is not filled: this process may not mount a file system")
        home = disk if plan.has_full_disk and disk is not None else folder / "store"
        home.mkdir(exist_ok=True)
        path = home / "runs.db"
        url = f"sqlite:///{path}"
        play = Play(plan, folder, url, disk=disk if plan.has_full_disk else None)
        await play.run(lambda play: Checks(play, make_sqlite_counter(path)).run())
        if extra := {file.name for file in home.iterdir()} - FILES_OF_STORE:
            play.problems.append(f"files are left beside the store: {extra}")
        if plan.is_encrypted:
            stored = b"".join(file.read_bytes() for file in home.iterdir())
            if b"word0" in stored:
                play.problems.append("the file of the encrypted store has a task in clear text")
    return play


def make_sqlite_counter(path: Path) -> CountRows:
    """Return a function that counts rows of the file."""

    def count_rows(query: str) -> int:
        db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
        try:
            rows = query.replace("no FROM search", "rowid FROM search")
            rows = rows.replace("FROM search WHERE no", "FROM search WHERE rowid")
            return int(db.execute(rows).get)
        finally:
            db.close()

    return count_rows


async def play_on_postgres(plan: Plan, folder: Path) -> Play:
    """Play a plan on a server of its own, through a proxy that cuts connections."""
    with (
        running() as server,
        TemporaryDirectory(prefix="cut-", dir="/tmp") as through,
    ):
        async with run_proxy(Path(through), server.folder) as proxy:
            server.execute(f"CREATE SCHEMA {SCHEMA}")
            there, here = quote(str(server.folder), safe=""), quote(through, safe="")
            url = server.url(SCHEMA).replace(there, here)
            play = Play(plan, folder, url, server=server, proxy=proxy)
            await play.run(lambda play: Checks(play, make_postgres_counter(server)).run())
        if plan.is_encrypted:
            in_clear = "SELECT count(*) FROM entries WHERE position('word0'::bytea in line) > 0"
            if make_postgres_counter(server)(in_clear):
                play.problems.append("the encrypted store has a task in clear text")
    return play


def make_postgres_counter(server: Postgres) -> CountRows:
    """Return a function that counts rows of the schema."""

    def count_rows(query: str) -> int:
        for table in LEFTOVER_TABLES:
            query = query.replace(f"FROM {table} ", f"FROM {SCHEMA}.midrun_{table} ")
            query = query.replace(f"FROM {table})", f"FROM {SCHEMA}.midrun_{table})")
        return int(str(server.execute(query)[0][0]))

    return count_rows


async def play_plan(plan: Plan, folder: Path) -> Play:
    """Play a plan in a folder."""
    play_on = play_on_sqlite if plan.store == "sqlite" else play_on_postgres
    play = await play_on(plan, folder)
    if problem := await wait_for_orphans():
        play.problems.append(problem)
    play.service.close()
    return play


def main() -> int:
    """Play the plans of all seeds; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.scenarios.fleet.chaos")
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--count", type=int, default=1, help="the number of seeds")
    parser.add_argument("--seconds", type=float, default=15, help="of disturbances, per seed")
    parser.add_argument("--runs", type=int, default=60, help="runs that are started, per seed")
    parser.add_argument("--store", choices=("sqlite", "postgres"), help="default: by the seed")
    parser.add_argument("--keep", type=Path, help="keep the logs of failed seeds here")
    given = parser.parse_args()
    adopt_orphans()
    failed: list[int] = []
    for seed in range(given.seed, given.seed + given.count):
        plan = make_plan(seed, seconds=given.seconds, runs=given.runs, store=given.store)
        print(f"seed {seed}: {plan.describe()}", flush=True)
        with TemporaryDirectory(prefix="chaos-", dir="/tmp") as folder:
            play = anyio.run(play_plan, plan, Path(folder))
            if play.problems and given.keep is not None:
                shutil.copytree(folder, given.keep / f"seed-{seed}", dirs_exist_ok=True)
        print(f"  happened: {json.dumps(dict(sorted(play.counts.items())))}")
        for problem in play.problems:
            print(f"  PROBLEM {problem}")
        if play.problems:
            failed.append(seed)
    again = f"--seconds {given.seconds} --runs {given.runs}"
    for seed in failed:
        print(f"seed {seed} has failed; repeat it: {parser.prog} --seed {seed} {again}")
    print(f"{given.count - len(failed)} of {given.count} seeds without a problem", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
