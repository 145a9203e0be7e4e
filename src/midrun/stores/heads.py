"""Heads and rows as they are stored. What cannot be is refused before anything is written."""

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import Struct

from midrun.codec.strict import INTEGER_MAX
from midrun.core.head import NAME_MAX_CHARS, Head
from midrun.core.ids import Epoch, Micros, RunId, Seq
from midrun.core.values import Phase
from midrun.errors import NotJson, TooLarge
from midrun.ports.store import RunRow

_ENCODER: Final = msgspec.json.Encoder(order="sorted")
_DECODER: Final = msgspec.json.Decoder(Head)


INDEXED: Final = (
    *("phase", "agent", "thread", "parent", "owner", "attention", "wake_at"),
    "labels",
)
"""The fields of a head that the SQL stores keep in columns, too."""

ROW_COLUMNS: Final = 8
"""How many columns `row_of` takes; those that are indexed come after them."""


class StoredHead(Struct, frozen=True, gc=False):
    """A head exactly as it will be read back, and the bytes that say it."""

    head: Head
    body: bytes


def stored(head: Head) -> StoredHead:
    """Return `head` as every store keeps it.

    Raises:
        NotJson: a field of it has no place in a store; `path` names it.
    """
    try:
        body = _ENCODER.encode(head)
        back = _DECODER.decode(body)
    except (TypeError, ValueError) as error:
        raise NotJson(f"$.head{_culprit(head)}", str(error)) from None
    if back != head:
        raise NotJson(f"$.head{_culprit(head)}", "a value of another type")
    for number in (back.asks, back.step, back.wake_at or 0):
        if not -INTEGER_MAX <= number <= INTEGER_MAX:
            raise NotJson(f"$.head{_culprit(head)}", f"integer beyond ±{INTEGER_MAX}")
    return StoredHead(back, body)


def stored_first(head: Head) -> StoredHead:
    """Return the head of a new run as every store keeps it.

    Postgres cannot index more than about 2,700 bytes, so the names of a new run are bounded in
    every store. A run that a store already has keeps its names and goes on.

    Raises:
        NotJson: a field of it has no place in a store.
        TooLarge: a name is longer than `NAME_MAX_CHARS`; `path` names it.
    """
    kept = stored(head)
    names = {name: getattr(head, name) for name in ("agent", "thread", "parent", "owner")}
    names |= {f"labels[{number}]": label for number, label in enumerate(head.labels)}
    for field, name in names.items():
        if len(name) > NAME_MAX_CHARS:
            raise TooLarge(f"$.head.{field}", len(name), NAME_MAX_CHARS)
    return kept


def read_head(body: bytes) -> Head:
    """Return the head that `body` says.

    Raises:
        msgspec.MsgspecError: nobody stored it like that.
    """
    if not isinstance(body, bytes):  # where a page was torn there may be nothing at all
        raise msgspec.ValidationError(f"a head of type {type(body).__name__}")
    return _DECODER.decode(body)


def row_of(
    run: RunId,
    head: bytes,
    seq: Seq,
    link: bytes,
    epoch: Epoch,
    holder: str,
    started_at: Micros,
    changed_at: Micros,
) -> RunRow:
    """Return a row from its columns, in the order in which the stores' queries name them."""
    return RunRow(
        run=run,
        head=read_head(head),
        seq=seq,
        hash=link,
        epoch=epoch,
        holder=holder,
        started_at=started_at,
        changed_at=changed_at,
    )


def index_of(values: Sequence[object]) -> dict[str, object]:
    """Return the indexed columns of a run by name; queries name them in that order."""
    return dict(zip(INDEXED, values, strict=True))


def _culprit(head: Head) -> str:
    """Return the field that cannot be stored, as the end of a path."""
    for name in Head.__struct_fields__:
        held = getattr(head, name)
        try:
            back = _DECODER.decode(_ENCODER.encode({"phase": Phase.QUEUED, name: held}))
        except (TypeError, ValueError):
            return f".{name}"
        number = held if type(held) is int else 0
        if getattr(back, name) != held or not -INTEGER_MAX <= number <= INTEGER_MAX:
            return f".{name}"
    return ""
