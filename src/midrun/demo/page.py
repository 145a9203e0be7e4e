"""Show the demo on a web page: a local server, and a browser if there is a screen."""

import signal
import sys
import webbrowser
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from socket import socket
from typing import Final

import anyio
import anyio.to_thread
from anyio.abc import TaskStatus

from midrun.core.values import Phase
from midrun.demo.launch import Demo, OnOpened
from midrun.errors import Misconfigured
from midrun.server import app
from midrun.server.auth import token_for
from midrun.server.serve import DEFAULT_PORT, UvicornServer, open_listener

LISTEN_HOST: Final = "127.0.0.1"


async def serve_demo(
    demo: Demo, on_opened: OnOpened, *, port: int | None, browser: bool
) -> Phase:
    """Serve the demo until a signal stops the process; return the last phase of the run.

    Without a `port`, the default port is used, or any free port if that one is taken. Leaving
    stands down from the run but does not pause it: it goes on when the demo is opened again.

    Raises:
        Misconfigured: the port cannot be bound.
    """
    mid = demo.build_midrun()
    token = token_for(demo.folder, former_path=demo.folder / "token")
    with _bind_socket(port) as listening:
        async with mid, anyio.create_task_group() as tasks:
            run, found = await demo.find_or_start_run(mid)
            address = f"http://{LISTEN_HOST}:{listening.getsockname()[1]}"
            page = f"{address}/runs/{run.id}"
            served = app(mid, token=token)
            server = _ServerWithoutSignals(served)
            # Before the link is printed: a user may press Ctrl-C as soon as they see it.
            await tasks.start(_stop_on_signal, server)
            on_opened(f"{page}#token={token}", found, await run.view())
            if browser:
                # Other users can read the browser's command line. So it gets a code that works
                # only once, not the token.
                tasks.start_soon(_open_browser, f"{page}#code={served.code()}")
            await server.serve(sockets=[listening])
            phase = (await run.view()).phase
            tasks.cancel_scope.cancel()
    return phase


def has_screen(environ: Mapping[str, str], platform: str = sys.platform) -> bool:
    """Tell whether the user would see a browser that is opened on this machine."""
    if platform in {"darwin", "win32"}:
        return not environ.get("SSH_CONNECTION")
    return bool(environ.get("DISPLAY") or environ.get("WAYLAND_DISPLAY"))


async def _open_browser(link: str) -> None:
    """Open a browser in a thread: with some, the call returns only when it is closed."""
    await anyio.to_thread.run_sync(webbrowser.open, link, abandon_on_cancel=True)


class _ServerWithoutSignals(UvicornServer):
    """A server without signal handling: this module stops it, and then stands down."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture no signals."""
        yield


async def _stop_on_signal(server: UvicornServer, *, task_status: TaskStatus[None]) -> None:
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        task_status.started()
        async for _ in signals:
            server.should_exit = True


def _bind_socket(port: int | None) -> socket:
    if port is None:
        with suppress(Misconfigured):
            return open_listener(LISTEN_HOST, DEFAULT_PORT)
    return open_listener(LISTEN_HOST, port or 0)
