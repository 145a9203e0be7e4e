"""The elements as a package: packed by npm, typed, and used by an unmodified React."""

import json
import shutil
import subprocess
import tarfile
import tomllib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import pytest
from playwright.async_api import Page, expect
from starlette.applications import Starlette
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from midrun import Midrun
from midrun.server import Tokens, app
from tests.browser.harness import Harness, find_violations, serve_app
from tests.browser.stage import Hold, Stage, Use
from tests.support.paths import ROOT
from tests.unit.server.conftest import ACTORS, make_token
from tools.node import WEB, main, pack

EXAMPLE: Final = ROOT / "examples" / "react" / "desk.tsx"
PACKAGE: Final = ROOT / "src" / "midrun" / "server" / "static"

TYPE_OPTIONS: Final = (
    *("--noEmit", "--strict", "--skipLibCheck", "false", "--jsx", "react-jsx"),
    *("--target", "es2022", "--module", "esnext", "--moduleResolution", "bundler"),
    *("--lib", "es2023,dom,dom.iterable"),
)


@pytest.fixture(scope="session")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a project with the example, our packed package, React and its types."""
    folder = tmp_path_factory.mktemp("react")
    assert not main([])
    (folder / "node_modules").symlink_to(WEB / "node_modules")
    desk = folder / "desk"
    installed = desk / "node_modules" / "@midrun" / "elements"
    installed.mkdir(parents=True)
    with tarfile.open(pack(PACKAGE, folder)) as packed:
        packed.extractall(folder, filter="data")
    shutil.copytree(folder / "package", installed, dirs_exist_ok=True)
    (desk / "desk.tsx").write_bytes(EXAMPLE.read_bytes())
    return desk


@pytest.fixture(scope="session")
def desk_script(project: Path) -> bytes:
    """Return the example, bundled with React and the packed elements."""
    bundle = project / "desk.js"
    options = ["--bundle", "--format=esm", "--jsx=automatic", f"--outfile={bundle}"]
    assert not main(["esbuild", str(project / "desk.tsx"), *options, "--log-level=error"])
    return bundle.read_bytes()


def test_the_package_has_the_version_of_the_server_and_no_page(project: Path) -> None:
    installed = project / "node_modules" / "@midrun" / "elements"
    about = json.loads((installed / "package.json").read_text())
    ours = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert (about["version"], about["license"]) == (ours["version"], ours["license"])
    assert (installed / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    packed = {file.name for file in installed.iterdir()}
    assert {"midrun.js", "midrun.d.ts", "react.d.ts", "types.d.ts", "lit.LICENSE.txt"} <= packed
    assert not packed & {"page.js", "page.css", "index.html", "run.html"}


def test_tags_properties_and_events_are_typed_in_react(project: Path) -> None:
    """A wrong property or a wrong field of an event is an error of the compiler."""
    assert main(["tsc", *TYPE_OPTIONS, str(project / "desk.tsx")]) == 0
    wrong = project / "wrong.tsx"
    wrong.write_text(
        EXAMPLE.read_text()
        .replace("event.detail.control", "event.detail.contrl")
        .replace("<midrun-report {...target} />", "<midrun-report runn={run} />")
    )
    tsc = [*TYPE_OPTIONS, "--pretty", "false", str(wrong)]
    program = WEB / "node_modules" / ".bin" / "tsc"
    told = subprocess.run([program, *tsc], check=False, capture_output=True, text=True)  # noqa: S603 - the pinned compiler
    assert "contrl" in told.stdout
    assert "runn" in told.stdout


@asynccontextmanager
async def open_desk(harness: Harness, mid: Midrun, script: bytes) -> AsyncIterator[Page]:
    """Open the example on a page of another origin than the server."""
    auth = Tokens({make_token(name): actor for name, actor in ACTORS.items()})
    html = ["<!doctype html><html lang=en><title>Desk</title>", ""]

    async def show_page(_: object) -> Response:
        return HTMLResponse("".join(html) + "<script type=module src=desk.js></script>")

    async def show_script(_: object) -> Response:
        return Response(script, media_type="text/javascript")

    page_app = Starlette(routes=[Route("/", show_page), Route("/desk.js", show_script)])
    async with mid, serve_app(app(mid, auth=auth), page_app) as page_port:
        origin = f"http://127.0.0.1:{page_port}"
        async with serve_app(app(mid, auth=auth, allow_origins=[origin])) as port:
            server = f"http://127.0.0.1:{port}"
            token = make_token("ann")
            html[1] = f'<div id=desk data-server={server} data-token="{token}"></div>'
            page = await (await harness.profile(bypass_csp=True)).new_page()
            await page.goto(f"{origin}/")
            yield page


async def test_react_shows_answers_and_steers_a_run(
    harness: Harness, stage: Stage, desk_script: bytes
) -> None:
    """With every element for one run, each placed by the page, and no copy of their code."""
    agent = stage.play(
        ["The first half", Hold("half"), " and the second."],
        Use("ask", question="Which one?"),
        "All done.",
    )
    mid = Midrun("memory://", agents=[agent])
    async with open_desk(harness, mid, desk_script) as page:
        run = await mid.start("actor", "Compare them", actor=ACTORS["ann"])
        await page.get_by_role("link", name="Compare them").click()
        await expect(page.locator("midrun-transcript")).to_contain_text("The first half")
        await expect(page.get_by_role("heading", name="Running")).to_be_visible()
        await expect(page.get_by_text("There is nothing to decide.")).to_be_visible()
        await expect(page.get_by_role("button", name="Copy the id")).to_be_visible()
        await page.locator("midrun-controls #pause").click()
        await expect(page.get_by_role("heading", name="Paused")).to_be_visible()
        stage.gate("half").set()
        await run.resume(actor=ACTORS["ann"])
        await expect(page.get_by_role("heading", name="Your answer is needed")).to_be_visible()
        assert await find_violations(page) == []
        asks = page.locator("article > midrun-asks")
        await asks.get_by_label("Answer to: Which one?").fill("The second")
        await page.keyboard.press("Enter")
        await expect(page.locator("output")).to_have_text("answer")
        await expect(page.locator("midrun-transcript")).to_contain_text("All done.")
        await expect(page.locator("midrun-report")).to_contain_text("Report")
        await expect(page.get_by_role("heading", name="Completed")).to_be_visible()
        await expect(page).to_have_url(page.url.partition("/runs")[0])
