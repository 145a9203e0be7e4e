"""Files on the page: attached, pasted, dropped, sent and shown, and never run."""

import base64
from typing import Final

from playwright.async_api import FilePayload, Page, expect

from midrun import Agent, File, pause_here, tool
from midrun.models import Use
from tests.browser.harness import Harness, find_violations
from tests.browser.run_page import check_reload, open_at_tool
from tests.browser.stage import HeldModel, Stage
from tests.unit.server.conftest import ACTORS

PICTURE: Final = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
GIVE: Final = """([kind, files]) => {
  const run = document.querySelector("midrun-run").shadowRoot;
  const form = run.querySelector("midrun-controls").shadowRoot
    .querySelector("midrun-composer").shadowRoot.querySelector("form");
  const transfer = new DataTransfer();
  for (const [name, type, size] of files) {
    transfer.items.add(new File(["x".repeat(size)], name, {type}));
  }
  const made = kind === "paste"
    ? new ClipboardEvent("paste", {clipboardData: transfer, bubbles: true, cancelable: true})
    : new DragEvent("drop", {dataTransfer: transfer, bubbles: true, cancelable: true});
  form.dispatchEvent(made);
  return made.defaultPrevented;
}"""


async def attach(page: Page, *files: File, button: str = "Attach files") -> None:
    """Choose files in the dialog of the browser."""
    async with page.expect_file_chooser() as chosen:
        await page.get_by_role("button", name=button).click()
    await (await chosen.value).set_files(
        [FilePayload(name=one.name, mimeType=one.media_type, buffer=one.data) for one in files]
    )


async def test_attached_files_are_listed_removed_and_sent(
    harness: Harness, stage: Stage
) -> None:
    """By keyboard: the list says what will be sent, and the transcript shows it afterwards."""
    ui = await open_at_tool(harness, stage, turns=["Seen.", "Read."], bypass_csp=False)
    page = ui.page
    picture = File("receipt.png", "image/png", PICTURE)
    notes = File("notes.md", "text/markdown", b"# Notes\n\n- buy *bread*")
    await attach(page, picture, notes, File("wrong.bin", "application/zip", b"no"))
    listed = page.get_by_role("list", name="Files to send")
    await expect(listed.get_by_role("listitem")).to_have_count(3)
    await page.get_by_role("button", name="Remove wrong.bin").press("Enter")
    await expect(listed.get_by_role("listitem")).to_have_count(2)
    await check_reload(page, ui.run)
    await ui.type_instruction("Use these")
    await page.keyboard.press("Enter")
    await expect(listed).to_have_count(0)
    await expect(page.locator("midrun-controls .tray")).to_contain_text("with 2 files")
    stage.gate("work").set()
    await ui.run.until("completed")
    shown = page.locator("midrun-steps").get_by_role("img", name="receipt.png")
    await expect(shown).to_be_visible()
    await expect(shown).to_have_js_property("naturalWidth", 1)
    text = page.locator("midrun-steps midrun-file").last
    await text.get_by_text("notes.md").click()
    await expect(text.get_by_role("heading", name="Notes")).to_be_visible()
    async with page.expect_download() as download:
        await page.get_by_role("button", name="Download notes.md").click()
    assert (await (await download.value).path()).read_bytes() == notes.data
    # The run that continues from here takes files, too; a PDF opens in a tab of its own.
    await attach(page, File("report.pdf", "application/pdf", b"%PDF-1.4\n%%EOF"))
    await page.get_by_label("What should happen next?").fill("Read this")
    await page.keyboard.press("Enter")
    await page.wait_for_url(lambda url: ui.run.id not in url)
    async with page.expect_popup() as tab:
        await page.get_by_role("button", name="Open report.pdf in a new tab").first.click()
    assert await page.evaluate("window.length") == 0
    await (await tab.value).close()


