"""The scheduler: threads are generators, and a seeded picker selects the next thread.

A thread yields the condition that it waits for, or None if it can continue at once. Between two
yields no other thread runs, so that code is atomic.
"""

from collections.abc import Callable, Generator
from random import Random
from typing import Final

Condition = Callable[[], bool] | None
Steps = Generator[Condition, None, None]
Picker = Callable[[list["Thread"], int], "Thread"]

PCT_STEPS: Final = 90
"""Priorities of a PCT schedule change within its first steps; most schedules have as many."""


class Process:
    """Threads that crash, freeze and wake up together; `lapsed`: its lease has expired."""

    __slots__ = ("dead", "frozen", "kind", "lapsed", "name")

    def __init__(self, name: str, kind: str) -> None:
        self.name = name
        self.kind = kind
        self.dead = False
        self.frozen = False
        self.lapsed = False


class Thread:
    """One thread of a process."""

    __slots__ = ("priority", "process", "ready", "steps")

    def __init__(self, steps: Steps, process: Process) -> None:
        self.steps = steps
        self.process = process
        self.ready: Condition = None
        self.priority = 0.0


class Scheduler:
    """Runs one step of one thread at a time."""

    def __init__(self, picker: Picker) -> None:
        self.threads: list[Thread] = []
        self.step_count = 0
        self._picker = picker

    def spawn(self, steps: Steps, process: Process) -> None:
        """Add a thread."""
        self.threads.append(Thread(steps, process))

    def list_enabled(self) -> list[Thread]:
        """Return the threads that can continue now."""
        return [
            thread
            for thread in self.threads
            if (thread.ready is None or thread.ready()) and not thread.process.frozen
        ]

    def is_ready(self, thread: Thread) -> bool:
        """Return whether `thread` can continue now."""
        return not thread.process.frozen and (thread.ready is None or thread.ready())

    def pick(self, enabled: list[Thread]) -> Thread:
        """Return the next thread."""
        self.step_count += 1
        return self._picker(enabled, self.step_count)

    def step(self, thread: Thread) -> None:
        """Run `thread` to its next yield."""
        if thread.process.dead:
            self.threads.remove(thread)
            return
        try:
            thread.ready = next(thread.steps)
        except StopIteration:
            if thread in self.threads:
                self.threads.remove(thread)

    def kill(self, process: Process) -> None:
        """Remove all threads of `process`."""
        process.dead = True
        self.threads = [thread for thread in self.threads if thread.process is not process]


def make_random_picker(rng: Random) -> Picker:
    """Return a picker that selects uniformly."""

    def pick(enabled: list[Thread], _: int) -> Thread:
        return enabled[int(rng.random() * len(enabled))]

    return pick


def make_priority_picker(rng: Random, depth: int) -> Picker:
    """Return a picker that selects the highest priority; priorities change `depth` - 1 times.

    This is PCT (Burckhardt et al., 2010): the probability to find a fault that needs `depth`
    ordered steps has a lower bound, which does not shrink exponentially with the steps.
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
