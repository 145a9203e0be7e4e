"""Snapshots: a cache that is believed only as long as nothing in it has changed."""

import pytest

from midrun.codec.snapshot import DIGEST_BYTES, decode_snapshot, encode_snapshot
from midrun.core.entries import Entry, LeaseTaken, MessageReceived, RunStarted
from midrun.core.evolve import apply_entries
from midrun.core.ids import Epoch, Micros, RunId
from midrun.core.state import State


@pytest.fixture
def state() -> State:
    """Give a state with some numbers in it."""
    entries: list[Entry] = [
        RunStarted(agent="a", task="t"),
        LeaseTaken(epoch=Epoch(7), holder="h"),
        MessageReceived(text="one of 12345"),
    ]
    return apply_entries(State(run=RunId("r")), entries, Micros(1_800_000_000_000_000))


def test_a_state_is_thawed_as_it_was_frozen(state: State) -> None:
    """Folding from there must be folding from the beginning."""
    assert decode_snapshot(encode_snapshot(state)) == state


def test_a_snapshot_with_one_byte_changed_is_not_believed(state: State) -> None:
    """It may still be a state: of a run that never was."""
    frozen = encode_snapshot(state)
    for place in range(len(frozen)):
        changed = bytearray(frozen)
        changed[place] ^= 1
        assert decode_snapshot(bytes(changed)) is None


@pytest.mark.parametrize("keep", [0, 1, DIGEST_BYTES - 1, DIGEST_BYTES, DIGEST_BYTES + 1, -1])
def test_a_snapshot_that_was_cut_off_is_not_believed(state: State, keep: int) -> None:
    """Nor is an empty one."""
    assert decode_snapshot(encode_snapshot(state)[:keep]) is None
