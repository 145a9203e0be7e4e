"""The audit log of sensitive requests, and a filter against log injection.

The audit record of a request is one JSON object per line on the logger `midrun.audit`. On every
other logger that text of a client can reach, of Midrun and of libraries, a filter escapes the
characters that are not printable before any handler sees them. So a client cannot forge lines.
"""

import json
import logging
import textwrap
from dataclasses import dataclass
from typing import Final

import anyio
from starlette.types import Message, Scope, Send

from midrun.core.values import Actor
from midrun.logs import ACCESS_LOGGER, escape
from midrun.ports.audit import AuditEntry
from midrun.server.request_checks import path_below_mount

AUDIT_LOG: Final = logging.getLogger("midrun.audit")
ACCESS_LOG: Final = logging.getLogger(ACCESS_LOGGER)

TARGET_MAX_CHARS: Final = 300
"""The maximum length of the target in a record, in characters."""

_TRACEBACK_INDENT: Final = "  | "
_TRACEBACK_FORMATTER: Final = logging.Formatter()


@dataclass(kw_only=True)
class AuditRecord:
    """The audit record of one request; `App` fills it in while it checks the request."""

    address: str
    action: str = "request"
    actor: str = ""  # empty: the caller is not known
    role: str = ""
    tenant: str = ""  # of the caller, or else of the run
    target: str = ""
    is_due: bool = False  # written for every outcome; otherwise only for a refusal with 403

    def set_actor(self, actor: Actor) -> None:
        """Record the actor of the request."""
        self.actor, self.role, self.tenant = actor.name, actor.role, actor.tenant

    def to_entry(self, outcome: str) -> AuditEntry:
        """Return the record as an entry of the store's audit log."""
        is_run = self.target.startswith("run_")
        return AuditEntry(
            action=self.action,
            actor=self.actor,
            role=self.role,
            run=self.target[:TARGET_MAX_CHARS] if is_run else "",
            target="" if is_run else self.target[:TARGET_MAX_CHARS],
            outcome=outcome,
            address=self.address,
            tenant=self.tenant,
        )

    def write(self, outcome: str) -> None:
        """Log the record, as a warning if the request was refused."""
        record = {
            "action": self.action,
            "actor": self.actor,
            "target": self.target[:TARGET_MAX_CHARS],
            "outcome": outcome,
            "address": self.address,
        }
        level = logging.INFO if outcome == "done" else logging.WARNING
        # `json.dumps` writes ASCII: control, line and direction characters are escaped.
        AUDIT_LOG.log(level, "%s", json.dumps(record), extra={"audit": record})


def log_access(scope: Scope, send: Send) -> Send:
    """Return a `send` that logs the request when its response has ended.

    The log is off unless its logger is enabled for INFO, as by `--access-log`. The query is
    left out: clients put secrets there.
    """
    if not ACCESS_LOG.isEnabledFor(logging.INFO):
        return send
    started, status = anyio.current_time(), 0

    async def send_and_log(message: Message) -> None:
        nonlocal status
        status = message.get("status", status)
        await send(message)
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            record = {
                "method": scope["method"],
                "path": path_below_mount(scope)[:TARGET_MAX_CHARS],
                "status": status,
                "ms": round((anyio.current_time() - started) * 1000, 1),
                "address": find_client_address(scope),
            }
            text = "{method} {path} {status} {ms} ms {address}".format_map(record)
            ACCESS_LOG.info("%s", text, extra={"access": record})

    return send_and_log


def find_client_address(scope: Scope) -> str:
    """Return the client address of a request; a trusted proxy may have set it."""
    return (scope.get("client") or ("", 0))[0]


class EscapeFilter(logging.Filter):
    """Passes every record, with its message and traceback escaped."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Escape the message and the traceback of `record`.

        The lines of a traceback are indented, so that none can look like a record.
        """
        # Formatted here, so that the arguments, which come from clients, are escaped as well.
        record.msg, record.args = escape(record.getMessage()), None
        if record.exc_info and not record.exc_text:
            lines = _TRACEBACK_FORMATTER.formatException(record.exc_info).splitlines()
            record.exc_text = textwrap.indent("\n".join(map(escape, lines)), _TRACEBACK_INDENT)
        return True


_ESCAPE_FILTER: Final = EscapeFilter()


def escape_loggers(*names: str) -> None:
    """Add the escape filter to these loggers and to their existing children.

    A filter does not see the records of child loggers, so each child needs one. A handler
    would see them, but with a handler in place Python no longer prints warnings by itself.
    """
    for name in [*names, *logging.root.manager.loggerDict]:
        if any(name == top or name.startswith(f"{top}.") for top in names):
            logging.getLogger(name).addFilter(_ESCAPE_FILTER)
