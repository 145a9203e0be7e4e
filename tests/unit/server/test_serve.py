"""`serve`: tokens, addresses and network settings, and the server as a process."""

import signal
import ssl
from datetime import UTC, datetime
from ipaddress import ip_address
from pathlib import Path

import anyio
import httpx2
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from midrun import Actor, Midrun, Misconfigured
from midrun.runs.token_file import find_token_folder
from midrun.server import Network, Tokens, app, token_in
from midrun.server import serve as serve_forever
from midrun.server.admin import PROOF_HEADER
from midrun.server.serve import UvicornServer, open_listener
from tests.unit.server.conftest import TIMEOUT_S, make_token
from tests.unit.server.server_process import start_server_process
from tests.unit.server.sse_stream import open_event_stream


def test_a_token_is_created_once_and_only_its_owner_can_read_it(tmp_path: Path) -> None:
    """It has 256 bits."""
    token = token_in(tmp_path / "data")
    path = tmp_path / "data" / "token"
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert len(token) >= 43
    assert token_in(tmp_path / "data") == token
    assert token_in(tmp_path / "other") != token


def test_a_token_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    """Another account may have read it already."""
    token_in(tmp_path)
    (tmp_path / "token").chmod(0o644)
    with pytest.raises(Misconfigured, match="other users can read it"):
        token_in(tmp_path)


def test_a_token_file_that_is_a_symbolic_link_is_refused(tmp_path: Path) -> None:
    """An account that can create a link in the folder must not choose the token."""
    (tmp_path / "chosen").write_text("a" * 43)
    (tmp_path / "token").symlink_to(tmp_path / "chosen")
    with pytest.raises(OSError, match="symbolic"):
        token_in(tmp_path)


async def test_a_token_file_of_an_earlier_version_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is in the folder in which tools work, and they may have read it."""
    monkeypatch.chdir(tmp_path)
    token_in(tmp_path / ".midrun")
    with pytest.raises(Misconfigured, match=r"tools work in this folder.* Delete it"):
        await serve_forever(Midrun("memory://"), port=0)


def test_the_token_folder_is_outside_of_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tools work in the working folder. Each working folder has its own token folder."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    one, two = find_token_folder(tmp_path / "one"), find_token_folder(tmp_path / "two")
    assert one.parent == two.parent == tmp_path / "state" / "midrun"
    assert one != two
    monkeypatch.setenv("XDG_STATE_HOME", "state")  # a relative path is ignored
    monkeypatch.setenv("HOME", str(tmp_path))
    assert (
        find_token_folder(tmp_path / "one").parent == tmp_path / ".local" / "state" / "midrun"
    )
    monkeypatch.setattr(Path, "home", lambda: (_ for _ in ()).throw(RuntimeError))
    with pytest.raises(Misconfigured, match="MIDRUN_TOKEN"):
        find_token_folder(tmp_path)


def test_an_app_needs_one_strong_credential() -> None:
    """There is no setting to do without, not even on loopback."""
    mid = Midrun("memory://")
    with pytest.raises(Misconfigured, match="token"):
        app(mid)
    with pytest.raises(Misconfigured, match="token"):
        app(mid, token=make_token("me"), auth=Tokens({make_token("me"): Actor(name="ann")}))
    for weak in ("", "short"):
        with pytest.raises(Misconfigured, match="characters"):
            app(mid, token=weak)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.com"])  # noqa: S104 - to be refused
async def test_no_bind_beyond_loopback_without_configured_auth(
    host: str, tmp_path: Path
) -> None:
    """A token that the server generated is not a decision to admit other machines."""
    mid = Midrun("memory://")
    with pytest.raises(Misconfigured, match="other machines can reach it"):
        await serve_forever(mid, host=host, folder=tmp_path)
    with pytest.raises(Misconfigured, match="allow_hosts"):
        await serve_forever(mid, host=host, token=make_token("me"))


@pytest.mark.parametrize(
    ("network", "public_url", "warns"),
    [
        (Network(), None, True),
        (Network(), "http://runs.example", True),
        (Network(), "https://runs.example", False),
        (Network(forwarded_allow_ips="10.0.0.1"), None, False),
    ],
)
async def test_plain_http_beyond_loopback_logs_a_warning(
    network: Network,
    public_url: str | None,
    warns: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Tokens would cross the network unencrypted, unless a proxy speaks https."""
    with pytest.raises(Misconfigured, match="address"):
        await serve_forever(
            Midrun("memory://"),
            host="192.0.2.1",  # no address of this machine: it cannot be bound
            token=make_token("me"),
            allow_hosts=["runs.example"],
            public_url=public_url,
            network=network,
        )
    assert ("--tls-cert" in caplog.text) is warns


