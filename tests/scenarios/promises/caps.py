"""What tests of caps and conditions share: turns that use them up, and how a run stands."""

from midrun import Paused, Run
from midrun.models import Use


def uses(*names: str) -> list[Use]:
    """Return one turn for each name: a call of `quick`."""
    return [Use("quick", name=name) for name in names]


async def capped(run: Run) -> Paused:
    """Wait until the run pauses at a cap, and return how it stands."""
    outcome = await run.result()
    assert isinstance(outcome, Paused), outcome
    assert (outcome.phase, outcome.reason) == ("paused", "cap")
    return outcome


async def shown(run: Run) -> dict[str, tuple[float, float]]:
    """Return the caps as people see them: used, and bound."""
    return {cap.name: (cap.used, cap.cap) for cap in (await run.view()).caps}
