"""The demo on its page: a server on this machine, and a browser if there is a screen."""

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

from midrun.demo.launch import Demo, Opened
from midrun.errors import Misconfigured
from midrun.server import app
from midrun.server.auth import token_for
from midrun.server.serve import PORT, Server, bound

HOST: Final = "127.0.0.1"


async def show(demo: Demo, opened: Opened, *, port: int | None, browser: bool) -> None:
    """Serve the demo until the process is told to stop.

    Without a `port` it is the usual one, or any that is free. Leaving stands down from the run,
    which is no pause: it goes on when somebody opens the demo again.

    Raises:
        Misconfigured: the port cannot be had.
    """
    mid = demo.midrun()
    token = token_for(demo.folder, formerly=demo.folder / "token")
    with _listening(port) as listening:
        async with mid, anyio.create_task_group() as tasks:
            run, found = await demo.run(mid)
            address = f"http://{HOST}:{listening.getsockname()[1]}"
            page = f"{address}/runs/{run.id}"
            served = app(mid, token=token)
            server = _Server(served)
            await tasks.start(_stop_when_told, server)  # before anybody knows where we are
            opened(f"{page}#token={token}", found, await run.view())
            if browser:
                # Other users see the command line of the browser: a code is good once only.
                tasks.start_soon(_browse, f"{page}#code={served.code()}")
            await server.serve(sockets=[listening])
            tasks.cancel_scope.cancel()


def has_screen(environ: Mapping[str, str], platform: str = sys.platform) -> bool:
    """Tell whether a browser that is opened here would be seen by the person who typed this."""
    if platform in {"darwin", "win32"}:
        return not environ.get("SSH_CONNECTION")
    return bool(environ.get("DISPLAY") or environ.get("WAYLAND_DISPLAY"))


async def _browse(link: str) -> None:
    """Open a browser; some do not come back before it is closed."""
    await anyio.to_thread.run_sync(webbrowser.open, link, abandon_on_cancel=True)


class _Server(Server):
    """Leaves signals to us: the runs are ours, and are given back after it has stopped."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield


async def _stop_when_told(server: Server, *, task_status: TaskStatus[None]) -> None:
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        task_status.started()
        async for _ in signals:
            server.should_exit = True


def _listening(port: int | None) -> socket:
    if port is None:
        with suppress(Misconfigured):
            return bound(HOST, PORT)
    return bound(HOST, port or 0)
