"""All checks of a schedule that has come to its end."""

from typing import Final

from midrun.core.entries import Record
from midrun.core.evolve import fold
from midrun.verify.journal import check_journal
from tests.support.simulate.checks.effects import check_counts, check_effects
from tests.support.simulate.checks.habits import (
    check_caps,
    check_deaths,
    check_denials,
    check_leaving,
)
from tests.support.simulate.checks.replies import check_replies, check_words
from tests.support.simulate.checks.thought import check_thought
from tests.support.simulate.scene import Scene
from tests.support.simulate.violation import Violation

REFUSED_MAX: Final = 40
"""How many inputs of drivers may be refused in one schedule: each is read again, then gone."""


def audit(scene: Scene) -> None:
    """Check everything that must be true now that the run is over.

    Raises:
        Violation: the first thing that is not.
    """
    records = audit_so_far(scene)
    check_effects(scene, records)
    check_replies(scene, records)
    check_words(records)
    check_caps(records)
    check_leaving(records)
    check_deaths(scene, records)
    check_denials(records)
    check_thought(scene, records)
    refused = scene.desk.refused.total() + scene.desk.clashes
    if refused > REFUSED_MAX + len(records):
        raise Violation("L5", f"{refused} refused inputs: {scene.desk.refused}")


def audit_so_far(scene: Scene) -> list[Record]:
    """Check what must be true at any moment, and return the journal.

    Raises:
        Violation: the first thing that is not.
    """
    records = scene.desk.records()
    if fold(scene.desk.run, records) != scene.desk.state:
        raise Violation("I2", "the journal, read again, means something else")
    for problem in check_journal(records, run=scene.desk.run, head=scene.desk.head()):
        raise Violation(problem.invariant, f"at {problem.seq}: {problem.text}")
    if scene.fed != records[: len(scene.fed)]:
        raise Violation("I38", "the feed has a gap, or an entry twice")
    check_counts(scene, records)
    return records
