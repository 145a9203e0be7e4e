"""The scheduler: threads are generators, processes sets of them, and a seed picks who is next.

A thread yields what it waits for, as a function, or None when it could go on at once. Between
two yields it is alone: that is what a transaction is here.
"""

from collections.abc import Callable, Generator
from random import Random
from typing import Final

Ready = Callable[[], bool] | None
Steps = Generator[Ready, None, None]
Picker = Callable[[list["Thread"], int], "Thread"]

PCT_STEPS: Final = 90
"""Where the priorities of a PCT schedule change: about as many steps as a schedule takes."""


class Process:
    """What crashes, freezes and wakes up as one. `lapsed`: its heartbeat is not heard."""

    __slots__ = ("dead", "frozen", "kind", "lapsed", "name")

    def __init__(self, name: str, kind: str) -> None:
        self.name = name
        self.kind = kind
        self.dead = False
        self.frozen = False
        self.lapsed = False


class Thread:
    """One line of execution inside a process."""

    __slots__ = ("priority", "process", "ready", "steps")

    def __init__(self, steps: Steps, process: Process) -> None:
        self.steps = steps
        self.process = process
        self.ready: Ready = None
        self.priority = 0.0


class Scheduler:
    """Runs one thread at a time, one step at a time."""

    def __init__(self, picker: Picker) -> None:
        self.threads: list[Thread] = []
        self.step_count = 0
        self._picker = picker

    def spawn(self, steps: Steps, process: Process) -> None:
        """Add a thread; it has not begun."""
        self.threads.append(Thread(steps, process))

    def list_enabled(self) -> list[Thread]:
        """Return the threads that could go on now."""
        return [
            thread
            for thread in self.threads
            if (thread.ready is None or thread.ready()) and not thread.process.frozen
        ]

    def is_ready(self, thread: Thread) -> bool:
        """Tell whether `thread` could go on now."""
        return not thread.process.frozen and (thread.ready is None or thread.ready())

    def pick(self, enabled: list[Thread]) -> Thread:
        """Return whose turn it is."""
        self.step_count += 1
        return self._picker(enabled, self.step_count)

    def step(self, thread: Thread) -> None:
        """Let `thread` go on to its next yield."""
        if thread.process.dead:
            self.threads.remove(thread)
            return
        try:
            thread.ready = next(thread.steps)
        except StopIteration:
            if thread in self.threads:
                self.threads.remove(thread)

    def kill(self, process: Process) -> None:
        """Take every thread of `process` away, wherever it stands."""
        process.dead = True
        self.threads = [thread for thread in self.threads if thread.process is not process]


def make_random_picker(rng: Random) -> Picker:
    """Return a picker that gives every thread the same chance."""

    def pick(enabled: list[Thread], _: int) -> Thread:
        return enabled[int(rng.random() * len(enabled))]

    return pick


def make_priority_picker(rng: Random, depth: int) -> Picker:
    """Return a picker that runs the highest priority, which changes at `depth` - 1 moments.

    This is PCT (Burckhardt and others, 2010): a fault that needs `depth` orderings is found
    with a probability that does not fall with the number of threads to the power of steps.
    """
    changes = {rng.randint(1, PCT_STEPS): low + 1.0 for low in range(depth - 1)}

    def pick(enabled: list[Thread], count: int) -> Thread:
        for thread in enabled:
            if not thread.priority:
                thread.priority = 1000 + rng.random()
        best = max(enabled, key=_priority)
        if count in changes:
            best.priority = changes[count]
            best = max(enabled, key=_priority)
        return best

    return pick


def _priority(thread: Thread) -> float:
    return thread.priority