class LinePrinted(Exception):
    """The server has printed its line; nothing is served after that."""


def stop_at_line(line: str) -> None:
    raise LinePrinted(line)


async def test_no_sign_in_code_is_printed_if_a_token_is_configured(tmp_path: Path) -> None:
    """The line may go to a log, and a reader of its code would become an operator."""
    with pytest.raises(LinePrinted, match="#code="):
        await serve_forever(Midrun("memory://"), port=0, folder=tmp_path, say=stop_at_line)
    token = make_token("me")
    with pytest.raises(LinePrinted) as printed:
        await serve_forever(Midrun("memory://"), port=0, token=token, say=stop_at_line)
    assert "code" not in str(printed.value)
    assert token not in str(printed.value)


async def test_invalid_network_settings_are_refused_by_name(tmp_path: Path) -> None:
    """They are refused before a socket is opened."""
    missing = tmp_path / "cert.pem"
    for network, name in (
        (Network(tls_cert=missing), "tls_cert"),
        (Network(tls_key=missing), "tls_key"),
        (Network(root_path="midrun/"), "root_path"),
    ):
        with pytest.raises(Misconfigured, match=name):
            await serve_forever(Midrun("memory://"), folder=tmp_path, network=network)


def test_an_environment_variable_of_uvicorn_declares_no_proxy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Container images set it; every client could then claim any address."""
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "*")
    asgi_app = app(Midrun("memory://"), token=make_token("me"))
    assert UvicornServer(asgi_app).config.forwarded_allow_ips == "127.0.0.1,::1"
    declared = Network(forwarded_allow_ips="10.0.0.1")
    assert UvicornServer(asgi_app, declared).config.forwarded_allow_ips == "10.0.0.1"


# ── the process ──────────────────────────────────────────────────────────────


async def test_a_server_prints_its_sign_in_link_and_exits_with_streams_open(
    tmp_path: Path,
) -> None:
    """Uvicorn alone would wait for an open stream until its timeout."""
    async with start_server_process(tmp_path) as (process, link):
        url, _, code = link.partition("/#code=")
        async with httpx2.AsyncClient(base_url=url, timeout=TIMEOUT_S) as browser:
            headers = {"Authorization": f"Code {code}"}
            session = await browser.post("/v1/session", json={}, headers=headers)
            assert session.json()["role"] == "operator"
            browser.headers[PROOF_HEADER] = session.json()["proof"]
            body = {"agent": "actor", "input": "Go."}
            run = (await browser.post("/v1/runs", json=body)).json()["run_id"]
            async with open_event_stream(browser, f"/v1/runs/{run}/events") as events:
                while (await anext(events)).event != "call.started":
                    pass
                process.send_signal(signal.SIGTERM)
                async for _ in events:
                    pass
        await process.wait()
    token = (tmp_path / "data" / "token").read_text()
    assert token not in link


async def test_a_draining_server_is_not_ready_and_still_answers(tmp_path: Path) -> None:
    """A load balancer sees 503 on /readyz; requests that it still sends are answered."""
    async with start_server_process(tmp_path, network={"drain_s": TIMEOUT_S}) as (
        process,
        link,
    ):
        async with httpx2.AsyncClient(base_url=link.partition("/#")[0]) as probe:
            assert (await probe.get("/readyz")).status_code == 204
            process.send_signal(signal.SIGTERM)
            while (await probe.get("/readyz")).status_code == 204:
                pass
        async with httpx2.AsyncClient(base_url=link.partition("/#")[0]) as client:
            assert (await client.get("/readyz")).status_code == 503
            assert (await client.get("/healthz")).status_code == 204
            headers = {"Authorization": f"Code {link.partition('#code=')[2]}"}
            response = await client.post("/v1/session", json={}, headers=headers)
            assert response.status_code == 200
        process.send_signal(signal.SIGTERM)  # a second signal ends the drain
        await process.wait()


async def test_a_server_with_a_certificate_speaks_https(tmp_path: Path) -> None:
    """The link has the scheme, and the session cookie is secure."""
    cert, key = write_certificate(tmp_path)
    files = {"tls_cert": str(cert), "tls_key": str(key)}
    async with start_server_process(tmp_path, network=files) as (process, link):
        url, _, code = link.partition("/#code=")
        assert url.startswith("https://127.0.0.1:")
        context = ssl.create_default_context(cafile=cert)
        async with httpx2.AsyncClient(base_url=url, verify=context) as browser:
            headers = {"Origin": url, "Authorization": f"Code {code}"}
            response = await browser.post("/v1/session", json={}, headers=headers)
            assert response.status_code == 200
            assert response.headers["set-cookie"].startswith("__Host-midrun_")
            assert "secure" in response.headers["set-cookie"].lower()
        process.send_signal(signal.SIGTERM)
        await process.wait()


async def test_the_root_path_is_in_the_link_and_in_the_cookie_path(tmp_path: Path) -> None:
    """A proxy removes this prefix from the path of every request."""
    async with start_server_process(tmp_path, network={"root_path": "/midrun"}) as (
        process,
        link,
    ):
        url, _, code = link.partition("/#code=")
        assert url.endswith("/midrun")
        async with httpx2.AsyncClient(base_url=url.removesuffix("/midrun")) as client:
            headers = {"Authorization": f"Code {code}"}
            response = await client.post("/v1/session", json={}, headers=headers)
            assert "path=/midrun/" in response.headers["set-cookie"].lower()
            assert "<!doctype html>" in (await client.get("/")).text
        process.send_signal(signal.SIGTERM)
        await process.wait()


@pytest.mark.parametrize(
    ("years", "problem"), [((2020, 2021), "has expired"), ((2119, 2120), "not yet")]
)
def test_a_certificate_that_is_not_valid_now_is_refused_by_name(
    tmp_path: Path, years: tuple[int, int], problem: str
) -> None:
    """Every client would refuse it, and the server would look as if it worked."""
    cert, key = write_certificate(tmp_path, years)
    with pytest.raises(Misconfigured, match=f"Cannot use .*{problem}.* Renew it"):
        Network(tls_cert=cert, tls_key=key).check()
    other = tmp_path / "other"
    other.mkdir()
    with pytest.raises(Misconfigured, match="the key belongs to another certificate"):
        Network(tls_cert=cert, tls_key=write_certificate(other)[1]).check()


def write_certificate(folder: Path, years: tuple[int, int] = (2020, 2120)) -> tuple[Path, Path]:
    """Write a certificate for 127.0.0.1 and its key; return their paths."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    since, until = (datetime(year, 1, 1, tzinfo=UTC) for year in years)
    names = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(since)
        .not_valid_after(until)
        .add_extension(names, critical=False)
        .sign(key, hashes.SHA256())
    )
    cert_file, key_file = folder / "cert.pem", folder / "key.pem"
    cert_file.write_bytes(certificate.public_bytes(Encoding.PEM))
    key_file.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return cert_file, key_file


@pytest.mark.parametrize(
    ("trusted", "seen"), [("127.0.0.1", "203.0.113.9"), ("10.0.0.1", "127.0.0.1")]
)
async def test_forwarded_headers_are_taken_only_from_a_trusted_proxy(
    trusted: str, seen: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Any other client could claim an address, and a limit per address would mean nothing."""
    mid = Midrun("memory://")
    asgi_app = app(mid, token=make_token("me"))
    server = UvicornServer(asgi_app, Network(forwarded_allow_ips=trusted))
    with open_listener("127.0.0.1", 0) as sock:
        url = f"http://127.0.0.1:{sock.getsockname()[1]}"
        async with mid, anyio.create_task_group() as tasks:
            tasks.start_soon(server.serve, [sock])
            headers = {"Authorization": "Bearer wrong", "X-Forwarded-For": "203.0.113.9"}
            async with httpx2.AsyncClient(base_url=url) as client:
                assert (await client.get("/v1/runs", headers=headers)).status_code == 401
            server.should_exit = True
    (record,) = [each for each in caplog.records if each.name == "midrun.audit"]
    assert f'"address": "{seen}"' in record.getMessage()
