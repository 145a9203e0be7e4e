"""Artifacts on the page: preview, versions and changes; they are read before an approval."""

from typing import Final

from playwright.async_api import expect

from midrun import Agent, Call, tool
from midrun.models import ScriptedModel, Use
from tests.browser.harness import Harness, find_dark_violations, find_violations
from tests.browser.stage import HeldModel, Hold, Stage
from tests.unit.server.conftest import ACTORS

FIRST: Final = "# Trees\n\nThe town has *412* trees.\n"
SECOND: Final = FIRST.replace("412", "413") + "\n- an oak\n"
TABLE: Final = "kind,count\noak,201\nelm,212\n"
SCRIPT: Final = (
    Use("write", text=FIRST),
    Use("write", text=SECOND),
    Use("send", to="the council", attachment="briefing.md"),
    "Sent.",
)


@tool
async def write(call: Call, text: str) -> str:
    """Write the briefing."""
    await call.show("trees.csv", "text/csv", TABLE)
    await call.show("briefing.md", "text/markdown", text)
    return "written"


@tool(approve=True)
async def send(to: str, attachment: str) -> str:
    """Send a mail."""
    return f"sent {attachment} to {to}"


def make_clerk() -> Agent:
    """Return an agent that writes a briefing in two versions, and sends it."""
    return Agent("clerk", model=ScriptedModel(SCRIPT), tools=[write, send])


async def test_an_artifact_has_a_preview_versions_changes_and_a_download(
    harness: Harness,
) -> None:
    """By keyboard; the same panel is above the transcript when the run has finished."""
    site = await harness.site(make_clerk())
    run = await site.start("clerk", "Brief the council")
    await run.until("waiting")
    page = await harness.page(site, f"/runs/{run.id}", bypass_csp=True)
    panel = page.locator("midrun-artifacts")
    preview = panel.get_by_role("region", name="Preview of briefing.md")
    await expect(preview).to_contain_text("The town has 413 trees.")
    assert await find_violations(page) == []
    await panel.get_by_role("button", name="briefing.md", exact=True).press("Enter")
    dialog = page.get_by_role("dialog", name="briefing.md")
    await dialog.get_by_role("button", name="Changes since version 1").press("Enter")
    changes = dialog.get_by_role("list", name="Changed lines")
    await expect(changes.locator("[data-kind=removed]")).to_contain_text("The town has *412*")
    await expect(changes.locator("[data-kind=added]").first).to_contain_text("*413*")
    assert await find_violations(page) == []
    assert await find_dark_violations(page) == []
    await dialog.get_by_label("Version").select_option("1")
    await expect(dialog).to_contain_text("The town has 412 trees.")
    async with page.expect_download() as download:
        await dialog.get_by_role("button", name="Download briefing.md").press("Enter")
    assert (await (await download.value).path()).read_text() == FIRST
    await page.keyboard.press("Escape")
    await expect(dialog).to_be_hidden()
    await page.locator("midrun-steps").get_by_role("button", name="trees.csv").press("Enter")
    table = page.get_by_role("dialog", name="trees.csv")
    await expect(table.get_by_role("row")).to_have_count(3)
    await page.keyboard.press("Escape")
    await run.approve(actor=ACTORS["olga"])
    await run.until("completed")
    await expect(page.locator(".main > midrun-artifacts")).to_be_visible()
    await page.get_by_text("Send: attachment").last.click()
    await expect(page.locator("midrun-effects midrun-file").last).to_contain_text("briefing.md")


async def test_an_approval_shows_the_artifact_that_would_be_sent(harness: Harness) -> None:
    """The newest version, before the button; its changes are one press away."""
    site = await harness.site(make_clerk())
    run = await site.start("clerk", "Brief the council")
    await run.until("waiting")
    page = await harness.page(site, f"/runs/{run.id}")
    card = page.locator("midrun-asks .card")
    await expect(card).to_contain_text("Artifact “briefing.md”, version 2")
    await expect(card).to_contain_text("The town has 413 trees.")
    await expect(card).not_to_contain_text("trees.csv")
    await card.get_by_role("button", name="Versions and changes").click()
    await expect(page.get_by_role("dialog", name="briefing.md")).to_be_visible()
    await page.get_by_role("button", name="Close", exact=True).click()
    await card.get_by_role("button", name="Approve").click()
    await run.until("completed")


async def test_the_preview_follows_a_growing_document_unless_it_was_scrolled(
    harness: Harness, stage: Stage
) -> None:
    """Also by a finger, which leaves no pointer on it."""
    text = "\n\n".join(f"Line {number}." for number in range(60))
    turns = (
        Use("write", text=text),
        ["So ", Hold("first"), Use("write", text=f"{text}\n\nThe last line.")],
        ["And ", Hold("second"), "done."],
    )
    site = await harness.site(Agent("clerk", model=HeldModel(stage, turns), tools=[write]))
    run = await site.start("clerk", "Brief the council")
    await stage.start("first").wait()
    reader, other = [await harness.page(site, f"/runs/{run.id}") for _ in range(2)]
    for page in (reader, other):
        await expect(page.locator("midrun-artifacts .preview")).to_contain_text("Line 59.")
    await reader.locator("midrun-artifacts .preview").evaluate("box => (box.scrollTop = 40)")
    stage.gate("first").set()
    for page in (reader, other):
        preview = page.locator("midrun-artifacts .preview")
        await expect(preview).to_contain_text("The last line.")
    top = "box => box.scrollTop"
    assert await reader.locator("midrun-artifacts .preview").evaluate(top) == 40
    assert await other.locator("midrun-artifacts .preview").evaluate(top) > 40


async def test_an_open_artifact_stays_open_when_a_new_version_comes(harness: Harness) -> None:
    """A reader of an old version is not moved; the newest one is offered."""
    approval = Use("send", to="the council", attachment="briefing.md")
    script = (Use("write", text=FIRST), approval, Use("write", text=SECOND), "Done.")
    agent = Agent("clerk", model=ScriptedModel(script), tools=[write, send])
    site = await harness.site(agent)
    run = await site.start("clerk", "Brief the council")
    await run.until("waiting")
    page, other = [await harness.page(site, f"/runs/{run.id}") for _ in range(2)]
    await page.locator("midrun-steps").get_by_role("button", name="briefing.md").click()
    await other.locator("midrun-artifacts").get_by_role("button", name="briefing.md").click()
    await run.approve(actor=ACTORS["olga"])
    await run.until("completed")
    for tab, version, text in ((page, "1", "412"), (other, "2", "413")):
        await expect(tab.locator("midrun-run")).to_contain_text("Completed")
        dialog = tab.get_by_role("dialog", name="briefing.md")
        await expect(dialog.get_by_label("Version")).to_have_value(version)
        await expect(dialog.get_by_label("Version").locator("option")).to_have_count(2)
        await expect(dialog).to_contain_text(f"The town has {text} trees.")
