"""The audit record, the limit on failed sign-ins, and the escaping of log lines."""

import json
import logging

import httpx2
import pytest

from midrun import Actor, Midrun
from midrun.server import Limits, app
from midrun.server.admin import PROOF_HEADER
from midrun.server.limits import CALLERS_MAX, AddressLimit, FailedSignIns
from midrun.server.problem_details import HttpProblem
from midrun.testing.controllable_tools import ControllableTools
from tests.unit.server.conftest import StartServer
from tests.unit.server.http_calls import expect_status, start_run, wait_for_phase

FORGED_LINE = "\nforged line \x1b[31m\u202e"


@pytest.fixture(autouse=True)
def capture_audit_records(caplog: pytest.LogCaptureFixture) -> None:
    """Capture audit records of all levels."""
    caplog.set_level(logging.INFO, "midrun.audit")


def take_audit_records(caplog: pytest.LogCaptureFixture) -> list[dict[str, str]]:
    """Return the audit records so far, and clear the log."""
    audit = [record for record in caplog.records if record.name == "midrun.audit"]
    records = [json.loads(record.message) for record in audit]
    caplog.clear()
    return records


def read_fields(record: dict[str, str]) -> tuple[str, str, str, str]:
    """Return all fields of a record but the address, which is the same in every test."""
    assert record["address"] == "127.0.0.1"
    return record["action"], record["actor"], record["target"], record["outcome"]


async def test_sign_in_sign_out_and_failed_sign_ins_are_recorded(
    serve: StartServer, stage: ControllableTools, caplog: pytest.LogCaptureFixture
) -> None:
    """A record does not contain the credential that was refused."""
    server = await serve(stage.agent("Done."))
    browser, anonymous = await server.client("ann"), await server.client(None)
    session = await browser.post("/v1/session", json={})
    del browser.headers["authorization"]
    browser.headers[PROOF_HEADER] = session.json()["proof"]
    expect_status(await browser.delete("/v1/session"), 204)
    for wrong in ("Code nonsense", "Bearer not-a-token"):
        headers = {"Authorization": wrong}
        expect_status(await anonymous.post("/v1/session", json={}, headers=headers), 401)
    expect_status(
        await anonymous.get("/v1/runs", headers={"Authorization": "Bearer guess"}), 401
    )
    # Without a credential, a request is not an attempt to sign in.
    expect_status(await anonymous.get("/v1/runs"), 401)
    assert list(map(read_fields, take_audit_records(caplog))) == [
        ("sign_in", "ann", "", "done"),
        ("sign_out", "ann", "", "done"),
        ("sign_in", "", "POST /v1/session", "unauthorized"),
        ("sign_in", "", "POST /v1/session", "unauthorized"),
        ("sign_in", "", "GET /v1/runs", "unauthorized"),
    ]
    assert "nonsense" not in caplog.text


async def test_exports_imports_halts_and_refusals_are_recorded(
    serve: StartServer, stage: ControllableTools, caplog: pytest.LogCaptureFixture
) -> None:
    server = await serve(stage.agent("Done."))
    olga, vera = await server.client("olga"), await server.client("vera")
    run_path = await start_run(olga)
    expect_status(await wait_for_phase(olga, run_path, "completed"), 200)
    run = run_path.rpartition("/")[2]
    expect_status(await olga.get(f"{run_path}/export"), 200)
    expect_status(await olga.get(f"{run_path}/checkpoint"), 409)
    expect_status(await olga.post("/v1/resume", json={"checkpoint": {}}), 409)
    expect_status(
        await olga.post("/v1/halt", json={"scope": "agent:actor", "reason": "x"}), 202
    )
    expect_status(await olga.post("/v1/lift", json={"scope": "agent:actor"}), 200)
    expect_status(await vera.post("/v1/halt", json={"scope": "all"}), 403)
    expect_status(await vera.post(f"{run_path}/cancel", json={}), 403)
    other_origin = {"Origin": "http://evil.example"}
    expect_status(await olga.post(f"{run_path}/cancel", json={}, headers=other_origin), 403)
    expect_status(await olga.get(run_path), 200)  # a read is not recorded
    assert list(map(read_fields, take_audit_records(caplog))) == [
        ("export", "olga", run, "done"),
        ("export", "olga", run, "checkpoint_refused"),
        ("import", "olga", "", "checkpoint_refused"),
        ("halt", "olga", "agent:actor", "done"),
        ("lift", "olga", "agent:actor", "done"),
        ("halt", "vera", "", "not_allowed"),
        ("request", "vera", f"POST {run_path}/cancel", "not_allowed"),
        ("request", "", f"POST {run_path}/cancel", "foreign_origin"),
    ]


