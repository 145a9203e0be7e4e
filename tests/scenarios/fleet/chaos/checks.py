"""Check what a chaos run has left: journals, effects, receipts, tombstones, and the tables.

The checks compare independent records. The external service has the effects, the users have the
receipts, the archive has journals of runs that were deleted later.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from midrun.core import entries as e
from midrun.core.entries import Record
from midrun.core.evolve import fold
from midrun.core.ids import CallId, RunId, make_call_key
from midrun.core.state import CallState
from midrun.core.values import TERMINAL_PHASES
from midrun.driver.deletion import RETENTION_ACTOR
from midrun.errors import RunNotFound
from midrun.ports.store import RunQuery, RunRow
from tests.scenarios.fleet.chaos.play import ENTRY_BY_CONTROL, Play, find_effect_key
from tests.scenarios.fleet.external_service import Effect

UNDOABLE_TOOLS: Final = ("draft", "press")
EFFECT_TOOLS: Final = ("pay", "spend", "order", "lock", *UNDOABLE_TOOLS)
REVERSALS: Final = ("undo draft", "undo press", "undo ticket", "unlock")

LEFTOVERS: Final = {
    "files that no run names": (
        "SELECT count(*) FROM files WHERE hash NOT IN (SELECT hash FROM run_files)"
    ),
    "files of deleted runs": (
        "SELECT count(*) FROM run_files WHERE no NOT IN (SELECT no FROM runs)"
    ),
    "chunks that no run uses": (
        "SELECT count(*) FROM chunks WHERE hash NOT IN (SELECT hash FROM chunk_uses)"
    ),
    "chunks of deleted runs": (
        "SELECT count(*) FROM chunk_uses WHERE no NOT IN (SELECT no FROM runs)"
    ),
    "entries of deleted runs": (
        "SELECT count(*) FROM entries WHERE no > 0 AND no NOT IN (SELECT no FROM runs)"
    ),
    "labels of deleted runs": (
        "SELECT count(*) FROM labels WHERE no NOT IN (SELECT no FROM runs)"
    ),
    "snapshots of deleted runs": (
        "SELECT count(*) FROM snapshots WHERE no NOT IN (SELECT no FROM runs)"
    ),
    "tombstones whose entries are not removed": (
        "SELECT count(*) FROM tombstones WHERE CAST(removed AS integer) = 0"
    ),
    "runs that are there and deleted": (
        "SELECT count(*) FROM tombstones WHERE run IN (SELECT run FROM runs)"
    ),
    "runs that the search does not have": (
        "SELECT count(*) FROM runs WHERE no NOT IN (SELECT no FROM search)"
    ),
    "deleted runs that the search has": (
        "SELECT count(*) FROM search WHERE no NOT IN (SELECT no FROM runs)"
    ),
}
"""Queries whose result must be 0, with the table names of both stores in short form."""

UNUSED_IN_POSTGRES: Final = ("files that no run names", "chunks that no run uses")
"""Postgres commits a body before the entry that names it; a killed worker leaves it behind."""

LEFTOVER_TABLES: Final = (
    *("files", "run_files", "runs", "chunks", "chunk_uses", "entries", "labels", "snapshots"),
    *("tombstones", "search"),
)

CountRows = Callable[[str], int]
"""Executes one of `LEFTOVERS` in the database of the store."""


class Checks:
    """The checks of one play; they add what they find to its problems."""

    def __init__(self, play: Play, count_rows: CountRows) -> None:
        self._play = play
        self._count_rows = count_rows
        self._effects: dict[str, list[Effect]] = {}
        for effect in play.service.list_effects():
            self._effects.setdefault(effect.key, []).append(effect)
        self._seen_keys: set[str] = set()

    def _report(self, problem: str) -> None:
        self._play.problems.append(problem)

    async def run(self) -> None:
        """Make all checks."""
        rows = {row.run: row for row in await self._play.list_rows()}
        journals = {run: list(await self._play.midrun.store.read(run)) for run in rows}
        await self._check_rows(rows)
        erased = (self._play.archive.keys() | self._play.runs.keys()) - rows.keys()
        for run in sorted(erased):
            await self._check_erased(run)
        for run in sorted(erased & self._play.archive.keys()):
            journals[run] = self._play.archive[run]
        for run, records in journals.items():
            for problem in self._check_effects(run, records):
                self._report(f"{run}: {problem}")
        self._check_unseen_effects(erased - journals.keys())
        self._check_receipts(journals)
        await self._check_search(rows)
        for name, query in LEFTOVERS.items():
            if number := self._count_rows(query):
                if self._play.plan.store == "postgres" and name in UNUSED_IN_POSTGRES:
                    self._play.counts[name] = number
                else:
                    self._report(f"the store has {number} {name}")
        phases = [str(row.head.phase) for row in rows.values()]
        self._play.counts |= {phase: phases.count(phase) for phase in set(phases)}
        self._play.counts["erased"] = len(erased)
        self._play.counts["effects"] = sum(map(len, self._effects.values()))

    async def _check_rows(self, rows: Mapping[RunId, RunRow]) -> None:
        """Check that every journal is sound, and that no child has outlived its parent."""
        for run, row in rows.items():
            verdict = await self._play.midrun.verify(run)
            if not verdict or verdict.missing_key:
                self._report(f"verify {run}: {verdict}")
            if row.head.phase in TERMINAL_PHASES and row.holder:
                self._report(f"{run} has ended and is held by {row.holder}")
            if row.head.parent and row.head.parent not in rows:
                self._report(f"{run} is a child of {row.head.parent}, which was deleted")

    async def _check_erased(self, run: RunId) -> None:
        try:
            verdict = await self._play.midrun.verify(run)
        except RunNotFound:
            self._report(f"{run} is gone without a tombstone")
            return
        if not verdict or verdict.erased is None:
            self._report(f"verify {run}, which was deleted: {verdict}")
        tombstone = await self._play.midrun.store.get_tombstone(run)
        task = self._play.runs.get(run)
        if task is not None and "hold" in task.labels and tombstone.by == RETENTION_ACTOR:
            self._report(f"{run} has the label hold, and the retention has deleted it")
        archived = self._play.archive.get(run, ())
        if len(archived) > tombstone.seq:
            self._report(f"{run} had {len(archived)} entries, its tombstone {tombstone.seq}")
        if len(archived) != tombstone.seq:
            self._play.counts["erased without a copy"] += 1
            self._play.archive.pop(run, None)

    # ── effects ───────────────────────────────────────────────────────────────────────────

    def _check_effects(self, run: RunId, records: Sequence[Record]) -> Iterator[str]:
        """Compare the calls of a journal with the effects in the service."""
        state = fold(run, records)
        kinds: dict[CallId, list[e.Entry]] = defaultdict(list)
        for record in records:
            if isinstance(record.entry, CALL_ENTRIES):
                kinds[record.entry.call].append(record.entry)
        undoes_all = any(
            isinstance(r.entry, e.CancelRequested) and r.entry.undo == "all" for r in records
        )
        last = records[-1].entry
        residue = {r.call for r in last.residue} if isinstance(last, e.RunCancelled) else set()
        for call in state.calls:
            if call.use.tool not in EFFECT_TOOLS:
                continue
            key = find_effect_key(make_call_key(run, call.id), call.use.args)
            self._seen_keys.add(key)
            effects = self._effects.get(key, [])
            made = [f for f in effects if f.what == call.use.tool]
            reversals = [f for f in effects if f.what in REVERSALS]
            where = f"{call.id} {call.use.tool} ({key})"
            for problem in check_call(call, kinds[call.id], made, reversals):
                yield f"{where}: {problem}"
            must_reverse = call.use.tool == "lock" or (
                undoes_all and call.use.tool in UNDOABLE_TOOLS
            )
            ends = isinstance(last, e.RunCancelled) or (
                call.use.tool == "lock" and isinstance(last, e.RunCompleted)
            )
            if ends and must_reverse and made and not reversals and call.id not in residue:
                yield f"{where}: it is still in effect after {type(last).__name__}: {call}"

    def _check_unseen_effects(self, without_copy: set[RunId]) -> None:
        """Check that each effect belongs to a journaled call, or to a deleted run."""
        words = {task.word: run for run, task in self._play.runs.items()}
        for key, effects in self._effects.items():
            makes = [f for f in effects if f.what in EFFECT_TOOLS]
            if len(makes) > 1:
                self._report(f"{key} was made {len(makes)} times: {makes}")
            run = words.get(effects[0].run, RunId(effects[0].run))
            if key not in self._seen_keys and run not in without_copy:
                # A child run of a deleted run has no copy of its own either.
                if run not in self._play.runs and self._play.counts["erased without a copy"]:
                    continue
                self._report(f"no journal has the call of these effects: {effects}")

    # ── receipts and search ───────────────────────────────────────────────────────────────

    def _check_receipts(self, journals: Mapping[RunId, Sequence[Record]]) -> None:
        """Check that the entry that a receipt names is the control of the user."""
        for run, control, receipt in self._play.receipts:
            expected = ENTRY_BY_CONTROL.get(control)
            if expected is None or receipt.already is not None or run not in journals:
                continue
            if len(journals[run]) < receipt.seq:
                self._report(f"{run}: the entry of a receipt is missing: {control} {receipt}")
                continue
            kind = type(journals[run][receipt.seq - 1].entry).__name__
            if kind != expected and not (control == "resume" and kind == "PauseWithdrawn"):
                self._report(f"{run}: the receipt of {control} names a {kind}: {receipt}")

    async def _check_search(self, rows: Mapping[RunId, RunRow]) -> None:
        """Check that the search finds each run by the word of its task, and no other."""
        store = self._play.midrun.store
        for run, task in self._play.runs.items():
            page = await store.list_runs(RunQuery(search=task.word, limit=500))
            found = {row.run for row in page.items}
            if self._play.plan.is_encrypted:
                if found:
                    self._report(f"the search finds a text of an encrypted store: {found}")
            elif (run in rows) != (run in found):
                self._report(f"the search for {task.word} finds {found}, not {run}")
            elif wrong := [r for r in page.items if task.word not in r.head.task]:
                self._report(f"the search for {task.word} finds other runs: {wrong}")


CALL_ENTRIES: Final = (
    *(e.CallStarted, e.CallDone, e.CallFailed, e.CallAborted, e.CallUnknown, e.CallSettled),
    *(e.UndoStarted, e.UndoDone, e.UndoGaveUp, e.LateResult),
)


def check_call(
    call: CallState, journaled: list[e.Entry], made: list[Effect], reversals: list[Effect]
) -> Iterator[str]:
    """Yield the contradictions between the entries of one call and its effects."""
    attempts = {entry.attempt for entry in journaled if isinstance(entry, e.CallStarted)}
    if len(made) > 1:
        yield f"made {len(made)} times"
    for effect in made:
        if effect.attempt not in attempts:
            yield f"attempt {effect.attempt} has an effect, the journal has {attempts}"
    if any(isinstance(entry, e.CallDone) for entry in journaled) and not made:
        yield f"done without an effect: {journaled}"
    for entry in journaled:
        if isinstance(entry, e.CallSettled) and entry.happened and not made:
            yield "settled as done, without an effect"
        if isinstance(entry, e.UndoDone) and not reversals:
            yield "undone in the journal, and not in the service"
    if reversals and not any(isinstance(entry, e.UndoStarted) for entry in journaled):
        yield f"undone without an entry: {reversals}, {call}"
