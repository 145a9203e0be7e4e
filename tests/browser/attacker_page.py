"""The page of an attacker, on another port and under other names of the same machine."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import anyio
import uvicorn
from playwright.async_api import Page
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse
from starlette.routing import Route

from midrun.runs.run import Run
from midrun.server.serve import open_listener
from tests.browser.harness import Harness, Site

HOSTS: Final = {
    "same site": "127.0.0.1",  # cookies ignore ports: the browser sends it ours
    "cross site": "attacker.example",
}

ATTEMPTS: Final = """async ({url, run}) => {
  const json = {method: "POST", credentials: "include", body: "{}",
    headers: {"Content-Type": "application/json"}};
  const plain = {method: "POST", credentials: "include", mode: "no-cors", body: "{}"};
  const read = {credentials: "include"};
  const verdict = (promise) => promise.then(
    async (reply) => reply.type === "opaque" ? "opaque" : `read ${await reply.text()}`,
    () => "refused");
  const loaded = (tag, source) => new Promise((done) => {
    const element = document.createElement(tag);
    element.onload = () => done("loaded");
    element.onerror = () => done("refused");
    element.src = source;
    document.body.append(element);
  });
  const heard = (source) => new Promise((done) => {
    const feed = new EventSource(source, {withCredentials: true});
    feed.onopen = feed.onmessage = () => done("heard");
    feed.onerror = () => { feed.close(); done("refused"); };
  });
  const socket = (source) => new Promise((done) => {
    const made = new WebSocket(source);
    made.onopen = () => done("open");
    made.onerror = () => done("refused");
  });
  const at = `${url}/v1/runs/${run}`;
  return {
    "fetch of JSON": await verdict(fetch(`${at}/cancel`, json)),
    "fetch without a question": await verdict(fetch(`${at}/cancel`, plain)),
    "reading": await verdict(fetch(`${url}/v1/runs`, read)),
    "reading blindly": await verdict(fetch(`${url}/v1/runs`, {...read, mode: "no-cors"})),
    "image": await loaded("img", `${at}/cancel`),
    "script of data": await loaded("script", `${url}/v1/runs`),
    "our own script": await loaded("script", `${url}/static/midrun.js`),
    "feed": await heard(`${at}/events`),
    "feed of all": await heard(`${url}/v1/events`),
    "socket": await socket(`${url.replace("http", "ws")}/v1/events`),
    "beacon": String(navigator.sendBeacon(`${at}/cancel`, "{}")) && "refused",
  };
}"""

REBOUND_REQUESTS: Final = """({run, token}) => {
  const json = "application/json";
  const headers = {"Content-Type": json, Authorization: `Bearer ${token}`};
  const asked = [
    fetch(`/v1/runs/${run}/cancel`, {method: "POST", headers, body: "{}"}),
    fetch("/v1/runs", {headers}),
    ...["/", "/static/page.js"].map((path) => fetch(path)),
  ];
  return Promise.all(asked.map(async (reply) => (await reply).status));
}"""

OPEN_FRAME: Final = """url => new Promise((done) => {
  const frame = document.createElement("iframe");
  frame.onload = done;
  frame.src = url;
  document.body.append(frame);
})"""

SUBMIT_FORM: Final = """({url, type, fields}) => {
  const form = document.createElement("form");
  Object.assign(form, {method: "post", action: url, enctype: type});
  for (const [name, value] of Object.entries(fields)) {
    const input = document.createElement("input");
    Object.assign(input, {type: "hidden", name, value});
    form.append(input);
  }
  document.body.append(form);
  form.submit();
}"""


@asynccontextmanager
async def serve_attacker(cookies: list[str] | None = None) -> AsyncIterator[int]:
    """Serve the attacker's page; yield its port. Received cookies are added to `cookies`."""

    async def blank(request: Request) -> HTMLResponse:
        if cookies is not None:
            cookies.append(request.headers.get("cookie", ""))
        return HTMLResponse("<!doctype html><title>Nice kittens</title><body>")

    page = Starlette(routes=[Route("/", blank)])
    server = uvicorn.Server(uvicorn.Config(page, lifespan="off", log_config=None))
    with open_listener("127.0.0.1", 0) as sock:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server.serve, [sock])
            try:
                yield sock.getsockname()[1]
            finally:
                server.should_exit = True


async def open_attacker_page(harness: Harness, site: Site, port: int, host: str) -> Page:
    """Open the attacker's page in a browser that is signed in to `site`."""
    profile = await harness.profile(collect_errors=False)
    own = await profile.new_page()
    await own.goto(site.link())
    await own.get_by_text("olga (operator)").wait_for()
    page = await profile.new_page()
    await page.goto(f"http://{host}:{port}/")
    return page


class ServerCounts:
    """The numbers of entries, runs and halts: an attack must not change them."""

    def __init__(self, site: Site, run: Run) -> None:
        self._site = site
        self._run = run

    async def read(self) -> tuple[int, int, int]:
        """Return the three numbers."""
        store = self._site.mid.store
        counts = await store.count_runs_by_phase()
        row = await store.get_row(self._run.id)
        return row.seq, sum(counts.values()), len(await store.list_halts())
