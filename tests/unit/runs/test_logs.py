"""Logs: their format, the run and the call of each record, and no secrets."""

import io
import json
import logging
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest

from midrun import Agent, Midrun, tool
from midrun.errors import Misconfigured
from midrun.logs import MidrunFormatter, configure_logs
from midrun.models import ScriptedModel, Use
from midrun.ports.log_context import NO_LOG_CONTEXT, LogContext, set_log_context
from midrun.server import app
from tests.support.paths import ROOT
from tests.support.store_choice import get_store_url

TOKEN = "operators-own-token-0123456789"
API_KEY = "sk-proj-abcdefABCDEF0123456789abcdefABCDEF0123456789"
PASSWORD = "correct horse battery staple"

LOG = logging.getLogger("tests.tool")


class LogCapture:
    """Captures the lines that `configure_logs` writes."""

    def __init__(self) -> None:
        self.stream = io.StringIO()
        self.handler: logging.Handler | None = None

    def start(self, log_format: Literal["text", "json"], level: str = "info") -> None:
        """Configure the logs of this process."""
        self.handler = configure_logs(
            level=level, log_format=log_format, secrets=[TOKEN, ""], stream=self.stream
        )

    @property
    def text(self) -> str:
        """All lines so far."""
        return self.stream.getvalue()

    @property
    def records(self) -> list[dict[str, object]]:
        """All lines so far, parsed as JSON."""
        return [json.loads(line) for line in self.text.splitlines()]


@pytest.fixture
def capture() -> Iterator[LogCapture]:
    """Return a capture; restore the loggers afterwards."""
    names = ("midrun", "midrun.audit", "midrun.access", "tests.tool")
    levels = {name: logging.getLogger(name).level for name in names}
    LOG.setLevel(logging.INFO)
    found = LogCapture()
    yield found
    set_log_context(NO_LOG_CONTEXT)
    if found.handler is not None:
        logging.getLogger().removeHandler(found.handler)
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)


@tool(secret=["password"])
async def sign_in(password: str) -> str:
    """Log in a careless way."""
    LOG.info("signing in with %s", password)
    LOG.error("sign-in failed", exc_info=RuntimeError(f"refused {API_KEY}"))
    return "ok"


@pytest.mark.parametrize("log_format", ["text", "json"])
async def test_a_record_of_a_tool_names_its_run_and_call_and_shows_no_secret(
    path: Path, capture: LogCapture, log_format: Literal["text", "json"]
) -> None:
    """The tool logs its password, and an error that holds an API key."""
    model = ScriptedModel([Use("sign_in", password=PASSWORD), "Done."])
    agent = Agent("clerk", model=model, tools=[sign_in])
    capture.start(log_format)
    async with Midrun(get_store_url(path), agents=[agent]) as midrun:
        run = await midrun.start(agent, "Sign in")
        await run.until("completed")
        LOG.info("after the run, with %s", TOKEN)
    for secret in (PASSWORD, API_KEY, TOKEN):
        assert secret not in capture.text
    if log_format == "text":
        first, *rest = capture.text.splitlines()
        origin = f"INFO tests.tool run={run.id} call=c2 agent=clerk: signing in with"
        assert origin in first
        assert all(line.startswith("  | ") for line in rest[1:-1])
        assert "run=" not in rest[-1]
    else:
        told, failed, after = capture.records
        for record in (told, failed):
            assert (record["run"], record["call"]) == (run.id, "c2")
            assert (record["agent"], record["logger"]) == ("clerk", "tests.tool")
        assert "RuntimeError: refused" in str(failed["traceback"])
        assert failed["level"] == "error"
        assert "run" not in after


def test_a_text_from_outside_cannot_forge_a_line(capture: LogCapture) -> None:
    capture.start("text")
    set_log_context(LogContext(actor="ann\nforged"))
    LOG.info("hello\n2026-11-18T00:00:00.000Z INFO midrun.audit: forged \x1b[31m")
    (line,) = capture.text.splitlines()
    assert r"actor=ann\nforged: hello\n2026" in line
    assert "\x1b" not in line


