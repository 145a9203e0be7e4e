"""Commands that back up a store and restore it.

A restored store is older than the world: calls that were made after the backup are not in it,
and a worker would make them again. So `restore` sets a halt for all runs, which an operator
lifts when the runs were checked. It also takes all leases from their holders: a worker of the
old store that is still alive cannot continue a run of the new one.

A Postgres database is copied with its own tools. After `pg_restore`, the command `restore`
without a file does the rest there.
"""

from argparse import Namespace
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

import anyio
import anyio.to_thread

from midrun.cli.output import CommandOutput
from midrun.cli.settings import Keys
from midrun.cli.targets import check_store_file
from midrun.errors import Misconfigured
from midrun.ports.audit import AuditEntry
from midrun.ports.store import HaltRecord, RunQuery, Store
from midrun.runs.audit import store_audit, verify_audit
from midrun.runs.verification import verify_run
from midrun.stores.sqlite.backup import copy_backup, copy_content, reserve_name
from midrun.stores.urls import CLOSE_TIMEOUT_S, open_store

RESTORE_REASON: Final = "restored from a backup; check the runs, then lift this halt"
PAGE_MAX_RUNS: Final = 200


async def backup(args: Namespace, out: CommandOutput) -> int:
    """Copy the store into a file while writers continue, and check the copy."""
    source = _get_sqlite_path(args.store)
    if source is None:
        problem = (
            "Cannot back up Postgres with this command. Use its own tool: "
            "pg_dump --format=custom --file=FILE DATABASE"
        )
        raise Misconfigured("backup", problem)
    check_store_file(args.store, must_exist=True)
    with reserve_name(args.file.absolute()) as temporary:
        await anyio.to_thread.run_sync(copy_content, source, temporary)
        async with _use_store(f"sqlite:///{temporary}", args.keys) as store:
            checked, problems = await _verify_all(store, out)
    async with _use_store(args.store, args.keys) as store:
        await store_audit(store, _make_audit("backup", args))  # a copy of all runs was made
    return _report(out, f"backup {args.file}", checked, problems)


async def restore(args: Namespace, out: CommandOutput) -> int:
    """Make a store of a backup; free its leases, halt its runs, and check them."""
    target = _get_sqlite_path(args.store)
    if (target is None) != (args.file is None):
        problem = (
            "needs FILE, the backup of a SQLite store"
            if target is not None
            else "takes no FILE for Postgres: run pg_restore into an empty database first"
        )
        raise Misconfigured("restore", problem)
    if target is None:
        async with _use_store(args.store, args.keys) as store:
            checked, problems = await _prepare(store, args, out)
        return _report(out, "restored store", checked, problems)
    with reserve_name(target.absolute()) as temporary:
        await anyio.to_thread.run_sync(copy_backup, args.file, temporary)
        async with _use_store(f"sqlite:///{temporary}", args.keys) as store:
            checked, problems = await _prepare(store, args, out)
    return _report(out, f"restored {target}", checked, problems)


@asynccontextmanager
async def _use_store(url: str, keys: Keys) -> AsyncIterator[Store]:
    """Open a store with the given keys, and close it also if the command is cancelled."""
    store = await open_store(
        url, key=keys["chain_key"], encryption_keys=keys["encryption_keys"]
    )
    try:
        yield store
    finally:
        # Without the shield, a cancelled close leaves the thread of the writer at work while
        # `reserve_name` removes its file. The limit ends the wait for a server that is gone.
        with anyio.move_on_after(CLOSE_TIMEOUT_S, shield=True):
            await store.close()


async def _prepare(store: Store, args: Namespace, out: CommandOutput) -> tuple[int, int]:
    """Make a restored store safe: halt its runs and take the leases, then verify it."""
    if not args.no_halt:
        # Before the leases are free: no worker can start a call in between.
        halt = HaltRecord(scope="all", by=args.actor or "operator", reason=RESTORE_REASON)
        await store.set_halt(halt)
    await store.drop_leases()
    await store_audit(store, _make_audit("restore", args))
    return await _verify_all(store, out)


def _make_audit(action: str, args: Namespace) -> AuditEntry:
    target = "" if args.file is None else args.file.name
    return AuditEntry(action=action, actor=args.actor or "operator", target=target)


async def _verify_all(store: Store, out: CommandOutput) -> tuple[int, int]:
    """Verify all runs and the audit log; return the runs and the problems, and print those.

    One verdict of a run that could not be decrypted is printed: it names the key.
    """
    checked, problems, cursor = 0, 0, ""
    missing_keys: set[str] = set()
    while True:
        page = await store.list_runs(RunQuery(limit=PAGE_MAX_RUNS, cursor=cursor))
        for row in page.items:
            verdict = await verify_run(store, row.run)
            checked += 1
            is_new_key = verdict.missing_key not in {"", *missing_keys}
            missing_keys.add(verdict.missing_key)
            problems += not verdict
            if not verdict or is_new_key:
                out.write(verdict, str(verdict))
        cursor = page.cursor
        if not cursor:
            break
    audit = await verify_audit(store)
    if not audit:
        out.write(audit, str(audit))
    return checked, problems + len(audit.problems)


def _report(out: CommandOutput, subject: str, checked: int, problems: int) -> int:
    ending = "all clean" if not problems else f"{problems} with problems, see above"
    out.write(
        {"runs": checked, "problems": problems}, f"{subject}: {checked} runs verified, {ending}"
    )
    return 1 if problems else 0


def _get_sqlite_path(store: str) -> Path | None:
    """Return the path of a SQLite store; None for another store."""
    parts = urlsplit(store)
    return Path(unquote(parts.path[1:])) if parts.scheme == "sqlite" else None
