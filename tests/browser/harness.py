"""The test harness of the page: a server on a free port, and browsers signed in to it."""

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
from midrun.ports.environment import Environment
from midrun.runs.run import Run
from midrun.server import App, Network, Tokens, app
from midrun.server.serve import UvicornServer, open_listener
from tests.support.paths import ROOT
from tests.unit.server.conftest import ACTORS, make_token

AXE: Final = ROOT / "tools" / "web" / "node_modules" / "axe-core" / "axe.min.js"
AXE_RULES: Final = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]

TIMEOUT_S: Final = 60
"""A condition of the page that is not met after so long fails its test."""

CHROMIUM_FLAGS: Final = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--process-per-site",  # as with many tabs; see BrowserProfiles
    "--host-resolver-rules=MAP *.example 127.0.0.1",  # for tests of DNS rebinding
]

_DISCARDED: Final[WeakSet[BrowserContext]] = WeakSet()
"""Profiles that must not be reused: their clock was moved, or their storage has data."""

_EXPECTED_ERROR: Final = (
    "Failed to load resource"  # Chromium logs this for every 4xx, expected ones included
)


class Site:
    """A running server: its address, its app, and its `Midrun`."""

    def __init__(self, mid: Midrun, made: App, port: int) -> None:
        self.mid = mid
        self.app = made
        self.port = port
        self.url = f"http://127.0.0.1:{port}"

    async def start(self, agent: str = "actor", task: str = "Go.", *, by: str = "olga") -> Run:
        """Start a run for one of the people."""
        return await self.mid.start(agent, task, actor=ACTORS[by])

    def reopen(self) -> None:
        """Let a closed app answer again, as a restarted server would."""
        lobby = self.app._server
        lobby.closing = type(lobby.closing)()

    def anonymous_client(self) -> httpx2.AsyncClient:
        """Return a client without a credential."""
        return httpx2.AsyncClient(base_url=self.url, timeout=TIMEOUT_S)

    def link(self, path: str = "/", *, who: str = "olga") -> str:
        """Return a sign-in link for one browser."""
        return f"{self.url}{path}#code={self.app.code(ACTORS[who])}"


class PageOptions(msgspec.Struct, frozen=True):
    """Options of a browser profile.

    `bypass_csp` allows to inject `axe` into a page whose policy forbids it. With `clock`, the
    page's time runs as usual until `freeze_clock` or `advance_clock` changes it.
    """

    dark: bool = False
    width: int = 1100
    height: int = 900
    bypass_csp: bool = False
    clock: bool = False


class PageOptionArgs(TypedDict, total=False):
    """The fields of `PageOptions` as keyword arguments."""

    dark: bool
    width: int
    height: int
    bypass_csp: bool
    clock: bool


class BrowserProfiles:
    """A pool of browser profiles. Creating one takes longer than most tests, so it is reused.

    Nothing leaks from one test into the next: cookies are cleared, and drafts end with their
    tab. A profile whose clock was moved or whose `localStorage` has data is closed instead: a
    later site may get the same port, and so the same origin.

    A tab with a picture stays open in each idle profile. It keeps the renderer process alive,
    whose start takes as long as most of a test.
    """

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._idle: dict[PageOptions, list[BrowserContext]] = {}
        self._keepers: dict[BrowserContext, Page] = {}

    async def create(self, options: PageOptions) -> BrowserContext:
        """Create a profile."""
        made = await self._browser.new_context(
            viewport={"width": options.width, "height": options.height},
            color_scheme="dark" if options.dark else "light",
            reduced_motion="reduce",
            bypass_csp=options.bypass_csp,
        )
        made.set_default_timeout(TIMEOUT_S * 1000)
        if options.clock:
            await made.clock.install()
        return made

    @asynccontextmanager
    async def borrow(self, options: PageOptions, picture: str) -> AsyncIterator[BrowserContext]:
        """Lend a clean profile. `picture` is a URL for the tab that keeps its process."""
        idle = self._idle.setdefault(options, [])
        profile = idle.pop() if idle else await self._create_with_keeper(options, picture)
        try:
            yield profile
        finally:
            if profile in _DISCARDED:
                await profile.close()
            else:
                await profile.set_offline(offline=False)
                for page in profile.pages:
                    if page is not self._keepers[profile]:
                        await page.close()
                await profile.clear_cookies()
                idle.append(profile)

    async def _create_with_keeper(self, options: PageOptions, picture: str) -> BrowserContext:
        made = await self.create(options)
        self._keepers[made] = await made.new_page()
        await self._keepers[made].goto(picture)
        return made


