"""Pages and static files: public access, sign-in, and mounting under a prefix."""

import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path
from zipfile import ZipFile

import pytest
from playwright.async_api import Page, expect
from starlette.applications import Starlette
from starlette.routing import Mount

from midrun import Midrun
from midrun.server import app
from midrun.server.pages import MEDIA_TYPES, read_static_files
from tests.browser.harness import Harness, find_violations, serve_app
from tests.browser.stage import Stage
from tests.support.paths import ROOT
from tests.unit.server.conftest import make_token
from tests.unit.server.endpoints import has_security_headers


async def cookies(page: Page) -> list[str]:
    """Return the names of the cookies of the page's profile."""
    return [cookie["name"] for cookie in await page.context.cookies()]


# ── files ────────────────────────────────────────────────────────────────────


async def test_files_are_public_and_data_is_not(harness: Harness, stage: Stage) -> None:
    """The files are in the public package."""
    site = await harness.site(stage.play("Done."))
    async with site.anonymous_client() as client:
        for name, file in read_static_files().items():
            reply = await client.get(f"/static/{name}")
            assert reply.content == file.body
            assert reply.headers["content-type"] == MEDIA_TYPES[name.rpartition(".")[2]]
        for path in ("/", "/runs/run_1", "/runs/no-such-run"):
            reply = await client.get(path)
            assert reply.headers["content-type"] == "text/html; charset=utf-8"
        for path in ("/v1/runs", "/v1/session", "/v1/static/page.js", "/static", "/runs/a/b"):
            assert (await client.get(path)).status_code == 401
        assert (await client.post("/", json={})).status_code == 401


async def test_a_file_is_sent_once_and_asked_for_each_time(
    harness: Harness, stage: Stage
) -> None:
    """After an update no browser may mix old modules with new ones."""
    site = await harness.site(stage.play("Done."))
    async with site.anonymous_client() as client:
        first = await client.get("/static/page.js")
        assert first.headers["cache-control"] == "no-cache"
        again = {"If-None-Match": first.headers["etag"]}
        assert (await client.get("/static/page.js", headers=again)).status_code == 304
        assert (await client.get("/static/api.js", headers=again)).status_code == 200
        assert (await client.head("/static/page.js")).content == b""


@pytest.mark.parametrize(
    "path",
    ["nothing.js", "..%2fguard.py", "%2e%2e/guard.py", "lit.d.ts", "vendor.json", ".", "%00"],
)
async def test_only_our_own_files_are_served(harness: Harness, stage: Stage, path: str) -> None:
    """A name is looked up in a list; no part of a path reaches the file system."""
    site = await harness.site(stage.play("Done."))
    async with site.anonymous_client() as client:
        reply = await client.get(f"/static/{path}")
        assert reply.status_code in {401, 404}
        assert b"def " not in reply.content


async def test_every_page_and_file_has_the_guard_on_it(harness: Harness, stage: Stage) -> None:
    """The headers forbid frames, foreign scripts and markup from text."""
    site = await harness.site(stage.play("Done."))
    async with site.anonymous_client() as client:
        for path in ("/", "/runs/run_1", "/static/page.js", "/static/nothing.js"):
            headers = (await client.get(path)).headers
            policy = headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert "require-trusted-types-for 'script'" in policy
            assert "frame-ancestors 'none'" in policy
            assert headers["x-frame-options"] == "DENY"
            assert headers["x-content-type-options"] == "nosniff"
        assert has_security_headers(await client.get("/v1/runs"))


