"""What others wrote and we ship: its version, its hash, its licence."""

import json
from hashlib import sha256
from importlib.resources import files

FOLDER = files("midrun.server").joinpath("static")


def test_what_is_vendored_is_what_was_recorded() -> None:
    """Nobody changes it in passing; how it was made is written beside it."""
    record = json.loads(FOLDER.joinpath("vendor.json").read_text())
    for name, about in record.items():
        body = FOLDER.joinpath(name).read_bytes()
        assert sha256(body).hexdigest() == about["sha256"], name
        assert about["version"] in body.decode()[:200]
        assert "Redistribution" in FOLDER.joinpath(about["notice"]).read_text()


def test_our_own_modules_are_small_and_say_what_they_are_for() -> None:
    """As our Python does."""
    for file in FOLDER.iterdir():
        if not file.name.endswith(".js") or file.name == "lit.js":
            continue
        lines = file.read_text().splitlines()
        assert len(lines) < 400, file.name
        assert lines[0] == "// @ts-check", file.name
        assert lines[1].startswith("/**"), file.name


def test_text_never_becomes_markup() -> None:
    """Lit's templates are the only markup; no style attribute, which the policy refuses."""
    for file in FOLDER.iterdir():
        if file.name.endswith(".js") and file.name != "lit.js":
            text = file.read_text()
            for banned in ("innerHTML", "unsafeHTML", "insertAdjacentHTML", " style=", "eval("):
                assert banned not in text, f"{banned} in {file.name}"
