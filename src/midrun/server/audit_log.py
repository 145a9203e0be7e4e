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

from starlette.types import Scope

AUDIT_LOG: Final = logging.getLogger("midrun.audit")

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
    target: str = ""
    is_due: bool = False  # written for every outcome; otherwise only for a refusal with 403

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


def client_address(scope: Scope) -> str:
    """Return the client address of a request; a trusted proxy may have set it."""
    return (scope.get("client") or ("", 0))[0]


def escape(text: str) -> str:
    """Return `text` with an escape sequence for each unprintable character."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in text
    )


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
