"""One script and one tag in a host page with hostile styles."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from playwright.async_api import Page, expect
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse
from starlette.routing import Mount, Route

from midrun import Midrun
from midrun.server import app
from tests.browser.harness import Harness, find_violations, serve_app, wait_until
from tests.browser.stage import Hold, Stage, Use
from tests.unit.server.conftest import make_token

HOSTILE_STYLE: Final = """
  * { letter-spacing: .3em; text-transform: uppercase; font: italic 30px "Comic Sans MS";
      color: hotpink; line-height: 3; text-shadow: 2px 2px red; word-spacing: 1em;
      text-align: right; text-indent: 2em; cursor: wait; visibility: visible; }
  button, input, textarea, a, h1, h2, table, td, svg {
      all: unset !important; background: hotpink !important; border-radius: 0 !important;
      width: 999px !important; display: inline !important; }
  body { font-size: 40px !important; direction: ltr; }
  .badge, .row, .panel, .icon, .mono { display: none !important; }
  [aria-disabled], [disabled], [hidden] { display: block !important; }
"""

PLAIN: Final = "body { margin: 8px; }"

READ_STYLE: Final = """element => {
  const style = getComputedStyle(element);
  const box = element.getBoundingClientRect();
  const names = ["color", "font-size", "font-style", "font-family", "letter-spacing",
    "text-transform", "line-height", "text-shadow", "word-spacing", "text-align", "text-indent",
    "background-color", "border-top-left-radius", "display", "cursor"];
  return [...names.map((name) => `${name}: ${style.getPropertyValue(name)}`),
    `${Math.round(box.width)} by ${Math.round(box.height)}`];
}"""


def render_host_page(body: str, style: str) -> HTMLResponse:
    """Return a page of the host application."""
    return HTMLResponse(
        f"<!doctype html><html lang=en><title>Acme CRM</title><style>{style}</style>"
        f'<script type="module" src="/agents/static/midrun.js"></script><main>{body}</main>'
    )


class Host:
    """An application with midrun mounted in it, and pages of its own."""

    def __init__(self, mid: Midrun, port: int) -> None:
        self.mid = mid
        self.url = f"http://127.0.0.1:{port}"
        self.body = ""
        self.style = PLAIN

    async def page(
        self, harness: Harness, body: str, style: str, *, bypass_csp: bool = False
    ) -> Page:
        """Open a page of the application with `body` in it."""
        self.body, self.style = body, style
        page = await (await harness.profile(bypass_csp=bypass_csp)).new_page()
        await page.goto(self.url)
        return page


@asynccontextmanager
async def serve_host(stage: Stage) -> AsyncIterator[Host]:
    """Serve an application that has midrun mounted."""
    mid = Midrun("memory://", agents=[stage.play(Use("slow", name="held"), "Done.")])
    part = app(mid, token=make_token("me"))

    async def home(_: Request) -> HTMLResponse:
        return render_host_page(made.body, made.style)

    whole = Starlette(routes=[Route("/", home), Mount("/agents", part)])
    async with mid, serve_app(part, whole=whole) as port:
        made = Host(mid, port)
        yield made


async def read_styles(page: Page) -> list[list[str]]:
    """Return the computed styles of parts of the bar."""
    button = page.get_by_role("button", name="Pause")
    await expect(button).to_be_visible()
    badge = page.locator("midrun-controls .badge")
    return [await part.evaluate(READ_STYLE) for part in (button, badge, badge.locator("svg"))]


async def test_the_bar_keeps_its_look_and_works_in_a_hostile_page(
    harness: Harness, stage: Stage
) -> None:
    """It has the same computed styles in both pages, and its buttons work."""
    async with serve_host(stage) as host:
        run = await host.mid.start("actor", "Embedded", actor="me")
        await stage.start("held").wait()
        tag = f'<midrun-controls run="{run.id}" token="{make_token("me")}"></midrun-controls>'
        plain = await host.page(harness, tag, PLAIN)
        hostile = await host.page(harness, tag, HOSTILE_STYLE)

        async def are_alike() -> bool:
            return await read_styles(plain) == await read_styles(hostile)

        await wait_until(are_alike)
        await hostile.get_by_role("button", name="Pause").click()
        badge = hostile.locator("midrun-controls .badge")
        await expect(badge).to_contain_text("Pausing")
        stage.gate("held").set()
        await run.until("paused")
        await expect(badge).to_contain_text("Paused")


async def test_the_list_and_the_run_are_embedded_by_the_same_script(
    harness: Harness, stage: Stage
) -> None:
    """With a session that was opened where midrun is mounted."""
    async with serve_host(stage) as host:
        run = await host.mid.start("actor", "Embedded", actor="me")
        await stage.start("held").wait()
        tags = f'<midrun-runs></midrun-runs><midrun-run run="{run.id}"></midrun-run>'
        page = await host.page(harness, tags, HOSTILE_STYLE)
        await page.goto(f"{host.url}/agents/#token={make_token('me')}")
        await expect(page.get_by_role("link", name="Embedded")).to_be_visible()
        await page.goto(host.url)
        await expect(page.get_by_role("link", name="Embedded")).to_be_visible()
        await expect(
            page.locator("midrun-run").get_by_role("button", name="Pause")
        ).to_be_visible()
        await expect(page).to_have_title("Acme CRM")  # the host's title is the host's


async def test_a_theme_is_a_few_custom_properties(harness: Harness, stage: Stage) -> None:
    """Custom properties of the host page reach the element; nothing else does."""
    async with serve_host(stage) as host:
        run = await host.mid.start("actor", "Embedded", actor="me")
        await stage.start("held").wait()
        tag = f'<midrun-controls run="{run.id}" token="{make_token("me")}"></midrun-controls>'
        style = "midrun-controls { --midrun-run: rgb(1, 2, 3); --midrun-scheme: dark; }"
        page = await host.page(harness, tag, style)
        badge = page.locator("midrun-controls .badge")
        await expect(badge).to_contain_text("Running")
        await expect(badge).to_have_css("color", "rgb(1, 2, 3)")


async def test_keys_belong_to_the_host_until_the_bar_has_the_focus(
    harness: Harness, stage: Stage
) -> None:
    """Typing "pcr" into the host's search box controls nothing."""
    async with serve_host(stage) as host:
        run = await host.mid.start("actor", "Embedded", actor="me")
        await stage.start("held").wait()
        tag = f'<midrun-controls run="{run.id}" token="{make_token("me")}"></midrun-controls>'
        page = await host.page(harness, f"<input aria-label=Search>{tag}", PLAIN)
        await expect(page.get_by_role("button", name="Pause")).to_be_visible()
        before = (await run.view()).seq
        await page.get_by_label("Search").press_sequentially("pcr")
        await page.locator("body").press("p")
        assert (await run.view()).seq == before
        await page.locator("midrun-controls #redirect").focus()
        await page.keyboard.press("p")
        await run.until("pausing")


