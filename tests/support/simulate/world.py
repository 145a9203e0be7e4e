"""The outside world: what calls did to it, and how often. It knows nothing of journals.

It keeps its side of the contract: the far end of an idempotent tool dedupes on the key, an undo
under a known key is not done twice, and what was undone leaves a tombstone that refuses an
effect which arrives too late.
"""

from collections import Counter

from midrun.core.values import Effect


class Child:
    """A child run, seen from its parent: some work that can be undone, and what it asks.

    What it asks may be a question, or that somebody raises its cap: to its parent both are
    asks. `given` counts what was decided, `did` the effects that are there.
    """

    __slots__ = ("asks", "did", "ended", "fails", "given", "left")

    def __init__(self, *, asks: int, left: int, fails: bool) -> None:
        self.asks = asks
        self.left = left
        self.fails = fails
        self.did = 0
        self.given = 0
        self.ended = ""  # or completed, or cancelled


class World:
    """Everything outside of the processes."""

    def __init__(self, undo_failures: int) -> None:
        self.acts: Counter[str] = Counter()
        self.undone: Counter[str] = Counter()
        self.released: Counter[str] = Counter()
        self.held: set[str] = set()
        self.buried: set[str] = set()
        self.keys: set[str] = set()
        self.children: dict[str, Child] = {}  # by the key of the call that started them
        self.undo_failures = undo_failures
        self.seen: list[str] = []

    def act(self, key: str, effect: Effect, *, holds: bool = False) -> bool:
        """Let a call take effect; False if a tombstone refuses it."""
        if key in self.buried:
            self.seen.append(f"refused {key[:6]}")
            return False
        if effect is Effect.READ:
            return True
        if effect is Effect.IDEMPOTENT and self.acts[key]:
            return True
        self.acts[key] += 1
        self.seen.append(f"act {key[:6]}")
        if holds:
            self.held.add(key)
        return True

    def undo(self, key: str, undo_key: str) -> bool:
        """Take an effect back, or do nothing if there was none; False if that failed."""
        if fails := self._fails():
            self.seen.append(f"undo {fails} {key[:6]}")
        if fails == "before":
            return False
        self.buried.add(key)
        if undo_key not in self.keys and self.acts[key]:
            self.keys.add(undo_key)
            self.undone[key] += 1
            self.seen.append(f"undo {key[:6]}")
        return not fails

    def release(self, key: str, release_key: str) -> bool:
        """Give a held resource back; False if that failed."""
        if fails := self._fails():
            self.seen.append(f"release {fails} {key[:6]}")
        if fails == "before":
            return False
        self.buried.add(key)
        if release_key not in self.keys:
            self.keys.add(release_key)
            self.released[key] += 1
            self.held.discard(key)
            self.seen.append(f"release {key[:6]}")
        return not fails

    def end_child(self, key: str, *, undo_all: bool) -> bool:
        """Cancel a child run, or take back what one did that has ended; False if that failed.

        What it had finished stays, unless everything is to be undone.
        """
        child = self.children.get(key)
        fails = self._fails() if child is not None else ""
        if child is None or fails == "before":
            return not fails
        child.ended = child.ended or "cancelled"
        child.did = 0 if undo_all else child.did
        self.seen.append(f"end {key[:6]}")
        return not fails

    def _fails(self) -> str:
        """Return whether an undo fails before it did anything, or after, or not at all."""
        if self.undo_failures <= 0:
            return ""
        self.undo_failures -= 1
        return "after" if self.undo_failures % 3 == 1 else "before"

    def happened(self, key: str) -> bool:
        """Tell whether a call took effect, as its tool's `check` or a careful person would."""
        return self.acts[key] > 0