def test_the_level_applies_to_midrun_and_never_to_the_audit_log(capture: LogCapture) -> None:
    capture.start("json", level="error")
    logging.getLogger("midrun.server").warning("left out")
    logging.getLogger("midrun.access").info("left out: it is off by default")
    record = {"action": "sign_in", "target": f"with {TOKEN}"}
    logging.getLogger("midrun.audit").info("kept", extra={"audit": record})
    (line,) = capture.records
    assert line["audit"] == {"action": "sign_in", "target": "with [redacted]"}


def test_an_unknown_level_or_format_is_refused() -> None:
    with pytest.raises(Misconfigured, match="must be one of debug, info"):
        configure_logs(level="loud")
    with pytest.raises(Misconfigured, match="must be one of text, json"):
        configure_logs(log_format="xml")  # type: ignore[arg-type]  # the test


async def test_a_library_leaves_the_logging_of_its_application_alone(path: Path) -> None:
    """No handler, no level: the application decides."""

    def find_settings() -> dict[str, tuple[int, int, bool]]:
        loggers = [
            logging.getLogger(),
            *map(logging.getLogger, logging.root.manager.loggerDict),
        ]
        return {
            each.name: (each.level, len(each.handlers), each.propagate)
            for each in loggers
            if each.name.partition(".")[0] in {"root", "midrun", "uvicorn"}
        }

    before = find_settings()
    async with Midrun(get_store_url(path)) as midrun:
        app(midrun, token=TOKEN)
        assert find_settings() == before


def test_the_formatter_works_in_a_handler_of_the_application() -> None:
    record = logging.LogRecord("app", logging.INFO, "f.py", 1, "token=%s", (API_KEY,), None)
    record.created = 0.5
    line = MidrunFormatter("json").format(record)
    assert json.loads(line) == {
        "time": "1970-01-01T00:00:00.500Z",
        "level": "info",
        "logger": "app",
        "message": "token=[redacted]",
    }


@pytest.mark.slow
@pytest.mark.once
def test_a_server_logs_requests_and_sign_ins_as_json_without_tokens(tmp_path: Path) -> None:
    """Also not the token that it was started with, nor those that clients tried."""
    app_file = ROOT / "tests" / "unit" / "cli" / "app.py"
    options = ["--port", "0", "--log-format", "json", "--access-log", "--store"]
    environment = {**os.environ, "MIDRUN_TOKEN": TOKEN, "GATE": ""}
    with subprocess.Popen(  # noqa: S603 - our own command
        [sys.executable, "-m", "midrun", "serve", str(app_file), *options, "sqlite:///runs.db"],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as server:
        try:
            assert server.stdout is not None
            url = server.stdout.readline().strip()
            statuses = [fetch(f"{url}/v1/runs?limit=1", each) for each in (TOKEN, API_KEY)]
            server.terminate()
            _, text = server.communicate()
        finally:
            server.kill()
    assert statuses == [200, 401]
    lines = [json.loads(line) for line in text.splitlines()]
    access = [line["access"] for line in lines if line["logger"] == "midrun.access"]
    assert [(each["path"], each["status"]) for each in access] == [
        ("/v1/runs", 200),
        ("/v1/runs", 401),
    ]
    assert next(line["actor"] for line in lines if "access" in line) == "user"
    (audit,) = [line["audit"] for line in lines if line["logger"] == "midrun.audit"]
    assert (audit["action"], audit["outcome"]) == ("sign_in", "unauthorized")
    assert TOKEN not in text
    assert API_KEY not in text


def fetch(url: str, token: str) -> int:
    """Return the status of a GET request with a bearer token."""
    headers = {"Authorization": f"Bearer {token}"}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers)) as reply:  # noqa: S310 - our own server
            return int(reply.status)
    except urllib.error.HTTPError as error:
        return error.code
