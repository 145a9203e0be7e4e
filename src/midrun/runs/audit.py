"""Build the audit trail: the controls in all journals, and the audit log of the store.

The trail answers two questions: which person asked for which control, and who approved what. It
has names, not texts: an instruction, a message or an argument is in the journal only.

It is read in pages. The first pages have the audit log, oldest first. Each page after them has
the entries of a few runs, newest run first. A run that has not changed since the start of the
time range is skipped without reading its journal.
"""

import logging
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Final

import anyio.to_thread

from midrun.codec.hash_chain import HashChain, get_chain
from midrun.core import entries as e
from midrun.core.evolve import fold
from midrun.core.ids import CallId, Micros, micros_to_datetime
from midrun.core.state import State
from midrun.core.values import Actor, Value
from midrun.errors import CursorRefused, RunNotFound, StoreError
from midrun.ports.audit import AuditEnd, AuditEntry, AuditLine, HasAuditLog
from midrun.ports.store import HaltRecord, Page, RunQuery, RunRow, Store

log = logging.getLogger("midrun")

AUDIT_PAGE_MAX_ENTRIES: Final = 500
AUDIT_PAGE_MAX_RUNS: Final = 20
"""Entries of the audit log, and runs, on one page."""

AUDIT_MAX_PROBLEMS: Final = 20
"""The places that a verification names."""

LOG_CURSOR: Final = "log:"
RUNS_CURSOR: Final = "runs:"

ACTIONS: Final[dict[type[e.Entry], str]] = {
    e.RunStarted: "start",
    e.RunImported: "import",
    e.PauseRequested: "pause",
    e.PauseWithdrawn: "withdraw_pause",
    e.RunResumed: "resume",
    e.RedirectRequested: "redirect",
    e.RedirectClosed: "withdraw_redirect",
    e.MessageReceived: "message",
    e.MessageClosed: "withdraw_message",
    e.CancelRequested: "cancel",
    e.CapRaised: "raise_cap",
    e.UndoRetried: "retry_undo",
    e.ResidueAccepted: "accept_residue",
    e.CallSettled: "settle_call",
    e.RunHalted: "halt",
    e.RunLifted: "lift",
    e.TakenOver: "take_over",
    e.HandedBack: "hand_back",
    e.PersonWrote: "write",
    e.ToolUseRequested: "use_tool",
    e.RequestNoted: "request",
}
"""Entry of a request → the action in the trail; other entries have the name of their class."""


async def store_audit(store: Store, entry: AuditEntry) -> None:
    """Append `entry` to the audit log of the store, if it has one.

    If the store cannot be written, a warning is logged: the action itself has happened.
    """
    try:
        if isinstance(store, HasAuditLog):
            await store.append_audit(entry)
    except StoreError as error:
        log.warning("Cannot store an audit entry (%s): %s", entry.action, error)


def make_halt_audit(action: str, halt: HaltRecord, by: Actor) -> AuditEntry:
    """Return the audit entry for a halt that was set or lifted."""
    return AuditEntry(
        action=action,
        actor=by.name,
        role=by.role,
        target=halt.scope,
        reason=halt.reason,
        tenant=halt.tenant or "",
    )


async def read_audit_page(
    store: Store, *, since: Micros, until: Micros, cursor: str = "", tenant: str | None = None
) -> Page[AuditEntry]:
    """Return one page of the trail; "" is the cursor of the first page.

    With a tenant, the trail has the runs of that tenant and the actions of its people.

    Raises:
        CursorRefused: no page returned this cursor.
    """
    if cursor.startswith(RUNS_CURSOR):
        last_run = cursor.removeprefix(RUNS_CURSOR)
        return await _read_runs(store, since, until, last_run, tenant)
    after = cursor.removeprefix(LOG_CURSOR) or "0"
    if cursor and not (cursor.startswith(LOG_CURSOR) and after.isdecimal()):
        raise CursorRefused(cursor)
    if not isinstance(store, HasAuditLog):
        return await _read_runs(store, since, until, "", tenant)
    limit = AUDIT_PAGE_MAX_ENTRIES
    found = await store.list_audit(
        since=since, until=until, after=int(after), limit=limit, tenant=tenant
    )
    cursor = f"{LOG_CURSOR}{found[-1][0]}" if len(found) == limit else RUNS_CURSOR
    return Page(items=tuple(entry for _, entry in found), cursor=cursor)


