"""Several users: the users file, `midrun users`, and tokens of an OpenID Connect provider."""

import hmac
import json
import os
import sys
from base64 import urlsafe_b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from urllib.parse import parse_qsl, urlencode, urlsplit

import anyio
import httpx2
import pytest

from midrun import Actor, Midrun, Misconfigured
from midrun.cli.main import main
from midrun.core.ids import MICROS_PER_SECOND, Micros
from midrun.server import FirstOf, UsersFile, app
from midrun.server.admin import PROOF_HEADER
from midrun.server.oidc import KEYS_LIFETIME_S, KEYS_RETRY_S, OidcAuth, oidc
from midrun.server.problem_details import HttpProblem
from midrun.server.serve import open_listener
from tests.support.oidc_provider import AUDIENCE, OidcProvider
from tests.unit.cli.command_runner import APP, ProcessRunner, read_until

ADA = Actor(name="ada", role="operator")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "users.json"


# ── the users file ───────────────────────────────────────────────────────────


async def test_a_user_signs_in_with_a_token_of_which_only_the_hash_is_stored(
    path: Path,
) -> None:
    users = UsersFile(path)
    token = users.add("ada", "operator")
    assert await users(token) == ADA
    assert await users(token[:-1]) is None
    assert token not in await anyio.Path(path).read_text()
    assert (await anyio.Path(path).stat()).st_mode & 0o777 == 0o600


async def test_a_running_server_notices_new_changed_and_revoked_users(path: Path) -> None:
    """`midrun users` is another process: it shares only the file."""
    command, server = UsersFile(path), UsersFile(path)
    ada = command.add("ada", "operator")
    bob = command.add("bob", "user")
    assert await server(bob) == Actor(name="bob", role="user")
    command.revoke("bob")
    assert await server(bob) is None
    assert await server(ada) == ADA


