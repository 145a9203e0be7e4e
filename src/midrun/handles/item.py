"""Items of a feed: an entry in its place, or what is live between two of them."""

from typing import TypeAlias

from msgspec import Struct

from midrun.core.entries import Entry
from midrun.core.ids import Epoch, Micros, Seq
from midrun.driver.live import Delta


class Happened(Struct, frozen=True, kw_only=True):
    """An entry of the journal, in its place."""

    seq: Seq
    at: Micros
    kind: str
    entry: Entry
    epoch: Epoch | None = None


Item: TypeAlias = Happened | Delta
