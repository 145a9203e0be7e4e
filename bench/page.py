"""Cost of drawing one more entry in a browser, early in a run and after thousands.

The cost is CPU time of the page's main thread: scripts, style, layout, paint. Each step is
drawn before the next one starts.
"""

import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Final

import anyio
from playwright.async_api import CDPSession, Page, async_playwright, expect

from bench.figures import Figure, print_figures
from midrun.runs.run import Run
from tests.browser.harness import CHROMIUM_FLAGS, TIMEOUT_S, BrowserProfiles, Harness
from tests.browser.stage import Stage, Use
from tools.programs import find

EARLY: Final = 300  # the page draws as many; it fetches more on request
LATE: Final = 3_000
PER_STEP: Final = 4  # entries: start and end of a model call and of a tool call
STEPS: Final = 40

SHOWN: Final = """seq => new Promise((shown) => {
  const run = document.querySelector("midrun-run").shadowRoot;
  const root = run.querySelector("midrun-timeline").shadowRoot;
  const look = () => root.querySelector("li")?.textContent.includes(`#${seq}`);
  if (look()) return shown();
  const watch = new MutationObserver(() => look() && (watch.disconnect(), shown()));
  watch.observe(root, {childList: true, subtree: true, characterData: true});
})"""
"""Waits with an observer, because polling would add to the measured cost."""


class DrawingCost:
    """Measures milliseconds of the main thread per entry."""

    def __init__(self, page: Page, tap: CDPSession, run: Run, stage: Stage) -> None:
        self._page = page
        self._tap = tap
        self._run = run
        self._stage = stage

    async def measure_per_entry(self) -> float:
        """Make `STEPS` steps, each drawn before the next, and return the cost per entry."""
        before, first = await self._read_cpu_s(), await self._wait_until_drawn(0)
        last = first
        for number in range(STEPS):
            self._stage.gate(f"step {number}").set()
            await self._stage.start(f"step {number + 1}").wait()
            last = await self._wait_until_drawn(number + 1)
        return (await self._read_cpu_s() - before) / (last - first) * 1000

    async def _wait_until_drawn(self, number: int) -> int:
        """Wait until the page shows the newest entry, and return its seq."""
        await self._stage.start(f"step {number}").wait()
        seq = (await self._run.view()).seq
        await self._page.evaluate(SHOWN, seq)
        return seq

    async def _read_cpu_s(self) -> float:
        found = await self._tap.send("Performance.getMetrics")
        values: dict[str, float] = {m["name"]: m["value"] for m in found["metrics"]}
        return values["TaskDuration"]


async def measure_at(harness: Harness, entries: int) -> float:
    """Return the cost of an entry when the journal has about `entries`."""
    stage = Stage()
    warm = [Use("quick", name=f"item {n}") for n in range(entries // PER_STEP)]
    steps = [Use("slow", name=f"step {n}") for n in range(STEPS + 1)]
    site = await harness.site(stage.agent(*warm, *steps, "Done."))
    run = await site.start(task=f"{entries} entries")
    await stage.start("step 0").wait()
    page = await harness.page(site, f"/runs/{run.id}")
    tap = await page.context.new_cdp_session(page)
    await expect(page.locator("midrun-timeline li").first).to_be_visible()
    await tap.send(
        "Performance.enable", {"timeDomain": "threadTicks"}
    )  # CPU time of this thread only
    try:
        return await DrawingCost(page, tap, run, stage).measure_per_entry()
    finally:
        stage.open_all_gates()


async def _measure() -> tuple[float, float]:
    expect.set_options(timeout=TIMEOUT_S * 1000)
    async with async_playwright() as driver, AsyncExitStack() as stack:
        browser = await driver.chromium.launch(executable_path=find(), args=CHROMIUM_FLAGS)
        stack.push_async_callback(browser.close)
        harness = Harness(BrowserProfiles(browser), stack)
        await measure_at(harness, EARLY)  # warms up the browser
        return await measure_at(harness, EARLY), await measure_at(harness, LATE)


def figures() -> Sequence[Figure]:
    """Measure the page."""
    early, late = anyio.run(_measure)
    how = f"{STEPS} steps one at a time; {early:.2f} ms per entry at {EARLY}"
    return (
        Figure(
            name=f"page: drawing entry {LATE:,}, compared with entry {EARLY}",
            value=late / early,
            at_most=1.5,
            detail=how,
        ),
        Figure(name=f"page: drawing entry {LATE:,}", value=late, unit="ms", at_most=16.0),
    )


if __name__ == "__main__":
    sys.exit(print_figures(figures()))
