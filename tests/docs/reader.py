"""Run the `sh` blocks of a page line by line, as a reader would type them.

The `sh` and Python blocks of a page share an empty folder with an `app.py`. Hidden blocks
define the words that are different for each reader: `stands_for["3f2a"]` is the value of `3f2a`
in the test. A command that does not end is started, read until it is ready, and stopped with
the page. `make` and `pip install` would change this project, so they are not run; the targets
and extras that they name must exist.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from tempfile import mkdtemp
from typing import Final, TypeAlias

import pexpect  # type: ignore[import-untyped]  # it has no types

from tests.support.paths import ROOT

TIMEOUT_S: Final = 120
RUN_RESTS_EXIT_CODE: Final = 75
"""The exit code of a command whose run is paused or waits for a person. It is no failure."""

READY_TEXTS: Final = {
    "midrun serve": r"http://127\.0\.0\.1:(\d+)",
    "midrun worker": "driving the runs of",
    "midrun demo": r"http://127\.0\.0\.1:(\d+)",
    "midrun demo --terminal": "Pause",
}
"""Each command that does not end by itself, with the text that it prints when it is ready."""

StandsFor: TypeAlias = dict[str, str | Callable[[], str]]
"""Words on a page, with their values. A function is called when the word is used."""

Names: TypeAlias = dict[str, object]
"""The variables that the blocks of a page share."""


class Page:
    """The folder and the running commands of one page, until it is closed."""

    def __init__(self) -> None:
        self.home = Path.cwd()
        self.folder = Path(mkdtemp(prefix="page-"))
        self.stands_for: StandsFor = {"3f2a": self.find_newest, "RUN": self.find_newest}
        self.printed: list[str] = []
        self._newest = ""
        self._at_end: list[Callable[[], object]] = []
        self._running: list[tuple[str, pexpect.spawn[str]]] = []
        bare = {name: value for name, value in os.environ.items() if "MIDRUN" not in name}
        bare.pop("DISPLAY", None)  # no browser opens
        self.env = bare | {
            "PATH": f"{Path(sys.executable).parent}:{bare['PATH']}",
            "MIDRUN_ACTOR": "ada",
            "LC_ALL": "C.UTF-8",
        }
        shutil.copy(Path(__file__).with_name("app.py"), self.folder)
        os.chdir(self.folder)

    def print(self, *values: object) -> None:
        """Store the text that a Python block prints."""
        self.printed.append(" ".join(map(str, values)))

    def find_newest(self) -> str:
        """Return the id of the run that was started last."""
        if not self._newest:
            self._newest = self._run("midrun ls --limit 1 | head -c 26")
        return self._newest

    def save(self, name: str, page: str) -> None:
        """Write the Python blocks of a page to a file."""
        text = (ROOT / page).read_text()
        blocks = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
        Path(self.folder, name).write_text("\n".join(blocks))

    def run_line(self, line: str) -> None:
        """Run one line; a failure shows its output."""
        line = self.replace_words(line)
        kind = max((k for k in READY_TEXTS if line.startswith(k)), key=len, default="")
        if line.startswith("make"):
            self._run(f"make -C {ROOT} --dry-run {line.removeprefix('make')}")
        elif line.startswith("pip install"):
            check_install(line)
        elif kind:
            self._start(line, kind)
        else:
            self._run(line)
            self._newest = "" if line.startswith("midrun run") else self._newest

    def replace_words(self, line: str) -> str:
        """Return a line with the values of its words, and without its comment."""
        for word, meaning in self.stands_for.items():
            if re.search(rf"(?<!\w){re.escape(word)}(?!\w)", line):
                line = line.replace(word, meaning if isinstance(meaning, str) else meaning())
        return re.sub(r"\s+#\s.*$", "", line)

    def _run(self, line: str) -> str:
        done = subprocess.run(  # noqa: S603 - a page of ours
            ["/bin/bash", "-uo", "pipefail", "-c", line],
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert done.returncode in {0, RUN_RESTS_EXIT_CODE}, f"{line}\n{done.stdout}"
        return done.stdout.strip()

    def _start(self, line: str, kind: str) -> None:
        port = "" if kind in {"midrun worker", "midrun demo --terminal"} else " --port 0"
        child = pexpect.spawn(
            "/bin/bash",
            ["-c", f"exec {line}{port}"],
            env=self.env,
            encoding="utf-8",
            timeout=TIMEOUT_S,
            dimensions=(40, 120),
        )
        self._running.append((line, child))
        child.expect(READY_TEXTS[kind])
        if port:
            self.stands_for["127.0.0.1:8700"] = f"127.0.0.1:{child.match[1]}"

    def at_end(self, undo: Callable[[], object]) -> None:
        """Call `undo` when the page is closed."""
        self._at_end.append(undo)

    def close(self) -> None:
        """Stop the running commands with SIGTERM, and remove the folder."""
        os.chdir(self.home)
        try:
            codes = {line: _stop_command(child) for line, child in self._running}
        finally:
            for undo in reversed(self._at_end):
                undo()
            shutil.rmtree(self.folder)
        assert set(codes.values()) <= {0, RUN_RESTS_EXIT_CODE}, codes


def _stop_command(child: "pexpect.spawn[str]") -> int | None:
    child.kill(signal.SIGTERM)
    child.expect(pexpect.EOF)
    child.close()
    status: int | None = child.exitstatus
    return status


def check_install(line: str) -> None:
    """Check that the extras of a `pip install` exist; `make package` installs each of them."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = {word for found in re.findall(r"\[([\w,-]+)\]", line) for word in found.split(",")}
    assert extras <= declared["optional-dependencies"].keys(), line
    assert re.search(r'["\s](midrun\b|\.(\[|$))', line), line


def open_page(names: Names) -> None:
    """Open a page; its Python blocks see `page`, `stands_for` and `printed`."""
    page = Page()
    names |= {
        "__page__": page,  # a block may define another `page`
        "page": page,
        "stands_for": page.stands_for,
        "printed": page.printed,
        "print": page.print,
    }


def close_page(names: Names) -> None:
    """Close the page, which stops its commands."""
    page = names["__page__"]
    assert isinstance(page, Page)
    page.close()


def run_block(names: Names, block: str) -> None:
    """Run a block line by line; a backslash at the end of a line joins it with the next."""
    page = names["__page__"]
    assert isinstance(page, Page)
    for line in block.replace("\\\n", " ").splitlines():
        if line.strip() and not line.startswith("#"):
            page.run_line(line.strip())
