"""The page in a browser: the cost of one more entry, and frames while it streams and scrolls.

The cost of an entry is CPU time of the page's main thread: scripts, style, layout, paint. Each
step is drawn before the next one starts. Frames are counted by `requestAnimationFrame`: a
browser makes 60 a second if its main thread leaves it the time.
"""

import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

import anyio
from playwright.async_api import CDPSession, Page, async_playwright, expect

from bench.figures import Figure, print_figures
from midrun import Agent
from midrun.core.values import NO_SPEND, Reply, Spend
from midrun.ports.model import Finished, Piece, Prompt
from midrun.runs.run import Run
from tests.browser.harness import CHROMIUM_FLAGS, TIMEOUT_S, BrowserProfiles, Harness
from tests.browser.stage import Stage, Use
from tools.programs import find

EARLY: Final = 300  # the page draws as many; it fetches more on request
LATE: Final = 3_000
PER_STEP: Final = 4  # entries: start and end of a model call and of a tool call
STEPS: Final = 40
TOKENS_PER_S: Final = 2_000
STREAM_S: Final = 5
PIECES_PER_S: Final = 100
FRAMES_PER_S: Final = 60.0

SHOWN: Final = """seq => new Promise((shown) => {
  const run = document.querySelector("midrun-run").shadowRoot;
  const root = run.querySelector("midrun-timeline").shadowRoot;
  const look = () => root.querySelector("li")?.textContent.includes(`#${seq}`);
  if (look()) return shown();
  const watch = new MutationObserver(() => look() && (watch.disconnect(), shown()));
  watch.observe(root, {childList: true, subtree: true, characterData: true});
})"""
"""Waits with an observer, because polling would add to the measured cost."""


COUNT_FRAMES: Final = """(seconds) => new Promise((done) => {
  const [start, frames] = [performance.now(), []];
  const draw = (now) => {
    frames.push(now);
    if (globalThis.scrolling) scrollBy(0, frames.length % 120 < 60 ? -40 : 40);
    if (now - start < seconds * 1000) return requestAnimationFrame(draw);
    const gaps = frames.slice(1).map((at, index) => at - frames[index]);
    done([gaps.length / ((frames.at(-1) - frames[0]) / 1000), Math.max(...gaps)]);
  };
  requestAnimationFrame(draw);
})"""

NOTE_FIRST_PAINT: Final = """() => {
  const look = () => {
    const run = document.querySelector("midrun-run")?.shadowRoot;
    const steps = run?.querySelector("midrun-steps")?.shadowRoot;
    const timeline = run?.querySelector("midrun-timeline")?.shadowRoot;
    const isDrawn = steps?.querySelector("li") && timeline?.querySelector("li");
    if (isDrawn) globalThis.paintedAt = performance.now();
    else requestAnimationFrame(look);
  };
  look();
}"""
"""Notes when the first frame with the transcript and the timeline is about to be painted."""


