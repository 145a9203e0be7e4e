"""Snapshots: equal to the state that was encoded, and ignored if damaged."""

import zlib
from hashlib import sha256
from itertools import pairwise

import msgspec
import pytest

from midrun.codec.snapshot import (
    DIGEST_BYTES,
    STATE_LAYOUT,
    STATE_MEANING_VERSION,
    STEP_BYTES,
    STEP_ITEMS,
    StoredState,
    decode_snapshot,
    encode_in_steps,
    encode_snapshot,
    is_snapshot_due,
)
from midrun.core.entries import (
    Entry,
    LeaseTaken,
    MessageReceived,
    RunStarted,
)
from midrun.core.evolve import apply_entries, fold
from midrun.core.ids import Epoch, Micros, RunId
from midrun.core.state import State
from midrun.core.values import Message
from midrun.testing.scenario import RUN
from tests.unit.core.phases import RUNS_BY_PHASE
from tests.unit.core.scenario_steps import leased_run


@pytest.fixture
def state() -> State:
    """Return a state with numbers and text in it."""
    entries: list[Entry] = [
        RunStarted(agent="a", task="t"),
        LeaseTaken(epoch=Epoch(7), holder="h"),
        MessageReceived(text="one of 12345"),
    ]
    return apply_entries(State(run=RunId("r")), entries, Micros(1_800_000_000_000_000))


def test_a_snapshot_decodes_to_the_state_that_was_encoded(state: State) -> None:
    assert decode_snapshot(encode_snapshot(state)) == state


def test_a_long_state_is_encoded_in_many_steps(state: State) -> None:
    """The event loop runs between two steps, and no step encodes more than a few items."""
    said = [Message(role="user", text=f"message {n}") for n in range(10 * STEP_ITEMS + 1)]
    long = state.with_messages(*said, Message(role="user", text="x" * 3 * STEP_BYTES))
    assert sum(1 for _ in encode_in_steps(long)) > 10 + 3
    assert decode_snapshot(encode_snapshot(long)) == long


def test_a_snapshot_with_one_changed_byte_is_ignored(state: State) -> None:
    """The changed bytes may still decode to a state, but to a wrong one."""
    data = encode_snapshot(state)
    for index in range(len(data)):
        changed = bytearray(data)
        changed[index] ^= 1
        assert decode_snapshot(bytes(changed)) is None


@pytest.mark.parametrize("length", [0, 1, DIGEST_BYTES - 1, DIGEST_BYTES, DIGEST_BYTES + 1, -1])
def test_a_truncated_snapshot_is_ignored(state: State, length: int) -> None:
    assert decode_snapshot(encode_snapshot(state)[:length]) is None


def test_a_snapshot_of_any_phase_decodes_to_the_same_state() -> None:
    for runs in RUNS_BY_PHASE.values():
        for run in runs:
            assert decode_snapshot(encode_snapshot(run.state)) == run.state


def test_a_fold_from_a_snapshot_equals_a_fold_from_the_start() -> None:
    """This holds for a snapshot at every seq."""
    for runs in RUNS_BY_PHASE.values():
        for run in runs:
            for seq in range(1, len(run.records)):
                snapshot = decode_snapshot(encode_snapshot(fold(RUN, run.records[:seq])))
                assert fold(RUN, run.records[seq:], snapshot) == run.state


def test_the_layout_of_a_snapshot_is_the_fingerprint_of_its_schema() -> None:
    """A snapshot of a state with other fields would be decoded as if nothing had changed."""
    schema = msgspec.json.schema(StoredState, schema_hook=lambda _: {"type": "array"})
    shape = msgspec.json.encode(
        [STATE_MEANING_VERSION, _drop_descriptions(schema)], order="sorted"
    )
    assert sha256(shape).hexdigest()[:16] == STATE_LAYOUT


def _drop_descriptions(schema: object) -> object:
    """Drop the docstrings, which differ between versions of Python."""
    if isinstance(schema, dict):
        return {
            key: _drop_descriptions(value)
            for key, value in schema.items()
            if key != "description" or isinstance(value, dict)
        }
    if isinstance(schema, list):
        return [_drop_descriptions(value) for value in schema]
    return schema


def test_a_damaged_snapshot_and_one_of_another_layout_are_ignored() -> None:
    """The snapshot is a cache: the journal is read instead."""
    data = encode_snapshot(leased_run.state)
    other_layout = zlib.compress(
        zlib.decompress(data[DIGEST_BYTES:]).replace(STATE_LAYOUT.encode(), b"0" * 16)
    )
    assert decode_snapshot(sha256(other_layout).digest() + other_layout) is None
    assert decode_snapshot(sha256(b"{}").digest() + b"{}") is None
    assert decode_snapshot(data[:-3]) is None
    assert decode_snapshot(b"") is None


def test_the_distance_between_snapshots_grows_with_the_journal() -> None:
    """The cost per entry stays constant, and a load folds a quarter at most."""
    seqs, last = [], 0
    for seq in range(1, 20_001):
        if is_snapshot_due(seq=seq, snapshot=last):
            seqs.append(seq)
            last = seq
    assert len(seqs) < 30
    assert sum(seqs) < 6 * 20_000
    assert all(b - a <= max(256, a / 4) + 1 for a, b in pairwise(seqs))
