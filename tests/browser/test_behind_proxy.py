"""The page behind other servers: a reverse proxy with a prefix, and an identity provider."""

from playwright.async_api import expect

from midrun import Midrun
from midrun.server import Network, Tokens, app
from midrun.server.oidc import oidc
from tests.browser.harness import Harness, serve_app
from tests.browser.stage import Stage, Use
from tests.support.oidc_provider import AUDIENCE, OidcProvider
from tests.support.reverse_proxy import ReverseProxy
from tests.unit.server.conftest import ACTORS, make_token

PREFIX = "/tools/midrun"


async def test_page_elements_feed_links_and_cookie_work_behind_a_prefix(
    harness: Harness, stage: Stage
) -> None:
    """A browser signs in, starts a run, follows it, and pauses it from another page."""
    mid = Midrun("memory://", agents=[stage.play(Use("slow", name="held"), "Done.")])
    auth = Tokens({make_token(name): actor for name, actor in ACTORS.items()})
    proxy = ReverseProxy(PREFIX)
    async with mid, proxy.serve() as origin:
        made = app(mid, auth=auth, public_url=origin)
        async with serve_app(made, network=Network(root_path=PREFIX)) as port:
            proxy.upstream = f"http://127.0.0.1:{port}"
            profile = await harness.profile()
            page = await profile.new_page()
            await page.goto(f"{origin}{PREFIX}/#code={made.code(ACTORS['olga'])}")
            await expect(page.get_by_text("olga (operator)")).to_be_visible()
            assert page.url == f"{origin}{PREFIX}/"
            assert [each["path"] for each in await profile.cookies()] == [f"{PREFIX}/"]

            await page.get_by_role("button", name="New run").click()
            await page.get_by_label("What should it do?").fill("Compare the vendors")
            await page.get_by_role("button", name="Start").click()
            await page.wait_for_url(f"{origin}{PREFIX}/runs/run_*")
            await stage.start("held").wait()
            run = page.url.rpartition("/")[2]

            proxy.page = (
                "<!doctype html><title>Host</title>"
                f'<script type="module" src="{PREFIX}/static/midrun.js"></script>'
                f'<main><midrun-controls run="{run}"></midrun-controls></main>'
            )
            host = await profile.new_page()
            await host.goto(f"{origin}/")
            await host.get_by_role("button", name="Pause").click()
            # Both pages follow the run: each feed passes the proxy.
            for each in (host, page):
                badge = each.locator("midrun-controls .badge").first
                await expect(badge).to_contain_text("Pausing")
            stage.gate("held").set()
            await expect(page.locator("midrun-controls .badge").first).to_contain_text("Paused")

            await page.get_by_role("link", name="Midrun").first.click()
            await page.wait_for_url(f"{origin}{PREFIX}/")
            await page.get_by_role("link", name="Compare the vendors").first.click()
            await page.wait_for_url(f"{origin}{PREFIX}/runs/{run}")
            await profile.close()  # its streams would keep the proxy open


async def test_a_browser_signs_in_at_an_identity_provider(harness: Harness) -> None:
    """Behind a prefix, too: the callback, the cookie and the link back contain it."""
    mid, proxy = Midrun("memory://"), ReverseProxy(PREFIX)
    async with mid, proxy.serve() as origin, OidcProvider().serve() as provider:
        auth = oidc(provider.issuer, audience=AUDIENCE, client_id="the-page")
        made = app(mid, auth=auth, public_url=origin)
        async with serve_app(made, network=Network(root_path=PREFIX)) as port:
            proxy.upstream = f"http://127.0.0.1:{port}"
            provider.claims = {"sub": "ada", "role": "operator"}
            profile = await harness.profile()
            page = await profile.new_page()
            await page.goto(f"{origin}{PREFIX}/")
            await page.get_by_role("link", name="Sign in with your organisation").click()
            await expect(page.get_by_text("ada (operator)")).to_be_visible()
            assert page.url == f"{origin}{PREFIX}/"  # no code is left in the address
            await page.reload()
            await expect(page.get_by_text("ada (operator)")).to_be_visible()
            cookies = [each["name"] for each in await profile.cookies()]
            assert not [name for name in cookies if name.endswith("_sign_in")]
            await profile.close()
