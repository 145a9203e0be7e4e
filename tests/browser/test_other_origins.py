"""Pages of allowed other origins: their scripts get runs with a token, never with a cookie."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import pytest
from playwright.async_api import Page, expect

from midrun import Midrun
from midrun.server import Tokens, app
from tests.browser.attacker_page import HOSTS, serve_attacker
from tests.browser.harness import Harness, Site, serve_app
from tests.browser.stage import Stage, Use
from tests.unit.server.conftest import ACTORS, make_token

ORIGINS = pytest.mark.parametrize("host", HOSTS.values(), ids=HOSTS.keys())

CALLED: Final = """async ({url, token}) => {
  const headers = {"Content-Type": "application/json", Authorization: `Bearer ${token}`};
  const started = await fetch(`${url}/v1/runs`, {method: "POST",
    headers: {...headers, "Idempotency-Key": "k1"},
    body: JSON.stringify({agent: "actor", input: "Far"})});
  const run = (await started.json()).run_id;
  const look = await fetch(`${url}/v1/runs/${run}`, {headers});
  const stale = await fetch(`${url}/v1/runs/${run}/redirect`, {method: "POST",
    headers: {...headers, "If-Match": '"0.0"'}, body: JSON.stringify({instruction: "x"})});
  const feed = await fetch(`${url}/v1/runs/${run}/events`,
    {headers: {...headers, Accept: "text/event-stream", "Last-Event-ID": "1"}});
  const heard = await feed.text();
  const {started_by: by} = await look.json();
  const all = await fetch(`${url}/v1/runs`, {headers});
  return {run, etag: look.headers.get("ETag"), where: started.headers.get("Location"),
    stale: stale.status, heard, by, listed: (await all.json()).items.length};
}"""

COPILOTKIT: Final = """async ({url, token}) => {
  const headers = {"Content-Type": "application/json", Accept: "text/event-stream",
    Authorization: `Bearer ${token}`, "X-CopilotKit-Client": "1"};
  const input = {threadId: "t1", runId: "r1", state: {}, tools: [], context: [],
    forwardedProps: {}, messages: [{id: "m1", role: "user", content: "Hello"}]};
  const post = {method: "POST", headers, body: JSON.stringify(input)};
  const info = await fetch(`${url}/copilotkit/info`, {headers});
  const agui = await (await fetch(`${url}/agui/actor`, post)).text();
  const again = JSON.stringify({...input, threadId: "t2", runId: "r2"});
  const path = "/copilotkit/agent/actor/run";
  const kit = await (await fetch(url + path, {...post, body: again})).text();
  const card = await fetch(`${url}/a2a/actor/.well-known/agent-card.json`, {headers});
  return {agents: Object.keys((await info.json()).agents), agui, kit, card: card.status};
}"""

REFUSED: Final = """async ({url, token}) => {
  const bearer = {Authorization: `Bearer ${token}`};
  const read = (how) => fetch(`${url}/v1/runs`, how).then((reply) => reply.status, () => 0);
  return [await read({headers: bearer}), await read({}), await read({credentials: "include"})];
}"""


@asynccontextmanager
async def serve_to_origin(stage: Stage, origin: str, *turns: str | Use) -> AsyncIterator[Site]:
    """Serve an agent to pages of one other origin."""
    mid = Midrun("memory://", agents=[stage.play(*turns)])
    auth = Tokens({make_token(name): actor for name, actor in ACTORS.items()})
    made = app(mid, auth=auth, allow_origins=[origin])
    async with mid, serve_app(made) as port:
        yield Site(mid, made, port)


async def open_other_origin(harness: Harness, url: str, site: Site) -> Page:
    """Open a page at `url` in a browser that also has a session at `site`."""
    profile = await harness.profile(collect_errors=False)
    own = await profile.new_page()
    await own.goto(site.link())
    await own.get_by_text("olga (operator)").wait_for()
    page = await profile.new_page()
    await page.goto(url)
    return page


@ORIGINS
async def test_scripts_of_an_allowed_origin_start_control_and_follow_runs(
    harness: Harness, stage: Stage, host: str
) -> None:
    """By bearer token, headers and streams included."""
    async with (
        serve_attacker() as port,
        serve_to_origin(stage, f"http://{host}:{port}", "Done.") as site,
    ):
        page = await open_other_origin(harness, f"http://{host}:{port}/", site)
        got = await page.evaluate(CALLED, {"url": site.url, "token": make_token("ann")})
        assert got["etag"].startswith('"')
        assert got["where"].endswith(got["run"])
        assert got["stale"] in {409, 412}  # it may have ended; a preflight alone would be 0
        assert "id: 2\n" in got["heard"]
        assert "id: 1\n" not in got["heard"]
        assert got["listed"] == 1
        assert got["by"] == "ann"


@ORIGINS
async def test_chat_clients_of_an_allowed_origin_reach_the_bridges(
    harness: Harness, stage: Stage, host: str
) -> None:
    """With their own headers, as a development server of CopilotKit sends them."""
    async with (
        serve_attacker() as port,
        serve_to_origin(stage, f"http://{host}:{port}", "Done.") as site,
    ):
        page = await open_other_origin(harness, f"http://{host}:{port}/", site)
        got = await page.evaluate(COPILOTKIT, {"url": site.url, "token": make_token("ann")})
        assert got["agents"] == ["actor"]
        assert "RUN_FINISHED" in got["agui"]
        assert "RUN_FINISHED" in got["kit"]
        assert got["card"] == 200


@ORIGINS
async def test_every_other_origin_stays_out_and_a_cookie_lets_no_page_in(
    harness: Harness, stage: Stage, host: str
) -> None:
    """The browser has a session here; the page of the other origin cannot use it."""
    given = {"token": make_token("olga")}
    async with serve_attacker() as port, serve_attacker() as other:
        origin = f"http://{host}:{port}"
        async with serve_to_origin(stage, origin, "Done.") as site:
            page = await open_other_origin(harness, f"{origin}/", site)
            assert await page.evaluate(REFUSED, given | {"url": site.url}) == [200, 401, 0]
            await page.goto(f"http://{host}:{other}/")
            assert await page.evaluate(REFUSED, given | {"url": site.url}) == [0, 0, 0]


@ORIGINS
async def test_the_bar_works_in_a_page_of_an_allowed_origin(
    harness: Harness, stage: Stage, host: str
) -> None:
    """The script comes from the server, the token from an attribute."""
    turns = (Use("slow", name="held"), "Done.")
    async with (
        serve_attacker() as port,
        serve_to_origin(stage, f"http://{host}:{port}", *turns) as site,
    ):
        run = await site.start(task="Far", by="ann")
        await stage.start("held").wait()
        page = await open_other_origin(harness, f"http://{host}:{port}/", site)
        bar = """({url, run, token}) => {
          const bar = document.createElement("midrun-controls");
          bar.setAttribute("run", run);
          bar.setAttribute("token", token);
          document.body.append(bar);
          return import(`${url}/static/midrun.js`).then(() => true);
        }"""
        given = {"url": site.url, "run": run.id, "token": make_token("ann")}
        assert await page.evaluate(bar, given)
        await page.get_by_role("button", name="Pause").click()
        await expect(page.locator("midrun-controls .badge")).to_contain_text("Pausing")
        stage.gate("held").set()
        await run.until("paused")
