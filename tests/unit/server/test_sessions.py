"""Sessions of browsers: sign-in, cookies and proofs, sign-out, and restarts of the server."""

import string
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypedDict, Unpack, cast

import anyio
import httpx2
import pytest
from anyio.lowlevel import checkpoint
from starlette.applications import Starlette
from starlette.routing import Mount

from midrun import Actor, Agent, Midrun, Misconfigured
from midrun.core.ids import MICROS_PER_SECOND, Micros
from midrun.models import ScriptedModel, Use
from midrun.ports.environment import read_wall_clock
from midrun.ports.platform import read_boot_clock
from midrun.server import App, Auth, Limits, Tokens, app
from midrun.server import serve as serve_forever
from midrun.server.admin import PROOF_HEADER
from midrun.server.auth import (
    CODE_LIFETIME_S,
    ENDED_SESSIONS_MAX,
    SECRET_MAX_CHARS,
    SESSION_LIFETIME_S,
    SESSIONS_MAX,
    Sessions,
    derive_key,
)
from midrun.testing.controllable_tools import ControllableTools
from tests.unit.server.conftest import (
    ACTORS,
    TIMEOUT_S,
    StartServer,
    make_token,
    serve_on_loopback,
)
from tests.unit.server.sse_stream import open_event_stream

TOKEN = make_token("me")


async def test_a_sign_in_code_works_once(serve: StartServer, stage: ControllableTools) -> None:
    """A code that is left in a terminal or a browser history is worthless."""
    server = await serve(stage.agent("Done."))
    code = server.app.code(Actor(name="ann", role="user"))
    browser, other = await server.client(None), await server.client(None)
    headers = {"Authorization": f"Code {code}"}
    assert (await browser.get("/v1/runs", headers=headers)).status_code == 401
    response = await browser.post("/v1/session", json={}, headers=headers)
    assert (response.json()["name"], response.json()["role"]) == ("ann", "user")
    cookie = response.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert "path=/" in cookie
    browser.headers[PROOF_HEADER] = response.json()["proof"]
    assert (await browser.get("/v1/session")).json()["name"] == "ann"
    assert (await other.post("/v1/session", json={}, headers=headers)).status_code == 401
    assert (await browser.get("/v1/session", headers={"Cookie": "x"})).status_code == 401


async def test_a_session_cannot_open_another_session(
    serve: StartServer, stage: ControllableTools
) -> None:
    """The other one would last 12 more hours, and outlive the end of the first."""
    server = await serve(stage.agent("Done."))
    browser = await server.client("ann")
    await sign_in(browser)
    del browser.headers["authorization"]
    refused = await browser.post("/v1/session", json={})
    assert (refused.status_code, "set-cookie" in refused.headers) == (401, False)
    assert (await browser.get("/v1/session")).status_code == 200


async def sign_in(client: httpx2.AsyncClient) -> None:
    """Sign a browser in with its bearer token, and keep the proof as the page does."""
    client.headers[PROOF_HEADER] = (await client.post("/v1/session", json={})).json()["proof"]


async def test_a_cookie_without_its_proof_is_no_session(
    serve: StartServer, stage: ControllableTools
) -> None:
    """A server on another port of the host gets the cookie, but never the proof."""
    server = await serve(stage.agent("Done."))
    browser = await server.client("olga")
    await sign_in(browser)
    del browser.headers["authorization"]
    proof = browser.headers.pop(PROOF_HEADER)
    other = await server.client("ann")
    await sign_in(other)
    for wrong_proof in ("", "x", proof[:-1], f"{proof}x", other.headers[PROOF_HEADER], "é"):
        headers = {PROOF_HEADER.encode(): wrong_proof.encode()}
        assert (await browser.get("/v1/runs", headers=headers)).status_code == 401
        assert (await browser.delete("/v1/session", headers=headers)).status_code == 401
    assert (await browser.get("/v1/runs", headers={PROOF_HEADER: proof})).status_code == 200


