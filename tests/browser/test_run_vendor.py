"""Vendored scripts: version, hash and licence; and rules for our own scripts."""

import json
import re
from hashlib import sha256
from importlib.resources import files

import pytest

FOLDER = files("midrun.server").joinpath("static")
IMPORTED = re.compile(r'^(?:import|export)\s(?:[^;"]*?from )?"\./([^"]+)"', re.MULTILINE)
PRELOADED = re.compile(r'rel="modulepreload" href="[./]*static/([^"]+)"')


def find_imports(*names: str) -> set[str]:
    """Return these modules and all that they import."""
    found: set[str] = set()
    left = [*names]
    while left:
        if (name := left.pop()) not in found:
            found.add(name)
            left += IMPORTED.findall(FOLDER.joinpath(name).read_text())
    return found


def test_vendored_files_match_their_recorded_hashes() -> None:
    record = json.loads(FOLDER.joinpath("vendor.json").read_text())
    for name, about in record.items():
        body = FOLDER.joinpath(name).read_bytes()
        assert sha256(body).hexdigest() == about["sha256"], name
        assert about["version"] in body.decode()[:200]
        assert "Redistribution" in FOLDER.joinpath(about["notice"]).read_text()


def test_our_own_modules_are_small_and_begin_with_a_description() -> None:
    for file in FOLDER.iterdir():
        if not file.name.endswith(".js") or file.name == "lit.js":
            continue
        lines = file.read_text().splitlines()
        assert len(lines) < 800, file.name
        assert lines[0] == "// @ts-check", file.name
        assert lines[1].startswith("/**"), file.name


def test_text_never_becomes_markup() -> None:
    """Lit's templates are the only markup; the policy refuses style attributes."""
    for file in FOLDER.iterdir():
        if file.name.endswith(".js") and file.name != "lit.js":
            text = file.read_text()
            for banned in ("innerHTML", "unsafeHTML", "insertAdjacentHTML", " style=", "eval("):
                assert banned not in text, f"{banned} in {file.name}"


@pytest.mark.parametrize(
    ("page", "element"), [("run.html", "midrun.js"), ("index.html", "runs-list.js")]
)
def test_a_page_asks_for_all_its_modules_at_once(page: str, element: str) -> None:
    """Otherwise a browser finds them one after another, which takes seconds on a slow link."""
    preloaded = PRELOADED.findall(FOLDER.joinpath(page).read_text())
    assert set(preloaded) == find_imports("page.js", element) - {"page.js"}, (
        "fix the page's list"
    )
    assert preloaded == sorted(preloaded)
