"""More texts of the run page: changed plan items, halts, children, notifications."""

from playwright.async_api import Page, expect

from midrun import Agent
from tests.browser.harness import Harness, discard_profile
from tests.browser.run_page import PLAN, match_text, open_at_tool, open_run_page
from tests.browser.stage import Hold, Stage, Use
from tests.unit.server.conftest import ACTORS

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
    """Take the focus from the page; its feed stays open."""
    await page.evaluate("document.hasFocus = () => false")


async def test_a_row_that_a_redirect_has_changed_shows_its_earlier_text(
    harness: Harness, stage: Stage
) -> None:
    """An item that only moved has not changed."""
    replan = Use("plan", items=["Look around", "Summarise it", "Send it"])
    turns = ([PLAN, Use("slow", name="work")], [replan, Use("slow", name="again")], "Done.")
    ui = await open_run_page(harness, stage, *turns)
    await stage.start("work").wait()
    await ui.type_instruction("Summarise what you have")
    await ui.page.keyboard.press("Enter")
    await expect(ui.button_named("Withdraw")).to_be_visible()
    stage.gate("work").set()
    await stage.start("again").wait()
    was = ui.page.locator("midrun-steps .previous")
    await expect(was).to_have_text("was: Write the memo")
    await expect(ui.page.locator("midrun-steps ol > li").nth(1)).to_have_text(
        match_text("Queued 2. Summarise it was: Write the memo")
    )


async def test_a_paused_run_says_that_a_halt_holds_it(harness: Harness, stage: Stage) -> None:
    """A resume would start nothing; the page says so before the press."""
    ui = await open_run_page(harness, stage, ["I ", Hold("mid"), "think."], "So.")
    await stage.start("mid").wait()
    await ui.button("pause").click()
    await ui.expect_badge("Paused by you")
    await ui.site.mid.halt("Disk full", actor=ACTORS["olga"])
    bar = ui.page.locator("midrun-controls")
    await expect(bar).to_contain_text("Under a halt by you: it cannot start anything.")
    await expect(bar).to_contain_text("Reason: Disk full")
    await expect(bar.get_by_role("link", name="Lift it on the list")).to_be_visible()


async def test_an_ask_of_a_child_has_the_buttons_that_apply(
    harness: Harness, stage: Stage
) -> None:
    """An approval is approved or declined, a question is answered."""
    asking = stage.play(
        Use("mail", name="bo"), Use("ask", question="Which?"), "Done.", name="kid"
    )
    parent = Agent(
        "parent",
        model=stage.play(Use("kid", task="Help."), "Done.").model,
        tools=[asking.as_tool()],
    )
    site = await harness.site(asking, parent)
    run = await site.start("parent", "Family task")
    page = await harness.page(site, f"/runs/{run.id}")
    card = page.locator("midrun-asks .card")
    await expect(card).to_contain_text("Approve “Mail”?")
    await expect(card.get_by_role("button")).to_have_text(["Approve", "Decline…"])
    await expect(card.get_by_role("link", name="child run")).to_be_visible()
    await card.get_by_role("button", name="Approve").click()
    await expect(card).to_contain_text("Which?")
    await expect(card.locator("button:not(.attach)")).to_have_text(["Answer"])
    await card.get_by_role("textbox").fill("This one")
    await card.get_by_role("button", name="Answer").click()
    await expect(page.locator("midrun-controls .badge")).to_contain_text("Completed")


async def test_notifications_come_only_after_they_were_switched_on(
    harness: Harness, stage: Stage
) -> None:
    """The permission is requested only after a press; then each change notifies once."""
    agent = stage.play(Use("slow", name="work"), Use("ask", question="Which?"), "Done.")
    site = await harness.site(agent)
    run = await site.start(task="Write a memo")
    await stage.start("work").wait()
    profile = await harness.profile()
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
    await run.answer("This one", actor=ACTORS["olga"])
    await expect(badge).to_contain_text("Completed")
    await page.wait_for_function("notices.length === 2")
    assert await page.evaluate("notices") == [
        "Waiting for you — Write a memo",
        "Completed — Write a memo",
    ]


async def test_a_focused_page_needs_no_notification(harness: Harness, stage: Stage) -> None:
    """Nor after notifications were switched off again."""
    ui = await open_at_tool(harness, stage)
    discard_profile(ui.page)
    await ui.page.evaluate(f"({_NOTICES})()")
    await ui.page.evaluate(
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
    assert await ui.page.evaluate("notices") == ["Completed — Write a memo"]