async def test_a_duplicate_cookie_is_refused(
    serve: StartServer, stage: ControllableTools
) -> None:
    """Another server of the host can set one for a longer path, which would come first."""
    server = await serve(stage.agent("Done."))
    browser = await server.client("olga")
    await sign_in(browser)
    del browser.headers["authorization"]
    (secret,) = browser.cookies.values()
    name, proof = f"midrun_{server.port}", {PROOF_HEADER: browser.headers[PROOF_HEADER]}
    for cookies in (f"{name}={secret}; {name}=x", f"{name}=x;{name}={secret}"):
        client = await server.client(None)
        reply = await client.get("/v1/runs", headers=proof | {"Cookie": cookies})
        assert (reply.status_code, reply.json()["title"]) == (400, "duplicate cookie")


async def test_over_https_the_cookie_has_the_host_prefix() -> None:
    """`__Host-` keeps subdomains from setting it; it requires the path `/` and no domain."""
    asgi_app = app(Midrun("memory://"), token=TOKEN, public_url="https://runs.example")
    mounted = Starlette(routes=[Mount("/agents", asgi_app)])
    for host, path, name in (
        (asgi_app, "/v1", "__Host-midrun_80"),
        (mounted, "/agents/v1", "__Host-midrun_80%2Fagents"),
    ):
        transport = httpx2.ASGITransport(app=host)
        url = "http://runs.example"
        async with (
            asgi_app._server.mid,
            httpx2.AsyncClient(transport=transport, base_url=url) as client,
        ):
            bearer = {"Authorization": f"Bearer {TOKEN}"}
            response = await client.post(f"{path}/session", json={}, headers=bearer)
            cookie = response.headers["set-cookie"]
            assert cookie.startswith(f"{name}=")
            assert "path=/;" in cookie.lower()
            assert "secure" in cookie.lower()
            assert "domain" not in cookie.lower()
            headers = {
                "Cookie": cookie.partition(";")[0],
                PROOF_HEADER: response.json()["proof"],
            }
            session = await client.get(f"{path}/session", headers=headers)
            assert session.json()["role"] == "operator"
            signed_out = await client.delete(f"{path}/session", headers=headers)
            assert signed_out.headers["set-cookie"].startswith(f'{name}=""')


async def test_many_sign_ins_of_one_user_do_not_end_sessions_of_others() -> None:
    """The number of sessions is limited; the user with the most sessions loses the oldest."""
    sessions = Sessions(read_boot_clock, read_wall_clock)
    olga, ann = Actor(name="olga", role="operator"), Actor(name="ann", role="user")
    operator_secret = sessions.open(olga)
    secrets = [sessions.open(ann) for _ in range(2 * SESSIONS_MAX)]
    assert sessions.find(operator_secret) is not None
    assert [sessions.find(secrets[n]) is not None for n in (0, -1)] == [False, True]


async def test_signed_sessions_survive_when_the_session_table_is_full() -> None:
    """Their cookies have everything that is needed.

    Streams still learn of the end of theirs.
    """
    sessions = open_sessions()
    ann, olga = Actor(name="ann"), Actor(name="olga", role="operator")
    cookies = [sessions.open(ann) for _ in range(SESSIONS_MAX)]
    session = sessions.find(cookies[0])
    for _ in range(SESSIONS_MAX):
        sessions.open(olga)
        sessions.open(ann)
    assert (len(sessions._sessions), sessions._ended) == (SESSIONS_MAX, {})
    assert all(sessions.find(cookie) for cookie in cookies)
    assert sessions.find(cookies[0]) is session is not None
    sessions.end(cookies[0])
    assert session.ended.is_set()
    assert sessions.find(cookies[0]) is None


async def test_many_sign_outs_of_one_user_do_not_end_sessions_of_others() -> None:
    """The memory of ended sessions is limited; beyond it, other sessions of that user end."""
    before, after = open_sessions(), open_sessions()  # of a restart
    ann, bob = Actor(name="ann"), Actor(name="bob")
    ann_secret, bob_secret, ended = before.open(ann), before.open(bob), before.open(ann)
    assert after.find(ended) is not None
    after.end(ended)
    for _ in range(ENDED_SESSIONS_MAX + 2):
        after.end(after.open(bob))
    assert len(after._ended) <= ENDED_SESSIONS_MAX
    assert after.find(ann_secret) is not None
    assert [after.find(secret) for secret in (bob_secret, ended)] == [None, None]


