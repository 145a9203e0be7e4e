"""The audit trail: which person asked for which control, and who approved what."""

import csv
import io
import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import anyio
import anyio.to_thread
import apsw
import psycopg
import pytest

from midrun import Agent, Midrun, connect, tool
from midrun.cli.main import main
from midrun.errors import CursorRefused, Misconfigured, ServerRefused
from midrun.models import ScriptedModel, Use
from midrun.ports.audit import AuditEntry
from midrun.runs import audit as module
from midrun.runs.audit import read_audit_page, verify_audit
from midrun.server import app
from midrun.testing.postgres import Postgres
from tests.support.store_choice import get_store_url
from tests.unit.server.conftest import make_token, make_tokens, serve_on_loopback

SECRET_TEXT = "the merger with Initech"
HOUR_AGO = timedelta(hours=-1)


@tool(approve=True)
async def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


def make_agent() -> Agent:
    model = ScriptedModel([Use("pay", amount=5), "It is about money.", "Done."])
    return Agent("clerk", model=model, tools=[pay])


async def run_with_controls(midrun: Midrun, agent: Agent) -> str:
    """Start a run and approve its call; set and lift a halt. Return the id of the run."""
    run = await midrun.start(agent, SECRET_TEXT, actor="ann")
    await run.until("waiting")
    await run.say(SECRET_TEXT, actor="ann")
    await run.approve(actor="operator:olga")
    await run.until("completed")
    await midrun.halt("too expensive", scope="agent:clerk", actor="operator:olga")
    assert await midrun.lift(scope="agent:clerk", actor="operator:olga")
    assert not await midrun.lift(scope="agent:clerk", actor="operator:olga")
    return run.id


def describe(entry: AuditEntry) -> tuple[str, str, str, str]:
    return entry.actor, entry.action, entry.target, entry.outcome


async def test_the_trail_has_controls_decisions_and_halts_but_no_texts(path: Path) -> None:
    agent = make_agent()
    async with Midrun(get_store_url(path), agents=[agent]) as midrun:
        run = await run_with_controls(midrun, agent)
        found = [entry async for entry in midrun.audit(since=HOUR_AGO)]
        assert list(map(describe, found)) == [
            ("olga", "halt", "agent:clerk", "done"),
            ("olga", "lift", "agent:clerk", "done"),
            ("ann", "start", "clerk", "done"),
            ("ann", "message", "", "done"),
            ("olga", "approve", "pay", "done"),
        ]
        assert [entry.run for entry in found] == ["", "", run, run, run]
        assert found[0].reason == "too expensive"
        assert SECRET_TEXT not in str(found)
        records = await midrun.store.read((await midrun.runs()).items[0].run_id)
        assert found[-1].seq in {record.seq for record in records}
        assert [e async for e in midrun.audit(since=HOUR_AGO, until=HOUR_AGO / 2)] == []
        with pytest.raises(Misconfigured, match="since must be a timedelta or a datetime"):
            midrun.audit(since="yesterday")  # type: ignore[arg-type]  # the test
        with pytest.raises(CursorRefused):
            await read_audit_page(
                midrun.store, since=found[0].at, until=found[0].at, cursor="x"
            )


async def test_deletions_are_recorded_once_from_every_interface(path: Path) -> None:
    agent = Agent("clerk", model=ScriptedModel(["Done."] * 3))
    with anyio.fail_after(60):
        async with Midrun(get_store_url(path), agents=[agent]) as midrun:
            runs = [await midrun.start(agent, "Go.", thread="t1") for _ in range(3)]
            for run in runs:
                await run.until("completed")
            await runs[0].delete("asked by its owner", actor="operator:olga")
            async with serve_on_loopback(app(midrun, auth=make_tokens())) as port:
                url = f"http://127.0.0.1:{port}"
                async with connect(url, token=make_token("olga")) as olga:
                    await (await olga.get(runs[1].id)).delete()
            await midrun.delete_runs(thread="t1", actor="operator:olga")
            found = [entry async for entry in midrun.audit(since=HOUR_AGO)]
    assert [(entry.run, entry.target, entry.reason) for entry in found] == [
        (runs[0].id, "", "asked by its owner"),
        (runs[1].id, "", ""),
        ("", "1 runs: thread=t1", ""),
    ]
    assert {describe(entry)[:2] for entry in found} == {("olga", "delete")}


