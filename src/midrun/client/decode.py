"""Reading the wire: from what a server shows to the values that `Run` returns.

On the wire every field is there and times are RFC 3339; in code a time is a number. Fields that
a newer server has besides are passed over.
"""

from collections.abc import Callable, Mapping
from datetime import datetime
from functools import cache
from typing import Final, TypeVar, cast, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Struct

from midrun.core.entries import KINDS, Entry
from midrun.core.ids import Epoch, Micros, RunId, Seq, micros_of
from midrun.core.run_head import Head
from midrun.core.values import Json, Phase
from midrun.driver.live import Delta
from midrun.errors import JournalTooNew
from midrun.ports.store import RunRow
from midrun.runs.values import Happened

S = TypeVar("S", bound=Struct)

_KINDS: Final[Mapping[str, type[Entry]]] = {kind.__name__: kind for kind in KINDS}

_Mend = Callable[[object], object]


class ShownEvent(Struct, frozen=True, kw_only=True):
    """An entry as a feed shows it; `data` is the entry."""

    seq: Seq
    ts: Micros
    run_id: RunId
    epoch: Epoch | None = None
    data: dict[str, Json]


class RunLine(Struct, frozen=True, kw_only=True):
    """A run as lists show it."""

    run_id: RunId
    phase: Phase
    agent: str
    task: str
    thread: str
    labels: tuple[str, ...]
    parent: RunId
    attention: str
    asks: int
    step: int
    holder: str
    epoch: Epoch
    wake_at: Micros | None
    seq: Seq
    head_hash: str
    started_at: Micros
    changed_at: Micros


def read(kind: type[S], data: object) -> S:
    """Return the value of `kind` that `data`, decoded from JSON, shows.

    Raises:
        msgspec.ValidationError: it shows something else.
    """
    mend = _mending(kind)
    return msgspec.convert(data if mend is None else mend(data), kind)


def happened(data: object) -> Happened:
    """Return the entry that an event of a feed is.

    Raises:
        JournalTooNew: this version does not know such an entry.
    """
    event = read(ShownEvent, data)
    name = str(event.data.get("kind"))
    kind = _KINDS.get(name)
    if kind is None:
        raise JournalTooNew(event.run_id, event.seq, name)
    entry = read(cast("type[Struct]", kind), event.data)
    return Happened(
        seq=event.seq, at=event.ts, kind=name, entry=cast("Entry", entry), epoch=event.epoch
    )


def delta(data: object) -> Delta:
    """Return what was live."""
    return read(Delta, data)


def row(line: RunLine) -> RunRow:
    """Return a run of a list as a store would have it."""
    head = Head(
        phase=line.phase,
        agent=line.agent,
        task=line.task,
        thread=line.thread,
        labels=line.labels,
        parent=line.parent,
        attention=line.attention,
        asks=line.asks,
        step=line.step,
        leased=bool(line.holder),
        wake_at=line.wake_at,
    )
    return RunRow(
        run=line.run_id,
        head=head,
        seq=line.seq,
        hash=bytes.fromhex(line.head_hash),
        epoch=line.epoch,
        holder=line.holder,
        started_at=line.started_at,
        changed_at=line.changed_at,
    )


def micros(text: object) -> object:
    """Return a time as a number; what is no text is left for the schema to refuse."""
    if not isinstance(text, str):
        return text
    try:
        return micros_of(datetime.fromisoformat(text))
    except (ValueError, TypeError):
        return text


@cache
def _mending(hint: object) -> _Mend | None:
    """Return what turns data of the wire into data of that type; None if it is so already."""
    if hint is Micros:
        return micros
    if isinstance(hint, type) and issubclass(hint, Struct):
        return _struct(hint)
    inner = [mend for arg in get_args(hint) if (mend := _mending(arg)) is not None]
    if not inner:
        return None
    if get_origin(hint) is tuple:
        return lambda data: _items(inner[0], data)
    if get_origin(hint) is dict:
        return lambda data: _values(inner[0], data)
    # Maybe a value, maybe nothing. Of several structs the tag decides: none of those has times.
    return inner[0] if len(inner) == 1 else None


def _struct(kind: type[Struct]) -> _Mend:
    tag = kind.__struct_config__.tag_field

    @cache
    def fields() -> dict[str, _Mend | None]:  # when it is needed: a struct may hold itself
        hints = get_type_hints(kind)
        return {name: _mending(hints[name]) for name in kind.__struct_fields__}

    def mend(data: object) -> object:
        if not isinstance(data, dict):
            return data
        known = fields()
        made: dict[str, object] = {}
        for name, value in data.items():
            if name in known:
                by = known[name]
                made[name] = value if by is None else by(value)
            elif name == tag:
                made[name] = value
        return made

    return mend


def _items(mend: _Mend, data: object) -> object:
    return [mend(item) for item in data] if isinstance(data, list) else data


def _values(mend: _Mend, data: object) -> object:
    return {key: mend(value) for key, value in data.items()} if isinstance(data, dict) else data
