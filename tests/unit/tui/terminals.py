"""A real terminal for tests: tmux, one server per test; keys go in, the screen comes out."""

import os
import shutil
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from shlex import join
from subprocess import CalledProcessError

import anyio

APP = Path(__file__).with_name("app.py")
TMUX = shutil.which("tmux") or "tmux: please install it"


PATH = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
"""With this very midrun on it: hints then name it by its name."""


class Terminal:
    """One window of a tmux server."""

    def __init__(self, folder: Path) -> None:
        self.gate = folder / "gate"
        self._socket = str(folder / "tmux")
        self._env = {
            **os.environ,
            "PATH": PATH,
            "MIDRUN_STORE": f"sqlite:///{folder}/runs.db",
            "MIDRUN_ACTOR": "ada",
            "GATE": str(self.gate),
            "LC_ALL": "C.UTF-8",
        }

    async def open(self, columns: int, *words: str, **env: str) -> None:
        """Type a command of midrun into a new window, and its exit code after it."""
        settings = (f"{name}={value}" for name, value in env.items())
        command = join(["env", *settings, sys.executable, "-m", "midrun", *words])
        shell = f"{command}; echo code=$?; exec cat"
        await self._tmux(
            "-f", "/dev/null", "new-session", "-d", "-x", str(columns), "-y", "40", shell
        )

    async def press(self, *keys: str) -> None:
        """Press keys, by tmux's names: p, Enter, C-c, M-Enter."""
        await self._tmux("send-keys", *keys)

    async def write(self, text: str) -> None:
        """Type text, letter by letter."""
        await self._tmux("send-keys", "-l", text)

    async def resize(self, columns: int) -> None:
        """Make the window wider or narrower."""
        await self._tmux("resize-window", "-x", str(columns))

    async def title(self) -> str:
        """Return the title of the window."""
        return await self._tmux("display-message", "-p", "#{pane_title}")

    async def screen(self, *, scrollback: bool = False) -> str:
        """Return what is on the screen, and what has scrolled off it if asked."""
        return await self._tmux("capture-pane", "-Jp", *(["-S", "-"] if scrollback else []))

    async def sees(self, *texts: str, so_that: Callable[[str], bool] = lambda _: True) -> str:
        """Wait until all of `texts` are on the screen, and it is as wanted; return it.

        It may be caught half drawn: what is to be true of it is waited for, too.
        """
        screen = ""
        with anyio.move_on_after(60):
            while True:
                screen = await self.screen()
                if all(text in screen for text in texts) and so_that(screen):
                    return screen
                await anyio.sleep(0.02)
        raise AssertionError(f"waited for {texts}, saw:\n{screen}")

    async def hang_up(self) -> None:
        """Close the window on whatever runs in it."""
        await self._tmux("kill-session")

    async def close(self) -> None:
        """End the server with all that runs in it."""
        with anyio.CancelScope(shield=True):
            with suppress(CalledProcessError):  # it has ended by itself: no window was left
                await self._tmux("kill-server")

    async def _tmux(self, *words: str) -> str:
        done = await anyio.run_process([TMUX, "-S", self._socket, *words], env=self._env)
        return done.stdout.decode()


@asynccontextmanager
async def terminal(
    folder: Path, columns: int, *words: str, **env: str
) -> AsyncIterator[Terminal]:
    """Open a terminal of so many columns, with a command of midrun in it."""
    made = Terminal(folder)
    await made.open(columns, *words, **env)
    try:
        yield made
    finally:
        await made.close()
