"""Pictures of the main states, compared with stored ones.

They are compared on the platform that they were made on, because fonts and browsers differ:
`snapshots/platform.json` names it, and other platforms skip. After a wanted change of the look:

    MIDRUN_WRITE_SNAPSHOTS=1 python -m pytest tests/browser/test_snapshots.py
"""

import io
import json
import os
from pathlib import Path
from typing import Final

import pytest
from PIL import Image, ImageChops
from playwright.async_api import Page, ViewportSize

from tests.browser.harness import Harness
from tests.browser.scenes import (
    Scene,
    cancelled,
    completed,
    confirming,
    paused,
    running,
    waiting,
)
from tests.browser.stage import Stage

FOLDER: Final = Path(__file__).parent / "snapshots"
PLATFORM: Final = FOLDER / "platform.json"
IS_WRITING: Final = "MIDRUN_WRITE_SNAPSHOTS" in os.environ

PHONE: Final[ViewportSize] = {"width": 390, "height": 844}
DESK: Final[ViewportSize] = {"width": 1280, "height": 800}

CHANNEL_TOLERANCE: Final = 24
PIXELS_TOLERANCE: Final = 0.005
"""The share of pixels that may differ by more than `CHANNEL_TOLERANCE`."""

HIDE_CHANGING_TEXT: Final = """
  .clock, .note, .usage, .figures, meter, code, midrun-timeline, #session, .hint {
    visibility: hidden !important;
  }
  .icon { animation: none !important; }
"""

MEASURE_FONTS: Final = """() => {
  const context = document.createElement("canvas").getContext("2d");
  const fonts = ["15px system-ui", "700 15px system-ui", "13px ui-monospace, monospace"];
  return fonts.map((font) => {
    context.font = font;
    return context.measureText("Waiting for you: plan 4/7, 00:01:02").width;
  });
}"""


@pytest.mark.parametrize(
    "scene",
    [running, paused, waiting, confirming, cancelled, completed],
    ids=lambda scene: scene.__name__,
)
async def test_each_main_state_looks_as_before(
    harness: Harness, stage: Stage, scene: Scene
) -> None:
    """On a desk in light, on a phone in dark."""
    page = (await scene(harness, stage)).page
    await check_platform(page)
    for name, size, scheme in (("desk", DESK, "light"), ("phone", PHONE, "dark")):
        await page.set_viewport_size(size)
        await page.emulate_media(color_scheme="light" if scheme == "light" else "dark")
        made = await take_settled_picture(page)
        check_picture(made, FOLDER / f"{scene.__name__}-{name}.png")


async def check_platform(page: Page) -> None:
    """Skip the test on another platform than that of the stored pictures."""
    browser = page.context.browser
    assert browser is not None
    found = {"browser": browser.version, "fonts": await page.evaluate(MEASURE_FONTS)}
    if IS_WRITING:
        FOLDER.mkdir(exist_ok=True)
        PLATFORM.write_text(json.dumps(found) + "\n")
    elif not PLATFORM.exists() or json.loads(PLATFORM.read_text()) != found:
        pytest.skip("the stored pictures were made with another browser or other fonts")


def check_picture(made: bytes, path: Path) -> None:
    """Compare a picture with a stored one.

    Raises:
        AssertionError: too many pixels differ; the new picture is beside the stored one.
    """
    if IS_WRITING:
        path.write_bytes(made)
        return
    share = measure_difference(path.read_bytes(), made)
    if share > PIXELS_TOLERANCE:
        path.with_suffix(".new.png").write_bytes(made)
    assert share <= PIXELS_TOLERANCE, f"{share:.2%} of the pixels of {path.name} differ"


async def take_settled_picture(page: Page) -> bytes:
    """Take pictures from the top of the page until two in a row are alike."""
    before = b""
    while True:
        await page.evaluate("scrollTo(0, 0)")
        await page.evaluate("new Promise((done) => requestAnimationFrame(done))")
        made = await page.screenshot(style=HIDE_CHANGING_TEXT, animations="disabled")
        if before and measure_difference(before, made) == 0:
            return made
        before = made


def measure_difference(one: bytes, other: bytes) -> float:
    """Return the share of pixels that differ; 1 for pictures of different sizes."""
    first, second = (Image.open(io.BytesIO(data)).convert("RGB") for data in (one, other))
    if first.size != second.size:
        return 1.0
    gray = ImageChops.difference(first, second).convert("L")
    differing = sum(gray.histogram()[CHANNEL_TOLERANCE:])
    return differing / (first.width * first.height)
