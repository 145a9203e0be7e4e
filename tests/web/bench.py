"""The bench of the page: a server on a free port, and browsers that are signed in to it."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Final

import anyio
import httpx2
from playwright.async_api import Browser, BrowserContext, ConsoleMessage, Page
from starlette.applications import Starlette

from midrun import Agent, Midrun
from midrun.embed.run import Run
from midrun.ports.outside import Outside
from midrun.server import App, Tokens, app
from midrun.server.binding import Server, bound
from tests.server.conftest import PEOPLE, token_of

ROOT: Final = Path(__file__).parents[2]
AXE: Final = ROOT / "tools" / "web" / "node_modules" / "axe-core" / "axe.min.js"
RULES: Final = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]

PATIENCE_S: Final = 60
"""Seconds after which something that should be on the page counts as never coming."""

FLAGS: Final = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP *.example 127.0.0.1",  # names that others have pointed here
]

_REFUSED: Final = "Failed to load resource"  # Chromium says it of every 4xx, also expected ones


class Site:
    """A server that runs: its address, its app, and the runs behind it."""

    def __init__(self, mid: Midrun, made: App, port: int) -> None:
        self.mid = mid
        self.app = made
        self.port = port
        self.url = f"http://127.0.0.1:{port}"

    async def start(self, agent: str = "actor", task: str = "Go.", *, by: str = "olga") -> Run:
        """Start a run for one of the people."""
        return await self.mid.start(agent, task, actor=PEOPLE[by])

    def stranger(self) -> httpx2.AsyncClient:
        """Return a client that shows no credential."""
        return httpx2.AsyncClient(base_url=self.url, timeout=PATIENCE_S)

    def link(self, path: str = "/", *, who: str = "olga") -> str:
        """Return a link that signs one browser in."""
        return f"{self.url}{path}#code={self.app.code(PEOPLE[who])}"


class Bench:
    """Serves agents, opens pages, and keeps what their scripts complained of."""

    def __init__(self, browser: Browser, stack: AsyncExitStack) -> None:
        self.complaints: list[str] = []
        self._browser = browser
        self._stack = stack

    async def site(self, *agents: Agent, outside: Outside | None = None) -> Site:
        """Serve `agents` on a store of their own."""
        outside = outside or Outside(lease=timedelta(seconds=PATIENCE_S))
        opened = Midrun("memory://", agents=agents, outside=outside)
        mid = await self._stack.enter_async_context(opened)
        auth = Tokens({token_of(name): actor for name, actor in PEOPLE.items()})
        made = app(mid, auth=auth)
        port = await self._stack.enter_async_context(listening(made))
        return Site(mid, made, port)

    async def profile(
        self,
        *,
        dark: bool = False,
        width: int = 1100,
        height: int = 900,
        bare: bool = False,
        heard: bool = True,
    ) -> BrowserContext:
        """Return a browser profile of its own: nothing is shared with another.

        `bare` lets `axe` be put into a page whose policy would not have it. Where it is not
        `heard`, scripts may complain: those of attackers do.
        """
        made = await self._browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme="dark" if dark else "light",
            reduced_motion="reduce",
            bypass_csp=bare,
        )
        self._stack.push_async_callback(made.close)
        if heard:
            made.on("console", self._heard)
            made.on("weberror", lambda error: self.complaints.append(str(error.error)))
        return made

    async def page(
        self,
        site: Site,
        path: str = "/",
        *,
        who: str = "olga",
        dark: bool = False,
        width: int = 1100,
        bare: bool = False,
        clock: bool = False,
    ) -> Page:
        """Open a page of `site`, signed in as one of the people.

        With `clock`, its time goes on as usual, until `freeze` or `later` take it in hand.
        """
        profile = await self.profile(dark=dark, width=width, bare=bare)
        page = await profile.new_page()
        if clock:
            await page.clock.install()
        await page.goto(site.link(path, who=who))
        return page

    def _heard(self, said: ConsoleMessage) -> None:
        if said.type in {"error", "warning"} and not said.text.startswith(_REFUSED):
            self.complaints.append(f"{said.type}: {said.text}")


@asynccontextmanager
async def listening(made: App, whole: Starlette | None = None) -> AsyncIterator[int]:
    """Let `made` listen on a free port of loopback; or `whole`, of which it is a part."""
    with bound("127.0.0.1", 0) as sock:
        server = Server(made)
        if whole is not None:
            server.config.app = whole
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server.serve, [sock])
            try:
                yield sock.getsockname()[1]
            finally:
                server.should_exit = True


async def flaws(page: Page) -> list[str]:
    """Return what axe finds wrong with the page as it is drawn now. Needs a `bare` profile."""
    assert AXE.exists(), "axe-core is missing: `make web` installs it"
    await page.evaluate(AXE.read_text())
    found = await page.evaluate(
        "rules => axe.run(document, {runOnly: rules, resultTypes: ['violations']})", RULES
    )
    return [
        f"{flaw['id']}: {node['html'][:160]} {node['failureSummary']}"
        for flaw in found["violations"]
        for node in flaw["nodes"]
    ]


async def freeze(page: Page) -> None:
    """Stop the page's clock. What it hears is still shown; no timer fires."""
    await page.clock.pause_at(await page.evaluate("Date.now() / 1000 + 1"))


async def later(page: Page, ms: int) -> None:
    """Let time pass on the page, at once."""
    await page.clock.fast_forward(ms)
