"""A real terminal for tests: one tmux server per test; keys are sent and the screen is read."""

import os
import shutil
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from shlex import join
from subprocess import CalledProcessError

import anyio

from tests.support.paths import PATH_WITH_MIDRUN

APP = Path(__file__).with_name("app.py")
TMUX = shutil.which("tmux") or "tmux: please install it"


class Terminal:
    """One window of a tmux server."""

    def __init__(self, folder: Path) -> None:
        self.gate = folder / "gate"
        self._socket = str(folder / "tmux")
        self._env = {
            **os.environ,
            "PATH": PATH_WITH_MIDRUN,
            "MIDRUN_STORE": f"sqlite:///{folder}/runs.db",
            "MIDRUN_ACTOR": "ada",
            "GATE": str(self.gate),
            "LC_ALL": "C.UTF-8",
        }

    async def open(self, columns: int, *words: str, **env: str) -> None:
        """Type a midrun command into a new window; its exit code is printed after it."""
        settings = (f"{name}={value}" for name, value in env.items())
        command = join(["env", *settings, sys.executable, "-m", "midrun", *words])
        shell = f"{command}; echo code=$?; exec cat"
        await self._tmux(
            "-f", "/dev/null", "new-session", "-d", "-x", str(columns), "-y", "40", shell
        )

    async def press(self, *keys: str) -> None:
        """Press keys, by the names of tmux: p, Enter, C-c, M-Enter."""
        await self._tmux("send-keys", *keys)

    async def type_text(self, text: str) -> None:
        """Type text, letter by letter."""
        await self._tmux("send-keys", "-l", text)

    async def resize(self, columns: int) -> None:
        """Make the window wider or narrower."""
        await self._tmux("resize-window", "-x", str(columns))

    async def read_title(self) -> str:
        """Return the title of the window."""
        return await self._tmux("display-message", "-p", "#{pane_title}")

    async def read_screen(self, *, scrollback: bool = False) -> str:
        """Return the text of the screen, with the scrollback if requested."""
        return await self._tmux("capture-pane", "-Jp", *(["-S", "-"] if scrollback else []))

    async def wait_for(
        self, *texts: str, condition: Callable[[str], bool] = lambda _: True
    ) -> str:
        """Wait until all `texts` are on the screen and `condition` holds; return the screen.

        The screen may be read while it is half drawn, so facts about it are waited for, too.
        """
        read_screen = ""
        with anyio.move_on_after(60):
            while True:
                read_screen = await self.read_screen()
                if all(text in read_screen for text in texts) and condition(read_screen):
                    return read_screen
                await anyio.sleep(0.02)
        raise AssertionError(f"waited for {texts}, saw:\n{read_screen}")

    async def close_window(self) -> None:
        """Close the window while a program runs in it."""
        await self._tmux("kill-session")

    async def close(self) -> None:
        """End the tmux server and all programs in it."""
        with anyio.CancelScope(shield=True):
            with suppress(CalledProcessError):  # it ends by itself with its last window
                await self._tmux("kill-server")

    async def _tmux(self, *words: str) -> str:
        done = await anyio.run_process([TMUX, "-S", self._socket, *words], env=self._env)
        return done.stdout.decode()


@asynccontextmanager
async def open_terminal(
    folder: Path, columns: int, *words: str, **env: str
) -> AsyncIterator[Terminal]:
    """Open a terminal with `columns` columns and a midrun command in it."""
    window = Terminal(folder)
    await window.open(columns, *words, **env)
    try:
        yield window
    finally:
        await window.close()
