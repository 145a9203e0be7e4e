"""The external systems that calls act on. They count effects and do not know the journal.

They keep their part of the contract: an idempotent tool dedupes by key, an undo with a known
key is not repeated, and an undone call leaves a tombstone that refuses a late effect.
"""

from collections import Counter

from midrun.core.values import Effect


class Child:
    """A child run as its parent sees it: steps with effects that can be undone, and asks.

    A question and a reached cap of the child are both asks of the parent.
    """

    __slots__ = ("answer_count", "ask_count", "effect_count", "fails", "outcome", "steps_left")

    def __init__(self, *, asks: int, left: int, fails: bool) -> None:
        self.ask_count = asks
        self.steps_left = left
        self.fails = fails
        self.effect_count = 0
        self.answer_count = 0
        self.outcome = ""  # then completed or cancelled


class World:
    """The state of all external systems."""

    def __init__(self, undo_failures: int) -> None:
        self.effect_counts: Counter[str] = Counter()
        self.undo_counts: Counter[str] = Counter()
        self.release_counts: Counter[str] = Counter()
        self.held_keys: set[str] = set()
        self.tombstones: set[str] = set()
        self.cleanup_keys: set[str] = set()
        self.children: dict[str, Child] = {}  # by the key of the call that started them
        self.undo_failures = undo_failures
        self.log: list[str] = []

    def act(self, key: str, effect: Effect, *, holds: bool = False) -> bool:
        """Let a call take effect; False if a tombstone refuses it."""
        if key in self.tombstones:
            self.log.append(f"refused {key[:6]}")
            return False
        if effect is Effect.READ:
            return True
        if effect is Effect.IDEMPOTENT and self.effect_counts[key]:
            return True
        self.effect_counts[key] += 1
        self.log.append(f"act {key[:6]}")
        if holds:
            self.held_keys.add(key)
        return True

    def undo(self, key: str, undo_key: str) -> bool:
        """Undo an effect, if there is one; False if the undo failed."""
        if fails := self._draw_failure():
            self.log.append(f"undo {fails} {key[:6]}")
        if fails == "before":
            return False
        self.tombstones.add(key)
        if undo_key not in self.cleanup_keys and self.effect_counts[key]:
            self.cleanup_keys.add(undo_key)
            self.undo_counts[key] += 1
            self.log.append(f"undo {key[:6]}")
        return not fails

    def release(self, key: str, release_key: str) -> bool:
        """Release a held resource; False if the release failed."""
        if fails := self._draw_failure():
            self.log.append(f"release {fails} {key[:6]}")
        if fails == "before":
            return False
        self.tombstones.add(key)
        if release_key not in self.cleanup_keys:
            self.cleanup_keys.add(release_key)
            self.release_counts[key] += 1
            self.held_keys.discard(key)
            self.log.append(f"release {key[:6]}")
        return not fails

    def end_child(self, key: str, *, undo_all: bool) -> bool:
        """Cancel a child run, or undo one that has ended; False if that failed.

        Finished effects stay, unless `undo_all` is set.
        """
        child = self.children.get(key)
        fails = self._draw_failure() if child is not None else ""
        if child is None or fails == "before":
            return not fails
        child.outcome = child.outcome or "cancelled"
        child.effect_count = 0 if undo_all else child.effect_count
        self.log.append(f"end {key[:6]}")
        return not fails

    def _draw_failure(self) -> str:
        """Return "before" or "after" if this undo fails before or after its effect, else ""."""
        if self.undo_failures <= 0:
            return ""
        self.undo_failures -= 1
        return "after" if self.undo_failures % 3 == 1 else "before"

    def has_happened(self, key: str) -> bool:
        """Return whether a call took effect, as its check would."""
        return self.effect_counts[key] > 0
