"""Sessions of browsers: how they begin, how they end, and what they outlive."""

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

from midrun import Actor, Midrun, Misconfigured
from midrun.core.ids import MICROS_PER_SECOND, Micros
from midrun.ports.environment import read_boot_clock, read_wall_clock
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
from tests.unit.runs.stage import ControllableTools, Use
from tests.unit.server.conftest import PATIENCE, Serve, listening, token_of
from tests.unit.server.listening import heard

TOKEN = token_of("me")


async def test_a_link_signs_one_browser_in_once(serve: Serve, stage: ControllableTools) -> None:
    """What is left of it in a terminal, or a history, is worth nothing."""
    served = await serve(stage.agent("Done."))
    code = served.app.code(Actor(name="ann", role="user"))
    browser, other = await served.client(None), await served.client(None)
    shown = {"Authorization": f"Code {code}"}
    assert (await browser.get("/v1/runs", headers=shown)).status_code == 401
    signed = await browser.post("/v1/session", json={}, headers=shown)
    assert (signed.json()["name"], signed.json()["role"]) == ("ann", "user")
    cookie = signed.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert "path=/" in cookie
    browser.headers[PROOF_HEADER] = signed.json()["proof"]
    assert (await browser.get("/v1/session")).json()["name"] == "ann"
    assert (await other.post("/v1/session", json={}, headers=shown)).status_code == 401
    assert (await browser.get("/v1/session", headers={"Cookie": "x"})).status_code == 401


async def test_a_session_opens_no_other_session(serve: Serve, stage: ControllableTools) -> None:
    """It would have another 12 hours, and outlive the end of the first."""
    served = await serve(stage.agent("Done."))
    browser = await served.client("ann")
    await sign_in(browser)
    del browser.headers["authorization"]
    refused = await browser.post("/v1/session", json={})
    assert (refused.status_code, "set-cookie" in refused.headers) == (401, False)
    assert (await browser.get("/v1/session")).status_code == 200


async def sign_in(client: httpx2.AsyncClient) -> None:
    """Sign a browser in with the token that it shows, and keep the proof as its page does."""
    client.headers[PROOF_HEADER] = (await client.post("/v1/session", json={})).json()["proof"]


async def test_a_cookie_without_its_proof_is_no_session(
    serve: Serve, stage: ControllableTools
) -> None:
    """A server on another port of this host is sent the cookie, and never has the proof."""
    served = await serve(stage.agent("Done."))
    browser = await served.client("olga")
    await sign_in(browser)
    del browser.headers["authorization"]
    right = browser.headers.pop(PROOF_HEADER)
    other = await served.client("ann")
    await sign_in(other)
    for wrong in ("", "x", right[:-1], f"{right}x", other.headers[PROOF_HEADER], "é"):
        headers = {PROOF_HEADER.encode(): wrong.encode()}
        assert (await browser.get("/v1/runs", headers=headers)).status_code == 401
        assert (await browser.delete("/v1/session", headers=headers)).status_code == 401
    assert (await browser.get("/v1/runs", headers={PROOF_HEADER: right})).status_code == 200


async def test_a_cookie_that_comes_twice_is_refused(
    serve: Serve, stage: ControllableTools
) -> None:
    """Another server of the host can set one for a longer path, which would come first."""
    served = await serve(stage.agent("Done."))
    browser = await served.client("olga")
    await sign_in(browser)
    del browser.headers["authorization"]
    (secret,) = browser.cookies.values()
    name, proof = f"midrun_{served.port}", {PROOF_HEADER: browser.headers[PROOF_HEADER]}
    for cookies in (f"{name}={secret}; {name}=x", f"{name}=x;{name}={secret}"):
        plain = await served.client(None)
        reply = await plain.get("/v1/runs", headers=proof | {"Cookie": cookies})
        assert (reply.status_code, reply.json()["title"]) == (400, "duplicate cookie")


