"""Reads of the Postgres store: rows of the server turned into values."""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from midrun.codec.hash_chain import Chain
from midrun.codec.journal import decode_lines
from midrun.codec.strict_json import INTEGER_MAX
from midrun.core.entries import Record
from midrun.core.ids import Micros, RunId, Seq
from midrun.core.values import Phase
from midrun.errors import CursorRefused, JournalCorrupt, RunNotFound
from midrun.ports.store import Halt, Page, Query, RunRow, Snapshot, Usage
from midrun.stores import validation
from midrun.stores.chunks import join_line, list_chunks
from midrun.stores.postgres import queries
from midrun.stores.postgres.operations import Found
from midrun.stores.postgres.pool import Links
from midrun.stores.postgres.writer import found_of
from midrun.stores.validation import ROW_COLUMNS, index_of, row_of

Pair = tuple[bytes, bytes]

CHUNK: Final = 2000
"""The most entries in one query, because a statement has a time limit."""


class Stretch:
    """The entries of one journal after `after`, as of its last query.

    A long journal is read with several queries. Entries are never removed, so all parts
    together are one consistent view, up to the run's seq in the last part.
    """

    def __init__(self, run: RunId, after: Seq) -> None:
        self._run = run
        self._after = after
        self._link: bytes | None = None
        self._found: Found | None = None
        self._end = 0  # seq of the last entry that the range must contain
        self.pairs: list[Pair] = []

    def __len__(self) -> int:
        return len(self.pairs)

    @property
    def weight(self) -> int:
        """Total length of the lines in bytes."""
        return sum(len(line) for line, _ in self.pairs)

    def records(self, chain: Chain) -> list[Record]:
        """Return the entries; verify their hash chain and their number.

        Raises:
            JournalCorrupt: an entry is missing or was changed.
        """
        run, after, pairs = self._run, self._after, self.pairs
        if self._end <= after:
            return []
        if after and self._link is None:
            raise JournalCorrupt(run, after, "the entry is missing")
        # The chain proves that the lines follow each other. It cannot show that lines at the
        # end are missing; the count and the hash in the run's row do.
        lines = chain.verified(run, pairs, after=after, previous=self._link)
        if len(pairs) != self._end - after:
            raise JournalCorrupt(run, after + len(pairs) + 1, "the entry is missing")
        row_state = self._found
        if (
            row_state is not None
            and self._end == row_state.seq
            and pairs[-1][1] != row_state.hash
        ):
            raise JournalCorrupt(run, self._end, "the run's head has another hash")
        return decode_lines(run, lines, after=after)

    async def read(self, links: Links, limit: int | None) -> Found:
        """Read all parts and return the run's row.

        Raises:
            RunNotFound: no such run.
        """
        last = INTEGER_MAX if limit is None else min(INTEGER_MAX, self._after + limit)
        position = min(self._after, INTEGER_MAX)
        while True:
            part_end = min(last, position + CHUNK)
            values = {"run": self._run, "after": position, "end": part_end}
            rows = await links.ask(queries.JOURNAL, values)
            if not rows:
                raise RunNotFound(self._run)
            # One statement returns the run's row first and then the entries up to its seq, so
            # both are of one snapshot. The entry at `after` itself comes along, because the
            # chain needs its hash.
            run_row, *entries = rows
            seq, link, head, changed_at, epoch, holder = run_row
            row_state = found_of(self._run, seq, link, changed_at, epoch, holder, head)
            self._found = row_state
            for seq, link, line, *_ in entries:
                if seq > position:
                    self.pairs.append((line, link))
                elif seq == self._after:
                    self._link = link
            self._end = min(row_state.seq, part_end)
            if self._end >= min(row_state.seq, last):
                await self._join_first(links)
                return row_state
            position = self._end

    async def _join_first(self, links: Links) -> None:
        """Join the run's first line with its chunks, if the range contains it."""
        if self._after or not self.pairs:
            return
        stored, link = self.pairs[0]
        if hashes := list_chunks(stored):
            chunks: dict[bytes, bytes] = dict(
                await links.ask(queries.CHUNKS, {"hashes": hashes})
            )
            self.pairs[0] = join_line(stored, chunks), link


async def row(links: Links, run: RunId) -> RunRow:
    """Return the row of `run`."""
    validation.check_id(run)
    rows = await links.ask(queries.ROW, {"run": run})
    if not rows:
        raise RunNotFound(run)
    return row_of(*rows[0])


async def indexed_row(links: Links, run: RunId) -> tuple[RunRow, dict[str, object]]:
    """Return the row of `run` and its indexed columns by name."""
    validation.check_id(run)
    rows = await links.ask(queries.INDEXED_ROW, {"run": run})
    if not rows:
        raise RunNotFound(run)
    *columns, labels = rows[0]
    index = index_of((*columns[ROW_COLUMNS:], sorted(labels)))
    return row_of(*columns[:ROW_COLUMNS]), index


async def snapshot(links: Links, run: RunId) -> Snapshot | None:
    """Return the snapshot of `run` if its hash matches the journal's at that seq."""
    validation.check_id(run)
    rows = await links.ask(queries.SNAPSHOT, {"run": run})
    if not rows:
        raise RunNotFound(run)
    seq, link, body = rows[0]
    return None if seq is None else Snapshot(seq=seq, hash=link, body=body)


async def page(links: Links, query: Query) -> Page[RunRow]:
    """Return a page of runs, newest first."""
    limit = validation.page_limit(query)
    texts = (query.agent, query.thread, query.parent, query.label, query.owner, query.decider)
    if "\0" in "".join(texts):
        return Page(items=())  # Postgres text has no NUL, so no run matches
    before = INTEGER_MAX
    if query.cursor:
        found = await links.ask(queries.NUMBER, {"run": query.cursor})
        if not found:
            raise CursorRefused(query.cursor)
        ((before,),) = found
    values = {
        "before": before,
        "limit": limit + 1,
        "phases": list(query.phases) or None,
        "agent": query.agent or None,
        "thread": query.thread or None,
        "parent": query.parent or None,
        "label": query.label or None,
        "owner": query.owner or None,
        "decider": query.decider or None,
        "attention": query.attention or None,
    }
    found = await links.ask(queries.LIST, values, prepare=False)
    items = tuple(row_of(*values) for _, *values in found[:limit])
    return Page(items=items, cursor=items[-1].run if len(found) > len(items) else "")


async def usage(links: Links, owner: str, since: Micros, *, sizes: bool) -> Usage:
    """Return the resources that the runs of `owner` use."""
    if "\0" in owner:
        return Usage()
    values = {"owner": owner, "since": since, "sizes": sizes}
    ((open_runs, runs, cost, tokens, size),) = await links.ask(queries.USAGE, values)
    return Usage(open_runs=open_runs, runs=runs, cost=cost, tokens=tokens, stored_bytes=size)


async def counts(links: Links) -> Mapping[Phase, int]:
    """Return the number of runs in each phase."""
    return msgspec.convert(dict(await links.ask(queries.COUNTS)), dict[Phase, int])


async def halts(links: Links) -> Sequence[Halt]:
    """Return the halts that are in force, oldest first."""
    return [
        Halt(scope=scope, by=by, reason=reason, at=at)
        for scope, by, reason, at in await links.ask(queries.HALTS)
    ]