async def test_a_user_has_a_tenant_and_teams(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["users", "add", "lea", "--tenant", "acme", "--team", "legal", "--team", "tax"]
    assert await anyio.to_thread.run_sync(main, [*words, "--users-file", str(path)]) == 0
    token = capsys.readouterr().out.strip()
    lea = Actor(name="lea", role="user", tenant="acme", teams=("legal", "tax"))
    assert await UsersFile(path)(token) == lea
    await anyio.to_thread.run_sync(main, ["users", "list", "--users-file", str(path)])
    assert "tenant acme, teams legal, tax" in capsys.readouterr().out
    for wrong in ("*", "t" * 201, "a\nb"):
        with pytest.raises(Misconfigured, match="no name of a tenant"):
            UsersFile(path).add("bob", "user", tenant=wrong)


async def test_after_a_rotation_both_tokens_are_valid_until_the_overlap_is_over(
    path: Path,
) -> None:
    """A second rotation does not extend the time of the first token."""
    now = 1_000 * MICROS_PER_SECOND
    users = UsersFile(path, clock=lambda: Micros(now))
    first = users.add("ada", "operator")
    second = users.rotate("ada", timedelta(seconds=60))
    assert [await users(token) for token in (first, second)] == [ADA, ADA]
    now += 30 * MICROS_PER_SECOND
    third = users.rotate("ada", timedelta(hours=1))
    now += 30 * MICROS_PER_SECOND
    assert [await users(token) for token in (first, second, third)] == [None, ADA, ADA]
    fourth = users.rotate("ada", timedelta())
    assert [await users(token) for token in (second, third, fourth)] == [None, None, ADA]


async def test_an_unreadable_file_admits_no_new_user_and_signs_no_user_out(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """At the start it is an error; later the last valid users stay, and the log says so."""
    users = UsersFile(path)
    token = users.add("ada", "operator")
    assert await users(token) == ADA
    await anyio.Path(path).write_text('{"users": [')
    assert await users(token) == ADA
    assert "it is no users file" in caplog.text
    await anyio.Path(path).unlink()
    assert await users(token) == ADA
    with pytest.raises(Misconfigured, match="Cannot read it"):
        UsersFile(path).load()
    other = UsersFile(path.with_name("other.json")).add("eve", "operator")
    await anyio.Path(path.with_name("other.json")).replace(path)
    assert await users(other) == Actor(name="eve", role="operator")
    assert await users(token) is None


def test_a_file_that_other_accounts_can_write_is_refused(path: Path) -> None:
    """They could add themselves as operators."""
    users = UsersFile(path)
    users.add("ada", "operator")
    path.chmod(0o620)
    with pytest.raises(Misconfigured, match="other accounts can write it"):
        users.load()
    path.chmod(0o644)  # as a mounted secret
    users.load()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a file to another account")
def test_root_changes_the_users_and_the_server_can_still_read_them(path: Path) -> None:
    """The server has an account of its own, and the file belongs to it."""
    users = UsersFile(path)
    users.add("ada", "operator")
    os.chown(path, 10_001, 10_002)
    users.rotate("ada", timedelta())
    found = path.stat()
    assert (found.st_uid, found.st_gid, found.st_mode & 0o777) == (10_001, 10_002, 0o600)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("add", "ada"), "exists already"),
        (("add", "user"), "Give the account another name"),
        (("add",), "name the user"),
        (("rotate", "bob"), "there is no user bob. Users: ada"),
        (("revoke", "bob"), "there is no user bob"),
    ],
)
def test_a_faulty_change_is_refused_and_changes_nothing(
    words: tuple[str, ...], problem: str, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    UsersFile(path).add("ada", "operator")
    before = path.read_bytes()
    assert main(["users", *words, "--users-file", str(path)]) == 2
    assert problem in capsys.readouterr().err
    assert path.read_bytes() == before
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_the_command_prints_a_token_once_and_lists_no_secret(
    path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MIDRUN_USERS_FILE", str(path))
    assert main(["users", "add", "ada", "--role", "operator", "--json"]) == 0
    token = json.loads(capsys.readouterr().out)["token"]
    assert main(["users", "rotate", "ada", "--users-file", str(path), "--overlap", "2h"]) == 0
    new = capsys.readouterr().out.strip()
    assert main(["users", "list", "--users-file", str(path)]) == 0
    listed = capsys.readouterr().out
    assert "ada  operator  2 tokens, 1 of them for 2.0 h" in listed
    assert token not in listed
    assert new not in listed


async def test_a_server_with_a_users_file_knows_names_and_roles(path: Path) -> None:
    """A revoked user is refused at the next request."""
    users = UsersFile(path)
    tokens = {"ada": users.add("ada", "operator"), "vera": users.add("vera", "viewer")}
    mid = Midrun("memory://")
    transport = httpx2.ASGITransport(app=app(mid, auth=UsersFile(path)))
    async with mid, httpx2.AsyncClient(transport=transport, base_url="http://localhost") as web:

        async def ask(name: str, route: str) -> httpx2.Response:
            return await web.get(route, headers={"Authorization": f"Bearer {tokens[name]}"})

        assert {"name": "vera", "role": "viewer"}.items() <= (
            await ask("vera", "/v1/session")
        ).json().items()
        assert (await ask("vera", "/v1/sessions")).status_code == 403
        assert (await ask("ada", "/v1/sessions")).status_code == 200
        users.revoke("vera")
        assert (await ask("vera", "/v1/session")).status_code == 401


# ── OpenID Connect ───────────────────────────────────────────────────────────


@pytest.fixture
async def provider() -> AsyncIterator[OidcProvider]:
    async with OidcProvider().serve() as made:
        yield made


async def test_claims_give_the_tenant_and_the_teams(provider: OidcProvider) -> None:
    """With a claim for the tenant, a token without one tenant is no token for this server."""
    auth = oidc(provider.issuer, audience=AUDIENCE, tenant_claim="org.id", team_claim="groups")
    right: dict[str, object] = {"sub": "lea", "role": "user", "org": {"id": "acme"}}
    groups: dict[str, object] = {"groups": ["legal", "", 7, "legal"]}
    found = await auth(provider.make_token(right | groups))
    assert found == Actor(name="lea", role="user", tenant="acme", teams=("legal",))
    assert await auth(provider.make_token(right)) == Actor(
        name="lea", role="user", tenant="acme"
    )
    wrong: tuple[object, ...] = (None, "", {}, {"id": ""}, {"id": ["acme", "rival"]}, {"id": 1})
    for org in wrong:
        assert await auth(provider.make_token(right | {"org": org})) is None


async def test_a_token_of_the_provider_becomes_an_actor(provider: OidcProvider) -> None:
    """The keys are fetched once."""
    auth = oidc(provider.issuer, audience=AUDIENCE)
    token = provider.make_token({"sub": "ada", "role": ["user", "operator", "unknown", {}]})
    for _ in range(3):
        assert await auth(token) == ADA  # the highest of the roles
    assert provider.key_requests == 1
    viewer = provider.make_token({"sub": "vera", "role": "viewer"})
    assert await auth(viewer) == Actor(name="vera", role="viewer")


async def test_roles_and_names_are_taken_from_the_declared_claims(
    provider: OidcProvider,
) -> None:
    auth = oidc(
        provider.issuer,
        audience=AUDIENCE,
        role_claim="realm_access.roles",
        name_claim="email",
        roles={"staff": "user", "on-call": "operator"},
    )
    claims = {"sub": "1", "email": "ada@example.com", "realm_access": {"roles": ["staff"]}}
    assert await auth(provider.make_token(claims)) == Actor(name="ada@example.com", role="user")
    own_name = {**claims, "realm_access": {"roles": ["operator"]}}
    assert await auth(provider.make_token(own_name)) is None
    assert await auth(provider.make_token({**claims, "realm_access": "staff"})) is None


@pytest.mark.parametrize(
    "claims",
    [
        {"aud": "another"},
        {"iss": "https://other.example"},
        {"exp": 1},
        {"nbf": 9_999_999_999},
        {"role": "root"},
        {"role": None},
        {"sub": ""},
    ],
    ids=str,
)
async def test_a_token_with_a_wrong_claim_is_rejected(
    provider: OidcProvider, claims: dict[str, object]
) -> None:
    auth = oidc(provider.issuer, audience=AUDIENCE)
    right: dict[str, object] = {"sub": "ada", "role": "operator"}
    assert await auth(provider.make_token(right)) == ADA
    assert await auth(provider.make_token({**right, **claims})) is None


def encode_part(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()


async def test_a_forged_token_is_rejected(provider: OidcProvider) -> None:
    """With a foreign key, with the public key as an HMAC secret, unsigned, or changed."""
    auth = oidc(provider.issuer, audience=AUDIENCE)
    claims = {"sub": "ada", "role": "operator"}
    right = provider.make_token(claims)
    other = OidcProvider()
    other.issuer = provider.issuer
    public = provider.keys[-1].as_pem(private=False)
    head, body, signature = right.split(".")
    unsigned = encode_part(b'{"alg":"none","kid":"key-0"}')
    hmac_head = encode_part(b'{"alg":"HS256","kid":"key-0"}')
    hashed = f"{hmac_head}.{body}"
    for forged in (
        other.make_token(claims),
        f"{hashed}.{encode_part(hmac.digest(public, hashed.encode(), 'sha256'))}",
        f"{unsigned}.{body}.",
        f"{head}.{body}.{signature[::-1]}",
        "no.jwt",
        "",
    ):
        assert await auth(forged) is None
    assert await auth(right) == ADA


async def test_rotated_keys_are_fetched_and_invented_key_ids_cost_no_request(
    provider: OidcProvider,
) -> None:
    now = 0.0
    auth = OidcAuth(provider.issuer, audience=AUDIENCE, now=lambda: now)
    claims = {"sub": "ada", "role": "operator"}
    old = provider.make_token(claims)
    assert await auth(old) == ADA
    provider.rotate_keys()
    new = provider.make_token(claims)
    now += KEYS_RETRY_S
    assert [await auth(token) for token in (new, old)] == [ADA, ADA]
    for number in range(9):
        assert await auth(provider.make_token(claims, kid=f"invented-{number}")) is None
    assert provider.key_requests == 2


async def test_known_keys_stay_in_use_while_the_provider_is_down(
    provider: OidcProvider,
) -> None:
    """Without any key the answer is 503, not 401: the token may be right."""
    now = 0.0
    auth = OidcAuth(provider.issuer, audience=AUDIENCE, now=lambda: now)
    token = provider.make_token({"sub": "ada", "role": "operator"})
    provider.is_down = True
    with pytest.raises(HttpProblem, match="identity provider does not answer") as raised:
        await auth(token)
    assert raised.value.status == 503
    provider.is_down = False
    assert await auth(token) == ADA
    provider.is_down = True
    now += KEYS_LIFETIME_S
    assert await auth(token) == ADA


async def test_a_discovery_document_of_another_issuer_is_refused(
    provider: OidcProvider,
) -> None:
    token = provider.make_token({"sub": "ada", "role": "operator"})
    url, provider.issuer = provider.issuer, "https://other.example"
    with pytest.raises(HttpProblem):
        await oidc(url, audience=AUDIENCE)(token)


def test_unusable_settings_of_a_provider_are_refused() -> None:
    for issuer in ("http://id.example", "id.example", ""):
        with pytest.raises(Misconfigured, match="must be an https URL"):
            oidc(issuer, audience=AUDIENCE)
    with pytest.raises(Misconfigured, match="audience"):
        oidc("https://id.example", audience="")
    with pytest.raises(Misconfigured, match="role of staff"):
        oidc("https://id.example", audience="a", roles={"staff": "root"})  # type: ignore[dict-item]  # refused


async def test_programs_and_people_can_sign_in_in_different_ways(
    path: Path, provider: OidcProvider
) -> None:
    """Programs with a token of the users file, people with one of the provider."""
    users = UsersFile(path)
    auth = FirstOf(users, oidc(provider.issuer, audience=AUDIENCE))
    assert await auth(users.add("ci", "user")) == Actor(name="ci", role="user")
    assert await auth(provider.make_token({"sub": "ada", "role": "operator"})) == ADA
    assert await auth("neither") is None


CALLBACK = "http://localhost/sign-in/callback"


@asynccontextmanager
async def open_browser(provider: OidcProvider) -> AsyncIterator[httpx2.AsyncClient]:
    """Give a client of a server that signs browsers in at `provider`."""
    mid = Midrun("memory://")
    auth = FirstOf(
        oidc(provider.issuer, audience=AUDIENCE, client_id="page", client_secret="s")
    )
    transport = httpx2.ASGITransport(app=app(mid, auth=auth))
    async with mid, httpx2.AsyncClient(transport=transport, base_url="http://localhost") as web:
        yield web


async def go_to_provider(web: httpx2.AsyncClient) -> str:
    """Follow the link of the sign-in page; return where the provider sends the browser."""
    sent = await web.get("/sign-in")
    assert sent.status_code == 303
    assert "samesite=lax" in sent.headers["set-cookie"].lower()
    async with httpx2.AsyncClient() as browser:
        return str((await browser.get(sent.headers["location"])).headers["location"])


async def test_a_sign_in_at_the_provider_ends_with_a_code_that_opens_a_session(
    provider: OidcProvider,
) -> None:
    """A code of the provider works once, and only in the browser that began."""
    provider.claims = {"sub": "ada", "role": "operator"}
    async with open_browser(provider) as web, open_browser(provider) as other:
        refused = await web.get("/v1/session")
        assert refused.json()["sign_in"] == "/sign-in"
        back = await go_to_provider(web)
        assert back.startswith(CALLBACK)
        await go_to_provider(other)
        assert (await other.get(back)).status_code == 401  # its cookie has another state
        done = await web.get(back)
        page, _, code = done.headers["location"].partition("#code=")
        assert (done.status_code, page) == (303, "http://localhost/")
        headers = {"Authorization": f"Code {code}"}
        session = await web.post("/v1/session", json={}, headers=headers)
        assert (session.json()["name"], session.json()["role"]) == ("ada", "operator")
        assert (await web.get(back)).status_code == 401  # the cookie is gone


@pytest.mark.slow
async def test_with_a_session_key_browsers_stay_signed_in_when_the_server_restarts(
    provider: OidcProvider, tmp_path: Path
) -> None:
    """Also at another process with the same key; without it, the next one knows no session."""
    provider.claims = {"sub": "ada", "role": "operator"}
    port, key = find_free_port(), {"MIDRUN_SESSION_KEY": "k" * 32}
    headers: dict[str, str] = {}
    cookies = httpx2.Cookies()
    statuses: list[int] = []
    for environment in (key, key, {}):
        shell = ProcessRunner(tmp_path, **environment)
        words = ["serve", f"{APP}:all_agents", "--port", str(port), "--oidc-issuer"]
        words += [provider.issuer, "--oidc-audience", AUDIENCE, "--oidc-client-id", "page"]
        with shell.start(*words, GATE="") as server:
            url = (await anyio.to_thread.run_sync(read_until, server, "http://")).strip()
            async with httpx2.AsyncClient(base_url=url, cookies=cookies) as web:
                if not headers:
                    code = (await web.get(await go_to_provider(web))).headers["location"]
                    web.headers["Authorization"] = f"Code {code.partition('#code=')[2]}"
                    session = (await web.post("/v1/session", json={})).json()
                    headers = {PROOF_HEADER: session["proof"]}
                    cookies = web.cookies
                else:
                    statuses.append((await web.get("/v1/session", headers=headers)).status_code)
            server.terminate()
    assert statuses == [200, 401]


@pytest.mark.parametrize(
    ("claims", "nonce"),
    [
        ({"sub": "ada", "role": "none"}, ""),
        ({"sub": "user", "role": "user"}, ""),
        ({"sub": "ada", "role": "operator"}, "of-another-attempt"),
        ({"sub": "ada", "role": "operator", "aud": "another-client"}, ""),
    ],
    ids=["no role", "reserved name", "replayed token", "token for another client"],
)
async def test_a_sign_in_that_the_provider_does_not_confirm_is_refused(
    provider: OidcProvider, claims: dict[str, object], nonce: str
) -> None:
    provider.claims, provider.nonce = claims, nonce
    async with open_browser(provider) as web:
        refused = await web.get(await go_to_provider(web))
        assert (refused.status_code, refused.json()["type"]) == (
            401,
            "urn:midrun:problem:unauthorized",
        )


async def test_a_forged_return_from_the_provider_is_refused(provider: OidcProvider) -> None:
    """Without a cookie, with another issuer, with an unknown code, or with an error."""
    provider.claims = {"sub": "ada", "role": "operator"}
    async with open_browser(provider) as web:
        assert (await web.get("/sign-in/callback?code=x&state=")).status_code == 401
        back = await go_to_provider(web)
        state = back.partition("state=")[2].partition("&")[0]
        for query in (
            f"code=unknown&state={state}",
            f"error=access_denied&state={state}",
            f"code=x&state={state}&iss=https%3A%2F%2Fother.example",
        ):
            assert (await web.get(f"/sign-in/callback?{query}")).status_code == 401
        assert (await web.get(back)).status_code == 303


@pytest.mark.once
@pytest.mark.slow
async def test_people_and_programs_sign_in_at_a_provider_that_others_have_written() -> None:
    """Authlib's, in a process of its own. What it does not check, `OidcProvider` does."""
    port = find_free_port()
    issuer = f"http://localhost:{port}"
    command = [sys.executable, "-m", "oidc_provider_mock", "--port", str(port)]
    async with await anyio.open_process(command, stdout=None, stderr=None) as process:
        try:
            await check_sign_in(issuer)
        finally:
            process.terminate()


async def check_sign_in(issuer: str) -> None:
    """Sign in with a browser, and with the id token of a program."""
    auth = oidc(issuer, audience=AUDIENCE, client_id="page", client_secret="s")
    transport = httpx2.ASGITransport(app=app(mid := Midrun("memory://"), auth=auth))
    async with (
        mid,
        httpx2.AsyncClient(transport=transport, base_url="http://localhost") as web,
        httpx2.AsyncClient(base_url=issuer) as browser,
    ):
        with anyio.fail_after(60):
            while not await has_user(browser, "ada", {"role": ["user", "operator"]}):  # noqa: ASYNC110 - it starts
                await anyio.sleep(0.05)
        form = (await web.get("/sign-in")).headers["location"]
        assert 'name="sub"' in (await browser.get(form)).text
        back = (await browser.post(form, data={"sub": "ada"})).headers["location"]
        code = (await web.get(back)).headers["location"].partition("#code=")[2]
        headers = {"Authorization": f"Code {code}"}
        session = (await web.post("/v1/session", json={}, headers=headers)).json()
        assert (session["name"], session["role"]) == ("ada", "operator")
        asked = {"client_id": AUDIENCE, "redirect_uri": CALLBACK, "scope": "openid"}
        form = f"/oauth2/authorize?{urlencode(asked | {'response_type': 'code'})}"
        back = (await browser.post(form, data={"sub": "ada"})).headers["location"]
        code = dict(parse_qsl(urlsplit(back).query))["code"]
        grant = {"grant_type": "authorization_code", "code": code, "redirect_uri": CALLBACK}
        tokens = await browser.post("/oauth2/token", data=grant, auth=(AUDIENCE, "s"))
        headers = {"Authorization": f"Bearer {tokens.json()['id_token']}"}
        assert (await web.get("/v1/session", headers=headers)).json()["name"] == "ada"
        headers = {"Authorization": f"Bearer {tokens.json()['access_token']}"}
        assert (await web.get("/v1/session", headers=headers)).status_code == 401


async def has_user(
    browser: httpx2.AsyncClient, name: str, claims: dict[str, list[str]]
) -> bool:
    """Tell the provider the claims of a user; return whether it listens yet."""
    try:
        return (await browser.put(f"/users/{name}", json=claims)).status_code == 204
    except httpx2.ConnectError:
        return False


def find_free_port() -> int:
    """Return a port of loopback that is free at this moment."""
    with open_listener("127.0.0.1", 0) as sock:
        return int(sock.getsockname()[1])


async def test_without_a_client_id_there_is_no_sign_in_at_a_provider(path: Path) -> None:
    users = UsersFile(path)
    users.add("ada", "operator")
    mid = Midrun("memory://")
    transport = httpx2.ASGITransport(app=app(mid, auth=users))
    async with mid, httpx2.AsyncClient(transport=transport, base_url="http://localhost") as web:
        refused = await web.get("/sign-in")
        assert refused.status_code == 401
        assert "sign_in" not in refused.json()
