"""Checkpoints of parked runs for the tests of agents, and checkpoints with arbitrary lines."""

from typing import Final

from midrun.agents.checkpoint import Checkpoint
from midrun.codec.journal import format_record, hash_line, hash_run_id
from midrun.core.ids import MICROS_PER_SECOND, Micros, RunId
from midrun.core.values import Phase
from midrun.testing.scenario import RUN, START_TIME, Scenario
from tests.unit.core.phases import paused_run

KEY: Final = b"a key of the deployment"
FINGERPRINT: Final = "5f2c"
ISSUED_AT: Final = Micros(START_TIME + 60 * MICROS_PER_SECOND)
"""The time at which the checkpoints of these tests are issued."""

ONE_HOUR: Final = 3600 * MICROS_PER_SECOND


def format_journal(run: Scenario) -> tuple[bytes, ...]:
    """Return the journal of `run` as the lines that a store keeps."""
    return tuple(map(format_record, run.records))


def add_hashes(lines: tuple[bytes, ...], run: RunId = RUN) -> list[tuple[bytes, bytes]]:
    """Return each line with the hash that a store keeps next to it."""
    link, pairs = hash_run_id(run), []
    for data in lines:
        link = hash_line(link, data)
        pairs.append((data, link))
    return pairs


def make_checkpoint(
    run: Scenario = paused_run, *, key: bytes | None = None, expires: Micros | None = None
) -> Checkpoint:
    """Return the checkpoint of `run` as Midrun issues it."""
    return forge_checkpoint(format_journal(run), run.state.phase, key=key, expires=expires)


def forge_checkpoint(
    lines: tuple[bytes, ...],
    phase: Phase = Phase.PAUSED,
    *,
    key: bytes | None = None,
    expires: Micros | None = None,
) -> Checkpoint:
    """Return a checkpoint whose envelope matches `lines`, whatever they contain.

    This is what an attacker can make without the key.
    """
    return Checkpoint.of(
        RUN,
        add_hashes(lines),
        agent="clerk",
        agent_fingerprint=FINGERPRINT,
        phase=phase,
        now=ISSUED_AT,
        expires=expires,
        key=key,
    )
