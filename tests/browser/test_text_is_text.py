"""Text is never markup, whether a model, a tool, a document or a person writes it.

Every place that takes text from outside is given a string that would run as a script if it were
markup. The page must show it as it was written, and none of it may take effect: no element, no
request, no script, and no report of the policy that would stop it.
"""

from typing import Final

from playwright.async_api import Page, expect

from tests.browser.harness import Harness
from tests.browser.stage import Hold, Stage, Use

SPELL: Final = (
    '"><img src=/x onerror="window.pwned=1"><svg/onload=window.pwned=1>'
    "<script>window.pwned=1</script></textarea><a href='javascript:window.pwned=1'>x</a>"
    "<!--?lit$1$--> ${window.pwned=1} {{7*7}} [x](javascript:window.pwned=1)"
)

LOOK: Final = """() => {
  const found = {text: "", alive: []};
  const look = (root) => {
    for (const node of root.childNodes) {
      if (node.nodeType === Node.TEXT_NODE) found.text += node.data;
      if (node.nodeType !== Node.ELEMENT_NODE) continue;
      const tag = node.localName;
      if (tag === "script" && root !== document.head) found.alive.push(node.outerHTML);
      for (const {name, value} of node.attributes) {
        if (name.startsWith("on") || /^\\s*javascript:/i.test(value)) {
          found.alive.push(node.outerHTML);
        }
      }
      if (node.value && ["textarea", "input"].includes(tag)) found.text += node.value;
      if (node.shadowRoot) look(node.shadowRoot);
      look(node);
    }
  };
  look(document);
  return {...found, pwned: window.pwned ?? null};
}"""


PLANT: Final = """([tag, name, value]) => {
  const made = document.createElement(tag);
  made.setAttribute(name, value);
  document.querySelector("midrun-runs").shadowRoot.append(made);
}"""

PLANTED: Final = [["a", "href", "javascript:1"], ["b", "onclick", "1"], ["script", "id", "x"]]


async def check_harmless(page: Page, *, shown: str) -> None:
    """Check that no markup took effect, and that `shown` is readable as written."""
    ui = await page.evaluate(LOOK)
    assert ui["alive"] == []
    assert ui["pwned"] is None
    flat = " ".join(ui["text"].split())
    assert " ".join(shown.split()) in flat


def attack_text(place: str) -> str:
    """Return the attack string, marked with the place it is written to."""
    return f"{place} {SPELL}"


async def test_text_of_the_agent_and_its_tools_is_shown_as_written(
    harness: Harness, stage: Stage
) -> None:
    """Plan, text, arguments, results and questions; in the list and on the run's page."""
    site = await harness.site(
        stage.play(
            [attack_text("said"), Use("plan", items=[attack_text("item")])],
            Use("quick", name=attack_text("file name"), why=attack_text("why")),
            Use("ask", question=attack_text("question")),
            [attack_text("afterwards"), Hold("end"), "."],
        )
    )
    run = await site.start(task=attack_text("task"))
    await run.until("waiting")
    listed = await harness.page(site)
    await expect(listed.locator("tbody tr")).to_have_count(1)
    await check_harmless(listed, shown='task "><img src=/x onerror="window.pwned=1">')
    page = await harness.page(site, f"/runs/{run.id}")
    await expect(page.get_by_text("task").first).to_be_visible()
    for place in ("task", "item", "question"):
        shown = page.get_by_text(f'{place} "><img src=/x').filter(visible=True)
        await expect(shown.first).to_be_visible()
    await check_harmless(page, shown="question " + SPELL[:60])
    await run.answer(attack_text("answer"), actor="olga")
    await stage.start("end").wait()
    await expect(page.get_by_text('afterwards "><img src=/x').first).to_be_visible()
    await check_harmless(page, shown="afterwards " + SPELL[:60])


async def test_text_of_people_is_shown_as_written(harness: Harness, stage: Stage) -> None:
    """Instructions, reasons and labels."""
    site = await harness.site(
        stage.play(Use("slow", name="held"), "Done."),
        stage.play(Use("fail", text=attack_text("error")), "Done.", name="failing"),
    )
    run = await site.mid.start(
        "actor", "Go.", labels=[attack_text("label")[:190]], actor=attack_text("actor")[:100]
    )
    await stage.start("held").wait()
    page = await harness.page(site, f"/runs/{run.id}")
    await page.locator("midrun-timeline summary").click()
    await run.redirect(attack_text("redirect"), actor=attack_text("redirector")[:100])
    await expect(page.get_by_text('redirect "><img src=/x').first).to_be_visible()
    await check_harmless(page, shown="redirect " + SPELL[:60])
    failing = await site.start("failing")
    await failing.until("terminal", "failed")
    await page.goto(f"{site.url}/runs/{failing.id}")
    await page.locator("midrun-timeline summary").click()
    failed = page.locator("midrun-timeline li[data-type='call.failed']")
    await expect(failed).to_contain_text('error "><img src=/x')
    await check_harmless(page, shown="error " + SPELL[:60])
    await site.mid.halt(attack_text("halt"), actor="olga")
    await page.goto(f"{site.url}/")
    await expect(page.get_by_role("region", name="Halted")).to_contain_text("halt")
    await check_harmless(page, shown="halt " + SPELL[:60])


async def test_a_cancel_report_is_text_too(harness: Harness, stage: Stage) -> None:
    """It names calls and their arguments, and is copied as Markdown."""
    site = await harness.site(
        stage.play(Use("draft", name=attack_text("draft")), Use("slow", name="held"), ".")
    )
    run = await site.start()
    await stage.start("held").wait()
    await run.cancel(undo="all", reason=attack_text("reason"), actor="olga")
    await run.until("cancelled")
    page = await harness.page(site, f"/runs/{run.id}")
    await expect(page.get_by_text("Undone").first).to_be_visible()
    await expect(page.get_by_text("draft").first).to_be_visible()
    await check_harmless(page, shown="draft")


async def test_a_path_is_no_script_either(harness: Harness, stage: Stage) -> None:
    """The page takes the run's id from its own address."""
    site = await harness.site(stage.play("Done."))
    profile = await harness.profile()
    page = await profile.new_page()
    for path in (
        "/runs/<img src=x onerror=alert(1)>",
        "/?x=<script>alert(1)</script>",
        "/#<svg onload=alert(1)>",
    ):
        await page.goto(site.url + path)
        assert (await page.evaluate(LOOK))["alive"] == []


async def test_a_planted_attack_is_found(harness: Harness, stage: Stage) -> None:
    """With the policy off; with it, nothing can be planted."""
    page = await harness.page(await harness.site(stage.play("Done.")), bypass_csp=True)
    await expect(page.get_by_text("No runs yet.")).to_be_visible()
    for planted in PLANTED:
        await page.evaluate(PLANT, planted)
    assert len((await page.evaluate(LOOK))["alive"]) == len(PLANTED)
