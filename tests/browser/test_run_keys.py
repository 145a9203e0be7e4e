"""Keys and what screen readers are told."""

import pytest
from playwright.async_api import expect

from tests.browser.bench import Bench, spend
from tests.browser.stage import Hold, Stage
from tests.browser.watching import at_tool, watched

pytestmark = pytest.mark.once


async def test_p_r_and_c_are_the_three_buttons(bench: Bench, stage: Stage) -> None:
    """On our own page wherever the focus is; typing never controls the run."""
    seen = await at_tool(bench, stage)
    await seen.page.keyboard.press("r")
    box = seen.page.get_by_label("What should happen next?")
    await expect(box).to_be_focused()
    await seen.page.keyboard.type("pcr")
    await expect(box).to_have_value("pcr")
    await seen.page.keyboard.press("Escape")
    assert (await seen.run.view()).phase == "running"
    await seen.page.keyboard.press("p")
    await seen.says("Pausing by you")
    assert not (await seen.run.view()).pending


async def test_escape_never_stops_a_run(bench: Bench, stage: Stage) -> None:
    """Whatever is open or focused."""
    seen = await at_tool(bench, stage)
    for _ in range(3):
        await seen.page.keyboard.press("Escape")
    await seen.button("pause").focus()
    await seen.page.keyboard.press("Escape")
    assert (await seen.run.view()).phase == "running"


async def test_elsewhere_on_a_page_keys_are_not_ours(bench: Bench, stage: Stage) -> None:
    """Without `global-keys` they count only inside the element."""
    seen = await at_tool(bench, stage)
    await seen.page.evaluate(
        "document.querySelector('midrun-run').removeAttribute('global-keys')"
    )
    await seen.page.locator("body").press("p")
    await seen.page.locator("header a").first.press("c")
    assert (await seen.run.view()).phase == "running"
    await seen.page.locator("midrun-timeline").get_by_role("button", name="All").press("p")
    await seen.says("Pausing by you")


async def test_changes_of_state_are_announced_once_and_politely(
    bench: Bench, stage: Stage
) -> None:
    """One region, and nothing but states: not every word of the agent."""
    seen = await watched(bench, stage, ["I think ", Hold("mid"), "so."], "So.")
    status = seen.page.get_by_role("status")
    await stage.start("mid").wait()
    await expect(status).to_have_count(1)
    await expect(status).to_have_text("Running.")
    await seen.button("pause").click()
    await expect(status).to_have_text("Paused. Everything is kept.")
    await seen.press("pause")
    await expect(status).to_have_text("Completed.")
    await expect(seen.page.locator("[aria-live='assertive']")).to_have_count(0)


async def test_the_page_is_called_what_the_run_is(bench: Bench, stage: Stage) -> None:
    """So that a tab can be found, and says when it wants somebody."""
    seen = await at_tool(bench, stage)
    await expect(seen.page).to_have_title("▶ Running — Write a memo")
    await seen.button("pause").click()
    await seen.says("Pausing by you")
    stage.gate("work").set()
    await expect(seen.page).to_have_title("⏸ Paused — Write a memo")


async def test_buttons_say_what_opens_and_which_key(bench: Bench, stage: Stage) -> None:
    """For those who cannot see it."""
    seen = await at_tool(bench, stage)
    await expect(seen.button("pause")).to_have_attribute("aria-keyshortcuts", "P")
    await expect(seen.button("redirect")).to_have_attribute("aria-expanded", "false")
    await seen.button("redirect").click()
    await expect(seen.button("redirect")).to_have_attribute("aria-expanded", "true")
    await expect(seen.button("pause")).to_have_accessible_name(
        "Pause Stops after slow. Everything is kept; nothing is spent meanwhile."
    )


async def test_whoever_does_not_want_keys_everywhere_says_so_once(
    bench: Bench, stage: Stage
) -> None:
    """A question mark shows the keys and the switch; the browser remembers it."""
    seen = await at_tool(bench, stage)
    spend(seen.page)
    await seen.page.keyboard.press("?")
    await seen.page.get_by_label("anywhere on this page").uncheck()
    await seen.page.reload()
    await seen.says("Running")
    await seen.page.locator("header a").first.press("p")
    await seen.page.locator("midrun-timeline").get_by_role("button", name="All").press("r")
    await expect(seen.page.get_by_label("What should happen next?")).to_be_focused()
    assert (await seen.run.view()).phase == "running"
