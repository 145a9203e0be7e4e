"""Cost of encoding, verifying and decoding the lines of a journal."""

from collections.abc import Sequence
from time import perf_counter

from bench.figures import Figure, micros
from midrun.codec.hash_chain import UNKEYED_CHAIN
from midrun.codec.journal import decode_lines, encode_entry, format_line, hash_line, hash_run_id
from midrun.core.entries import CallDone, CallStarted, Entry
from midrun.core.ids import CallId, Epoch, Micros, RunId, Seq
from midrun.core.values import Spend

ENTRIES = 10_000
RUN = RunId("run_bench")


def figures() -> Sequence[Figure]:
    """Measure encoding, decoding and verifying of a journal of 10,000 entries."""
    entries: list[Entry] = [
        CallDone(call=CallId(f"c{n}"), result={"text": "x" * 400}, spent=Spend(tokens=9))
        if n % 2
        else CallStarted(call=CallId(f"c{n}"), call_kind="tool", attempt=1, seen=Seq(n))
        for n in range(ENTRIES)
    ]
    started = perf_counter()
    bodies = [encode_entry(entry) for entry in entries]
    encoding = perf_counter() - started
    pairs, link = [], hash_run_id(RUN)
    for seq, body in enumerate(bodies, start=1):
        data = format_line(body, seq=Seq(seq), at=Micros(1), epoch=Epoch(1))
        link = hash_line(link, data)
        pairs.append((data, link))
    started = perf_counter()
    lines = UNKEYED_CHAIN.verify_lines(RUN, pairs)
    verifying = perf_counter() - started
    started = perf_counter()
    decode_lines(RUN, lines)
    decoding = perf_counter() - started
    each = [("encode", encoding), ("verify the chain of", verifying), ("decode", decoding)]
    return [
        Figure(name=f"{action} an entry", value=micros([spent]) / ENTRIES, unit="µs")
        for action, spent in each
    ]
