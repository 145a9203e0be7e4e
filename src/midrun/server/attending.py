"""Who attends to a run right now by a protocol in which leaving means something."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from midrun.core.ids import RunId


class Attending:
    """Counts the streams of each run."""

    def __init__(self) -> None:
        self._count: Counter[RunId] = Counter()

    @contextmanager
    def of(self, run: RunId) -> Iterator[None]:
        """Attend for as long as the context is open."""
        self._count[run] += 1
        try:
            yield
        finally:
            self._count[run] -= 1
            if not self._count[run]:
                del self._count[run]

    def anybody(self, run: RunId) -> bool:
        """Tell whether somebody attends."""
        return run in self._count
