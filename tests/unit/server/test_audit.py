"""The audit record: who signed in, was refused, took a run away, or held everything up."""

import json
import logging

import httpx2
import pytest

from midrun import Actor, Midrun
from midrun.server import Limits, app
from midrun.server.admin import PROOF_HEADER
from midrun.server.limits import CALLERS_MAX, AddressLimit, FailedSignIns
from midrun.server.problem_details import HttpProblem
from tests.unit.runs.stage import ControllableTools
from tests.unit.server.calling import expect, reached, start_run
from tests.unit.server.conftest import Serve

LINES = "\nforged line \x1b[31m\u202e"


@pytest.fixture(autouse=True)
def everything(caplog: pytest.LogCaptureFixture) -> None:
    """Let all records be seen."""
    caplog.set_level(logging.INFO, "midrun.audit")


def records(caplog: pytest.LogCaptureFixture) -> list[dict[str, str]]:
    """Return the audit records so far, and forget them."""
    found = [json.loads(each.message) for each in caplog.records if each.name == "midrun.audit"]
    caplog.clear()
    return found


def facts(record: dict[str, str]) -> tuple[str, str, str, str]:
    """Return all of a record but the address, which is the same in every test."""
    assert record["address"] == "127.0.0.1"
    return record["action"], record["actor"], record["target"], record["outcome"]


async def test_signing_in_and_out_is_on_record(
    serve: Serve, stage: ControllableTools, caplog: pytest.LogCaptureFixture
) -> None:
    """And what went wrong with it, by whom it can be told."""
    served = await serve(stage.agent("Done."))
    browser, stranger = await served.client("ann"), await served.client(None)
    signed = await browser.post("/v1/session", json={})
    del browser.headers["authorization"]
    browser.headers[PROOF_HEADER] = signed.json()["proof"]
    expect(await browser.delete("/v1/session"), 204)
    for wrong in ("Code nonsense", "Bearer not-a-token"):
        shown = {"Authorization": wrong}
        expect(await stranger.post("/v1/session", json={}, headers=shown), 401)
    expect(await stranger.get("/v1/runs", headers={"Authorization": "Bearer guess"}), 401)
    expect(
        await stranger.get("/v1/runs"), 401
    )  # no credential: this is not an attempt to sign in
    assert list(map(facts, records(caplog))) == [
        ("sign_in", "ann", "", "done"),
        ("sign_out", "ann", "", "done"),
        ("sign_in", "", "POST /v1/session", "unauthorized"),
        ("sign_in", "", "POST /v1/session", "unauthorized"),
        ("sign_in", "", "GET /v1/runs", "unauthorized"),
    ]
    assert "nonsense" not in caplog.text


async def test_what_takes_runs_away_or_holds_them_up_is_on_record(
    serve: Serve, stage: ControllableTools, caplog: pytest.LogCaptureFixture
) -> None:
    """Also if it was refused."""
    served = await serve(stage.agent("Done."))
    olga, vera = await served.client("olga"), await served.client("vera")
    where = await start_run(olga)
    expect(await reached(olga, where, "completed"), 200)
    run = where.rpartition("/")[2]
    expect(await olga.get(f"{where}/export"), 200)
    expect(await olga.get(f"{where}/checkpoint"), 409)
    expect(await olga.post("/v1/resume", json={"checkpoint": {}}), 409)
    expect(await olga.post("/v1/halt", json={"scope": "agent:actor", "reason": "x"}), 202)
    expect(await olga.post("/v1/lift", json={"scope": "agent:actor"}), 200)
    expect(await vera.post("/v1/halt", json={"scope": "all"}), 403)
    expect(await vera.post(f"{where}/cancel", json={}), 403)
    foreign = {"Origin": "http://evil.example"}
    expect(await olga.post(f"{where}/cancel", json={}, headers=foreign), 403)
    expect(await olga.get(where), 200)  # looking is not
    assert list(map(facts, records(caplog))) == [
        ("export", "olga", run, "done"),
        ("export", "olga", run, "checkpoint_refused"),
        ("import", "olga", "", "checkpoint_refused"),
        ("halt", "olga", "agent:actor", "done"),
        ("lift", "olga", "agent:actor", "done"),
        ("halt", "vera", "", "not_allowed"),
        ("request", "vera", f"POST {where}/cancel", "not_allowed"),
        ("request", "", f"POST {where}/cancel", "foreign_origin"),
    ]