async def test_pasted_and_dropped_files_are_checked_before_they_are_sent(
    harness: Harness, stage: Stage
) -> None:
    """The page says which file breaks which limit; the others stay."""
    ui = await open_at_tool(harness, stage, bypass_csp=True)
    listed = ui.page.get_by_role("list", name="Files to send")
    assert await ui.page.evaluate(GIVE, ["paste", [["a.txt", "text/plain", 5]]])
    await expect(listed.get_by_role("listitem")).to_have_count(1)
    too_large = ["b.txt", "text/plain", 11_000_000]
    assert await ui.page.evaluate(GIVE, ["drop", [too_large, ["c", "", 2_000]]])
    alert = ui.page.get_by_role("alert")
    await expect(alert).to_have_text(
        "“b.txt” was not added: it has 11 MB, at most 10 MB are allowed."
    )
    await expect(listed).to_contain_text("2.0 kB")
    await expect(listed.get_by_role("listitem")).to_have_count(2)
    assert await find_violations(ui.page) == []
    many = [[f"{number}.txt", "text/plain", 1] for number in range(20)]
    assert await ui.page.evaluate(GIVE, ["drop", many])
    await expect(listed.get_by_role("listitem")).to_have_count(20)
    await expect(alert).to_contain_text("at most 20 files can be sent at once")
    assert not await ui.page.evaluate(GIVE, ["paste", []])  # text is the browser's


async def test_a_task_has_files_from_the_form_of_a_new_run(
    harness: Harness, stage: Stage
) -> None:
    site = await harness.site(stage.play("Done."))
    page = await harness.page(site, "/")
    await page.get_by_role("button", name="New run").click()
    await page.get_by_label("What should it do?").fill("Read it")
    await attach(
        page, File("a.csv", "text/csv", b'name,note\nada,"x, ""y"""\n'), button="Attach files…"
    )
    await page.get_by_role("button", name="Start", exact=True).click()
    await page.wait_for_url("**/runs/*")
    file = page.locator(".title midrun-file")
    await file.get_by_text("a.csv").click()
    await expect(file.get_by_role("columnheader")).to_have_text(["name", "note"])
    await expect(file.get_by_role("cell")).to_have_text(["ada", 'x, "y"'])


async def test_a_hostile_file_is_text(harness: Harness, stage: Stage) -> None:
    """Markup of a file is shown, and never becomes part of the page."""
    site = await harness.site(stage.play("Done."))
    attack = b"<svg xmlns='http://www.w3.org/2000/svg'><script>hacked = 1</script></svg>"
    files = [
        File("a.svg", "image/svg+xml", attack),
        File("a.html", "text/html", b"<img src=x onerror='hacked = 1'>"),
        File("a.md", "text/markdown", b"<script>hacked = 1</script> [x](javascript:hacked=1)"),
        File("a.png", "image/png", attack),
        File("a.txt", "text/plain", "gnp\u202eexe".encode()),
    ]
    run = await site.mid.start("actor", "Look", actor=ACTORS["olga"], files=files)
    await run.until("completed")
    page = await harness.page(site, f"/runs/{run.id}")
    for name in ("a.svg", "a.html", "a.md", "a.txt"):
        await page.locator(".title midrun-file summary").filter(has_text=name).click()
    await expect(page.locator(".title")).to_contain_text("<script>hacked = 1</script></svg>")
    await expect(page.locator(".title")).to_contain_text("onerror=")
    await expect(page.locator(".title")).to_contain_text("gnp⟨U+202E⟩exe")
    assert await page.evaluate("globalThis.hacked") is None
    assert (
        await page.locator(".title midrun-file script, .title a[href^=javascript]").count() == 0
    )


async def test_a_question_shows_its_files_and_its_answer_has_files(
    harness: Harness, stage: Stage
) -> None:
    """The picture is read before the answer, and the transcript shows both afterwards."""

    @tool
    async def compare() -> None:
        """Ask which picture is right."""
        pause_here("This one?", files=[File("left.png", "image/png", PICTURE)])

    model = HeldModel(stage, [Use("compare"), "The right one."])
    site = await harness.site(Agent("actor", model=model, tools=[compare]))
    run = await site.start()
    page = await harness.page(site, f"/runs/{run.id}")
    card = page.locator("midrun-asks .card")
    shown = card.get_by_role("img", name="left.png")
    await expect(shown).to_have_js_property("naturalWidth", 1)
    right = File("right.png", "image/png", PICTURE + b" ")
    await attach(page, right, button="Add files")
    await expect(card.get_by_role("listitem")).to_have_count(1)
    await card.get_by_role("button", name="Answer").click()
    await run.until("completed")
    assert await run.file(right.ref.hash) == right
    await expect(card).to_have_count(0)
    made = page.locator("midrun-steps").get_by_role("img", name="right.png")
    await expect(made).to_have_js_property("naturalWidth", 1)