async def test_an_unused_code_is_dropped_when_it_has_expired() -> None:
    """An application that shows each user a link must not grow by that."""
    now = 0.0
    sessions = Sessions(lambda: now, read_wall_clock)
    old = [sessions.issue_code(Actor(name="ann")) for _ in range(3)]
    now = CODE_LIFETIME_S
    new = sessions.issue_code(Actor(name="ann"))
    assert len(sessions._codes) == 1
    assert [sessions.redeem_code(code) for code in (*old, new)] == [None] * 3 + [
        Actor(name="ann")
    ]


async def test_signing_out_ends_the_streams_of_the_session(
    serve: StartServer, stage: ControllableTools
) -> None:
    server = await serve(stage.agent(Use("slow", name="x"), "."))
    run = await server.mid.start("actor", "Go.", actor="olga")
    await stage.start("x").wait()
    browser = await server.client("olga")
    await sign_in(browser)
    del browser.headers["authorization"]
    async with open_event_stream(browser, f"/v1/runs/{run.id}/events") as events:
        await anext(events)
        assert (await browser.delete("/v1/session")).status_code == 204
        rest = [event async for event in events]
    assert "stream.end" not in [event.event for event in rest]
    assert (await browser.get("/v1/runs")).status_code == 401


async def test_end_sessions_ends_the_sessions_streams_and_codes_of_one_user(
    serve: StartServer, stage: ControllableTools
) -> None:
    """This is for a user who leaves the company. Other users stay signed in."""
    server = await serve(stage.agent(Use("slow", name="x"), "."))
    run = await server.mid.start("actor", "Go.", actor="ann")
    await stage.start("x").wait()
    browsers = [await server.client(None) for _ in range(3)]
    actors: list[str | Actor] = ["ann", Actor(name="ann", role="operator"), "bob"]
    for browser, actor in zip(browsers, actors, strict=True):
        await get_cookie(browser, f"Code {server.app.code(actor)}")
    unused = server.app.code("ann")
    async with open_event_stream(browsers[0], f"/v1/runs/{run.id}/events") as events:
        await anext(events)
        server.app.end_sessions("ann")
        rest = [event async for event in events]
    assert "stream.end" not in [event.event for event in rest]
    statuses = [(await browser.get("/v1/runs")).status_code for browser in browsers]
    assert statuses == [401, 401, 200]
    headers = {"Authorization": f"Code {unused}"}
    assert (await browsers[0].post("/v1/session", json={}, headers=headers)).status_code == 401
    await get_cookie(browsers[0], f"Code {server.app.code('ann')}")
    assert (await browsers[0].get("/v1/runs")).status_code == 200


async def test_an_operator_lists_sessions_and_ends_one_or_all_of_an_actor(
    serve: StartServer,
) -> None:
    """A stolen laptop is signed out without a restart and without a new token."""
    server = await serve(Agent("actor", model=ScriptedModel(["Done."])))
    browsers = [await server.client(None) for _ in range(4)]
    for browser, who in zip(browsers, ("ann", "ann", "bob", "olga"), strict=True):
        await get_cookie(browser, f"Code {server.app.code(ACTORS[who])}")
    olga = browsers[3]
    listed = (await olga.get("/v1/sessions")).json()["items"]
    assert sorted(each["name"] for each in listed) == ["ann", "ann", "bob", "olga"]
    assert [each["name"] for each in listed if each.get("is_own")] == ["olga"]
    assert all(each["opened_at"] < each["expires_at"] for each in listed)
    (bob,) = [each["id"] for each in listed if each["name"] == "bob"]
    assert (await olga.delete(f"/v1/sessions/{bob}")).status_code == 204
    assert (await olga.delete(f"/v1/sessions/{bob}")).status_code == 404
    ended = await olga.post("/v1/sessions/end", json={"actor": "ann"})
    assert ended.json() == {"ended": 2}
    statuses = [(await browser.get("/v1/runs")).status_code for browser in browsers]
    assert statuses == [401, 401, 401, 200]
    assert len((await olga.get("/v1/sessions")).json()["items"]) == 1