async def test_over_https_the_cookie_is_of_this_host_alone() -> None:
    """`__Host-` keeps subdomains from setting it; it demands the path `/`, and no domain."""
    made = app(Midrun("memory://"), token=TOKEN, public_url="https://runs.example")
    mounted = Starlette(routes=[Mount("/agents", made)])
    for host, path, name in (
        (made, "/v1", "__Host-midrun_80"),
        (mounted, "/agents/v1", "__Host-midrun_80%2Fagents"),
    ):
        transport = httpx2.ASGITransport(app=host)
        url = "http://runs.example"
        async with (
            made._server.mid,
            httpx2.AsyncClient(transport=transport, base_url=url) as client,
        ):
            shown = {"Authorization": f"Bearer {TOKEN}"}
            signed = await client.post(f"{path}/session", json={}, headers=shown)
            cookie = signed.headers["set-cookie"]
            assert cookie.startswith(f"{name}=")
            assert "path=/;" in cookie.lower()
            assert "secure" in cookie.lower()
            assert "domain" not in cookie.lower()
            headers = {
                "Cookie": cookie.partition(";")[0],
                PROOF_HEADER: signed.json()["proof"],
            }
            who = await client.get(f"{path}/session", headers=headers)
            assert who.json()["role"] == "operator"
            left = await client.delete(f"{path}/session", headers=headers)
            assert left.headers["set-cookie"].startswith(f'{name}=""')


async def test_nobody_signs_others_out_by_signing_in_too_often() -> None:
    """There is room for so many sessions; whoever has the most gives one up."""
    sessions = Sessions(read_boot_clock, read_wall_clock)
    olga, ann = Actor(name="olga", role="operator"), Actor(name="ann", role="user")
    hers = sessions.open(olga)
    secrets = [sessions.open(ann) for _ in range(2 * SESSIONS_MAX)]
    assert sessions.find(hers) is not None
    assert [sessions.find(secrets[n]) is not None for n in (0, -1)] == [False, True]


async def test_a_cookie_that_says_itself_what_it_is_needs_no_room() -> None:
    """Whoever signs in after it, however often; and who listens by it is still told its end."""
    sessions = open_sessions()
    ann, olga = Actor(name="ann"), Actor(name="olga", role="operator")
    cookies = [sessions.open(ann) for _ in range(SESSIONS_MAX)]
    listening = sessions.find(cookies[0])
    for _ in range(SESSIONS_MAX):
        sessions.open(olga)
        sessions.open(ann)
    assert (len(sessions._sessions), sessions._ended) == (SESSIONS_MAX, {})
    assert all(sessions.find(cookie) for cookie in cookies)
    assert sessions.find(cookies[0]) is listening is not None
    sessions.end(cookies[0])
    assert listening.ended.is_set()
    assert sessions.find(cookies[0]) is None


async def test_nobody_signs_others_out_by_signing_out_too_often() -> None:
    """What is remembered of sessions that ended is bounded, for each at their own expense."""
    then, now = open_sessions(), open_sessions()  # the server was started again
    ann, bob = Actor(name="ann"), Actor(name="bob")
    hers, his, left = then.open(ann), then.open(bob), then.open(ann)
    assert now.find(left) is not None
    now.end(left)
    for _ in range(ENDED_SESSIONS_MAX + 2):
        now.end(now.open(bob))
    assert len(now._ended) <= ENDED_SESSIONS_MAX
    assert now.find(hers) is not None
    assert [now.find(gone) for gone in (his, left)] == [None, None]


async def test_a_code_that_nobody_uses_is_not_kept_for_ever() -> None:
    """An application that shows everybody a link of their own must not grow by it."""
    now = 0.0
    sessions = Sessions(lambda: now, read_wall_clock)
    old = [sessions.issue_code(Actor(name="ann")) for _ in range(3)]
    now = CODE_LIFETIME_S
    new = sessions.issue_code(Actor(name="ann"))
    assert len(sessions._codes) == 1
    assert [sessions.redeem_code(code) for code in (*old, new)] == [None] * 3 + [
        Actor(name="ann")
    ]


async def test_a_session_ends_and_its_streams_with_it(
    serve: Serve, stage: ControllableTools
) -> None:
    """Signing out is not a wish: what was open is closed."""
    served = await serve(stage.agent(Use("slow", name="x"), "."))
    run = await served.mid.start("actor", "Go.", actor="olga")
    await stage.start("x").wait()
    browser = await served.client("olga")
    await sign_in(browser)
    del browser.headers["authorization"]
    async with heard(browser, f"/v1/runs/{run.id}/events") as events:
        await anext(events)
        assert (await browser.delete("/v1/session")).status_code == 204
        left = [event async for event in events]
    assert "stream.end" not in [event.event for event in left]
    assert (await browser.get("/v1/runs")).status_code == 401


