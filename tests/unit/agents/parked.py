"""Parked runs and their checkpoints, for the tests of this folder."""

from typing import Final

from midrun.agents.checkpoint import Checkpoint
from midrun.codec.journal import format_record, hash_line, hash_run_id
from midrun.core.ids import MICROS_PER_SECOND, Micros, RunId
from midrun.core.values import Phase
from midrun.testing.scenario import RUN, START_TIME, Scenario
from tests.unit.core.phases import paused

KEY: Final = b"a key of the deployment"
PRINT: Final = "5f2c"
LATER: Final = Micros(START_TIME + 60 * MICROS_PER_SECOND)
"""When checkpoints are issued here."""

HOUR: Final = 3600 * MICROS_PER_SECOND


def lines_of(run: Scenario) -> tuple[bytes, ...]:
    """Return a journal as a store keeps it."""
    return tuple(map(format_record, run.records))


def pairs_of(lines: tuple[bytes, ...], run: RunId = RUN) -> list[tuple[bytes, bytes]]:
    """Return lines with the hashes that a store keeps beside them."""
    link, pairs = hash_run_id(run), []
    for data in lines:
        link = hash_line(link, data)
        pairs.append((data, link))
    return pairs


def checkpoint_of(
    run: Scenario = paused, *, key: bytes | None = None, expires: Micros | None = None
) -> Checkpoint:
    """Return the checkpoint that the shell would issue."""
    return forged(lines_of(run), run.state.phase, key=key, expires=expires)


def forged(
    lines: tuple[bytes, ...],
    phase: Phase = Phase.PAUSED,
    *,
    key: bytes | None = None,
    expires: Micros | None = None,
) -> Checkpoint:
    """Return a checkpoint whose envelope fits any lines at all, as an enemy would make it."""
    return Checkpoint.of(
        RUN,
        pairs_of(lines),
        agent="clerk",
        agent_print=PRINT,
        phase=phase,
        now=LATER,
        expires=expires,
        key=key,
    )