async def read_audit(
    store: Store, *, since: Micros, until: Micros
) -> AsyncIterator[AuditEntry]:
    """Yield the whole trail of the time range, page after page."""
    cursor = ""
    while True:
        page = await read_audit_page(store, since=since, until=until, cursor=cursor)
        for entry in page.items:
            yield entry
        if not (cursor := page.cursor):
            return


async def _read_runs(
    store: Store, since: Micros, until: Micros, cursor: str, tenant: str | None
) -> Page[AuditEntry]:
    query = RunQuery(limit=AUDIT_PAGE_MAX_RUNS, cursor=cursor, tenant=tenant)
    rows = await store.list_runs(query)
    items: list[AuditEntry] = []
    for row in rows.items:
        if row.changed_at >= since and row.started_at < until:
            try:
                records = await store.read(row.run)
            except RunNotFound:  # deleted since the list was read
                continue
            items += await anyio.to_thread.run_sync(
                list_run_actions, row, records, since, until
            )
    return Page(items=tuple(items), cursor=rows.cursor and f"{RUNS_CURSOR}{rows.cursor}")


def list_run_actions(
    row: RunRow, records: Sequence[e.Record], since: Micros, until: Micros
) -> list[AuditEntry]:
    """Return the actions of people in a whole journal, within the time range."""
    asked: dict[str, CallId] = {}
    actions: list[AuditEntry] = []
    state: State | None = None
    for record in records:
        entry = record.entry
        if isinstance(entry, e.AskOpened):
            asked[entry.ask] = entry.call
        if not since <= record.at < until or not isinstance(entry, e.RequestEntry):
            continue
        if not entry.by or entry.role == "system":
            continue
        target = _name_target(entry)
        if isinstance(entry, e.AskAnswered):
            state = state or fold(row.run, records)
            call = state.find_call(asked.get(entry.ask, CallId("")))
            target = call.use.tool if call is not None else ""
        actions.append(
            AuditEntry(
                at=record.at,
                action=_name_action(entry),
                actor=entry.by,
                role=entry.role,
                run=row.run,
                seq=record.seq,
                target=target,
                outcome=entry.verdict if isinstance(entry, e.RequestNoted) else "done",
                reason=entry.reason,
                tenant=row.head.tenant,
            )
        )
    return actions


def _name_action(entry: e.RequestEntry) -> str:
    if isinstance(entry, e.AskAnswered):
        return entry.decision.choice
    kind = type(entry)
    return next((name for each, name in ACTIONS.items() if each is kind), kind.__name__)


def _name_target(entry: e.RequestEntry) -> str:
    """Return the name of the thing that the request is about; never a text."""
    match entry:
        case e.RunStarted(agent=agent):
            return agent
        case e.CapRaised(caps=caps):
            return ", ".join(f"{name}={most}" for name, most in caps.items())
        case e.ToolUseRequested(tool=tool):
            return tool
        case e.RunHalted(scope=scope):
            return scope
        case e.RunImported(checkpoint=checkpoint):
            return checkpoint
        case e.CallSettled(call=call):
            return call
        case _:
            return ""


class AuditVerdict(Value, kw_only=True):
    """The result of a verification of the audit log.

    `entries` is the number of stored lines, `hash` the hash of the last one. True if there is
    no problem.
    """

    entries: int
    hash: str
    problems: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        """Return whether no problem was found."""
        return not self.problems

    def __str__(self) -> str:
        """Return the problems, or the end of the log, in whole sentences."""
        if self.problems:
            return "\n".join(self.problems)
        end = f" The last one has the hash {self.hash}." if self.hash else ""
        return f"The audit log is complete and unchanged: {self.entries} entries.{end}"


