"""The page lives from its feed and from replies: it fetches nothing twice."""

from collections import Counter
from urllib.parse import urlsplit

import pytest
from playwright.async_api import Request, expect

from tests.browser.harness import Harness, advance_clock
from tests.browser.run_page import PRESS_DELAY_MS, RunPage, open_at_tool
from tests.browser.stage import Stage, Use

pytestmark = pytest.mark.once


class RequestLog:
    """The requests of a page to the API, by method and last part of the path."""

    def __init__(self, ui: RunPage) -> None:
        self._ui = ui
        self._counts: Counter[str] = Counter()
        ui.page.on("request", self._on_request)

    def _on_request(self, request: Request) -> None:
        path = urlsplit(request.url).path
        if "/v1/" in path:
            name = path.partition(f"/v1/runs/{self._ui.run.id}/")[2] or path
            self._counts[f"{request.method} {name}"] += 1

    def take(self) -> dict[str, int]:
        """Return the counts since the last call."""
        counts, self._counts = dict(self._counts), Counter()
        return counts


async def test_the_page_loads_a_run_once_and_then_lives_from_its_feed(
    harness: Harness, stage: Stage
) -> None:
    """One stream brings everything; a control is one request, and its reply is shown."""
    turns = [Use("ask", question="Which region?")], [Use("slow", name="more")]
    ui = await open_at_tool(harness, stage, turns=turns)
    log = RequestLog(ui)
    await ui.page.reload()
    await ui.expect_badge("Running")
    loaded = log.take()
    loaded.pop("GET /v1/session", None)
    assert loaded == {"GET events": 1}, "the first load is one stream"
    await ui.press("pause")
    await ui.expect_badge("Pausing, requested by you")
    stage.gate("work").set()
    await ui.expect_badge("Paused by you")
    assert log.take() == {"POST pause": 1}
    await ui.press("pause")
    await ui.expect_badge("Waiting for you")
    assert log.take() == {"POST resume": 1}
    await ui.page.get_by_label("Answer to: Which region?").fill("north")
    await ui.button_named("Answer").click()
    await stage.start("more").wait()
    await ui.expect_badge("Running")
    assert log.take() == {f"POST /v1/asks/{ui.run.id}-a1": 1}
    await ui.type_instruction("Be brief")
    await ui.button_named("Redirect").click()
    await expect(ui.button_named("Withdraw")).to_be_visible()
    assert log.take() == {"POST redirect": 1}
    await advance_clock(ui.page, PRESS_DELAY_MS)
    await ui.button("cancel").click()
    await ui.button_named("End the run").click()
    stage.open_all_gates()
    await ui.expect_badge("Cancelled by you")
    await expect(ui.page.locator("midrun-report")).to_contain_text("Report")
    ended = log.take()
    assert ended.pop("GET report") == 1
    assert set(ended) <= {"POST pause", "POST cancel"}
    assert set(ended.values()) == {1}
