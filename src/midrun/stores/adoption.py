"""Adoption: lines of another store, checked as if an enemy had written them."""

from collections.abc import Sequence

from msgspec import Struct

from midrun.codec.chain import PLAIN, Chain, check_import
from midrun.codec.journal import decode_line, encode_entry, line_of
from midrun.core.entries import LeaseTaken, Record, RunImported
from midrun.core.evolve import fold
from midrun.core.ids import Epoch, Micros, RunId, Seq
from midrun.core.state import State
from midrun.errors import JournalCorrupt, JournalTooNew, NotJson, TooLarge
from midrun.stores.rules import Stamped, Standing, check_new_id, stamp


class Adopted(Struct, frozen=True, kw_only=True):
    """A journal that was found sound, ready to be stored byte for byte.

    `end` is where the lines end. The entry that says who brought them follows in the same
    write, so that no reader ever sees them without it.
    """

    lines: tuple[tuple[bytes, bytes], ...]
    end: Standing
    started_at: Micros
    imported: bytes  # the body of the entry

    def stamp(self, chain: Chain, now: Micros) -> Stamped:
        """Return all lines, with the entry that records their import as the last."""
        last = stamp(self.end, [self.imported], chain=chain, now=now, epoch=None)
        return Stamped(lines=(*self.lines, *last.lines), appended=last.appended)


def adopted(run: RunId, lines: Sequence[bytes], imported: RunImported, chain: Chain) -> Adopted:
    """Return `lines` with the hashes that they have in a journal of `run` here.

    Raises:
        JournalCorrupt: with the first seq that no midrun could have written so.
        JournalTooNew: with the first seq that a newer one did.
        ValueError: `imported` names another head than that of `lines`.
    """
    check_new_id(run)
    state, link, epoch = State(run=run), chain.first(run), Epoch(0)
    plain = PLAIN.first(run)  # as the lines were chained where they came from
    records: list[Record] = []
    hashed: list[tuple[bytes, bytes]] = []
    for seq, data in enumerate(lines, start=1):
        record = decode_line(data, run=run, seq=Seq(seq))
        sound = _canonical(run, record, data)
        if records and record.at < records[-1].at:
            raise JournalCorrupt(run, seq, "it is older than the entry before it")
        if isinstance(record.entry, LeaseTaken):
            epoch = max(epoch, record.entry.epoch)
        check_import(run, record, plain)
        state = _followed(state, record)
        link, plain = chain.next(link, sound), PLAIN.next(plain, sound)
        records.append(record)
        hashed.append((sound, link))
    if not records:
        raise JournalCorrupt(run, 1, "a journal begins with RunStarted")
    if imported.head != plain.hex():
        raise ValueError(
            f"Cannot import run {run}: the entry names another head than that of the lines."
        )
    _followed(state, Record(seq=Seq(state.seq + 1), at=state.at, entry=imported))
    end = Standing(run=run, seq=state.seq, hash=link, at=records[-1].at, epoch=epoch, holder="")
    return Adopted(
        lines=tuple(hashed), end=end, started_at=records[0].at, imported=encode_entry(imported)
    )


def _canonical(run: RunId, record: Record, data: bytes) -> bytes:
    """Return the one line that says `record`, which must be what was brought."""
    try:
        sound = line_of(record)
    except (NotJson, TooLarge) as refusal:
        raise JournalCorrupt(run, record.seq, str(refusal)) from None
    if sound != data:
        raise JournalCorrupt(run, record.seq, "the line is not canonical")
    return sound


def _followed(state: State, record: Record) -> State:
    try:
        return fold(state.run, [record], state)
    except (JournalCorrupt, JournalTooNew):
        raise
    except Exception as error:  # a fold relies on what only a sound journal has
        problem = f"{type(record.entry).__name__} cannot stand here: {type(error).__name__}"
        raise JournalCorrupt(state.run, record.seq, problem) from error
