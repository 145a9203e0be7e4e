"""Cost of redaction: the search for secrets, and controls during large results.

Costs per megabyte and the longest slice are CPU time of this thread, the best of several
rounds. A slice blocks the event loop. A hostile text is one part, repeated to a megabyte.
"""

import sys
from base64 import b64encode
from collections.abc import Sequence
from pathlib import Path
from random import Random
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from time import perf_counter, thread_time
from typing import Final, NamedTuple

import anyio

from bench.figures import Figure, print_figures
from bench.raw import RawTable
from midrun import Agent, Midrun, Run, tool
from midrun.core.ids import RunId
from midrun.core.transcript import Transcript
from midrun.core.values import Json
from midrun.driver.redaction import RUN_MAX_SECRETS, SecretRegistry
from midrun.models import ScriptedModel, Use
from midrun.models.scripted import Line

MB: Final = 1_000_000
ROUNDS: Final = 5

HOSTILE: Final = ("a", "a_key_", "eyJ", ".eyJaaaaaaa", "sk-", "pin=12345 ", "-----BEGIN ")
"""Parts of texts that took up to 1.7 s per megabyte, or might."""

DENSE: Final = ("=", "=a", "d=", "key=", "api_key=", "password=,", "://a:", "bearer ", "://")
"""Parts that could begin a secret every few characters: the most expensive known texts."""

RESULT_CHARS: Final = 8 * 1024 * 1024 - 4096
RESULTS: Final = 8
ALONE: Final = 200


class Cost(NamedTuple):
    """Milliseconds per megabyte, and of the longest slice."""

    total: float
    longest: float


def figures() -> Sequence[Figure]:
    """Measure the search, then controls during large results."""
    docs = "".join(path.read_text() for path in sorted(Path("docs/adr").rglob("*.md")))
    code = "".join(path.read_text() for path in sorted(Path("src").rglob("*.py")))
    base64 = b64encode(Random(7).randbytes(MB)).decode()  # noqa: S311 - any bytes will do
    leaves = [{"id": n, "name": f"item {n}"} for n in range(30_000)]
    bounded: dict[str, list[Json]] = {
        "ordinary text": [(docs * (MB // len(docs) + 1))[:MB]],
        "base64": [f"{base64[: MB - 9]} the key"],
        "hostile text": [_repeated(part) for part in HOSTILE],
    }
    others: dict[str, list[Json]] = {
        "source code": [code[:MB]],
        "the slowest known text": [_repeated(part) for part in DENSE],
        "60,000 short texts": [leaves],
    }
    costs = {name: _worst(values) for name, values in {**bounded, **others}.items()}
    many = f"base64, {RUN_MAX_SECRETS} secrets known"
    costs[many] = _cost(base64[:MB], secrets=RUN_MAX_SECRETS)
    measured = [
        Figure(
            name=f"search for secrets, {name}",
            value=cost.total,
            unit="ms/MB",
            at_most=20 if name in bounded else None,
            detail=f"longest slice {cost.longest:.2f} ms",
        )
        for name, cost in costs.items()
    ]
    longest = max(costs.values(), key=lambda cost: cost.longest).longest
    measured.append(Figure(name="… the longest slice", value=longest, unit="ms", at_most=5))
    with TemporaryDirectory(prefix="midrun-bench-", dir=".") as folder:
        return [*measured, *anyio.run(_measure_controls, Path(folder))]


def _repeated(part: str) -> str:
    return (part * (MB // len(part) + 1))[:MB]


def _worst(values: Sequence[Json]) -> Cost:
    costs = [_cost(value) for value in values]
    return Cost(max(cost.total for cost in costs), max(cost.longest for cost in costs))


def _cost(value: Json, secrets: int = 0) -> Cost:
    rounds: list[Cost] = []
    for _ in range(ROUNDS):
        vault = SecretRegistry(redact=True, key=b"bench").get_run(RunId("run_bench"))
        for n in range(secrets):
            vault.redact(b64encode(Random(n).randbytes(15)).decode())  # noqa: S311 - as above
        steps = vault.redactor.redact_value(value)
        longest, started = 0.0, thread_time()
        last = started
        while next(steps, steps) is None:
            now = thread_time()
            longest, last = max(longest, now - last), now
        now = thread_time()
        rounds.append(Cost((now - started) * 1e3, max(longest, now - last) * 1e3))
    return Cost(min(one.total for one in rounds), min(one.longest for one in rounds))


async def _measure_controls(folder: Path) -> list[Figure]:
    """Measure controls of one run, alone and while another run returns large results."""
    text = ("an ordinary line: with a value = 7, and some more words\n" * MB)[:RESULT_CHARS]

    @tool
    async def fetch(n: int) -> str:
        return f"{n}{text}"

    @tool
    async def wait_for_cancel() -> None:
        await anyio.sleep_forever()

    def turn(messages: Transcript) -> Line:
        return (
            Use("fetch", n=messages.assistant_turn_count)
            if messages.assistant_turn_count < RESULTS
            else "Done."
        )

    large = Agent("large", model=ScriptedModel(turn), tools=[fetch])
    small = Agent(
        "small", model=ScriptedModel(lambda _: Use("wait_for_cancel")), tools=[wait_for_cancel]
    )
    raw = _raw_commit(folder / "raw.db")
    path = f"sqlite:///{folder / 'beside.db'}"
    async with Midrun(path, agents=[large, small]) as midrun:
        run = await midrun.start("small", "wait")
        alone = [await _control(run) for _ in range(ALONE)]
        beside: list[float] = []
        other = await midrun.start("large", "fetch")
        async with anyio.create_task_group() as tasks:

            async def finish() -> None:
                await other.result()
                tasks.cancel_scope.cancel()

            tasks.start_soon(finish)
            while True:
                beside.append(await _control(run))
        await run.cancel()
    before, during = median(alone) * 1e3, median(beside) * 1e3
    p95 = quantiles(beside, n=20)[-1] * 1e3
    return [
        Figure(
            name="delay of a control by 8 MiB results of another run",
            value=during - before,
            unit="ms",
            at_most=20,
            detail=f"medians: {before:.1f} ms alone, {during:.1f} ms during them; 95 % within "
            f"{p95:.0f} ms, all within {max(beside) * 1e3:.0f} ms (a raw commit of 8 MiB, "
            f"which blocks all other writers in SQLite: {raw * 1e3:.0f} ms)",
        )
    ]


async def _control(run: Run) -> float:
    started = perf_counter()
    await run.say("go on")
    return perf_counter() - started


def _raw_commit(path: Path) -> float:
    """Return the seconds of the fastest commit of 8 MiB in SQLite."""
    table = RawTable(path)
    fastest = min(table.commit(b"x" * RESULT_CHARS) for _ in range(ROUNDS))
    table.close()
    return fastest


if __name__ == "__main__":
    sys.exit(print_figures(figures()))