async def test_an_address_that_guesses_tokens_is_limited_but_known_tokens_still_work(
    serve: StartServer, stage: ControllableTools, caplog: pytest.LogCaptureFixture
) -> None:
    """After three wrong tokens, the address gets 429 for every token that is new."""
    server = await serve(stage.agent("Done."), limits=Limits(failures=3, failure_rate=0.001))
    olga, newcomer = await server.client("olga"), await server.client("ann")
    guesser = await server.client(None)
    expect_status(await olga.get("/v1/runs"), 200)
    codes = []
    for number in range(5):
        headers = {"Authorization": f"Bearer guess-{number}"}
        codes.append((await guesser.get("/v1/runs", headers=headers)).status_code)
    assert codes == [401, 401, 401, 429, 429]
    assert len(take_audit_records(caplog)) == 3  # refused guesses write no records
    refused = expect_status(await newcomer.get("/v1/runs"), 429)
    assert int(refused.headers["retry-after"]) > 0
    expect_status(await olga.get("/v1/runs"), 200)


async def test_pages_of_other_origins_do_not_fill_the_log(
    serve: StartServer, stage: ControllableTools, caplog: pytest.LogCaptureFixture
) -> None:
    """A page can send any number of requests; only the first ones are recorded."""
    server = await serve(stage.agent("Done."), limits=Limits(failures=2, failure_rate=0.001))
    client = await server.client("olga")
    for _ in range(5):
        expect_status(
            await client.get("/v1/runs", headers={"Origin": "http://evil.example"}), 403
        )
    assert len(take_audit_records(caplog)) == 2
    expect_status(await client.get("/v1/runs"), 200)


def test_an_address_limit_recovers_with_time_and_is_bounded() -> None:
    """All addresses of one IPv6 network share one allowance."""
    now = 0.0
    limit = AddressLimit(2, 0.5, lambda: now)
    for last in range(2):
        limit.count_event(f"2001:db8::{last}")
    assert limit.wait_s("2001:db8::ffff") == 2.0
    assert limit.wait_s("2001:db8:0:1::1") == 0.0
    for last in range(2):  # a dual-stack socket names IPv4 clients like this
        limit.count_event(f"::ffff:192.0.2.{last}")
    assert limit.wait_s("::ffff:198.51.100.1") == 0.0
    now = 2.0
    assert limit.wait_s("2001:db8::1") == 0.0
    for number in range(2 * CALLERS_MAX):
        limit.count_event(f"address {number}")
    assert len(limit._left_by_network) == CALLERS_MAX
    failures = FailedSignIns(Limits(failures=1), lambda: now)
    failures.count_failure("10.0.0.1")
    with pytest.raises(HttpProblem, match="too_many_failures"):
        failures.check("10.0.0.1", "guess")
    failures.check("10.0.0.2", "guess")


@pytest.mark.once
@pytest.mark.parametrize("version", ["1.0", "9.9" + "x"])
async def test_client_text_is_escaped_in_the_log(
    serve: StartServer, stage: ControllableTools, caplog: pytest.LogCaptureFixture, version: str
) -> None:
    """The A2A SDK logs ids, methods and names of a request, and tracebacks."""
    caplog.set_level(logging.DEBUG)
    server = await serve(stage.agent("Done."))
    client = await server.client("olga")
    headers = {"A2A-Version": version}
    for call in (
        {"jsonrpc": "2.0", "id": f"1{FORGED_LINE}", "method": f"No{FORGED_LINE}", "params": {}},
        {
            "jsonrpc": "2.0",
            "id": f"1{FORGED_LINE}",
            "method": "GetTask",
            "params": {"id": FORGED_LINE},
        },
        {
            "jsonrpc": "2.0",
            "id": f"1{FORGED_LINE}",
            "method": "GetTask",
            "params": {FORGED_LINE: 1},
        },
        {
            "jsonrpc": "2.0",
            "id": f"1{FORGED_LINE}",
            "method": "SendMessage",
            "params": {"x": FORGED_LINE},
        },
        {"jsonrpc": f"2.0{FORGED_LINE}", "id": 1, "method": "GetTask"},
    ):
        await client.post("/a2a/actor", json=call, headers=headers)
    assert "forged line" in caplog.text
    lines = caplog.text.split("\n")
    assert not [line for line in lines if line.startswith("forged")]
    assert not [line for line in lines if "\x1b" in line or "\u202e" in line]


async def test_the_traceback_of_an_internal_error_is_indented_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The text of an error may come from a client; no line of it can look like a record."""

    async def auth(token: str) -> Actor | None:
        raise RuntimeError(f"no {token}{FORGED_LINE}")

    mid = Midrun("memory://")
    transport = httpx2.ASGITransport(app=app(mid, auth=auth))
    url, headers = "http://127.0.0.1", {"Authorization": "Bearer guess"}
    async with mid, httpx2.AsyncClient(transport=transport, base_url=url) as client:
        expect_status(await client.get("/v1/runs", headers=headers), 500)
    (record,) = [each for each in caplog.records if each.name == "midrun.server"]
    assert record.exc_text is not None
    assert "Traceback" in record.exc_text
    assert all(line.startswith("  | ") for line in record.exc_text.split("\n"))
    assert "\x1b" not in record.exc_text