async def test_an_embedded_bar_is_accessible(harness: Harness, stage: Stage) -> None:
    """In a host page without violations of its own."""
    async with serve_host(stage) as host:
        run = await host.mid.start("actor", "Embedded", actor="me")
        await stage.start("held").wait()
        tag = f'<midrun-controls run="{run.id}" token="{make_token("me")}"></midrun-controls>'
        page = await host.page(harness, f"<h1>Acme</h1>{tag}", PLAIN, bypass_csp=True)
        await expect(page.get_by_role("button", name="Pause")).to_be_visible()
        assert await find_violations(page) == []


async def test_an_embedded_bar_answers_too(harness: Harness, stage: Stage) -> None:
    """A bar that says *Waiting for you* must not be a dead end."""
    mid = Midrun("memory://", agents=[stage.play(Use("ask", question="Which?"), "Done.")])
    part = app(mid, token=make_token("me"))

    async def home(_: Request) -> HTMLResponse:
        token = make_token("me")
        tag = f'<midrun-controls run="{run.id}" token="{token}"></midrun-controls>'
        return render_host_page(tag, PLAIN)

    whole = Starlette(routes=[Route("/", home), Mount("/agents", part)])
    async with mid, serve_app(part, whole=whole) as port:
        run = await mid.start("actor", "Embedded", actor="me")
        await run.until("waiting")
        page = await (await harness.profile()).new_page()
        await page.goto(f"http://127.0.0.1:{port}/")
        await page.get_by_label("Answer to: Which?").fill("This one")
        await page.keyboard.press("Enter")
        await expect(page.locator("midrun-controls .badge")).to_contain_text("Completed")