async def test_an_address_that_guesses_is_slowed_down_and_those_who_were_in_are_not(
    serve: Serve, stage: ControllableTools, caplog: pytest.LogCaptureFixture
) -> None:
    """After so many wrong ones a guess is not even looked at, right or wrong."""
    served = await serve(stage.agent("Done."), limits=Limits(failures=3, failure_rate=0.001))
    olga, late = await served.client("olga"), await served.client("ann")
    guesser = await served.client(None)
    expect(await olga.get("/v1/runs"), 200)
    codes = []
    for number in range(5):
        shown = {"Authorization": f"Bearer guess-{number}"}
        codes.append((await guesser.get("/v1/runs", headers=shown)).status_code)
    assert codes == [401, 401, 401, 429, 429]
    assert len(records(caplog)) == 3  # a flood of guesses is no flood of lines
    refused = expect(await late.get("/v1/runs"), 429)
    assert int(refused.headers["retry-after"]) > 0
    expect(await olga.get("/v1/runs"), 200)


async def test_pages_of_other_origins_do_not_fill_the_log(
    serve: Serve, stage: ControllableTools, caplog: pytest.LogCaptureFixture
) -> None:
    """A page can send as many requests as it likes."""
    served = await serve(stage.agent("Done."), limits=Limits(failures=2, failure_rate=0.001))
    client = await served.client("olga")
    for _ in range(5):
        expect(await client.get("/v1/runs", headers={"Origin": "http://evil.example"}), 403)
    assert len(records(caplog)) == 2
    expect(await client.get("/v1/runs"), 200)


def test_what_is_remembered_of_addresses_is_bounded_and_time_heals() -> None:
    """All addresses of one IPv6 network share one allowance."""
    now = 0.0
    limit = AddressLimit(2, 0.5, lambda: now)
    for last in range(2):
        limit.count_event(f"2001:db8::{last}")
    assert limit.wait_s("2001:db8::ffff") == 2.0
    assert limit.wait_s("2001:db8:0:1::1") == 0.0
    for last in range(2):  # as a socket for both protocols names clients of IPv4
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
async def test_text_of_clients_reaches_the_log_escaped(
    serve: Serve, stage: ControllableTools, caplog: pytest.LogCaptureFixture, version: str
) -> None:
    """Ids, methods and names of an A2A request, which its SDK logs, and tracebacks."""
    caplog.set_level(logging.DEBUG)
    served = await serve(stage.agent("Done."))
    client = await served.client("olga")
    headers = {"A2A-Version": version}
    for call in (
        {"jsonrpc": "2.0", "id": f"1{LINES}", "method": f"No{LINES}", "params": {}},
        {"jsonrpc": "2.0", "id": f"1{LINES}", "method": "GetTask", "params": {"id": LINES}},
        {"jsonrpc": "2.0", "id": f"1{LINES}", "method": "GetTask", "params": {LINES: 1}},
        {"jsonrpc": "2.0", "id": f"1{LINES}", "method": "SendMessage", "params": {"x": LINES}},
        {"jsonrpc": f"2.0{LINES}", "id": 1, "method": "GetTask"},
    ):
        await client.post("/a2a/actor", json=call, headers=headers)
    assert "forged line" in caplog.text
    lines = caplog.text.split("\n")
    assert not [line for line in lines if line.startswith("forged")]
    assert not [line for line in lines if "\x1b" in line or "\u202e" in line]


async def test_a_failure_inside_is_logged_with_its_traceback_indented(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The text of an error may be a client's; none of its lines can pose as a record."""

    async def auth(token: str) -> Actor | None:
        raise RuntimeError(f"no {token}{LINES}")

    mid = Midrun("memory://")
    transport = httpx2.ASGITransport(app=app(mid, auth=auth))
    url, shown = "http://127.0.0.1", {"Authorization": "Bearer guess"}
    async with mid, httpx2.AsyncClient(transport=transport, base_url=url) as client:
        expect(await client.get("/v1/runs", headers=shown), 500)
    (record,) = [each for each in caplog.records if each.name == "midrun.server"]
    assert record.exc_text is not None
    assert "Traceback" in record.exc_text
    assert all(line.startswith("  | ") for line in record.exc_text.split("\n"))
    assert "\x1b" not in record.exc_text