def test_end_sessions_also_ends_sessions_that_this_process_has_not_seen() -> None:
    """A signed cookie names its user; the process sees it only after the call."""
    time = read_wall_clock()
    other_process = Sessions(read_boot_clock, lambda: time, key=derive_key(TOKEN))
    this_process = Sessions(read_boot_clock, lambda: time, key=derive_key(TOKEN))
    ann_secret, bob_secret = (
        other_process.open(Actor(name="ann")),
        other_process.open(Actor(name="bob")),
    )
    this_process.end_all("ann")
    time = Micros(time + 1)
    assert [this_process.find(secret) is None for secret in (ann_secret, bob_secret)] == [
        True,
        False,
    ]
    assert open_sessions().find(this_process.open(Actor(name="ann"))) is not None


async def test_a_revoked_token_ends_its_sessions_and_streams(
    stage: ControllableTools,
) -> None:
    actors = {"a-token-that-is-long": Actor(name="ann", role="operator")}

    async def auth(token: str) -> Actor | None:
        return actors.get(token)

    agent = stage.agent(Use("slow", name="x"), ".")
    with anyio.fail_after(TIMEOUT_S):
        async with (
            Midrun("memory://", agents=[agent]) as mid,
            serve_on_loopback(
                asgi_app := app(mid, auth=auth, limits=Limits(ping=0.02))
            ) as port,
            httpx2.AsyncClient(
                base_url=f"http://127.0.0.1:{port}", timeout=TIMEOUT_S
            ) as client,
        ):
            client.headers["authorization"] = "Bearer a-token-that-is-long"
            run = await mid.start("actor", "Go.", actor="ann")
            await stage.start("x").wait()
            await sign_in(client)
            async with open_event_stream(client, f"/v1/runs/{run.id}/events") as events:
                await anext(events)
                actors.clear()
                async for _ in events:
                    pass
            while asgi_app.streams:
                await checkpoint()
            del client.headers["authorization"]
            assert (await client.get("/v1/runs")).status_code == 401
            stage.gate("x").set()


async def test_a_long_poll_ends_with_its_session(
    serve: StartServer, stage: ControllableTools
) -> None:
    """A browser that has signed out must not see the run when it changes."""
    server = await serve(stage.agent(Use("slow", name="x"), "."))
    browser = await server.client("ann")
    run = await server.mid.start("actor", "Go.", actor="ann")
    await stage.start("x").wait()
    await sign_in(browser)
    del browser.headers["authorization"]
    replies: list[httpx2.Response] = []

    async def wait() -> None:
        path, prefer = f"/v1/runs/{run.id}?until=completed", {"Prefer": "wait=60"}
        replies.append(await browser.get(path, headers=prefer))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        while not server.app.streams:
            await checkpoint()
        server.app.end_sessions("ann")
    assert [reply.status_code for reply in replies] == [401]
    assert (await run.view()).phase == "running"
    stage.gate("x").set()


async def test_a_cookie_of_another_port_is_ignored(
    serve: StartServer, stage: ControllableTools
) -> None:
    """Browsers send cookies to every port of a host, so the name contains the port."""
    server = await serve(stage.agent("Done."))
    client = await server.client("olga")
    response = await client.post("/v1/session", json={})
    name, _, rest = response.headers["set-cookie"].partition("=")
    assert name == f"midrun_{server.port}"
    secret = rest.partition(";")[0]
    anonymous = await server.client(None)
    anonymous.headers[PROOF_HEADER] = response.json()["proof"]
    own_cookie = {"Cookie": f"midrun_{server.port}={secret}"}
    other_cookie = {"Cookie": f"midrun_1={secret}"}
    assert (await anonymous.get("/v1/runs", headers=own_cookie)).status_code == 200
    assert (await anonymous.get("/v1/runs", headers=other_cookie)).status_code == 401


# ── from one process to the next ─────────────────────────────────────────────


class AppOptions(TypedDict, total=False):
    """Options of an app that has `auth` instead of one token."""

    auth: Auth
    session_key: bytes


@asynccontextmanager
async def start_app(
    token: str = TOKEN, cookie: str = "", proof: str = "", **options: Unpack[AppOptions]
) -> AsyncIterator[tuple[App, httpx2.AsyncClient]]:
    """Give a new app, and a browser with the cookie of an earlier app."""
    mid = Midrun("memory://")
    asgi_app = app(mid, **options) if options else app(mid, token=token)
    headers = {"Cookie": f"midrun_80={cookie}"} if cookie else {}
    if cookie:  # the page has kept its proof
        headers[PROOF_HEADER] = proof or asgi_app._server.sessions.make_proof(cookie)
    transport = httpx2.ASGITransport(app=asgi_app)
    url = "http://127.0.0.1:80"
    client = httpx2.AsyncClient(transport=transport, base_url=url, headers=headers)
    async with mid, client:
        yield asgi_app, client