class Harness:
    """Serves agents, opens pages, and collects the errors of their scripts."""

    def __init__(self, profiles: BrowserProfiles, stack: AsyncExitStack) -> None:
        self.script_errors: list[str] = []
        self._profiles = profiles
        self._stack = stack

    async def site(self, *agents: Agent, outside: Environment | None = None) -> Site:
        """Serve `agents` with a new store in memory."""
        outside = outside or Environment(lease=timedelta(seconds=TIMEOUT_S))
        opened = Midrun("memory://", agents=agents, outside=outside)
        mid = await self._stack.enter_async_context(opened)
        auth = Tokens({make_token(name): actor for name, actor in ACTORS.items()})
        made = app(mid, auth=auth)
        port = await self._stack.enter_async_context(serve_app(made))
        return Site(mid, made, port)

    async def profile(
        self, *, collect_errors: bool = True, **options: Unpack[PageOptionArgs]
    ) -> BrowserContext:
        """Return a new browser profile that is used by one test only.

        Pages of attackers cause script errors; for them `collect_errors` is False.
        """
        made = await self._profiles.create(PageOptions(**options))
        self._stack.push_async_callback(made.close)
        return self._collect_errors(made) if collect_errors else made

    async def page(
        self,
        site: Site,
        path: str = "/",
        *,
        who: str = "olga",
        **options: Unpack[PageOptionArgs],
    ) -> Page:
        """Open a page of `site`, signed in as one of `PEOPLE`."""
        lending = self._profiles.borrow(PageOptions(**options), f"{site.url}/static/icon.svg")
        profile = self._collect_errors(await self._stack.enter_async_context(lending))
        page = await profile.new_page()
        await page.goto(site.link(path, who=who))
        return page

    def _collect_errors(self, profile: BrowserContext) -> BrowserContext:
        profile.on("console", self._on_console)
        profile.on("weberror", self._on_page_error)
        self._stack.callback(profile.remove_listener, "console", self._on_console)
        self._stack.callback(profile.remove_listener, "weberror", self._on_page_error)
        return profile

    def _on_page_error(self, error: WebError) -> None:
        self.script_errors.append(str(error.error))

    def _on_console(self, said: ConsoleMessage) -> None:
        if said.type in {"error", "warning"} and not said.text.startswith(_EXPECTED_ERROR):
            self.script_errors.append(f"{said.type}: {said.text}")


@asynccontextmanager
async def serve_app(
    made: App, whole: Starlette | None = None, *, network: Network | None = None
) -> AsyncIterator[int]:
    """Serve `made`, or the application `whole` that contains it, on a free loopback port."""
    with open_listener("127.0.0.1", 0) as sock:
        server = UvicornServer(made, network or Network())
        if whole is not None:
            server.config.app = whole
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server.serve, [sock])
            try:
                yield sock.getsockname()[1]
            finally:
                server.should_exit = True


async def find_violations(page: Page, *rules: str) -> list[str]:
    """Return the accessibility violations that axe finds. Needs a profile with `bypass_csp`.

    Only `rules` are checked, if any are named.
    """
    if not await page.evaluate("'axe' in globalThis"):
        assert AXE.exists(), "axe-core is missing: `make web` installs it"
        await page.evaluate(AXE.read_text())
    found = await page.evaluate(
        "only => axe.run(document, {runOnly: only, resultTypes: ['violations']})",
        {"type": "rule", "values": rules} if rules else AXE_RULES,
    )
    return [
        f"{flaw['id']}: {node['html'][:160]} {node['failureSummary']}"
        for flaw in found["violations"]
        for node in flaw["nodes"]
    ]


async def find_dark_violations(page: Page) -> list[str]:
    """Switch the page to dark, and return the violations of the rules about colours."""
    await page.emulate_media(color_scheme="dark")
    return await find_violations(page, "color-contrast", "link-in-text-block")


async def wait_until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait until `condition` returns True. It polls: a page does not report its renders."""
    with anyio.fail_after(TIMEOUT_S):
        while not await condition():  # noqa: ASYNC110 - a page does not report its renders
            await anyio.sleep(0.01)


def discard_profile(page: Page) -> None:
    """Do not reuse the profile of this page."""
    _DISCARDED.add(page.context)


async def freeze_clock(page: Page) -> None:
    """Stop the page's clock: no timer fires. Events of the feed are still rendered."""
    discard_profile(page)
    await page.clock.pause_at(await page.evaluate("Date.now() / 1000 + 1"))


async def advance_clock(page: Page, ms: int) -> None:
    """Advance the page's clock at once."""
    discard_profile(page)
    await page.clock.fast_forward(ms)
