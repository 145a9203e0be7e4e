"""Text is text, never markup: whatever a model, a tool, a document or a person writes.

Every place that somebody else can write into is given what would run as a script if it were
taken for markup. The page must show it as it is written, and nothing of it may come to life:
no element, no request, no script, and not even a complaint of the policy that would stop it.
"""

from typing import Final

from playwright.async_api import Page, expect

from tests.browser.bench import Bench
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


async def harmless(page: Page, *, shown: str) -> None:
    """Check that nothing came to life, and that `shown` can be read as it was written."""
    seen = await page.evaluate(LOOK)
    assert seen["alive"] == []
    assert seen["pwned"] is None
    flat = " ".join(seen["text"].split())
    assert " ".join(shown.split()) in flat


def spelled(place: str) -> str:
    """Return the spell, marked with where it was written."""
    return f"{place} {SPELL}"


async def test_what_the_agent_and_its_tools_write_is_shown_as_written(
    bench: Bench, stage: Stage
) -> None:
    """Plan, text, arguments, results and questions; on the list and on the run's page."""
    site = await bench.site(
        stage.play(
            [spelled("said"), Use("plan", items=[spelled("item")])],
            Use("quick", name=spelled("file name"), why=spelled("why")),
            Use("ask", question=spelled("question")),
            [spelled("afterwards"), Hold("end"), "."],
        )
    )
    run = await site.start(task=spelled("task"))
    await run.until("waiting")
    listed = await bench.page(site)
    await expect(listed.locator("tbody tr")).to_have_count(1)
    await harmless(listed, shown='task "><img src=/x onerror="window.pwned=1">')
    page = await bench.page(site, f"/runs/{run.id}")
    await expect(page.get_by_text("task").first).to_be_visible()
    for place in ("task", "item", "question"):
        await expect(page.get_by_text(f'{place} "><img src=/x').first).to_be_visible()
    await harmless(page, shown="question " + SPELL[:60])
    await run.answer(spelled("answer"), actor="olga")
    await stage.start("end").wait()
    await expect(page.get_by_text('afterwards "><img src=/x').first).to_be_visible()
    await harmless(page, shown="afterwards " + SPELL[:60])


async def test_what_people_write_is_shown_as_written(bench: Bench, stage: Stage) -> None:
    """Instructions, reasons and the names of labels are somebody else's words, too."""
    site = await bench.site(
        stage.play(Use("slow", name="held"), "Done."),
        stage.play(Use("fail", text=spelled("error")), "Done.", name="failing"),
    )
    run = await site.mid.start(
        "actor", "Go.", labels=[spelled("label")[:190]], actor=spelled("actor")[:100]
    )
    await stage.start("held").wait()
    page = await bench.page(site, f"/runs/{run.id}")
    await run.redirect(spelled("redirect"), actor=spelled("redirector")[:100])
    await expect(page.get_by_text('redirect "><img src=/x').first).to_be_visible()
    await harmless(page, shown="redirect " + SPELL[:60])
    failing = await site.start("failing")
    await failing.until("terminal", "failed")
    await page.goto(f"{site.url}/runs/{failing.id}")
    failed = page.locator("midrun-timeline li").filter(has_text="call.failed")
    await expect(failed).to_contain_text('error "><img src=/x')
    await harmless(page, shown="error " + SPELL[:60])
    await site.mid.halt(spelled("halt"), actor="olga")
    await page.goto(f"{site.url}/")
    await expect(page.get_by_role("region", name="Halted")).to_contain_text("halt")
    await harmless(page, shown="halt " + SPELL[:60])


async def test_a_cancel_report_is_text_too(bench: Bench, stage: Stage) -> None:
    """It names calls and their arguments, and is copied as Markdown."""
    site = await bench.site(
        stage.play(Use("draft", name=spelled("draft")), Use("slow", name="held"), ".")
    )
    run = await site.start()
    await stage.start("held").wait()
    await run.cancel(undo="all", reason=spelled("reason"), actor="olga")
    await run.until("cancelled")
    page = await bench.page(site, f"/runs/{run.id}")
    await expect(page.get_by_text("Undone").first).to_be_visible()
    await expect(page.get_by_text("draft").first).to_be_visible()
    await harmless(page, shown="draft")


async def test_a_path_is_no_script_either(bench: Bench, stage: Stage) -> None:
    """The page takes the run's id from its own address."""
    site = await bench.site(stage.play("Done."))
    profile = await bench.profile()
    page = await profile.new_page()
    for path in (
        "/runs/<img src=x onerror=alert(1)>",
        "/?x=<script>alert(1)</script>",
        "/#<svg onload=alert(1)>",
    ):
        await page.goto(site.url + path)
        assert (await page.evaluate(LOOK))["alive"] == []


async def test_a_planted_spell_is_found(bench: Bench, stage: Stage) -> None:
    """Where the policy is off, that is: with it, there is no planting."""
    page = await bench.page(await bench.site(stage.play("Done.")), bare=True)
    await expect(page.get_by_text("No runs yet.")).to_be_visible()
    for planted in PLANTED:
        await page.evaluate(PLANT, planted)
    assert len((await page.evaluate(LOOK))["alive"]) == len(PLANTED)