async def test_an_application_ends_the_sessions_of_a_user(
    serve: Serve, stage: ControllableTools
) -> None:
    """An employee leaves: every browser, open streams, links not used yet; others stay."""
    served = await serve(stage.agent(Use("slow", name="x"), "."))
    run = await served.mid.start("actor", "Go.", actor="ann")
    await stage.start("x").wait()
    browsers = [await served.client(None) for _ in range(3)]
    people: list[str | Actor] = ["ann", Actor(name="ann", role="operator"), "bob"]
    for browser, who in zip(browsers, people, strict=True):
        await cookie_of(browser, f"Code {served.app.code(who)}")
    unused = served.app.code("ann")
    async with heard(browsers[0], f"/v1/runs/{run.id}/events") as events:
        await anext(events)
        served.app.end_sessions("ann")
        left = [event async for event in events]
    assert "stream.end" not in [event.event for event in left]
    statuses = [(await browser.get("/v1/runs")).status_code for browser in browsers]
    assert statuses == [401, 401, 200]
    shown = {"Authorization": f"Code {unused}"}
    assert (await browsers[0].post("/v1/session", json={}, headers=shown)).status_code == 401
    await cookie_of(browsers[0], f"Code {served.app.code('ann')}")
    assert (await browsers[0].get("/v1/runs")).status_code == 200


def test_a_signed_session_that_this_process_has_not_seen_is_ended_too() -> None:
    """Its cookie says whom it is for; this process meets it after it was told to end it."""
    time = read_wall_clock()
    then = Sessions(read_boot_clock, lambda: time, key=derive_key(TOKEN))
    now = Sessions(read_boot_clock, lambda: time, key=derive_key(TOKEN))
    anns, bobs = then.open(Actor(name="ann")), then.open(Actor(name="bob"))
    now.end_all("ann")
    time = Micros(time + 1)
    assert [now.find(each) is None for each in (anns, bobs)] == [True, False]
    assert open_sessions().find(now.open(Actor(name="ann"))) is not None


async def test_a_token_that_is_revoked_ends_its_sessions_and_streams(
    stage: ControllableTools,
) -> None:
    """A right that was taken away is not good for as long as a connection lasts."""
    known = {"a-token-that-is-long": Actor(name="ann", role="operator")}

    async def auth(token: str) -> Actor | None:
        return known.get(token)

    agent = stage.agent(Use("slow", name="x"), ".")
    with anyio.fail_after(PATIENCE):
        async with (
            Midrun("memory://", agents=[agent]) as mid,
            listening(made := app(mid, auth=auth, limits=Limits(ping=0.02))) as port,
            httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE) as client,
        ):
            client.headers["authorization"] = "Bearer a-token-that-is-long"
            run = await mid.start("actor", "Go.", actor="ann")
            await stage.start("x").wait()
            await sign_in(client)
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


async def test_a_long_poll_ends_with_its_session(
    serve: Serve, stage: ControllableTools
) -> None:
    """A browser that has signed out is not shown the run when that changes."""
    served = await serve(stage.agent(Use("slow", name="x"), "."))
    browser = await served.client("ann")
    run = await served.mid.start("actor", "Go.", actor="ann")
    await stage.start("x").wait()
    await sign_in(browser)
    del browser.headers["authorization"]
    replies: list[httpx2.Response] = []

    async def wait() -> None:
        path, prefer = f"/v1/runs/{run.id}?until=completed", {"Prefer": "wait=60"}
        replies.append(await browser.get(path, headers=prefer))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        while not served.app.streams:
            await checkpoint()
        served.app.end_sessions("ann")
    assert [reply.status_code for reply in replies] == [401]
    assert (await run.view()).phase == "running"
    stage.gate("x").set()