class FastModel:
    """A model that streams Markdown at `TOKENS_PER_S` for `STREAM_S` seconds, in one reply."""

    name = "fast"
    priced = True

    def __init__(self, begin: anyio.Event) -> None:
        self._begin = begin

    def reserve(self, prompt: Prompt) -> Spend:
        """Set nothing aside."""
        del prompt
        return NO_SPEND

    @asynccontextmanager
    async def stream(self, prompt: Prompt) -> AsyncIterator[AsyncIterator[Piece | Finished]]:
        """Stream words, with a heading, a list item or a paragraph in each line."""
        del prompt
        yield self._stream()

    async def _stream(self) -> AsyncIterator[Piece | Finished]:
        await self._begin.wait()
        parts: list[str] = []
        words = TOKENS_PER_S // PIECES_PER_S
        start = anyio.current_time()
        for number in range(STREAM_S * PIECES_PER_S):
            line = "word **bold** " * (words // 2)
            parts.append(f"## Part {number}\n\n{line}\n" if number % 10 == 0 else f"- {line}\n")
            yield Piece(kind="text", text=parts[-1])
            await anyio.sleep_until(start + (number + 1) / PIECES_PER_S)
        yield Finished(reply=Reply(text="".join(parts)), spent=NO_SPEND)


async def measure_stream(harness: Harness) -> tuple[float, float]:
    """Return frames per second and the longest frame while a reply streams."""
    begin = anyio.Event()
    site = await harness.site(Agent("fast", model=FastModel(begin)))
    run = await site.start("fast", "Stream")
    page = await harness.page(site, f"/runs/{run.id}")
    await expect(page.locator("midrun-controls .badge")).to_contain_text("Running")
    begin.set()
    await expect(page.locator("midrun-steps")).to_contain_text("Part 0")
    rate, longest = await page.evaluate(COUNT_FRAMES, STREAM_S - 1)
    await run.until("completed")
    return rate, longest


async def measure_long_run(harness: Harness) -> tuple[float, float]:
    """Return seconds to the first paint of a long run, and frames per second of its scroll."""
    stage = Stage()
    warm = [Use("quick", name=f"item {n}") for n in range(LATE // PER_STEP)]
    site = await harness.site(stage.agent(*warm, "Done."))
    run = await site.start(task="Long")
    await run.until("completed")
    page = await harness.page(site, "/")  # signs in; a sign-in is no part of the first paint
    await page.context.add_init_script(f"({NOTE_FIRST_PAINT})()")
    await page.goto(f"{site.url}/runs/{run.id}")
    await page.wait_for_function("() => globalThis.paintedAt")
    painted_ms = await page.evaluate("paintedAt")
    await page.evaluate("globalThis.scrolling = true; scrollTo(0, 1e6)")
    rate, _ = await page.evaluate(COUNT_FRAMES, 2)
    return painted_ms / 1000, rate


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
    await page.locator("midrun-timeline summary").click()
    await page.get_by_role("button", name="Every entry").click()
    await tap.send(
        "Performance.enable", {"timeDomain": "threadTicks"}
    )  # CPU time of this thread only
    try:
        return await DrawingCost(page, tap, run, stage).measure_per_entry()
    finally:
        stage.open_all_gates()


async def _measure() -> tuple[float, float, float, float, float, float]:
    expect.set_options(timeout=TIMEOUT_S * 1000)
    async with async_playwright() as driver, AsyncExitStack() as stack:
        browser = await driver.chromium.launch(executable_path=find(), args=CHROMIUM_FLAGS)
        stack.push_async_callback(browser.close)
        harness = Harness(BrowserProfiles(browser), stack)
        await measure_at(harness, EARLY)  # warms up the browser
        early, late = await measure_at(harness, EARLY), await measure_at(harness, LATE)
        streamed = await measure_stream(harness)
        return early, late, *streamed, *await measure_long_run(harness)


def figures() -> Sequence[Figure]:
    """Measure the page."""
    early, late, rate, longest, painted, scrolled = anyio.run(_measure)
    how = f"{STEPS} steps one at a time; {early:.2f} ms per entry at {EARLY}"
    return (
        Figure(
            name=f"page: drawing entry {LATE:,}, compared with entry {EARLY}",
            value=late / early,
            at_most=1.5,
            detail=how,
        ),
        Figure(name=f"page: drawing entry {LATE:,}", value=late, unit="ms", at_most=16.0),
        Figure(
            name=f"page: frames while {TOKENS_PER_S:,} tokens a second stream",
            value=rate,
            unit="/s",
            at_least=FRAMES_PER_S * 0.95,
            detail=f"the longest frame took {longest:.0f} ms",
        ),
        Figure(
            name=f"page: frames while a run of {LATE:,} entries is scrolled",
            value=scrolled,
            unit="/s",
            at_least=FRAMES_PER_S * 0.95,
        ),
        Figure(
            name=f"page: first paint of a run of {LATE:,} entries",
            value=painted,
            unit="s",
            at_most=1.0,
        ),
    )


if __name__ == "__main__":
    sys.exit(print_figures(figures()))
