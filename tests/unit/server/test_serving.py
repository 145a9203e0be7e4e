"""The server as a process: how it is reached, how it stops, and what races come to."""

import signal
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from ipaddress import ip_address
from pathlib import Path

import anyio
import httpx2
import msgspec
import pytest
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from midrun.core.values import TERMINAL_PHASES
from midrun.models import Use
from midrun.server.admin import PROOF_HEADER
from tests.support.processes import ROOT
from tests.unit.runs.stage import ControllableTools
from tests.unit.server.conftest import PATIENCE, Serve
from tests.unit.server.listening import heard


async def test_a_server_prints_its_link_and_leaves_at_once_with_streams_open(
    tmp_path: Path,
) -> None:
    """Uvicorn alone would wait for an open stream until its patience is over."""
    command = [sys.executable, "-m", "tests.unit.server.child", str(tmp_path)]
    with anyio.fail_after(PATIENCE):
        process = await anyio.open_process(command, cwd=ROOT, stderr=subprocess.DEVNULL)
        async with process:
            assert process.stdout is not None
            printed = BufferedByteReceiveStream(process.stdout)
            link = (await printed.receive_until(b"\n", 1000)).decode()
            url, _, code = link.partition("/#code=")
            async with httpx2.AsyncClient(base_url=url, timeout=PATIENCE) as browser:
                shown = {"Authorization": f"Code {code}"}
                signed = await browser.post("/v1/session", json={}, headers=shown)
                assert signed.json()["role"] == "operator"
                browser.headers[PROOF_HEADER] = signed.json()["proof"]
                body = {"agent": "actor", "input": "Go."}
                run = (await browser.post("/v1/runs", json=body)).json()["run_id"]
                async with heard(browser, f"/v1/runs/{run}/events") as events:
                    while (await anext(events)).event != "call.started":
                        pass
                    process.send_signal(signal.SIGTERM)
                    async for _ in events:
                        pass
            await process.wait()
    token = (tmp_path / "data" / "token").read_text()
    assert token not in link


@asynccontextmanager
async def child(folder: Path, **network: object) -> AsyncIterator[tuple[Process, str]]:
    """Give a server in a process of its own, and the link that it prints."""
    given = msgspec.json.encode(network).decode()
    command = [sys.executable, "-m", "tests.unit.server.child", str(folder), given]
    with anyio.fail_after(PATIENCE):
        process = await anyio.open_process(command, cwd=ROOT, stderr=subprocess.DEVNULL)
        async with process:
            assert process.stdout is not None
            printed = BufferedByteReceiveStream(process.stdout)
            try:
                yield process, (await printed.receive_until(b"\n", 1000)).decode().strip()
            finally:
                if process.returncode is None:
                    process.kill()


async def test_a_server_that_drains_says_so_and_goes_on_answering(tmp_path: Path) -> None:
    """A load balancer sees 503 on /readyz and leaves; until then nothing it sends is lost."""
    async with child(tmp_path, drain_s=PATIENCE) as (process, link):
        async with httpx2.AsyncClient(base_url=link.partition("/#")[0]) as probe:
            assert (await probe.get("/readyz")).status_code == 204
            process.send_signal(signal.SIGTERM)
            while (await probe.get("/readyz")).status_code == 204:
                pass
        async with httpx2.AsyncClient(base_url=link.partition("/#")[0]) as new:
            assert (await new.get("/readyz")).status_code == 503
            assert (await new.get("/healthz")).status_code == 204
            shown = {"Authorization": f"Code {link.partition('#code=')[2]}"}
            signed = await new.post("/v1/session", json={}, headers=shown)
            assert signed.status_code == 200
        process.send_signal(signal.SIGTERM)  # the second one does not wait
        await process.wait()


async def test_a_server_with_a_certificate_speaks_https(tmp_path: Path) -> None:
    """Its link says so, and a session's cookie goes nowhere else."""
    cert, key = certificate(tmp_path)
    files = {"tls_cert": str(cert), "tls_key": str(key)}
    async with child(tmp_path, **files) as (process, link):
        url, _, code = link.partition("/#code=")
        assert url.startswith("https://127.0.0.1:")
        trusting = ssl.create_default_context(cafile=cert)
        async with httpx2.AsyncClient(base_url=url, verify=trusting) as browser:
            own = {"Origin": url, "Authorization": f"Code {code}"}
            signed = await browser.post("/v1/session", json={}, headers=own)
            assert signed.status_code == 200
            assert signed.headers["set-cookie"].startswith("__Host-midrun_")
            assert "secure" in signed.headers["set-cookie"].lower()
        process.send_signal(signal.SIGTERM)
        await process.wait()