async def test_a_cookie_of_another_port_is_not_ours(
    serve: Serve, stage: ControllableTools
) -> None:
    """Browsers send cookies to every port of a host, so each server's has a name of its own."""
    served = await serve(stage.agent("Done."))
    client = await served.client("olga")
    signed = await client.post("/v1/session", json={})
    name, _, rest = signed.headers["set-cookie"].partition("=")
    assert name == f"midrun_{served.port}"
    secret = rest.partition(";")[0]
    plain = await served.client(None)
    plain.headers[PROOF_HEADER] = signed.json()["proof"]
    ours = {"Cookie": f"midrun_{served.port}={secret}"}
    theirs = {"Cookie": f"midrun_1={secret}"}
    assert (await plain.get("/v1/runs", headers=ours)).status_code == 200
    assert (await plain.get("/v1/runs", headers=theirs)).status_code == 401


# ── from one process to the next ─────────────────────────────────────────────


class Given(TypedDict, total=False):
    """How a server is told who calls, if not by one token."""

    auth: Auth
    session_key: bytes


@asynccontextmanager
async def started(
    token: str = TOKEN, cookie: str = "", proof: str = "", **given: Unpack[Given]
) -> AsyncIterator[tuple[App, httpx2.AsyncClient]]:
    """Give a server that knows nothing of any other, and a browser with the cookie of one."""
    mid = Midrun("memory://")
    made = app(mid, **given) if given else app(mid, token=token)
    headers = {"Cookie": f"midrun_80={cookie}"} if cookie else {}
    if cookie:  # the page has kept its proof, whichever process gave it
        headers[PROOF_HEADER] = proof or made._server.sessions.make_proof(cookie)
    transport = httpx2.ASGITransport(app=made)
    url = "http://127.0.0.1:80"
    client = httpx2.AsyncClient(transport=transport, base_url=url, headers=headers)
    async with mid, client:
        yield made, client


async def cookie_of(client: httpx2.AsyncClient, shown: str) -> str:
    """Sign in, and return what the cookie carries."""
    signed = await client.post("/v1/session", json={}, headers={"Authorization": shown})
    assert signed.status_code == 200
    client.headers[PROOF_HEADER] = signed.json()["proof"]
    return signed.headers["set-cookie"].partition("=")[2].partition(";")[0]


async def test_a_session_outlives_the_process_that_opened_it() -> None:
    """A server that was killed and started again finds its pages signed in as they were."""
    async with started() as (made, browser):
        mine = await cookie_of(browser, f"Bearer {TOKEN}")
        anns = await cookie_of(browser, f"Code {made.code('ann')}")
    assert TOKEN not in mine
    async with started(cookie=mine) as (_, browser):
        assert (await browser.get("/v1/session")).json() == {"name": "user", "role": "operator"}
        assert (await browser.get("/v1/runs")).status_code == 200
    async with started(cookie=anns) as (_, browser):
        assert (await browser.get("/v1/session")).json() == {"name": "ann", "role": "user"}


async def test_another_token_ends_every_session() -> None:
    """Whoever changes it wants everybody out who came in by the old one."""
    async with started() as (made, browser):
        cookies = [
            await cookie_of(browser, f"Bearer {TOKEN}"),
            await cookie_of(browser, f"Code {made.code('ann')}"),
        ]
    for cookie in cookies:
        async with started(token_of("another"), cookie) as (_, browser):
            assert (await browser.get("/v1/session")).status_code == 401


async def test_who_signed_out_stays_out() -> None:
    """A cookie that somebody copied is as dead as the one that the browser has dropped."""
    async with started() as (_, browser):
        cookie = await cookie_of(browser, f"Bearer {TOKEN}")
    async with started(cookie=cookie) as (_, browser):
        left = await browser.delete("/v1/session")
        assert left.status_code == 204
        assert "max-age=0" in left.headers["set-cookie"].lower()
        assert (await browser.get("/v1/session")).status_code == 401
    sessions = open_sessions()
    found = sessions.find(cookie)
    sessions.end(cookie)
    assert found is not None
    assert found.ended.is_set()  # streams wait for it
    assert sessions.find(cookie) is None


