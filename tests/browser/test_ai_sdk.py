"""The example of the AI SDK: the unmodified `useChat`, on a page of another origin."""

from pathlib import Path

import pytest
from playwright.async_api import expect
from starlette.applications import Starlette
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from midrun import Midrun
from midrun.server import Tokens, app
from tests.browser.harness import Harness, serve_app
from tests.browser.stage import Hold, Stage, Use
from tests.unit.server.conftest import ACTORS, make_token
from tools.node import WEB, main

EXAMPLE = Path(__file__).parents[2] / "examples" / "ai_sdk" / "chat.jsx"


@pytest.fixture(scope="session")
def chat_script(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Return the example, bundled with React and the AI SDK."""
    folder = tmp_path_factory.mktemp("bundle")
    # esbuild looks for packages above the source, so it gets a copy beside `node_modules`.
    source, bundle = folder / "chat.jsx", folder / "chat.js"
    source.write_bytes(EXAMPLE.read_bytes())
    assert not main([])
    (folder / "node_modules").symlink_to(WEB / "node_modules")
    options = ["--bundle", "--format=esm", "--jsx=automatic", f"--outfile={bundle}"]
    assert not main(["esbuild", str(source), *options, "--log-level=error"])
    return bundle.read_bytes()


async def test_use_chat_pauses_reloads_resumes_and_approves(
    harness: Harness, stage: Stage, chat_script: bytes
) -> None:
    agent = stage.play(
        ["The first half", Hold("half"), " and the second."],
        Use("mail", name="m"),
        "Sent.",
    )
    mid = Midrun("memory://", agents=[agent])
    auth = Tokens({make_token(name): actor for name, actor in ACTORS.items()})
    html = ["<!doctype html><title>Chat</title>", "", "<script type=module src=c.js></script>"]

    async def show_page(_: object) -> Response:
        return HTMLResponse("".join(html))

    async def show_script(_: object) -> Response:
        return Response(chat_script, media_type="text/javascript")

    page_app = Starlette(routes=[Route("/", show_page), Route("/c.js", show_script)])
    async with mid, serve_app(app(mid, auth=auth), page_app) as page_port:
        origin = f"http://127.0.0.1:{page_port}"
        async with serve_app(app(mid, auth=auth, allow_origins=[origin])) as port:
            api, token = f"http://127.0.0.1:{port}/ai/actor", make_token("ann")
            html[1] = f'<div id=chat data-api={api} data-chat=t data-token="{token}"></div>'
            profile = await harness.profile()
            page = await profile.new_page()
            await page.goto(f"{origin}/")
            await page.get_by_label("Message").fill("Tell me")
            await page.get_by_role("button", name="Send").click()
            await expect(page.get_by_label("assistant")).to_have_text("The first half")
            await page.get_by_role("button", name="Stop").click()
            await expect(page.locator("output")).to_have_text("ready")
            await page.reload()
            await expect(page.get_by_label("assistant")).to_contain_text("The first half")
            await page.get_by_label("Message").fill("Go on")
            await page.get_by_role("button", name="Send").click()
            await page.get_by_role("button", name="Approve").click()
            await expect(page.get_by_label("assistant").last).to_contain_text("Sent.")
            await expect(page.get_by_role("alert")).to_have_count(0)
    assert stage.completed == ["m"]
