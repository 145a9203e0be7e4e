"""Finding a run by its id, or by the beginning of it."""

from midrun.embed.midrun import Midrun
from midrun.embed.run import Run
from midrun.errors import Misconfigured, RunNotFound
from midrun.ports.store import Query

NEWEST = 500


async def find(midrun: Midrun, given: str) -> Run:
    """Return the run of this id; a beginning will do where it is the only one.

    Raises:
        RunNotFound: there is none.
        Misconfigured: several of the newest runs begin like this.
    """
    try:
        return await midrun.get(given)
    except RunNotFound:
        rows = (await midrun.store.runs(Query(limit=NEWEST))).items
        found = [row.run for row in rows if row.run.removeprefix("run_").startswith(given)]
        found += [row.run for row in rows if row.run.startswith(given) and row.run not in found]
        if len(found) == 1:
            return await midrun.get(found[0])
        if not found:
            raise
        raise Misconfigured(
            given, f"{len(found)} runs begin like this: {', '.join(found[:4])}"
        ) from None
