"""What else the run page says, and to whom: plans that changed, halts, children, notices."""

from playwright.async_api import Page, expect

from midrun import Agent
from tests.browser.bench import Bench, later, spend
from tests.browser.stage import Hold, Stage, Use
from tests.browser.watching import PLAN, at_tool, exactly, watched
from tests.unit.server.conftest import PEOPLE

LOOK_MS = 5_000

_NOTICES = """() => {
  globalThis.notices = [];
  globalThis.Notification = class extends EventTarget {
    static permission = "default";
    static asked = 0;
    static async requestPermission() {
      this.asked += 1;
      return (this.permission = "granted");
    }
    constructor(title, {body}) {
      super();
      notices.push(`${title} — ${body}`);
    }
  };
}"""


async def hide(page: Page) -> None:
    """Have somebody look elsewhere; the feed goes on for a while."""
    await page.evaluate("document.hasFocus = () => false")


async def test_a_row_that_a_redirect_has_changed_says_what_it_was(
    bench: Bench, stage: Stage
) -> None:
    """One looks at the list and sees what became of it; what only moved has not changed."""
    replan = Use("plan", items=["Look around", "Summarise it", "Send it"])
    turns = ([PLAN, Use("slow", name="work")], [replan, Use("slow", name="again")], "Done.")
    seen = await watched(bench, stage, *turns)
    await stage.start("work").wait()
    await seen.writes("Summarise what you have")
    await seen.page.keyboard.press("Enter")
    await expect(seen.action("Withdraw")).to_be_visible()
    stage.gate("work").set()
    await stage.start("again").wait()
    was = seen.page.locator("midrun-steps .previous")
    await expect(was).to_have_text("was: Write the memo")
    await expect(seen.page.locator("midrun-steps ol > li").nth(1)).to_have_text(
        exactly("Queued 2. Summarise it was: Write the memo")
    )


async def test_a_paused_run_says_that_a_halt_holds_it(bench: Bench, stage: Stage) -> None:
    """Resuming would start nothing, and the page says so before anybody presses."""
    seen = await watched(bench, stage, ["I ", Hold("mid"), "think."], "So.")
    await stage.start("mid").wait()
    await seen.button("pause").click()
    await seen.says("Paused by you")
    await seen.site.mid.halt("The far end is on fire", actor=PEOPLE["olga"])
    for _ in range(4):
        await later(seen.page, LOOK_MS)
    bar = seen.page.locator("midrun-controls")
    await expect(bar).to_contain_text("Under a halt by you: it cannot start anything.")
    await expect(bar).to_contain_text("Reason: The far end is on fire")
    await expect(bar.get_by_role("link", name="Lift it on the list")).to_be_visible()


async def test_what_a_child_asks_has_the_buttons_that_apply(bench: Bench, stage: Stage) -> None:
    """An approval is approved or declined, a question is answered: never both."""
    asking = stage.play(
        Use("mail", name="bo"), Use("ask", question="Which?"), "Done.", name="kid"
    )
    parent = Agent(
        "parent",
        model=stage.play(Use("kid", task="Help."), "Done.").model,
        tools=[asking.as_tool()],
    )
    site = await bench.site(asking, parent)
    run = await site.start("parent", "Family task")
    page = await bench.page(site, f"/runs/{run.id}")
    card = page.locator("midrun-asks .card")
    await expect(card).to_contain_text("mail")
    await expect(card.get_by_role("button")).to_have_text(["Approve", "Decline…"])
    await expect(card.get_by_role("link", name="child run")).to_be_visible()
    await card.get_by_role("button", name="Approve").click()
    await expect(card).to_contain_text("Which?")
    await expect(card.get_by_role("button")).to_have_text(["Answer"])
    await card.get_by_role("textbox").fill("This one")
    await card.get_by_role("button", name="Answer").click()
    await expect(page.locator("midrun-controls .badge")).to_contain_text("Completed")


async def test_notices_come_only_when_they_were_asked_for(bench: Bench, stage: Stage) -> None:
    """Nobody is asked for a permission before they press; then what needs them is told once."""
    agent = stage.play(Use("slow", name="work"), Use("ask", question="Which?"), "Done.")
    site = await bench.site(agent)
    run = await site.start(task="Write a memo")
    await stage.start("work").wait()
    profile = await bench.profile()
    await profile.add_init_script(f"({_NOTICES})()")
    page = await profile.new_page()
    await page.goto(site.link(f"/runs/{run.id}"))
    badge = page.locator("midrun-controls .badge")
    await expect(badge).to_contain_text("Running")
    assert await page.evaluate("Notification.asked") == 0
    await page.get_by_role("button", name="Notify me").click()
    await expect(page.get_by_role("button", name="Notifications on")).to_be_visible()
    await hide(page)
    stage.gate("work").set()
    await expect(badge).to_contain_text("Waiting for you")
    await page.wait_for_function("notices.length === 1")
    await run.answer("This one", actor=PEOPLE["olga"])
    await expect(badge).to_contain_text("Completed")
    await page.wait_for_function("notices.length === 2")
    assert await page.evaluate("notices") == [
        "Waiting for you — Write a memo",
        "Completed — Write a memo",
    ]


async def test_whoever_looks_needs_no_notice(bench: Bench, stage: Stage) -> None:
    """Nor does anybody who has switched them off again."""
    seen = await at_tool(bench, stage)
    spend(seen.page)
    await seen.page.evaluate(f"({_NOTICES})()")
    await seen.page.evaluate(
        """async () => {
          const {notify} = await import("/static/notifications.js");
          const news = {run: "run_1", word: "Completed", task: "Write a memo"};
          Notification.permission = "granted";
          localStorage.setItem("midrun notices", "on");
          document.hasFocus = () => true;
          notify(news, location.href);
          document.hasFocus = () => false;
          notify(news, location.href);
          localStorage.setItem("midrun notices", "off");
          notify(news, location.href);
        }"""
    )
    assert await seen.page.evaluate("notices") == ["Completed — Write a memo"]
