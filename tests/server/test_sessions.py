"""Sessions of browsers, and what a server must have before it is one."""

from pathlib import Path

import anyio
import httpx2
import pytest
from anyio.lowlevel import checkpoint

from midrun import Actor, Midrun, Misconfigured
from midrun.server import Limits, Tokens, app, token_in
from midrun.server import serve as serve_forever
from tests.runtime.stage import Stage, Use
from tests.server.conftest import Serve, listening, token_of
from tests.server.listening import heard


async def test_a_link_signs_one_browser_in_once(serve: Serve, stage: Stage) -> None:
    """What is left of it in a terminal, or a history, is worth nothing."""
    served = await serve(stage.agent("Done."))
    code = served.app.code(Actor(name="ann", role="user"))
    browser, other = await served.client(None), await served.client(None)
    shown = {"Authorization": f"Code {code}"}
    assert (await browser.get("/v1/runs", headers=shown)).status_code == 401
    signed = await browser.post("/v1/session", json={}, headers=shown)
    assert signed.json() == {"name": "ann", "role": "user"}
    cookie = signed.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert "path=/" in cookie
    assert (await browser.get("/v1/session")).json()["name"] == "ann"
    assert (await other.post("/v1/session", json={}, headers=shown)).status_code == 401
    assert (await browser.get("/v1/session", headers={"Cookie": "x"})).status_code == 401


async def test_a_session_ends_and_its_streams_with_it(serve: Serve, stage: Stage) -> None:
    """Signing out is not a wish: what was open is closed."""
    served = await serve(stage.agent(Use("slow", name="x"), "."))
    run = await served.mid.start("actor", "Go.", actor="olga")
    await stage.start("x").wait()
    browser = await served.client("olga")
    await browser.post("/v1/session", json={})
    del browser.headers["authorization"]
    async with heard(browser, f"/v1/runs/{run.id}/events") as events:
        await anext(events)
        assert (await browser.delete("/v1/session")).status_code == 204
        left = [event async for event in events]
    assert "stream.end" not in [event.event for event in left]
    assert (await browser.get("/v1/runs")).status_code == 401


async def test_a_token_that_is_revoked_ends_its_sessions_and_streams(stage: Stage) -> None:
    """A right that was taken away is not good for as long as a connection lasts."""
    known = {"a-token-that-is-long": Actor(name="ann", role="operator")}

    async def auth(token: str) -> Actor | None:
        return known.get(token)

    agent = stage.agent(Use("slow", name="x"), ".")
    with anyio.fail_after(20):
        async with (
            Midrun("memory://", agents=[agent]) as mid,
            listening(made := app(mid, auth=auth, limits=Limits(ping=0.02))) as port,
            httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client,
        ):
            client.headers["authorization"] = "Bearer a-token-that-is-long"
            run = await mid.start("actor", "Go.", actor="ann")
            await stage.start("x").wait()
            await client.post("/v1/session", json={})
            async with heard(client, f"/v1/runs/{run.id}/events") as events:
                await anext(events)
                known.clear()
                async for _ in events:
                    pass
            while made.streams:
                await checkpoint()
            del client.headers["authorization"]
            assert (await client.get("/v1/runs")).status_code == 401
            stage.gate("x").set()


async def test_a_cookie_of_another_port_is_not_ours(serve: Serve, stage: Stage) -> None:
    """Browsers send cookies to every port of a host, so each server's has a name of its own."""
    served = await serve(stage.agent("Done."))
    client = await served.client("olga")
    signed = await client.post("/v1/session", json={})
    name, _, rest = signed.headers["set-cookie"].partition("=")
    assert name == f"midrun_{served.port}"
    secret = rest.partition(";")[0]
    plain = await served.client(None)
    ours = {"Cookie": f"midrun_{served.port}={secret}"}
    theirs = {"Cookie": f"midrun_1={secret}"}
    assert (await plain.get("/v1/runs", headers=ours)).status_code == 200
    assert (await plain.get("/v1/runs", headers=theirs)).status_code == 401


# ── setting up ───────────────────────────────────────────────────────────────


def test_a_token_is_made_once_for_its_owner_alone(tmp_path: Path) -> None:
    """256 bits, in a file that nobody else on the machine can read."""
    token = token_in(tmp_path / "data")
    path = tmp_path / "data" / "token"
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert len(token) >= 43
    assert token_in(tmp_path / "data") == token
    assert token_in(tmp_path / "other") != token


def test_a_token_that_others_can_read_is_refused(tmp_path: Path) -> None:
    """It has been read already, for all we know."""
    token_in(tmp_path)
    (tmp_path / "token").chmod(0o644)
    with pytest.raises(Misconfigured, match="others can read it"):
        token_in(tmp_path)


def test_a_token_behind_a_link_is_refused(tmp_path: Path) -> None:
    """Whoever can place a link in the folder must not choose the token."""
    (tmp_path / "chosen").write_text("a" * 43)
    (tmp_path / "token").symlink_to(tmp_path / "chosen")
    with pytest.raises(OSError, match="symbolic"):
        token_in(tmp_path)


def test_a_server_without_credentials_is_not_made() -> None:
    """Neither on loopback nor for a test: there is no such setting."""
    mid = Midrun("memory://")
    with pytest.raises(Misconfigured, match="token"):
        app(mid)
    with pytest.raises(Misconfigured, match="token"):
        app(mid, token=token_of("me"), auth=Tokens({token_of("me"): Actor()}))
    for weak in ("", "short"):
        with pytest.raises(Misconfigured, match="characters"):
            app(mid, token=weak)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.com"])  # noqa: S104 - to be refused
async def test_no_bind_beyond_loopback_without_configured_auth(
    host: str, tmp_path: Path
) -> None:
    """Others could reach it; a token that nobody chose is not a decision to let them."""
    mid = Midrun("memory://")
    with pytest.raises(Misconfigured, match="others can reach it"):
        await serve_forever(mid, host=host, folder=tmp_path)
    with pytest.raises(Misconfigured, match="allow_hosts"):
        await serve_forever(mid, host=host, token=token_of("me"))
