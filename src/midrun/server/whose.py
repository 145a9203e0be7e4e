"""Whose turn it is: where a run stands, in words that are true for whoever looks, just now."""

from msgspec.structs import replace

from midrun.core.signs import Sign, halting, unheard_of
from midrun.ports.store import Halt


def seen_as(sign: Sign, *, theirs: bool, lost: bool, workers: int, halt: Halt | None) -> Sign:
    """Return the sign as it is at this moment, for whoever looks.

    `theirs`: what it waits for is theirs to decide. `lost`: nobody hears from its driver.
    `workers` is how many there are to take it, `halt` the latch that it is under.
    """
    if lost:
        return unheard_of(sign)
    if halt is not None and sign.look in {"running", "pausing", "cancelling"}:
        return halting(sign, halt.by)
    if halt is not None and sign.look == "queued":
        return replace(sign, note="nothing of it starts until the halt is lifted")
    if sign.look == "queued" and not workers:
        return replace(sign, note="no worker is there to take it")
    return _to_whom(sign, theirs=theirs)


def _to_whom(sign: Sign, *, theirs: bool) -> Sign:
    if sign.look != "waiting" or not sign.word.endswith("a person"):
        return sign
    word = "Waiting for you" if theirs else "Waiting for somebody else"
    return replace(sign, word=word, said=f"{word}: {sign.note}")
