"""Pages of other front ends, bundled with their unmodified packages, on another origin."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from html import escape
from pathlib import Path

from starlette.applications import Starlette
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from midrun import Midrun
from midrun.server import Tokens, app
from tests.browser.harness import serve_app
from tests.unit.server.conftest import ACTORS, make_token
from tools.node import WEB, main

FRONT_ENDS = Path(__file__).parent / "front_ends"


def bundle_script(source: Path, folder: Path) -> bytes:
    """Return a script in one file with the packages that it imports."""
    # esbuild looks for packages above the source, so it gets a copy beside `node_modules`.
    copy, bundle = folder / source.name, folder / "bundle.js"
    copy.write_bytes(source.read_bytes())
    assert not main([])
    (folder / "node_modules").symlink_to(WEB / "node_modules")
    options = ["--bundle", "--format=esm", "--jsx=automatic", "--loader:.css=empty"]
    assert not main(
        ["esbuild", str(copy), *options, f"--outfile={bundle}", "--log-level=error"]
    )
    return bundle.read_bytes()


@asynccontextmanager
async def serve_front_end(mid: Midrun, script: bytes, **data: str) -> AsyncIterator[str]:
    """Serve the runs of `mid`, and on another origin a page with the script; yield its address.

    The element `#chat` has `data`. In the values, `{url}` is the address of the server.
    """
    auth = Tokens({make_token(name): actor for name, actor in ACTORS.items()})
    html = ["<!doctype html><title>Chat</title>", "", "<script type=module src=c.js></script>"]

    async def show_page(_: object) -> Response:
        return HTMLResponse("".join(html))

    async def show_script(_: object) -> Response:
        return Response(script, media_type="text/javascript")

    page_app = Starlette(routes=[Route("/", show_page), Route("/c.js", show_script)])
    async with mid, serve_app(app(mid, auth=auth), page_app) as page_port:
        origin = f"http://127.0.0.1:{page_port}"
        async with serve_app(app(mid, auth=auth, allow_origins=[origin])) as port:
            url = f"http://127.0.0.1:{port}"
            data |= {"token": make_token("ann")}
            values = {name: escape(value.format(url=url)) for name, value in data.items()}
            attributes = " ".join(f'data-{name}="{value}"' for name, value in values.items())
            html[1] = f"<div id=chat {attributes}></div>"
            yield f"{origin}/"
