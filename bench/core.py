"""Cost of a long journal without a disk: encode, verify, decode, fold, load, decide."""

import sys
from collections.abc import Callable, Sequence
from time import perf_counter

import anyio

from bench.figures import Figure, print_figures
from midrun.codec.hash_chain import UNKEYED_CHAIN
from midrun.codec.journal import decode_lines, encode_entry, format_line, hash_line, hash_run_id
from midrun.core.controls import Pause
from midrun.core.decide import decide
from midrun.core.entries import CallDone, CallStarted, Entry, LeaseTaken, Record, RunStarted
from midrun.core.evolve import evolve, fold
from midrun.core.ids import MICROS_PER_SECOND, Epoch, Micros, RunId, Seq, make_call_id
from midrun.core.run_head import build_head
from midrun.core.scheduler import advance, list_effects
from midrun.core.state import State
from midrun.core.values import Reply, RequestedCall, Spend
from midrun.driver.journal_writer import load_run_state, save_snapshot_if_due
from midrun.ports.store import Lease
from midrun.stores.memory import MemoryStore

ENTRIES = 10_000
RUN = RunId("run_bench")
E1 = Epoch(1)


def figures() -> Sequence[Figure]:
    """Measure a journal of 10,000 entries: model calls of 300 B, tool results of 500 B."""
    records = _journal()
    early, late = fold(RUN, records[:10]), fold(RUN, records)
    folding = _best(lambda: fold(RUN, records), 1)
    first, last = (_best(_make_evolve(state), 2000) for state in (early, late))
    deciding = _best(
        lambda: (advance(late, late.at), list_effects(late), decide(late, Pause(), late.at)),
        2000,
    )
    plain, snapped = anyio.run(_measure_load, [record.entry for record in records])
    return [
        Figure(name="fold 10,000 entries", value=folding * 1e3, unit="ms", at_most=100),
        Figure(name="load 10,000 entries", value=plain * 1e3, unit="ms"),
        Figure(name="… with a snapshot", value=snapped * 1e3, unit="ms", at_most=20),
        Figure(name="evolve: entry 10,000 / entry 10", value=last / first, at_most=1.5),
        Figure(name="plan and decide at 10,000", value=deciding * 1e6, unit="µs"),
        *_measure_codec([record.entry for record in records]),
    ]


def _measure_codec(entries: Sequence[Entry]) -> list[Figure]:
    bodies = [encode_entry(entry) for entry in entries]
    pairs, link = [], hash_run_id(RUN)
    for seq, body in enumerate(bodies, start=1):
        data = format_line(body, seq=Seq(seq), at=Micros(1), epoch=E1)
        link = hash_line(link, data)
        pairs.append((data, link))
    lines = UNKEYED_CHAIN.verify_lines(RUN, pairs)
    works: dict[str, Callable[[], object]] = {
        "encode": lambda: [encode_entry(entry) for entry in entries],
        "verify the chain of": lambda: UNKEYED_CHAIN.verify_lines(RUN, pairs),
        "decode": lambda: decode_lines(RUN, lines),
    }
    return [
        Figure(name=f"{verb} an entry", value=_best(work, 1) / ENTRIES * 1e6, unit="µs")
        for verb, work in works.items()
    ]


def _journal() -> list[Record]:
    entries: list[Entry] = [RunStarted(agent="bench", task="t"), LeaseTaken(epoch=E1)]
    number = 0
    while len(entries) < ENTRIES - 1:
        number += 2
        use = RequestedCall(tool="search", args={"q": str(number)})
        model, tool = make_call_id(number - 1), make_call_id(number)
        entries += [
            CallStarted(call=model, call_kind="model", attempt=1, seen=Seq(len(entries))),
            CallDone(
                call=model,
                reply=Reply(text="x" * 300, uses=(use,)),
                spent=Spend(tokens=10),
            ),
            CallStarted(call=tool, call_kind="tool", attempt=1, seen=Seq(len(entries) + 2)),
            CallDone(call=tool, result={"text": "y" * 500}),
        ]
    return [
        Record(seq=Seq(seq), at=Micros(seq * MICROS_PER_SECOND), entry=entry)
        for seq, entry in enumerate(entries, start=1)
    ]


def _make_evolve(state: State) -> Callable[[], object]:
    call = make_call_id(len(state.calls) + 1)
    entry = CallStarted(call=call, call_kind="model", attempt=1, seen=state.seq)
    return lambda: evolve(state, entry, state.at)


async def _measure_load(entries: list[Entry]) -> tuple[float, float]:
    """Return the seconds of a load without and with the newest snapshot."""
    store = MemoryStore()
    state = State(run=RUN)
    lease = Lease(run=RUN, holder="bench", epoch=E1)
    state = evolve(state, entries[0], Micros(0))
    await store.create(RUN, entries[:1], head=build_head(state))
    taken = evolve(state, entries[1], Micros(0))
    await store.take_lease(
        RUN, entries[1:2], after=Seq(1), holder="bench", head=build_head(taken)
    )
    appended = await store.append(RUN, entries[2:], after=Seq(2), lease=lease, head=None)
    started = perf_counter()
    state = await load_run_state(store, RUN)
    plain = perf_counter() - started
    await save_snapshot_if_due(store, state, appended)
    times = []
    for _ in range(5):
        started = perf_counter()
        await load_run_state(store, RUN)
        times.append(perf_counter() - started)
    return plain, sorted(times)[2]


def _best(work: Callable[[], object], times: int) -> float:
    """Return the seconds of the fastest of five rounds of `work`."""
    best = float("inf")
    for _ in range(5):
        started = perf_counter()
        for _ in range(times):
            work()
        best = min(best, (perf_counter() - started) / times)
    return best


if __name__ == "__main__":
    sys.exit(print_figures(figures()))