async def verify_audit(store: Store, expected: str = "") -> AuditVerdict:
    """Verify the hash chain of the store's audit log; name each place where it is broken.

    `expected` is a hash that an earlier verification has returned. It must be in the log.
    """
    if not isinstance(store, HasAuditLog):
        return AuditVerdict(entries=0, hash="")
    # Read before the lines: an entry that is appended meanwhile must not look like a cut.
    end = await store.read_audit_end()
    check = _AuditCheck(get_chain(store), end, expected)
    while lines := await store.read_audit_lines(
        after=check.number, limit=AUDIT_PAGE_MAX_ENTRIES
    ):
        await anyio.to_thread.run_sync(check.add_lines, lines)
    if check.count and not end.number and (await store.read_audit_end()).number:
        return await verify_audit(store, expected)  # the first entry came meanwhile
    check.check_end()
    shown = tuple(check.problems[:AUDIT_MAX_PROBLEMS])
    if (more := len(check.problems) - len(shown)) > 0:
        shown += (f"There are {more} more places.",)
    return AuditVerdict(entries=check.count, hash=check.link.hex(), problems=shown)


class _AuditCheck:
    """Follows the chain of the audit log line by line."""

    def __init__(self, chain: HashChain, end: AuditEnd, expected: str) -> None:
        self._chain = chain
        self._end = end
        self._expected = expected.strip().lower()
        self.count, self.number, self.link = 0, 0, b""
        self.problems: list[str] = []

    def add_lines(self, lines: Sequence[AuditLine]) -> None:
        """Check the next lines."""
        for line in lines:
            missing = line.number - self.number - 1
            if missing:
                self.problems.append(
                    f"Entries {self.number + 1} to {line.number - 1} of the audit log are "
                    "missing."
                    if missing > 1
                    else f"Entry {line.number - 1} of the audit log is missing."
                )
            link = self._chain.make_audit_link(
                self.link, line.number, line.at, line.tenant, line.body
            )
            # After a gap the line before is not known, so nothing follows from the hash.
            if link != line.hash and not missing:
                time = micros_to_datetime(line.at).isoformat(timespec="seconds")
                self.problems.append(
                    f"Entry {line.number} of the audit log ({time}) was changed: its hash does "
                    "not fit its content and the entry before it."
                )
            # The check continues from the stored hash, so that it finds later places, too.
            self.count, self.number, self.link = self.count + 1, line.number, line.hash
            if line.number == self._end.number and line.hash != self._end.hash:
                self.problems.append(
                    f"Entry {line.number} of the audit log was replaced: the stored end of the "
                    "log has another hash."
                )
            if self._expected == line.hash.hex():
                self._expected = ""

    def check_end(self) -> None:
        """Compare the lines with the end that is stored beside the log."""
        end = self._end
        if end.number > self.number:
            self.problems.append(
                f"The audit log is cut off after entry {self.number}: its last entry was "
                f"{end.number}."
            )
        elif end.seal != self._chain.seal_audit_end(end.number, end.hash) and end.number:
            self.problems.append(
                "The stored end of the audit log was changed: its seal does not fit."
            )
        elif self.count and not end.number:
            self.problems.append("The stored end of the audit log was removed.")
        if self._expected:
            self.problems.append(
                f"No entry of the audit log has the hash {self._expected}: it was cut off or "
                "replaced after that hash was noted."
            )


CSV_FIELDS: Final = (
    *("time", "action", "actor", "role", "outcome", "run", "seq", "target", "reason"),
    *("address", "tenant"),
)


def iter_csv_values(values: dict[str, object]) -> Iterator[str]:
    """Yield the values of one entry for CSV, in the order of `CSV_FIELDS`.

    A spreadsheet takes a text that begins with one of these characters for a formula.
    """
    for name in CSV_FIELDS:
        text = str(values.get(name, ""))
        yield f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text