def test_the_wheel_carries_every_file(tmp_path: Path) -> None:
    """An installed package needs no build step."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)  # noqa: S603 - fixed arguments
    (wheel,) = tmp_path.glob("*.whl")
    packed = {
        name.rpartition("/")[2] for name in ZipFile(wheel).namelist() if "/static/" in name
    }
    assert packed >= {*read_static_files(), "lit.LICENSE.txt", "vendor.json"}


def test_vendored_files_match_their_record() -> None:
    """Vendored scripts have a recorded version and hash."""
    static = ROOT / "src" / "midrun" / "server" / "static"
    for name, said in json.loads((static / "vendor.json").read_text()).items():
        assert sha256((static / name).read_bytes()).hexdigest() == said["sha256"]
        assert said["version"]
        assert (static / said["notice"]).exists()


def test_every_script_is_checked_and_fits_in_one_sitting() -> None:
    """The size limits of modules hold for scripts too."""
    for name, file in read_static_files().items():
        if name.endswith(".js") and name != "lit.js":
            lines = file.body.decode().splitlines()
            assert lines[0] == "// @ts-check", name
            assert len(lines) <= 800, name


# ── signing in ───────────────────────────────────────────────────────────────


async def test_a_link_signs_in_and_leaves_no_trace(harness: Harness, stage: Stage) -> None:
    """Neither address nor history keeps the code; no script can read the cookie."""
    site = await harness.site(stage.play("Done."))
    page = await harness.page(site)
    await expect(page.get_by_text("olga (operator)")).to_be_visible()
    assert page.url == f"{site.url}/"
    (cookie,) = await page.context.cookies()
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
    assert await page.evaluate("document.cookie") == ""
    assert await page.evaluate("history.length") <= 2  # about:blank, and this page
    await page.reload()
    await expect(page.get_by_text("olga (operator)")).to_be_visible()


async def test_a_token_behind_the_number_sign_does_too(harness: Harness, stage: Stage) -> None:
    """For bookmarks, and for servers with a token per user."""
    site = await harness.site(stage.play("Done."))
    page = await (await harness.profile()).new_page()
    sent: list[str] = []
    page.on("request", lambda request: sent.append(request.url))
    await page.goto(f"{site.url}/#token={make_token('ann')}")
    await expect(page.get_by_text("ann (user)")).to_be_visible()
    assert page.url == f"{site.url}/"
    assert not [url for url in sent if make_token("ann") in url.partition("#")[0]]


async def test_a_used_link_says_so_and_where_the_token_is(
    harness: Harness, stage: Stage
) -> None:
    """A link found in a terminal's scroll-back does not work again."""
    site = await harness.site(stage.play("Done."))
    link = site.link()
    first = await (await harness.profile()).new_page()
    await first.goto(link)
    await expect(first.get_by_text("olga (operator)")).to_be_visible()
    second = await (await harness.profile(bypass_csp=True)).new_page()
    await second.goto(link)
    await expect(second.get_by_role("alert")).to_have_text(
        "This link was used before, or has expired."
    )
    await expect(second.get_by_text("~/.local/state/midrun")).to_be_visible()
    assert await cookies(second) == []
    assert await find_violations(second) == []
    await second.get_by_label("Token").fill("nobody-has-this-one-0123")
    await second.get_by_role("button", name="Sign in").click()
    await expect(second.get_by_role("alert")).to_have_text("This token is not valid.")
    await second.get_by_label("Token").fill(make_token("vera"))
    await second.keyboard.press("Enter")
    await expect(second.get_by_text("vera (viewer)")).to_be_visible()
    await first.goto(link)  # a browser with a session stays signed in
    await expect(first.get_by_text("olga (operator)")).to_be_visible()


async def test_a_link_pasted_into_an_open_page_is_taken(harness: Harness, stage: Stage) -> None:
    """A browser does not reload a page when only the part behind the `#` changes."""
    site = await harness.site(stage.play("Done."))
    page = await (await harness.profile()).new_page()
    await page.goto(f"{site.url}/")
    await expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    await page.goto(site.link())
    await expect(page.get_by_text("olga (operator)")).to_be_visible()
    assert page.url == f"{site.url}/"


async def test_signing_out_ends_the_session(harness: Harness, stage: Stage) -> None:
    """The server refuses the old cookie afterwards."""
    site = await harness.site(stage.play("Done."))
    page = await harness.page(site)
    await page.get_by_role("button", name="Sign out").click()
    await expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    assert await cookies(page) == []


async def test_a_session_that_ends_elsewhere_asks_again(harness: Harness, stage: Stage) -> None:
    """An outdated list must not look up to date."""
    site = await harness.site(stage.play("Done."))
    page = await harness.page(site)
    await expect(page.get_by_text("No runs yet.")).to_be_visible()
    other = await page.context.new_page()
    await other.goto(f"{site.url}/")
    await other.get_by_role("button", name="Sign out").click()
    await expect(page.get_by_role("heading", name="Sign in")).to_be_visible()


# ── under another address ────────────────────────────────────────────────────


async def test_everything_works_below_a_prefix(harness: Harness, stage: Stage) -> None:
    """Pages, files, cookie, feed and links of a mounted server."""
    mid = Midrun("memory://", agents=[stage.play("Done.")])
    made = app(mid, token=make_token("me"))

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with mid:
            yield

    host = Starlette(routes=[Mount("/ops/agents", made)], lifespan=lifespan)
    async with serve_app(made, whole=host) as port:
        home = f"http://127.0.0.1:{port}/ops/agents/"
        page = await (await harness.profile()).new_page()
        await page.goto(f"{home}#token={make_token('me')}")
        await expect(page.get_by_text("No runs yet.")).to_be_visible()
        run = await mid.start("actor", "Below a prefix", actor="me")
        link = page.get_by_role("link", name="Below a prefix")
        await expect(link).to_have_attribute("href", f"{home}runs/{run.id}")
        assert (await page.context.cookies())[0]["path"] == "/ops/agents/"
        await page.get_by_role("link", name="Midrun").click()
        await expect(link).to_be_visible()
        assert page.url == home
