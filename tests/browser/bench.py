"""The bench of the page: a server on a free port, and browsers that are signed in to it."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from typing import Final, TypedDict, Unpack
from weakref import WeakSet

import anyio
import httpx2
import msgspec
from playwright.async_api import Browser, BrowserContext, ConsoleMessage, Page, WebError
from starlette.applications import Starlette

from midrun import Agent, Midrun
from midrun.ports.environment import Outside
from midrun.runs.run import Run
from midrun.server import App, Tokens, app
from midrun.server.serve import Server, bound
from tests.support.processes import ROOT
from tests.unit.server.conftest import PEOPLE, token_of

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
    "--process-per-site",  # as it is with many tabs; see Profiles
    "--host-resolver-rules=MAP *.example 127.0.0.1",  # names that others have pointed here
]

_SPENT: Final[WeakSet[BrowserContext]] = WeakSet()
"""Profiles that are not like new again: their clock was moved, or they keep something."""

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

    def reopen(self) -> None:
        """Let the app, which was closed, answer again: as one would that came in its place."""
        lobby = self.app._lobby
        lobby.closing = type(lobby.closing)()

    def stranger(self) -> httpx2.AsyncClient:
        """Return a client that shows no credential."""
        return httpx2.AsyncClient(base_url=self.url, timeout=PATIENCE_S)

    def link(self, path: str = "/", *, who: str = "olga") -> str:
        """Return a link that signs one browser in."""
        return f"{self.url}{path}#code={self.app.code(PEOPLE[who])}"


class Look(msgspec.Struct, frozen=True):
    """How a browser looks at pages.

    `bare` lets `axe` be put into a page whose policy would not have it. With `clock`, a page's
    time goes on as usual, until `freeze` or `later` take it in hand.
    """

    dark: bool = False
    width: int = 1100
    height: int = 900
    bare: bool = False
    clock: bool = False


class Looking(TypedDict, total=False):
    """The same, where it is passed on."""

    dark: bool
    width: int
    height: int
    bare: bool
    clock: bool


class Profiles:
    """Browser profiles. To make one takes longer than many a test: they are lent, and again.

    Nothing of one site is another's: cookies are cleared, drafts go with their tab. A profile
    whose clock was moved, or that keeps what a reader chose, is not used again: the port of a
    site may be another's later, and what is kept goes by that.

    A profile that is lent again has a process for its pages already: a picture, shown in a tab
    of its own, keeps it. To start one takes as long as most of the rest of a test.
    """

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._idle: dict[Look, list[BrowserContext]] = {}
        self._keepers: dict[BrowserContext, Page] = {}

    async def made(self, look: Look) -> BrowserContext:
        """Return a new one."""
        made = await self._browser.new_context(
            viewport={"width": look.width, "height": look.height},
            color_scheme="dark" if look.dark else "light",
            reduced_motion="reduce",
            bypass_csp=look.bare,
        )
        made.set_default_timeout(PATIENCE_S * 1000)
        if look.clock:
            await made.clock.install()
        return made

    @asynccontextmanager
    async def lent(self, look: Look, picture: str) -> AsyncIterator[BrowserContext]:
        """Give one that is like new. `picture` is where one is now, if not later."""
        idle = self._idle.setdefault(look, [])
        profile = idle.pop() if idle else await self._kept(look, picture)
        try:
            yield profile
        finally:
            if profile in _SPENT:
                await profile.close()
            else:
                await profile.set_offline(offline=False)
                for page in profile.pages:
                    if page is not self._keepers[profile]:
                        await page.close()
                await profile.clear_cookies()
                idle.append(profile)

    async def _kept(self, look: Look, picture: str) -> BrowserContext:
        """Return a new one, with the tab that keeps its process."""
        made = await self.made(look)
        self._keepers[made] = await made.new_page()
        await self._keepers[made].goto(picture)
        return made


class Bench:
    """Serves agents, opens pages, and keeps what their scripts complained of."""

    def __init__(self, profiles: "Profiles", stack: AsyncExitStack) -> None:
        self.complaints: list[str] = []
        self._profiles = profiles
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

    async def profile(self, *, heard: bool = True, **look: Unpack[Looking]) -> BrowserContext:
        """Return a browser profile of its own: nothing is shared with another, ever.

        `look` is what `Look` has. Where it is not `heard`, scripts may complain: those of
        attackers do.
        """
        made = await self._profiles.made(Look(**look))
        self._stack.push_async_callback(made.close)
        return self._listened(made) if heard else made

    async def page(
        self, site: Site, path: str = "/", *, who: str = "olga", **look: Unpack[Looking]
    ) -> Page:
        """Open a page of `site`, signed in as one of the people; `look` is what `Look` has."""
        lent = self._profiles.lent(Look(**look), f"{site.url}/static/icon.svg")
        profile = self._listened(await self._stack.enter_async_context(lent))
        page = await profile.new_page()
        await page.goto(site.link(path, who=who))
        return page

    def _listened(self, profile: BrowserContext) -> BrowserContext:
        profile.on("console", self._heard)
        profile.on("weberror", self._failed)
        self._stack.callback(profile.remove_listener, "console", self._heard)
        self._stack.callback(profile.remove_listener, "weberror", self._failed)
        return profile

    def _failed(self, error: WebError) -> None:
        self.complaints.append(str(error.error))

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


async def flaws(page: Page, *rules: str) -> list[str]:
    """Return what axe finds wrong with the page as it is drawn now. Needs a `bare` profile.

    `rules` are all that are looked at, if any are named.
    """
    if not await page.evaluate("'axe' in globalThis"):
        assert AXE.exists(), "axe-core is missing: `make web` installs it"
        await page.evaluate(AXE.read_text())
    found = await page.evaluate(
        "only => axe.run(document, {runOnly: only, resultTypes: ['violations']})",
        {"type": "rule", "values": rules} if rules else RULES,
    )
    return [
        f"{flaw['id']}: {node['html'][:160]} {node['failureSummary']}"
        for flaw in found["violations"]
        for node in flaw["nodes"]
    ]


async def darkened(page: Page) -> list[str]:
    """Draw the page in dark, and return what axe finds wrong with it then.

    Nothing but its colours is another, so nothing but those is looked at.
    """
    await page.emulate_media(color_scheme="dark")
    return await flaws(page, "color-contrast", "link-in-text-block")


async def comes_true(fact: Callable[[], Awaitable[bool]]) -> None:
    """Wait until it is so: what a page draws, it draws when it comes to it."""
    with anyio.fail_after(PATIENCE_S):
        while not await fact():  # noqa: ASYNC110 - the page tells nobody that it has drawn
            await anyio.sleep(0.01)


def spend(page: Page) -> None:
    """Do not lend the profile of this page again."""
    _SPENT.add(page.context)


async def freeze(page: Page) -> None:
    """Stop the page's clock. What it hears is still shown; no timer fires."""
    spend(page)
    await page.clock.pause_at(await page.evaluate("Date.now() / 1000 + 1"))


async def later(page: Page, ms: int) -> None:
    """Let time pass on the page, at once."""
    spend(page)
    await page.clock.fast_forward(ms)
