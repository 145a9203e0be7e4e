"""The outside world: what calls did to it, and how often. It knows nothing of journals.

It keeps its side of the contract: the far end of an idempotent tool dedupes on the key, an undo
under a known key is not done twice, and what was undone leaves a tombstone that refuses an
effect which arrives too late.
"""

from collections import Counter

from midrun.core.values import Effect


class Child:
    """A child run, seen from its parent: some work, and perhaps a question."""

    __slots__ = ("answered", "asks", "ended", "left")

    def __init__(self, *, asks: bool, left: int) -> None:
        self.asks = asks
        self.left = left
        self.answered = False
        self.ended = ""


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
            if key in self.children:
                self.children[key].ended = self.children[key].ended or "cancelled"
            self.seen.append(f"release {key[:6]}")
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
