"""A server with a run in each state, and functions that read the rows of the list."""

from typing import Final

from playwright.async_api import Locator, Page

from midrun.stops import MaxSteps
from tests.browser.harness import Harness, Site
from tests.browser.stage import Hold, Stage, Use

STATES: Final = [
    "Waiting for you",
    "Paused at the turn cap (1)",
    "Paused by ann",
    "Pausing, requested by you",
    "Running",
    "Completed",
]


async def serve_all_states(harness: Harness, stage: Stage) -> Site:
    """Serve one run in each state that the list distinguishes."""
    twice = (Use("quick", name="x"), Use("quick", name="y"))
    site = await harness.site(
        stage.play(Use("slow", name="held"), "Done.", name="crawler"),
        stage.play(Use("slow", name="drafting"), "Done.", name="clerk"),
        stage.play(Use("ask", question="Refund order 7?"), "Done.", name="asker"),
        stage.play("Hello.", name="sorter"),
        stage.play(*twice, "Done.", name="counter", stop=MaxSteps(1)),
        stage.play(["I think", Hold("thought"), "so."], name="analyst"),
    )
    await (await site.start("sorter", "Sort the mail")).until("completed")
    await site.start("crawler", "Crawl competitor pricing")
    await stage.start("held").wait()
    pausing = await site.start("clerk", "Draft refund replies")
    await stage.start("drafting").wait()
    await pausing.pause(actor="olga")
    paused = await site.start("analyst", "Churn memo for the sales lead")
    await stage.start("thought").wait()
    await paused.pause(actor="ann")
    await paused.until("paused")
    await (await site.start("counter", "Count the invoices")).until("paused")
    await (await site.start("asker", "Answer the customer")).until("waiting")
    return site


def row(page: Page, task: str) -> Locator:
    """Return the row of the run with this task."""
    return page.locator("tbody tr").filter(has_text=task)


def badge(page: Page, task: str) -> Locator:
    """Return the badge of the run with this task."""
    return row(page, task).locator(".badge")
