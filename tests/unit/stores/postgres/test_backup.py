"""The procedure for a backup of Postgres: pg_dump, pg_restore, midrun restore."""

import os
import subprocess
from datetime import timedelta
from pathlib import Path
from urllib.parse import quote

import pytest
from anyio import to_thread

from midrun import Agent, Midrun
from midrun.cli.main import main
from midrun.errors import RunErased
from midrun.models import ScriptedModel
from midrun.testing.postgres import DATABASE_USER, Postgres

LONG = timedelta(hours=1)


def run_program(postgres: Postgres, program: str, *arguments: str) -> None:
    """Run a client program of Postgres at the server of the tests."""
    command = [str(postgres.programs / program), "-h", str(postgres.folder)]
    command += ["-U", DATABASE_USER, *arguments]
    subprocess.run(command, check=True, capture_output=True)  # noqa: S603 - as the guide says


async def test_a_dump_is_restored_into_another_database(
    postgres: Postgres, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With its tombstones; the runs are halted, and verified."""
    names = [f"{kind}_{os.getpid()}" for kind in ("source", "target")]
    folder = quote(str(postgres.folder), safe="")
    source, target = (f"postgresql://{DATABASE_USER}@{folder}/{name}" for name in names)
    for name in names:
        run_program(postgres, "createdb", name)
    agent = Agent("clerk", model=ScriptedModel(["Done."] * 3))
    async with Midrun(source, agents=[agent]) as midrun:
        kept, gone = await midrun.start(agent, "a"), await midrun.start(agent, "b")
        await kept.until("completed")
        await gone.until("completed")
        await gone.delete("GDPR", actor="ann")
        await midrun.store.record_heartbeat("p_old", ttl=LONG)
        run_program(postgres, "pg_dump", "-Fc", "-f", str(tmp_path / "dump"), names[0])
    run_program(postgres, "pg_restore", "--exit-on-error", "-d", names[1], f"{tmp_path}/dump")
    code = await to_thread.run_sync(main, ["restore", "--store", target, "--actor", "ann"])
    assert (code, "1 runs verified, all clean" in capsys.readouterr().out) == (0, True)
    async with Midrun(target) as midrun:
        assert (await (await midrun.get(kept.id)).view()).output == "Done."
        with pytest.raises(RunErased, match="GDPR"):
            await midrun.get(gone.id)
        assert not await midrun.store.list_holders()
        (halt,) = await midrun.store.list_halts()
        assert (halt.scope, halt.by) == ("all", "ann")
        assert "restored from a backup" in halt.reason
    for name in names:
        run_program(postgres, "dropdb", name)
