"""What a page of somebody else can do to a person who is signed in: nothing (F34)."""

import pytest
from playwright.async_api import ConsoleMessage, Page, expect

from midrun.runs.run import Run
from tests.browser.bench import Bench, Site, comes_true
from tests.browser.evil import FORM, FRAME, HOSTS, REBOUND, TRIED, Untouched, lair, lured
from tests.browser.stage import Stage, Use
from tests.unit.server.conftest import token_of


def _speaks_of_frames(said: ConsoleMessage) -> bool:
    return "X-Frame-Options" in said.text or "frame-ancestors" in said.text


async def prey(bench: Bench, stage: Stage) -> tuple[Site, Run]:
    """Serve a run that is at work, and would be worth cancelling."""
    site = await bench.site(stage.play(Use("slow", name="held"), "Done."))
    run = await site.start(task="Precious")
    await stage.start("held").wait()
    return site, run


@pytest.mark.parametrize("host", HOSTS.values(), ids=HOSTS.keys())
async def test_no_script_of_another_page_gets_through(
    bench: Bench, stage: Stage, host: str
) -> None:
    """On another port of this machine it even brings our cookie: SameSite knows no ports."""
    site, run = await prey(bench, stage)
    whole = Untouched(site, run)
    before = await whole.seen()
    async with lair() as port:
        page = await lured(bench, site, port, host)
        tried: dict[str, str] = await page.evaluate(TRIED, {"url": site.url, "run": run.id})
    got = {name: came for name, came in tried.items() if came != "refused"}
    # An opaque answer says nothing, not even whether there was one. What it asked for is 403.
    assert got in ({}, {"fetch without a question": "opaque", "reading blindly": "opaque"})
    assert await whole.seen() == before


@pytest.mark.parametrize("host", HOSTS.values(), ids=HOSTS.keys())
async def test_no_form_of_another_page_gets_through(
    bench: Bench, stage: Stage, host: str
) -> None:
    """A form may post anywhere; ours takes JSON, and from our own page."""
    site, run = await prey(bench, stage)
    whole = Untouched(site, run)
    before = await whole.seen()
    fields = {'{"scope": "all", "agent": "actor", "input": "x", "reason": "': '"}'}
    async with lair() as port:
        page = await lured(bench, site, port, host)
        for path, kind in (
            (f"/v1/runs/{run.id}/cancel", "text/plain"),
            ("/v1/halt", "text/plain"),
            ("/v1/runs", "application/x-www-form-urlencoded"),
        ):
            form = {"url": site.url + path, "type": kind, "fields": fields}
            async with page.expect_navigation() as going:
                await page.evaluate(FORM, form)
            reply = await going.value
            assert reply is not None
            assert reply.status == 403
            await page.goto(f"http://{host}:{port}/")
    assert await whole.seen() == before


@pytest.mark.parametrize("host", HOSTS.values(), ids=HOSTS.keys())
async def test_a_link_of_another_page_changes_nothing(
    bench: Bench, stage: Stage, host: str
) -> None:
    """Going there is allowed, for links must work; a GET has no effect on anything."""
    site, run = await prey(bench, stage)
    whole = Untouched(site, run)
    before = await whole.seen()
    async with lair() as port:
        page = await lured(bench, site, port, host)
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
    assert await whole.seen() == before


@pytest.mark.parametrize("host", HOSTS.values(), ids=HOSTS.keys())
async def test_our_pages_are_in_nobody_elses_frame_or_hand(
    bench: Bench, stage: Stage, host: str
) -> None:
    """A button under a transparent kitten is pressed for somebody else."""
    site, run = await prey(bench, stage)
    async with lair() as port:
        page = await lured(bench, site, port, host)
        async with page.expect_console_message(_speaks_of_frames) as saying:
            await page.evaluate(FRAME, f"{site.url}/runs/{run.id}")
        assert site.url in (await saying.value).text
        await expect(page.frame_locator("iframe").locator("header")).to_have_count(0)
        async with page.context.expect_page() as opening:
            await page.evaluate("url => { window.hand = window.open(url) }", f"{site.url}/")
        opened: Page = await opening.value
        await opened.wait_for_load_state()
        await comes_true(lambda: page.evaluate("window.hand.closed"))  # it holds nothing now
        assert await opened.evaluate("window.opener") is None


async def test_a_server_on_another_port_cannot_use_the_cookie_it_is_sent(
    bench: Bench, stage: Stage
) -> None:
    """Browsers send a cookie to every port of a host; the proof of it stays with our origin."""
    site, run = await prey(bench, stage)
    whole = Untouched(site, run)
    before = await whole.seen()
    cookies: list[str] = []
    async with lair(cookies) as port:
        page = await lured(bench, site, port, HOSTS["same site"])
        assert f"midrun_{site.port}=" in cookies[-1]
        assert await page.evaluate("Object.keys(localStorage)") == []
        async with site.stranger() as thief:
            thief.headers["Cookie"] = cookies[-1]
            assert (await thief.get("/v1/runs")).status_code == 401
            cancel = await thief.post(f"/v1/runs/{run.id}/cancel", json={})
            assert cancel.status_code == 401
        own = await page.context.new_page()  # a new tab of our own origin is signed in
        await own.goto(site.url)
        await own.get_by_text("olga (operator)").wait_for()
    assert await whole.seen() == before


async def test_a_name_that_was_pointed_here_is_misdirected(bench: Bench, stage: Stage) -> None:
    """DNS rebinding: to the browser it is the attacker's own origin, and it may do anything."""
    site, run = await prey(bench, stage)
    whole = Untouched(site, run)
    before = await whole.seen()
    page = await (await bench.profile(heard=False)).new_page()
    name = f"http://rebound.example:{site.port}"
    reply = await page.goto(f"{name}/")
    assert reply is not None
    assert reply.status == 421
    stolen = {"run": run.id, "token": token_of("olga")}  # not even with a token
    assert set(await page.evaluate(REBOUND, stolen)) == {421}
    assert await whole.seen() == before


async def test_the_signed_in_page_itself_goes_on(bench: Bench, stage: Stage) -> None:
    """After all that the person presses the button, and it works."""
    site, run = await prey(bench, stage)
    async with lair() as port:
        page = await lured(bench, site, port, HOSTS["same site"])
        await page.evaluate(TRIED, {"url": site.url, "run": run.id})
        own = page.context.pages[0]
        await own.get_by_role("button", name="Pause: Precious").click()
        await expect(own.locator("td .badge")).to_contain_text("Pausing by you")