async def test_the_trail_is_read_in_pages(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AUDIT_PAGE_MAX_RUNS", 2)
    monkeypatch.setattr(module, "AUDIT_PAGE_MAX_ENTRIES", 2)
    agent = Agent("clerk", model=ScriptedModel(["Done."] * 5))
    async with Midrun(get_store_url(path), agents=[agent]) as midrun:
        for number in range(5):
            await (await midrun.start(agent, "Go.", actor=f"a{number}")).until("completed")
            await midrun.record_audit(AuditEntry(action="export", actor=f"b{number}"))
        found = [entry.actor async for entry in midrun.audit(since=HOUR_AGO)]
    assert found == ["b0", "b1", "b2", "b3", "b4", "a4", "a3", "a2", "a1", "a0"]


async def test_a_server_stores_sign_ins_refusals_and_exports_and_shows_them_to_operators(
    path: Path,
) -> None:
    agent = make_agent()
    with anyio.fail_after(60):
        async with Midrun(get_store_url(path), agents=[agent]) as midrun:
            run = await run_with_controls(midrun, agent)
            asgi_app = app(midrun, auth=make_tokens())
            async with serve_on_loopback(asgi_app) as port:
                url = f"http://127.0.0.1:{port}"
                with pytest.raises(ServerRefused):
                    async with connect(url, token="not-a-token-of-this-server") as stranger:
                        await stranger.runs()
                async with connect(url, token=make_token("vera")) as vera:
                    with pytest.raises(ServerRefused, match="role operator"):
                        _ = [entry async for entry in vera.audit(since=HOUR_AGO)]
                async with connect(url, token=make_token("olga")) as olga:
                    await (await olga.get(run)).export()
                    await olga.halt("stop", scope=f"run:{run}", actor=None)
                    found = [entry async for entry in olga.audit(since=HOUR_AGO)]
                    again = [entry async for entry in midrun.audit(since=HOUR_AGO)]
    stored = [entry for entry in found if not entry.seq]
    assert list(map(describe, stored[2:])) == [
        ("", "sign_in", "GET /v1/session", "unauthorized"),
        ("vera", "audit", "", "not_allowed"),
        ("olga", "export", "", "done"),
        ("olga", "halt", f"run:{run}", "done"),
    ]
    assert stored[4].run == run
    assert stored[2].address == "127.0.0.1"
    assert {entry.role for entry in stored[3:]} == {"viewer", "operator"}
    # The export itself is recorded after its first page.
    assert [entry for entry in again if entry not in found] == [
        entry for entry in again if (entry.actor, entry.action) == ("olga", "audit")
    ]
    assert "not-a-token" not in str(again)


async def test_the_command_writes_csv_and_json_lines(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A spreadsheet must not take a reason for a formula."""
    agent = make_agent()
    async with Midrun(get_store_url(path), agents=[agent]) as midrun:
        await run_with_controls(midrun, agent)
        await midrun.halt("=HYPERLINK()", scope="all", actor="operator:olga")
    command = ["audit", "--store", get_store_url(path), "--since", "1h"]

    async def run_command(*options: str) -> str:
        code = await anyio.to_thread.run_sync(main, [*command, *options])
        assert code == 0
        return capsys.readouterr().out

    rows = list(csv.DictReader(io.StringIO(await run_command("--format", "csv"))))
    assert [row["action"] for row in rows] == [
        *("halt", "lift", "halt", "start", "message", "approve"),
    ]
    assert rows[2]["reason"] == "'=HYPERLINK()"
    lines = [json.loads(line) for line in (await run_command("--format", "jsonl")).splitlines()]
    assert lines[0] | {"time": ""} == {
        "time": "",
        "action": "halt",
        "actor": "olga",
        "role": "operator",
        "target": "agent:clerk",
        "outcome": "done",
        "reason": "too expensive",
    }
    assert datetime.fromisoformat(lines[0]["time"]).tzinfo == UTC
    text = (await run_command()).splitlines()
    assert text[0].endswith("olga: halt agent:clerk “too expensive”")
    past = ["--since", "2020-01-01", "--until", "2020-02-01T00:00:00+01:00"]
    assert await run_command(*past) == ""


# ── the hash chain ───────────────────────────────────────────────────────────

KEY = b"kept where the store is not"


def run_sql(url: str, statements: str) -> None:
    """Change the store as an attacker with access to the database would: without triggers."""
    if url.startswith("postgres"):
        with psycopg.connect(url, autocommit=True) as db:
            db.execute("SET session_replication_role = replica")
            for statement in statements.split(";"):
                renamed = re.sub(r"\baudit", "midrun_audit", statement)
                db.execute(renamed.encode())
        return
    file = apsw.Connection(url.removeprefix("sqlite:///"))
    for trigger in ("audit_does_not_change", "audit_does_not_go"):
        file.execute(f"DROP TRIGGER IF EXISTS {trigger}")
    file.execute(statements).fetchall()
    file.close()


@pytest.mark.once
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
@pytest.mark.parametrize(
    ("statements", "problem"),
    [
        ("UPDATE audit SET tenant = 'x' WHERE id = 2", r"Entry 2 .* was changed"),
        ("UPDATE audit SET at = at + 1 WHERE id = 1", r"Entry 1 .* was changed"),
        ("DELETE FROM audit WHERE id = 2", r"^Entry 2 of the audit log is missing\.$"),
        (
            "DELETE FROM audit WHERE id = 2; UPDATE audit SET id = id - 1 WHERE id > 2",
            r"Entry 2 .* was changed",
        ),
        (
            "DELETE FROM audit WHERE id > 2",
            r"^The audit log is cut off after entry 2: its last entry was 4\.$",
        ),
        ("DELETE FROM audit", r"cut off after entry 0: its last entry was 4"),
        (
            (
                "DELETE FROM audit WHERE id > 2; UPDATE audit_end SET no = 2,"
                " hash = (SELECT hash FROM audit WHERE id = 2)"
            ),
            r"stored end .* was changed: its seal does not fit",
        ),
        ("DELETE FROM audit_end", r"stored end of the audit log was removed"),
        ("UPDATE audit_end SET hash = seal", r"Entry 4 .* was replaced"),
    ],
)
async def test_a_changed_audit_log_is_noticed(
    kind: str, statements: str, problem: str, postgres: Postgres, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path}/runs.db" if kind == "sqlite" else postgres.url()
    async with Midrun(url, chain_key=KEY) as midrun:
        for name in ("ann", "bob", "eve", "olga"):
            await midrun.record_audit(AuditEntry(action="sign_in", actor=name))
        verdict = await verify_audit(midrun.store)
        assert (bool(verdict), verdict.entries) == (True, 4)
        assert await verify_audit(midrun.store, verdict.hash)
    run_sql(url, statements)
    async with Midrun(url, chain_key=KEY) as midrun:
        found = await verify_audit(midrun.store)
        assert not found
        assert re.search(problem, str(found), re.MULTILINE)
        assert len(found.problems) <= 3
        # The log goes on, and the place stays visible.
        await midrun.record_audit(AuditEntry(action="sign_in", actor="ann"))
        assert not await verify_audit(midrun.store)


@pytest.mark.once
async def test_a_cut_that_nothing_in_the_store_shows_is_found_by_a_hash_noted_before(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a key an attacker can compute everything in the database anew."""
    url = f"sqlite:///{tmp_path}/runs.db"
    async with Midrun(url) as midrun:
        for name in ("ann", "bob", "eve"):
            await midrun.record_audit(AuditEntry(action="sign_in", actor=name))
        noted = (await verify_audit(midrun.store)).hash
    end = "UPDATE audit_end SET no = 2, hash = (SELECT hash FROM audit WHERE id = 2)"
    run_sql(url, "DELETE FROM audit WHERE id > 2")
    run_sql(url, end)

    def verify(*more: str) -> tuple[int, str]:
        code = main(["audit", "--verify", "--store", url, *more])
        captured = capsys.readouterr()
        return code, captured.out + captured.err

    code, text = await anyio.to_thread.run_sync(verify)
    assert (code, "complete and unchanged: 2 entries" in text) == (0, True)
    code, text = await anyio.to_thread.run_sync(verify, "--expect", noted)
    assert (code, f"No entry of the audit log has the hash {noted}" in text) == (1, True)


@pytest.mark.once
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_processes_that_write_the_audit_log_at_once_make_one_chain(
    kind: str, postgres: Postgres, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path}/runs.db" if kind == "sqlite" else postgres.url()
    async with Midrun(url) as one, Midrun(url) as two:
        async with anyio.create_task_group() as tasks:
            for number in range(20):
                writer = (one, two)[number % 2]
                tasks.start_soon(writer.record_audit, AuditEntry(action=f"a{number}"))
        verdict = await verify_audit(two.store)
    assert (bool(verdict), verdict.entries) == (True, 20)
