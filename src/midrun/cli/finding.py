"""Finding a run by its id, or by the beginning of it; and an ask by its run."""

from midrun.errors import Misconfigured, RunNotFound
from midrun.handles.interface import AnyMidrun, AnyRun


async def find(midrun: AnyMidrun, given: str) -> AnyRun:
    """Return the run of this id; a beginning will do where it is the only one.

    Raises:
        RunNotFound: there is none.
        Misconfigured: several of the newest runs begin like this, or no id was given.
    """
    if not given.strip():  # as a variable of a shell is that was never set
        raise Misconfigured("RUN", "the id is empty; `midrun ls` lists the runs there are")
    try:
        return await midrun.get(given)
    except RunNotFound:
        found = await midrun.named(given)
        if len(found) == 1:
            return await midrun.get(found[0])
        if not found:
            raise
        some = ", ".join(found[:4])
        problem = f"{len(found)} runs begin like this, type more of it: {some}"
        raise Misconfigured(given, problem) from None


async def find_ask(midrun: AnyMidrun, given: str) -> tuple[AnyRun, str | None]:
    """Return the run, and the ask of it that is named: `RUN-ASK`, or `RUN` for its only one."""
    run, dash, ask = given.rpartition("-")
    if not dash:
        return await find(midrun, given), None
    return await find(midrun, run), ask
