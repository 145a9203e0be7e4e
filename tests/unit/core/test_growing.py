"""What grows with a run costs the same at its end as at its beginning, and survives a move."""

import zlib
from hashlib import sha256
from itertools import pairwise

from hypothesis import given as for_all
from hypothesis import strategies as st

from midrun.codec.snapshot import (
    compute_layout,
    decode_snapshot,
    encode_snapshot,
    is_snapshot_due,
)
from midrun.core import controls as c
from midrun.core import driver_inputs as v
from midrun.core.effects import CallModel
from midrun.core.entries import CallDone, HistoryCondensed, RunStarted
from midrun.core.evolve import fold
from midrun.core.history import iter_history, make_fork_entry
from midrun.core.ids import CallId, Epoch
from midrun.core.transitions import Refused
from midrun.core.values import Actor, Phase, Reply, Use
from midrun.core.vector import Vector
from midrun.testing.scenario import LEASED_RUN, RUN, given
from tests.unit.core.phases import RUNS

E1 = Epoch(1)
begun = given(*LEASED_RUN)


@for_all(
    size=st.integers(0, 2200),
    changes=st.lists(st.tuples(st.integers(0, 2199), st.integers()), max_size=20),
)
def test_a_vector_is_a_list_that_is_never_copied(
    size: int, changes: list[tuple[int, int]]
) -> None:
    """Appending, replacing and building at once all agree with a plain list."""
    plain = list(range(size))
    grown: Vector[int] = Vector()
    for item in plain:
        grown = grown.append(item)
    assert grown == Vector(plain)
    before = list(grown)
    for index, item in changes:
        if index < size:
            plain[index] = item
            grown = grown.replace(index, item)
    assert list(grown) == plain
    assert before == list(range(size))


def test_a_snapshot_of_any_phase_is_the_state_it_was_taken_of() -> None:
    """A cache that changes what it keeps would be a second truth."""
    for runs in RUNS.values():
        for run in runs:
            assert decode_snapshot(encode_snapshot(run.state)) == run.state


def test_folding_on_top_of_a_snapshot_equals_folding_everything() -> None:
    """At every position of every journal."""
    for runs in RUNS.values():
        for run in runs:
            for cut in range(1, len(run.records)):
                kept = decode_snapshot(encode_snapshot(fold(RUN, run.records[:cut])))
                assert fold(RUN, run.records[cut:], kept) == run.state


def test_a_snapshot_that_other_code_wrote_or_that_is_damaged_is_ignored() -> None:
    """It is a cache: the journal is read instead."""
    body = encode_snapshot(begun.state)
    other = zlib.compress(
        zlib.decompress(body[32:]).replace(compute_layout().encode(), b"0" * 16)
    )
    assert decode_snapshot(sha256(other).digest() + other) is None
    assert decode_snapshot(sha256(b"{}").digest() + b"{}") is None
    assert decode_snapshot(body[:-3]) is None
    assert decode_snapshot(b"") is None


def test_snapshots_are_written_at_a_distance_that_grows_with_the_journal() -> None:
    """So that their cost per entry stays constant, and a load folds a quarter at most."""
    written, last = [], 0
    for seq in range(1, 20_001):
        if is_snapshot_due(seq=seq, snapshot=last):
            written.append(seq)
            last = seq
    assert len(written) < 30
    assert sum(written) < 6 * 20_000
    assert all(b - a <= max(256, a / 4) + 1 for a, b in pairwise(written))


def test_a_history_that_outgrew_its_window_is_condensed_through_the_same_door() -> None:
    """The journal keeps everything; the model is given a summary of the oldest."""
    run = given(RunStarted(agent="clerk", task="t", window=1000), LEASED_RUN[1])
    for number in range(1, 12):
        reply = Reply(
            text=f"{number}", uses=(Use(tool="x", refused="no"),), window=100 * number
        )
        call = CallId(f"c{len(run.state.calls) + 1}")
        done = CallDone(call=call, reply=reply)
        run = run.starts(call).after(v.CloseCall(epoch=E1, outcome=done))
    condense = CallId(f"c{len(run.state.calls) + 1}")
    run = run.then(plans=(CallModel(call=condense, purpose="condense"),)).starts(condense)
    done = CallDone(call=condense, reply=Reply(text="so far: 1 to 4"))
    run = run.after(v.CloseCall(epoch=E1, outcome=done))
    condensed = run.entries[-1]
    assert isinstance(condensed, HistoryCondensed)
    assert (run.state.summary, len(run.state.messages) - run.state.condensed_count) == (
        "so far: 1 to 4",
        8,
    )
    assert run.state.meter.steps == 11
    next(iter(iter_history(run.state)))


def test_a_fork_continues_from_a_boundary_with_what_was_said_and_planned() -> None:
    """It inherits no effects: those stay the first run's, to keep or to undo."""
    run = begun.replies(Use(tool="mail", args={"to": "bo"}), text="I mail Bo.").starts("c2")
    busy = make_fork_entry(run.state, by=Actor(name="bo"))
    assert isinstance(busy, Refused)
    assert busy.reason == "not_a_boundary"
    run = run.after(v.CloseCall(epoch=E1, outcome=CallDone(call=CallId("c2"), result="sent")))
    entry = make_fork_entry(run.state, by=Actor(name="bo"), instruction="Try a letter")
    assert isinstance(entry, RunStarted)
    assert (entry.task, entry.by, entry.request) == ("Try a letter", "bo", "")
    assert entry.forked is not None
    assert (entry.forked.run, entry.forked.seq) == (RUN, run.state.seq)
    assert [m.text for m in entry.history] == [
        "Sort the mail",
        "I mail Bo.",
    ]
    (made,) = entry.history[1].made
    assert (made.tool, made.args, made.result) == ("mail", {"to": "bo"}, "sent")
    assert (
        run.state.find_call(made.call) is None
    )  # an id of its own: the fork has a c2 of its own
    forked = given(entry)
    assert (forked.state.phase, len(forked.state.calls)) == (Phase.QUEUED, 0)


def test_the_history_of_a_cancelled_run_says_that_it_is_partial() -> None:
    """The next run of the thread sees the work, and what it is worth."""
    run = begun.replies(text="half").when(c.Cancel()).advances()
    assert (
        list(iter_history(run.state))[-1].text == "That run was cancelled; its work is partial."
    )