RECORD_EVENTS: Final = """<script>
  globalThis.events = [];
  for (const name of ["midrun-state", "midrun-sent", "midrun-signed-out"]) {
    document.addEventListener(name, ({target, detail}) =>
      events.push([target.localName, name, detail?.phase ?? detail?.control ?? ""].join(" ")));
  }
</script>"""


async def test_transcript_asks_and_report_work_without_a_bar(
    harness: Harness, stage: Stage
) -> None:
    """Each is placed alone; they are told apart by their events."""
    mid = Midrun("memory://", agents=[stage.play(Use("doubt", name="it"), "Done.")])
    part = app(mid, token=make_token("me"))

    async def home(_: Request) -> HTMLResponse:
        names = f'run="{run.id}" token="{make_token("me")}"'
        tags = "".join(
            f"<midrun-{tag} {names}><p slot=empty>No {tag}</p></midrun-{tag}>"
            for tag in ("transcript", "asks", "report")
        )
        return render_host_page(f"{RECORD_EVENTS}<h1>Acme</h1>{tags}", HOSTILE_STYLE)

    whole = Starlette(routes=[Route("/", home), Mount("/agents", part)])
    async with mid, serve_app(part, whole=whole) as port:
        run = await mid.start("actor", "Embedded", actor="me")
        await run.until("waiting")
        page = await (await harness.profile(bypass_csp=True)).new_page()
        await page.goto(f"http://127.0.0.1:{port}/")
        await expect(page.get_by_text("No report")).to_be_visible()
        await expect(page.get_by_text("No asks")).to_be_hidden()
        # The host page is hostile to the eye; only the inside of the elements is ours.
        assert await find_violations(page, "aria-required-children", "landmark-unique") == []
        await page.get_by_role("button", name="It did", exact=True).press("Enter")
        await expect(page.locator("midrun-report")).to_contain_text("Report")
        await expect(page.locator("midrun-transcript")).to_contain_text("Done.")
        await expect(page.locator("midrun-asks")).to_contain_text("Decided just now")
        told = await page.evaluate("events")
    assert told.count("midrun-asks midrun-sent answer") == 1
    assert "midrun-report midrun-state completed" in told
    assert "midrun-asks midrun-state waiting" in told


async def test_an_element_says_why_it_cannot_show_its_run(
    harness: Harness, stage: Stage
) -> None:
    async with serve_host(stage) as host:
        tags = "".join(
            f'<midrun-{tag} run="run_none" token="{make_token("me")}"></midrun-{tag}>'
            for tag in ("transcript", "asks", "report", "controls", "run")
        )
        page = await host.page(harness, tags, PLAIN)
        await expect(page.get_by_role("alert")).to_have_count(5)
        signed_out = f"{RECORD_EVENTS}<midrun-asks run=run_none></midrun-asks>"
        page = await host.page(harness, signed_out, PLAIN)
        await expect(page.get_by_role("alert")).to_be_visible()
        assert await page.evaluate("events") == ["midrun-asks midrun-signed-out "]


async def test_a_transcript_follows_in_its_box_and_does_not_move_the_page(
    harness: Harness, stage: Stage
) -> None:
    lines = "\n\n".join(f"Line {number}" for number in range(60))
    mid = Midrun(
        "memory://", agents=[stage.play(["Begin", Hold("a"), lines, Hold("b"), "End"])]
    )
    part = app(mid, token=make_token("me"))

    async def home(_: Request) -> HTMLResponse:
        tag = f'<midrun-transcript run="{run.id}" token="{make_token("me")}">'
        tag += "</midrun-transcript>"
        box = f"<div id=box style='height: 200px; overflow: auto'>{tag}</div>"
        return render_host_page(f"{box}<div style='height: 3000px'></div>", PLAIN)

    whole = Starlette(routes=[Route("/", home), Mount("/agents", part)])
    async with mid, serve_app(part, whole=whole) as port:
        run = await mid.start("actor", "Embedded", actor="me")
        page = await (await harness.profile()).new_page()
        await page.goto(f"http://127.0.0.1:{port}/")
        await expect(page.locator("midrun-transcript")).to_contain_text("Begin")
        stage.gate("a").set()
        await expect(page.locator("midrun-transcript")).to_contain_text("Line 59")

        async def is_at_end() -> bool:
            return bool(
                await page.evaluate("box.scrollTop + box.clientHeight >= box.scrollHeight - 30")
            )

        await wait_until(is_at_end)
        assert await page.evaluate("document.documentElement.scrollTop") == 0
        stage.gate("b").set()
