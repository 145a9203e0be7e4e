"""The example with approvals in Slack and by mail, between a real server and a fake Slack."""

import base64
import hmac
import importlib.util
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import ModuleType
from urllib.parse import quote

import anyio
import httpx2
import pytest
import uvicorn
from anyio.abc import SocketAttribute, SocketStream
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from midrun import Agent, Call, Midrun, tool
from midrun.followers import following
from midrun.followers.webhooks import Webhook
from midrun.models import ScriptedModel, Use
from midrun.server import app as make_midrun_app
from midrun.server.serve import open_listener
from tests.support.paths import ROOT
from tests.unit.server.conftest import make_token, make_tokens

HOOK_SECRET = "whsec_" + base64.b64encode(b"0123456789abcdef").decode()
SLACK_SECRET = "signs the requests of slack"
PEOPLE = {"U-ANN": "ann", "U-OLGA": "olga"}
TIMEOUT_S = 60

Block = dict[str, object]


class FakeSlack:
    """Records the calls of the Web API, and the private answers."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, object]]] = []
        self.changed = anyio.Event()
        self.app = Starlette(routes=[Route("/{method}", self._receive, methods=["POST"])])

    async def _receive(self, request: Request) -> JSONResponse:
        self.calls.append((request.path_params["method"], await request.json()))
        self.changed.set()
        self.changed = anyio.Event()
        return JSONResponse({"ok": True})

    async def wait_for(self, method: str, count: int = 1) -> dict[str, object]:
        """Wait for the n-th call of a method, from 1, and return its fields."""
        with anyio.fail_after(TIMEOUT_S):
            while True:
                changed = self.changed
                found = [fields for name, fields in self.calls if name == method]
                if len(found) >= count:
                    return found[count - 1]
                await changed.wait()


@asynccontextmanager
async def serve_app(asgi_app: ASGIApp) -> AsyncIterator[str]:
    """Serve an application on loopback, and yield its address."""
    server = uvicorn.Server(uvicorn.Config(asgi_app, log_config=None, access_log=False))
    with open_listener("127.0.0.1", 0) as listening:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server.serve, [listening])
            try:
                yield f"http://127.0.0.1:{listening.getsockname()[1]}"
            finally:
                server.should_exit = True


def load_example() -> ModuleType:
    """Import the example from its file."""
    path = ROOT / "examples" / "approvals" / "app.py"
    spec = importlib.util.spec_from_file_location("approvals_example", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def make_agent(text: str) -> Agent:
    """Return an agent that shows a letter and wants to send it."""

    @tool(read_only=True)
    async def write(call: Call) -> str:
        """Write the letter."""
        await call.show("letter.md", "text/markdown", "# Dear customer")
        return "written"

    @tool(approve=True, title="Send the letter to {to}")
    async def send(to: str, text: str) -> str:
        """Send the letter."""
        return f"sent to {to}: {text}"

    model = ScriptedModel([Use("write"), Use("send", to="<!channel>", text=text), "Done."])
    return Agent("clerk", model=model, tools=[write, send])


class Setting:
    """Everything that one test needs: the addresses, the fake Slack, and the runs."""

    def __init__(self, url: str, slack: FakeSlack, midrun: Midrun, slack_url: str) -> None:
        self.url = url
        self.slack = slack
        self.midrun = midrun
        self.slack_url = slack_url

    async def click(self, posted: dict[str, object], action: str, user: str, no: int) -> int:
        """Click a button as Slack reports it, signed."""
        value = _find_button(posted, action)["value"]
        payload = {
            "user": {"id": user},
            "actions": [{"action_id": action, "value": value}],
            "message": {"ts": "1.2", "blocks": posted["blocks"]},
            "channel": {"id": "C1"},
            "trigger_id": f"t{no}",
            "response_url": f"{self.slack_url}/private",
        }
        return await self.post_click(json.dumps(payload), SLACK_SECRET)

    async def post_click(self, payload: str, secret: str) -> int:
        """Post a payload with a signature of this secret; return the status."""
        now = int(time.time())  # noqa: TID251 - the clock of Slack
        body = f"payload={quote(payload)}".encode()
        signed = hmac.digest(secret.encode(), f"v0:{now}:".encode() + body, "sha256").hex()
        headers = {"x-slack-request-timestamp": str(now), "x-slack-signature": f"v0={signed}"}
        async with httpx2.AsyncClient(timeout=TIMEOUT_S) as http:
            reply = await http.post(f"{self.url}/slack", content=body, headers=headers)
        return reply.status_code


def _find_button(posted: dict[str, object], action: str) -> Block:
    blocks = posted["blocks"]
    assert isinstance(blocks, list)
    return next(
        button
        for block in blocks
        for button in block.get("elements", ())
        if button["action_id"] == action
    )


@asynccontextmanager
async def open_setting(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Setting]:
    """Serve Midrun, the fake Slack and the example."""
    slack = FakeSlack()
    async with (
        Midrun("memory://", agents=[agent]) as midrun,
        serve_app(slack.app) as slack_url,
        serve_app(make_midrun_app(midrun, auth=make_tokens())) as midrun_url,
    ):
        for name, value in {
            "MIDRUN_URL": midrun_url,
            "MIDRUN_HOOK_SECRET": HOOK_SECRET,
            "SLACK_API": slack_url,
            "SLACK_BOT_TOKEN": "xoxb",
            "SLACK_SIGNING_SECRET": SLACK_SECRET,
            "SLACK_CHANNEL": "C1",
            "PEOPLE": json.dumps({user: make_token(name) for user, name in PEOPLE.items()}),
            "READER_TOKEN": make_token("olga"),
        }.items():
            monkeypatch.setenv(name, value)
        async with serve_app(load_example().app) as url:
            hook = Webhook(f"{url}/midrun", secret=HOOK_SECRET)
            async with following(midrun, hook):
                yield Setting(url, slack, midrun, slack_url)


async def test_an_approval_in_slack_has_one_winner_and_the_loser_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    agent = make_agent("Hello.")
    async with open_setting(agent, monkeypatch) as setting:
        run = await setting.midrun.start(agent, "Send the letter", actor="ann")
        posted = await setting.slack.wait_for("chat.postMessage")
        shown = json.dumps(posted)
        assert "Send the letter to" in shown
        assert "letter.md (version 1)" in shown
        assert "Hello." in shown
        assert "<!channel>" not in shown  # a mention in an argument would call everyone
        assert await setting.click(posted, "approve", "U-ANN", 1) == 200
        decided = await setting.slack.wait_for("chat.update")
        assert "Approved by <@U-ANN>" in json.dumps(decided)
        assert "actions" not in json.dumps(decided)
        assert await setting.click(posted, "decline", "U-OLGA", 2) == 200
        told = await setting.slack.wait_for("private")
        assert "too late" in str(told["text"])
        assert "ann" in str(told["text"])
        assert "Decided by ann" in json.dumps(await setting.slack.wait_for("chat.update", 2))
        assert (await run.until("completed")).output == "Done."


async def test_a_stranger_and_a_forged_click_decide_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    agent = make_agent("Hello.")
    async with open_setting(agent, monkeypatch) as setting:
        run = await setting.midrun.start(agent, "Send the letter", actor="ann")
        posted = await setting.slack.wait_for("chat.postMessage")
        assert await setting.post_click("{}", "a wrong secret") == 401
        await setting.click(posted, "approve", "U-STRANGER", 1)
        told = await setting.slack.wait_for("private")
        assert "no account" in str(told["text"])
        async with httpx2.AsyncClient() as http:
            assert (await http.post(f"{setting.url}/midrun", content=b"{}")).status_code == 401
        assert (await run.view()).phase == "waiting"


async def test_arguments_that_slack_cannot_show_are_decided_on_the_page(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    agent = make_agent("word " * 1000)
    async with open_setting(agent, monkeypatch) as setting:
        run = await setting.midrun.start(agent, "Send the letter", actor="ann")
        posted = json.dumps(await setting.slack.wait_for("chat.postMessage"))
        assert "too long for Slack" in posted
        assert f"/runs/{run.id}" in posted
        assert "actions" not in posted


async def test_a_mail_has_the_arguments_and_a_link_but_no_button(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    received: list[str] = []
    has_mail = anyio.Event()

    async def serve_smtp(stream: SocketStream) -> None:
        async with stream:
            await stream.send(b"220 ready\r\n")
            text, is_data = b"", False
            async for chunk in stream:
                text += chunk
                while (end := text.find(b"\r\n.\r\n" if is_data else b"\r\n")) >= 0:
                    line, text = text[:end], text[end + (5 if is_data else 2) :]
                    received.append(line.decode())
                    if is_data:
                        has_mail.set()
                    is_data = line.upper() == b"DATA"
                    await stream.send(b"354 go on\r\n" if is_data else b"250 ok\r\n")

    agent = make_agent("Hello.")
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(SocketAttribute.local_port)  # noqa: S610 - not of Django
    monkeypatch.setenv("MAIL_SERVER", f"127.0.0.1:{port}")
    monkeypatch.setenv("MAIL_TO", "ops@example.com")
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, serve_smtp)
        async with open_setting(agent, monkeypatch) as setting:
            run = await setting.midrun.start(agent, "Send the letter", actor="ann")
            with anyio.fail_after(TIMEOUT_S):
                await has_mail.wait()
            (mail,) = [line for line in received if "Approval needed" in line]
            assert '"text": "Hello."' in mail
            assert f"/runs/{run.id}" in mail
        tasks.cancel_scope.cancel()