async def get_cookie(client: httpx2.AsyncClient, authorization: str) -> str:
    """Sign in with an `Authorization` header, and return the value of the cookie."""
    response = await client.post(
        "/v1/session", json={}, headers={"Authorization": authorization}
    )
    assert response.status_code == 200
    client.headers[PROOF_HEADER] = response.json()["proof"]
    return response.headers["set-cookie"].partition("=")[2].partition(";")[0]


async def test_a_session_outlives_the_process_that_opened_it() -> None:
    """The pages of a server that was killed and restarted stay signed in."""
    async with start_app() as (asgi_app, browser):
        own_cookie = await get_cookie(browser, f"Bearer {TOKEN}")
        ann_cookie = await get_cookie(browser, f"Code {asgi_app.code('ann')}")
    assert TOKEN not in own_cookie
    async with start_app(cookie=own_cookie) as (_, browser):
        assert {"name": "user", "role": "operator"}.items() <= (
            await browser.get("/v1/session")
        ).json().items()
        assert (await browser.get("/v1/runs")).status_code == 200
    async with start_app(cookie=ann_cookie) as (_, browser):
        assert {"name": "ann", "role": "user"}.items() <= (
            await browser.get("/v1/session")
        ).json().items()


async def test_a_new_token_ends_every_session() -> None:
    async with start_app() as (asgi_app, browser):
        cookies = [
            await get_cookie(browser, f"Bearer {TOKEN}"),
            await get_cookie(browser, f"Code {asgi_app.code('ann')}"),
        ]
    for cookie in cookies:
        async with start_app(make_token("another"), cookie) as (_, browser):
            assert (await browser.get("/v1/session")).status_code == 401


async def test_a_session_that_signed_out_stays_ended() -> None:
    """A copy of the cookie is as invalid as the one that the browser has dropped."""
    async with start_app() as (_, browser):
        cookie = await get_cookie(browser, f"Bearer {TOKEN}")
    async with start_app(cookie=cookie) as (_, browser):
        response = await browser.delete("/v1/session")
        assert response.status_code == 204
        assert "max-age=0" in response.headers["set-cookie"].lower()
        assert (await browser.get("/v1/session")).status_code == 401
    sessions = open_sessions()
    session = sessions.find(cookie)
    sessions.end(cookie)
    assert session is not None
    assert session.ended.is_set()  # streams wait for this event
    assert sessions.find(cookie) is None


async def test_a_session_expires() -> None:
    """It expires by the wall clock, as in the browser, also while no process runs."""
    expired_start = Micros(read_wall_clock() - SESSION_LIFETIME_S * MICROS_PER_SECOND)
    for opened_at, status in (
        (expired_start, 401),
        (Micros(expired_start + 600 * MICROS_PER_SECOND), 200),
    ):
        cookie = open_sessions(at=opened_at).open(Actor(name="ann"))
        async with start_app(cookie=cookie) as (_, browser):
            assert (await browser.get("/v1/session")).status_code == status


def test_a_cookie_with_any_byte_changed_is_refused() -> None:
    """Content and signature have one valid spelling each."""
    cookie = open_sessions().open(Actor(name="ann"))
    sessions = open_sessions()
    letters = string.ascii_letters + string.digits + "-_.= é\udcff"
    for at, old in enumerate(cookie):
        for new in set(letters) - {old}:
            assert sessions.find(cookie[:at] + new + cookie[at + 1 :]) is None
        assert sessions.find(cookie[:at]) is None
        assert sessions.find(cookie[:at] + cookie[at + 1 :]) is None
    for more in (".", "=", "A", f".{cookie}", "A" * SECRET_MAX_CHARS):
        assert sessions.find(cookie + more) is None
    assert sessions.find(cookie) is not None


