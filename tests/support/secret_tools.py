"""Tools that take, return, note and raise secrets."""

from typing import NoReturn

from midrun import Agent, Call, Tool, pause_here, tool
from midrun.core.transcript import Transcript
from midrun.models import ScriptedModel, Use
from midrun.models.scripted import Cue, Line

PASSWORD = "hunter2-correct-horse"
SESSION = "sess-9f8e7d6c5b4a"
AUTH_HEADER = "Bearer eyJhbGciOi.JIUzI1NiJ9"
SECRETS = (PASSWORD, SESSION, AUTH_HEADER, AUTH_HEADER.removeprefix("Bearer "))


def blocking_login(user: str, password: str) -> str:
    """Log in from a subprocess; the result tells whether the password arrived."""
    return f"{user}: {password == PASSWORD}"


def use_last_result(tool_: str, name: str, **args: str) -> Cue:
    """Return a turn in which the model passes on the field `name` of the last result."""

    def cue(messages: Transcript) -> Line:
        made = next(turn.uses[-1] for turn in reversed(messages) if turn.uses)
        assert isinstance(made.result, dict)
        return Use(tool_, **{**args, name: made.result[name]})

    return cue


class SecretTools:
    """The tools, and the arguments that they received."""

    def __init__(self) -> None:
        self.received_args: list[tuple[str, ...]] = []
        self.undone_calls: list[tuple[object, object]] = []

    def make_agent(self, *turns: Line | Cue, name: str = "clerk") -> Agent:
        """Return an agent with these tools and a scripted model."""
        return Agent(name, model=ScriptedModel(turns), tools=self.make_tools())

    def make_tools(self) -> list[Tool]:
        """Return all tools."""
        return [
            tool(self._login, name="login", undo=self._undo),
            tool(self._login, name="gated_login", approve=True),
            tool(blocking_login),
            tool(self._fetch, name="fetch"),
            tool(self._send, name="send"),
            tool(self._fail, name="fail"),
            tool(self._ask, name="ask"),
        ]

    async def _login(self, call: Call, user: str, password: str) -> dict[str, str]:
        """Log in."""
        self.received_args.append((user, password))
        await call.note(f"logging in with password={password}")
        await call.save({"password": password, "done": 1})
        return {"user": user, "session_token": SESSION}

    async def _undo(self, call: Call, args: dict[str, object], result: object) -> None:
        del call
        self.undone_calls.append((args, result))

    async def _fetch(self, session_token: str, url: str) -> dict[str, object]:
        """Fetch a page, with headers."""
        self.received_args.append((session_token, url))
        return {
            "status": 200,
            "request": {"headers": {"Authorization": AUTH_HEADER, "Accept": "*/*"}},
            "body": f'{{"password": "{PASSWORD}", "next_page_token": "page2"}}',
        }

    async def _send(self, body: str) -> str:
        """Send a mail."""
        self.received_args.append((body,))
        return "sent"

    async def _fail(self, password: str) -> NoReturn:
        """Fail with secrets in the error."""
        raise ValueError(f"403 for https://me:{PASSWORD}@host/?api_key={SESSION}: {password!r}")

    async def _ask(self) -> NoReturn:
        """Ask a person, with a secret in the data."""
        pause_here("Is this right?", password=PASSWORD)
