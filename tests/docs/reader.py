"""Typing what a page tells its readers to type: every line of its `sh` blocks, in order.

A page has a clean folder with an `app.py` in it, for its Python blocks as well. What a reader
has and we do not is said in hidden blocks: `stands_for["3f2a"]` is what `3f2a` is here. A
command that runs on is started, heard, and ended with the page. What would change this very
project (`make`, `pip install`) is checked for what it names.
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

PATIENCE_S: Final = 120
RESTS: Final = 75
"""How a command exits whose run is paused, or waits for somebody: as its reader expects."""

RUNS_ON: Final = {
    "midrun serve": r"http://127\.0\.0\.1:(\d+)",
    "midrun worker": "driving the runs of",
    "midrun demo": r"http://127\.0\.0\.1:(\d+)",
    "midrun demo --terminal": "Pause",
}
"""Command that does not end by itself → what it says when it is there."""

StandsFor: TypeAlias = dict[str, str | Callable[[], str]]
"""Word of a page → what it stands for; asked for when it is typed."""

Names: TypeAlias = dict[str, object]
"""What a page's blocks share."""


class Page:
    """One page at work, in a folder of its own, until it is closed."""

    def __init__(self) -> None:
        self.home = Path.cwd()
        self.folder = Path(mkdtemp(prefix="page-"))
        self.stands_for: StandsFor = {"3f2a": self.newest, "RUN": self.newest}
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
        """Keep what a Python block prints."""
        self.printed.append(" ".join(map(str, values)))

    def newest(self) -> str:
        """Return the id of the run that was started last."""
        if not self._newest:
            self._newest = self._done("midrun ls --limit 1 | head -c 26")
        return self._newest

    def save(self, name: str, page: str) -> None:
        """Put the Python blocks of a page into a file, as its reader has them by now."""
        text = (ROOT / page).read_text()
        blocks = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
        Path(self.folder, name).write_text("\n".join(blocks))

    def type(self, line: str) -> None:
        """Type one line; what it says is in the failure, if it is one."""
        line = self.meant(line)
        kind = max((k for k in RUNS_ON if line.startswith(k)), key=len, default="")
        if line.startswith("make"):
            self._done(f"make -C {ROOT} --dry-run {line.removeprefix('make')}")
        elif line.startswith("pip install"):
            check_install(line)
        elif kind:
            self._start(line, kind)
        else:
            self._done(line)
            self._newest = "" if line.startswith("midrun run") else self._newest

    def meant(self, line: str) -> str:
        """Return a line with what its words stand for here, and without its comment."""
        for word, meaning in self.stands_for.items():
            if re.search(rf"(?<!\w){re.escape(word)}(?!\w)", line):
                line = line.replace(word, meaning if isinstance(meaning, str) else meaning())
        return re.sub(r"\s+#\s.*$", "", line)

    def _done(self, line: str) -> str:
        done = subprocess.run(  # noqa: S603 - a page of ours
            ["/bin/bash", "-uo", "pipefail", "-c", line],
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert done.returncode in {0, RESTS}, f"{line}\n{done.stdout}"
        return done.stdout.strip()

    def _start(self, line: str, kind: str) -> None:
        anywhere = "" if kind in {"midrun worker", "midrun demo --terminal"} else " --port 0"
        child = pexpect.spawn(
            "/bin/bash",
            ["-c", f"exec {line}{anywhere}"],
            env=self.env,
            encoding="utf-8",
            timeout=PATIENCE_S,
            dimensions=(40, 120),
        )
        self._running.append((line, child))
        child.expect(RUNS_ON[kind])
        if anywhere:
            self.stands_for["127.0.0.1:8700"] = f"127.0.0.1:{child.match[1]}"

    def at_end(self, undo: Callable[[], object]) -> None:
        """Have something called when the page is closed."""
        self._at_end.append(undo)

    def close(self) -> None:
        """End what runs on, as its reader would, and leave nothing behind."""
        os.chdir(self.home)
        try:
            codes = {line: _ended(child) for line, child in self._running}
        finally:
            for undo in reversed(self._at_end):
                undo()
            shutil.rmtree(self.folder)
        assert set(codes.values()) <= {0, RESTS}, codes


def _ended(child: "pexpect.spawn[str]") -> int | None:
    child.kill(signal.SIGTERM)
    child.expect(pexpect.EOF)
    child.close()
    status: int | None = child.exitstatus
    return status


def check_install(line: str) -> None:
    """See that the extras of a `pip install` exist; `make package` installs each of them."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = {word for found in re.findall(r"\[([\w,]+)\]", line) for word in found.split(",")}
    assert extras <= declared["optional-dependencies"].keys(), line
    assert re.search(r'["\s](midrun|\.)\b', line) or line.endswith(" ."), line


def opened(names: Names) -> None:
    """Open a page; its Python blocks see `page`, `stands_for`, and what they `printed`."""
    page = Page()
    names |= {
        "__page__": page,  # also where a block has a `page` of its own
        "page": page,
        "stands_for": page.stands_for,
        "printed": page.printed,
        "print": page.print,
    }


def closed(names: Names) -> None:
    """Close it."""
    page = names["__page__"]
    assert isinstance(page, Page)
    page.close()


def typed(names: Names, block: str) -> None:
    """Type a block: line by line, where a backslash joins two."""
    page = names["__page__"]
    assert isinstance(page, Page)
    for line in block.replace("\\\n", " ").splitlines():
        if line.strip() and not line.startswith("#"):
            page.type(line.strip())
