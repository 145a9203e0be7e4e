"""Adoption: lines of another store, checked as if an enemy had written them."""

from collections.abc import Sequence

from msgspec import Struct

from midrun.codec.chain import Chain
from midrun.codec.journal import decode_line, line_of
from midrun.core.entries import LeaseTaken, Record
from midrun.core.evolve import fold
from midrun.core.ids import Epoch, Micros, RunId, Seq
from midrun.core.state import State
from midrun.errors import JournalCorrupt, JournalTooNew, NotJson, TooLarge
from midrun.ports.store import Appended
from midrun.stores.rules import Stamped, check_new_id


class Adopted(Struct, frozen=True, kw_only=True):
    """A journal that was found sound, ready to be stored byte for byte."""

    stamped: Stamped
    epoch: Epoch
    started_at: Micros


def adopted(run: RunId, lines: Sequence[bytes], chain: Chain) -> Adopted:
    """Return `lines` with the hashes that they have in a journal of `run` here.

    Raises:
        JournalCorrupt: with the first seq that no midrun could have written so.
        JournalTooNew: with the first seq that a newer one did.
    """
    check_new_id(run)
    state, link, epoch = State(run=run), chain.first(run), Epoch(0)
    records: list[Record] = []
    hashed: list[tuple[bytes, bytes]] = []
    for seq, data in enumerate(lines, start=1):
        record = decode_line(data, run=run, seq=Seq(seq))
        sound = _canonical(run, record, data)
        if records and record.at < records[-1].at:
            raise JournalCorrupt(run, seq, "it is older than the entry before it")
        if isinstance(record.entry, LeaseTaken):
            epoch = max(epoch, record.entry.epoch)
        state = _followed(state, record)
        link = chain.next(link, sound)
        records.append(record)
        hashed.append((sound, link))
    if not records:
        raise JournalCorrupt(run, 1, "a journal begins with RunStarted")
    new = Appended(seq=records[-1].seq, at=records[-1].at, hash=link)
    stamped = Stamped(lines=tuple(hashed), appended=new)
    return Adopted(stamped=stamped, epoch=epoch, started_at=records[0].at)


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