async def test_the_session_of_a_long_name_ends_with_the_process() -> None:
    """Browsers drop long cookies silently, so this session is kept in memory instead."""
    sessions = open_sessions()
    secret = sessions.open(Actor(name="n" * SECRET_MAX_CHARS))
    assert len(secret) < 100
    session = sessions.find(secret)
    assert session is not None
    assert open_sessions().find(secret) is None


async def test_ended_sessions_stay_ended_when_many_have_ended() -> None:
    """The memory of ended sessions is limited; beyond it, older sessions end, too."""
    time = read_wall_clock()
    sessions = Sessions(read_boot_clock, lambda: time, key=derive_key(TOKEN))
    cookies = []
    for _ in range(ENDED_SESSIONS_MAX + 2):
        time = Micros(time + 1)
        cookies.append(sessions.open(Actor(name="ann")))
        sessions.end(cookies[-1])
    last = sessions.open(Actor(name="ann"))
    assert not [cookie for cookie in cookies if sessions.find(cookie)]
    assert sessions.find(last) is not None


async def test_with_auth_only_sessions_by_code_survive_a_restart_if_there_is_a_key() -> None:
    """A token may be revoked while no server runs, so its session does not survive."""
    auth = Tokens({TOKEN: Actor(name="ann")})
    key, other = b"k" * 32, b"o" * 32

    async def survives_restart(
        authorization: str, before: AppOptions, after: AppOptions
    ) -> bool:
        async with start_app(**before) as (asgi_app, browser):
            cookie = await get_cookie(browser, authorization or f"Code {asgi_app.code('ann')}")
            browser.cookies.clear()
            own_cookie = {"Cookie": f"midrun_80={cookie}"}
            proof = browser.headers[PROOF_HEADER]
            assert (await browser.get("/v1/session", headers=own_cookie)).status_code == 200
        async with start_app(cookie=cookie, proof=proof, **after) as (_, browser):
            return (await browser.get("/v1/session")).status_code == 200

    keyed = AppOptions(auth=auth, session_key=key)
    assert await survives_restart("", keyed, keyed)
    assert not await survives_restart(f"Bearer {TOKEN}", keyed, keyed)
    assert not await survives_restart("", keyed, AppOptions(auth=auth, session_key=other))
    assert not await survives_restart("", keyed, AppOptions(auth=auth))
    assert not await survives_restart("", AppOptions(auth=auth), AppOptions(auth=auth))


def test_a_session_key_that_is_short_or_next_to_a_token_is_refused() -> None:
    """Next to a token it would keep sessions alive when the token is changed."""
    mid = Midrun("memory://")
    with pytest.raises(Misconfigured, match="session_key"):
        app(mid, auth=Tokens({TOKEN: Actor(name="ann")}), session_key=b"short")
    with pytest.raises(Misconfigured, match="session_key"):
        app(mid, token=TOKEN, session_key=b"k" * 32)


async def test_serve_passes_the_session_key_to_the_app(tmp_path: Path) -> None:
    mid, auth = Midrun("memory://"), Tokens({TOKEN: Actor(name="ann")})
    with pytest.raises(Misconfigured, match="session_key"):
        await serve_forever(mid, folder=tmp_path, auth=auth, session_key=b"short")
    with pytest.raises(Misconfigured, match="session_key"):
        await serve_forever(mid, folder=tmp_path, token=TOKEN, session_key=b"k" * 32)


async def test_a_code_is_issued_for_a_name_or_an_actor_only() -> None:
    """A host whose user is not signed in must not issue one for None."""
    async with start_app() as (asgi_app, browser):
        for wrong in (None, 7, b"ann", {"name": "ann"}):
            with pytest.raises(Misconfigured, match="actor"):
                asgi_app.code(cast("str", wrong))
        for actor, name, role in (
            ("ada", "ada", "user"),
            ("operator:olga", "olga", "operator"),
            (Actor(name="operator:eve"), "operator:eve", "user"),
        ):
            await get_cookie(browser, f"Code {asgi_app.code(actor)}")
            session = (await browser.get("/v1/session")).json()
            assert {"name": name, "role": role}.items() <= session.items()


def open_sessions(at: Micros | None = None) -> Sessions:
    """Return the sessions of a server that starts now, or at the given time."""
    clock = read_wall_clock if at is None else lambda: at
    return Sessions(read_boot_clock, clock, key=derive_key(TOKEN))