async def test_a_prefix_that_a_proxy_cuts_off_stands_in_every_address(tmp_path: Path) -> None:
    """In the link, and in what the server says of where things are."""
    async with child(tmp_path, root_path="/midrun") as (process, link):
        url, _, code = link.partition("/#code=")
        assert url.endswith("/midrun")
        async with httpx2.AsyncClient(base_url=url.removesuffix("/midrun")) as client:
            shown = {"Authorization": f"Code {code}"}
            signed = await client.post("/v1/session", json={}, headers=shown)
            assert "path=/midrun/" in signed.headers["set-cookie"].lower()
            assert "<!doctype html>" in (await client.get("/")).text
        process.send_signal(signal.SIGTERM)
        await process.wait()


def certificate(folder: Path) -> tuple[Path, Path]:
    """Write a certificate for 127.0.0.1 and its key; return where they are."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    since, until = (datetime(year, 1, 1, tzinfo=UTC) for year in (2020, 2120))
    names = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(since)
        .not_valid_after(until)
        .add_extension(names, critical=False)
        .sign(key, hashes.SHA256())
    )
    cert, secret = folder / "cert.pem", folder / "key.pem"
    cert.write_bytes(made.public_bytes(Encoding.PEM))
    secret.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return cert, secret


@pytest.mark.parametrize("ends", [0, 25, 50])
async def test_fifty_cancels_and_a_completion_have_one_winner(
    serve: Serve, stage: ControllableTools, ends: int
) -> None:
    """Every reply agrees with the journal, whoever was first: it, one of them, or either."""
    served = await serve(stage.agent(Use("slow", name="x"), "Done."))
    client = await served.client()
    run = await served.mid.start("actor", "Go.", actor="olga")
    await stage.start("x").wait()
    replies: list[httpx2.Response] = []

    async def cancel() -> None:
        replies.append(await client.post(f"/v1/runs/{run.id}/cancel", json={}))

    async with anyio.create_task_group() as tasks:
        for number in range(50):
            if number == ends:
                stage.gate("x").set()
                if not number:
                    await run.until("completed")
            tasks.start_soon(cancel)
    stage.gate("x").set()
    view = await run.until("terminal")
    assert view.phase in {0: ["completed"], 50: ["cancelled"]}.get(ends, [*TERMINAL_PHASES])
    chain = await served.mid.store.read_lines(run.id)
    entries = await served.mid.store.read(run.id)
    asked = [
        record.seq for record in entries if type(record.entry).__name__ == "CancelRequested"
    ]
    won = [reply.json() for reply in replies if reply.status_code == 202]
    if view.phase == "completed":
        assert {reply.status_code for reply in replies} == {409}
        assert not asked
        return
    assert [told["command"]["receipt"]["seq"] for told in won] == asked
    for reply in replies:
        told = reply.json()
        assert reply.status_code in {200, 202}
        assert told["run"]["phase"] in {"cancelling", "cancelled"}
        seq = told["run"]["seq"]
        assert seq >= told["command"]["receipt"]["seq"], "nobody is shown less than they did"
        assert told["run"]["head_hash"] == chain[seq - 1][1].hex()


async def test_two_servers_on_one_store_show_and_control_the_same_run(
    serve: Serve, stage: ControllableTools
) -> None:
    """A control pressed here reaches the driver there, and both feeds tell of it."""
    first = await serve(stage.agent(Use("slow", name="x"), "Done."))
    second = await serve()  # knows no agent: it only looks and controls
    here, there = await first.client(), await second.client()
    run = (await here.post("/v1/runs", json={"agent": "actor", "input": "Go."})).json()[
        "run_id"
    ]
    await stage.start("x").wait()
    async with (
        heard(here, f"/v1/runs/{run}/events") as one,
        heard(there, f"/v1/runs/{run}/events") as two,
    ):
        told = await there.post(f"/v1/runs/{run}/cancel", json={"reason": "enough"})
        assert told.status_code == 202
        heard_here = [event.raw async for event in one if event.id is not None]
        heard_there = [event.raw async for event in two if event.id is not None]
    assert heard_here == heard_there
    assert b"event: run.cancelled" in heard_here[-1]