async def test_a_session_that_is_too_old_is_none() -> None:
    """By the world's clock, as the browser reckons: no process need have been there."""
    then = Micros(read_wall_clock() - SESSION_LIFETIME_S * MICROS_PER_SECOND)
    for opened_at, status in ((then, 401), (Micros(then + 600 * MICROS_PER_SECOND), 200)):
        cookie = open_sessions(at=opened_at).open(Actor(name="ann"))
        async with started(cookie=cookie) as (_, browser):
            assert (await browser.get("/v1/session")).status_code == status


def test_a_cookie_with_any_byte_changed_is_none() -> None:
    """Of what it says, and of its signature: there is one text for each."""
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


async def test_a_long_name_is_signed_in_too_though_not_for_ever() -> None:
    """Browsers drop long cookies without a word; such a session ends with the process."""
    sessions = open_sessions()
    long = sessions.open(Actor(name="n" * SECRET_MAX_CHARS))
    assert len(long) < 100
    found = sessions.find(long)
    assert found is not None
    assert open_sessions().find(long) is None


async def test_no_session_that_ended_comes_back_when_many_have() -> None:
    """What is remembered of them is bounded; beyond that, older ones have to sign in again."""
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


async def test_with_auth_only_those_with_a_code_stay_and_only_with_a_key() -> None:
    """A token may be revoked while nobody looks, so its session does not outlive who asks."""
    auth = Tokens({TOKEN: Actor(name="ann")})
    key, other = b"k" * 32, b"o" * 32

    async def stays(shown: str, before: Given, after: Given) -> bool:
        async with started(**before) as (made, browser):
            cookie = await cookie_of(browser, shown or f"Code {made.code('ann')}")
            browser.cookies.clear()
            ours = {"Cookie": f"midrun_80={cookie}"}
            proof = browser.headers[PROOF_HEADER]
            assert (await browser.get("/v1/session", headers=ours)).status_code == 200
        async with started(cookie=cookie, proof=proof, **after) as (_, browser):
            return (await browser.get("/v1/session")).status_code == 200

    keyed = Given(auth=auth, session_key=key)
    assert await stays("", keyed, keyed)
    assert not await stays(f"Bearer {TOKEN}", keyed, keyed)
    assert not await stays("", keyed, Given(auth=auth, session_key=other))
    assert not await stays("", keyed, Given(auth=auth))
    assert not await stays("", Given(auth=auth), Given(auth=auth))


def test_a_session_key_that_would_not_do_is_refused() -> None:
    """Too short, or beside a token, which would then end nothing when it is changed."""
    mid = Midrun("memory://")
    with pytest.raises(Misconfigured, match="session_key"):
        app(mid, auth=Tokens({TOKEN: Actor(name="ann")}), session_key=b"short")
    with pytest.raises(Misconfigured, match="session_key"):
        app(mid, token=TOKEN, session_key=b"k" * 32)


async def test_a_server_that_serves_itself_takes_the_key_too(tmp_path: Path) -> None:
    """`serve` hands it to the app, which says what it thinks of it."""
    mid, auth = Midrun("memory://"), Tokens({TOKEN: Actor(name="ann")})
    with pytest.raises(Misconfigured, match="session_key"):
        await serve_forever(mid, folder=tmp_path, auth=auth, session_key=b"short")
    with pytest.raises(Misconfigured, match="session_key"):
        await serve_forever(mid, folder=tmp_path, token=TOKEN, session_key=b"k" * 32)


async def test_a_code_is_for_a_name_or_an_actor_and_nothing_else() -> None:
    """Refused where it is made: a host whose user is not signed in must not hand one out."""
    async with started() as (made, browser):
        for wrong in (None, 7, b"ann", {"name": "ann"}):
            with pytest.raises(Misconfigured, match="actor"):
                made.code(cast("str", wrong))
        for right, name, role in (
            ("ada", "ada", "user"),
            ("operator:olga", "olga", "operator"),
            (Actor(name="operator:eve"), "operator:eve", "user"),
        ):
            await cookie_of(browser, f"Code {made.code(right)}")
            who = (await browser.get("/v1/session")).json()
            assert who == {"name": name, "role": role}


def open_sessions(at: Micros | None = None) -> Sessions:
    """Return the sessions of a server that has just started, or of one that did then."""
    clock = read_wall_clock if at is None else lambda: at
    return Sessions(read_boot_clock, clock, key=derive_key(TOKEN))
