"""A page of another site can do nothing to a signed-in viewer (F34)."""

import pytest
from playwright.async_api import ConsoleMessage, Page, expect

from midrun.runs.run import Run
from tests.browser.attacker_page import (
    ATTEMPTS,
    HOSTS,
    OPEN_FRAME,
    REBOUND_REQUESTS,
    SUBMIT_FORM,
    ServerCounts,
    open_attacker_page,
    serve_attacker,
)
from tests.browser.harness import Harness, Site, wait_until
from tests.browser.stage import Stage, Use
from tests.unit.server.conftest import make_token


def _is_about_frames(said: ConsoleMessage) -> bool:
    return "X-Frame-Options" in said.text or "frame-ancestors" in said.text


async def serve_running(harness: Harness, stage: Stage) -> tuple[Site, Run]:
    """Serve a run that is at work."""
    site = await harness.site(stage.play(Use("slow", name="held"), "Done."))
    run = await site.start(task="Precious")
    await stage.start("held").wait()
    return site, run


@pytest.mark.parametrize("host", HOSTS.values(), ids=HOSTS.keys())
async def test_no_script_of_another_page_gets_through(
    harness: Harness, stage: Stage, host: str
) -> None:
    """On another port of this machine it gets our cookie: SameSite ignores ports."""
    site, run = await serve_running(harness, stage)
    counts = ServerCounts(site, run)
    before = await counts.read()
    async with serve_attacker() as port:
        page = await open_attacker_page(harness, site, port, host)
        tried: dict[str, str] = await page.evaluate(ATTEMPTS, {"url": site.url, "run": run.id})
    got = {name: came for name, came in tried.items() if came != "refused"}
    # A script cannot read anything from an opaque answer. The server answered 403.
    assert got in ({}, {"fetch without a question": "opaque", "reading blindly": "opaque"})
    assert await counts.read() == before


@pytest.mark.parametrize("host", HOSTS.values(), ids=HOSTS.keys())
async def test_no_form_of_another_page_gets_through(
    harness: Harness, stage: Stage, host: str
) -> None:
    """A form may post anywhere; the server accepts JSON only, and from our own page."""
    site, run = await serve_running(harness, stage)
    counts = ServerCounts(site, run)
    before = await counts.read()
    fields = {'{"scope": "all", "agent": "actor", "input": "x", "reason": "': '"}'}
    async with serve_attacker() as port:
        page = await open_attacker_page(harness, site, port, host)
        for path, kind in (
            (f"/v1/runs/{run.id}/cancel", "text/plain"),
            ("/v1/halt", "text/plain"),
            ("/v1/runs", "application/x-www-form-urlencoded"),
        ):
            form = {"url": site.url + path, "type": kind, "fields": fields}
            async with page.expect_navigation() as going:
                await page.evaluate(SUBMIT_FORM, form)
            reply = await going.value
            assert reply is not None
            assert reply.status == 403
            await page.goto(f"http://{host}:{port}/")
    assert await counts.read() == before


@pytest.mark.parametrize("host", HOSTS.values(), ids=HOSTS.keys())
async def test_a_link_of_another_page_changes_nothing(
    harness: Harness, stage: Stage, host: str
) -> None:
    """Navigation is allowed, because links must work; a GET changes nothing."""
    site, run = await serve_running(harness, stage)
    counts = ServerCounts(site, run)
    before = await counts.read()
    async with serve_attacker() as port:
        page = await open_attacker_page(harness, site, port, host)
        for path, statuses in (
            (f"/v1/runs/{run.id}/cancel", {401, 405}),
            (f"/v1/runs/{run.id}/cancel?undo=all", {401, 405}),
            ("/v1/halt", {401, 405}),
            (f"/runs/{run.id}", {200}),
        ):
            async with page.expect_navigation() as going:
                await page.evaluate("to => { location.href = to }", site.url + path)
            reply = await going.value
            assert reply is not None
            assert reply.status in statuses
            await page.goto(f"http://{host}:{port}/")
    assert await counts.read() == before


@pytest.mark.parametrize("host", HOSTS.values(), ids=HOSTS.keys())
async def test_our_pages_cannot_be_framed_or_held_by_another_page(
    harness: Harness, stage: Stage, host: str
) -> None:
    """A transparent frame over another page would let its viewer press our buttons."""
    site, run = await serve_running(harness, stage)
    async with serve_attacker() as port:
        page = await open_attacker_page(harness, site, port, host)
        async with page.expect_console_message(_is_about_frames) as saying:
            await page.evaluate(OPEN_FRAME, f"{site.url}/runs/{run.id}")
        assert site.url in (await saying.value).text
        await expect(page.frame_locator("iframe").locator("header")).to_have_count(0)
        async with page.context.expect_page() as opening:
            await page.evaluate("url => { window.hand = window.open(url) }", f"{site.url}/")
        opened: Page = await opening.value
        await opened.wait_for_load_state()
        await wait_until(
            lambda: page.evaluate("window.hand.closed")
        )  # the attacker's handle is cut off
        assert await opened.evaluate("window.opener") is None


async def test_a_server_on_another_port_cannot_use_the_cookie_it_is_sent(
    harness: Harness, stage: Stage
) -> None:
    """Browsers send a cookie to every port of a host; the proof stays with our origin."""
    site, run = await serve_running(harness, stage)
    counts = ServerCounts(site, run)
    before = await counts.read()
    cookies: list[str] = []
    async with serve_attacker(cookies) as port:
        page = await open_attacker_page(harness, site, port, HOSTS["same site"])
        assert f"midrun_{site.port}=" in cookies[-1]
        assert await page.evaluate("Object.keys(localStorage)") == []
        async with site.anonymous_client() as thief:
            thief.headers["Cookie"] = cookies[-1]
            assert (await thief.get("/v1/runs")).status_code == 401
            cancel = await thief.post(f"/v1/runs/{run.id}/cancel", json={})
            assert cancel.status_code == 401
        own = await page.context.new_page()  # a new tab of our own origin is signed in
        await own.goto(site.url)
        await own.get_by_text("olga (operator)").wait_for()
    assert await counts.read() == before


async def test_a_name_that_was_pointed_here_is_misdirected(
    harness: Harness, stage: Stage
) -> None:
    """DNS rebinding: the browser takes our server for the attacker's own origin."""
    site, run = await serve_running(harness, stage)
    counts = ServerCounts(site, run)
    before = await counts.read()
    page = await (await harness.profile(collect_errors=False)).new_page()
    name = f"http://rebound.example:{site.port}"
    reply = await page.goto(f"{name}/")
    assert reply is not None
    assert reply.status == 421
    stolen = {"run": run.id, "token": make_token("olga")}  # not even with a token
    assert set(await page.evaluate(REBOUND_REQUESTS, stolen)) == {421}
    assert await counts.read() == before


async def test_the_signed_in_page_itself_goes_on(harness: Harness, stage: Stage) -> None:
    """After the attacks the viewer's own buttons still work."""
    site, run = await serve_running(harness, stage)
    async with serve_attacker() as port:
        page = await open_attacker_page(harness, site, port, HOSTS["same site"])
        await page.evaluate(ATTEMPTS, {"url": site.url, "run": run.id})
        own = page.context.pages[0]
        await own.get_by_role("button", name="Pause: Precious").click()
        await expect(own.locator("td .badge")).to_contain_text("Pausing, requested by you")
