"""A call that takes its whole process with it: three real ones die, and the fourth does not."""

import signal
from pathlib import Path

import pytest

from midrun import Midrun
from midrun.core.entries import RunFailed
from midrun.core.retries import WORKER_DEATHS_MAX, WORKERS_DIED_CODE
from midrun.ports.environment import Environment
from tests.crash.child import LONG
from tests.crash.conftest import child
from tests.crash.deeds import BYSTANDERS, deeds, parsing
from tests.crash.facts import later
from tests.support.store_choice import kept_at

pytestmark = [pytest.mark.slow, pytest.mark.once]

SAID = "parse_pdf: 3 processes ended, or fell silent, while it was under way"


async def test_a_safe_call_that_kills_is_not_passed_from_process_to_process(path: Path) -> None:
    """A person hears of the third death, and only of the run that it was.

    The others of its process had a call in flight at each death but the last: on its last try,
    a call is made alone.
    """
    folder = path.parent
    bad = folder / "bad.pdf"
    bad.touch()
    for number in range(WORKER_DEATHS_MAX):
        if number == WORKER_DEATHS_MAX - 1:
            (folder / "open").touch()  # what the bystanders wait for
        with child("parse", folder, number) as process:
            assert await process.end() == -signal.SIGSEGV
    with child("parse", folder, WORKER_DEATHS_MAX) as unharmed:
        said = await unharmed.hear_all()
        assert await unharmed.end() == 0
    assert said == [f"failed {SAID}", *["completed"] * BYSTANDERS]
    parsed = [deed for deed in deeds(folder) if deed.what == "parse"]
    assert [deed.attempt for deed in parsed] == [1, 2, 3]
    assert len({deed.pid for deed in parsed}) == WORKER_DEATHS_MAX
    bad.unlink()
    agent, outside = (
        parsing(folder),
        Environment(lease=LONG, clock=later(hours=WORKER_DEATHS_MAX + 1)),
    )
    async with Midrun(kept_at(path), agents=[agent], outside=outside) as midrun:
        run = await midrun.start(agent, "go", request_id="the file")
        entries = [record.entry for record in await midrun.store.read(run.id)]
        assert [e.code for e in entries if isinstance(e, RunFailed)] == [WORKERS_DIED_CODE]
        assert "resume" in (await run.view()).allowed
        await run.resume()
        assert (await run.until("completed")).output == "Done."
