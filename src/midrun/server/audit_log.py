"""The server's log: an audit record of sensitive requests, and no raw text of clients.

After an attack a log is worth reading if it names the requests that matter, and if no client
could write lines of its own into it. The audit record is one JSON object per line on the logger
`midrun.audit`. For every other logger that a request can reach, ours and those of libraries,
one filter replaces the characters that are not printable before any handler sees them.
"""

import json
import logging
import textwrap
from dataclasses import dataclass
from typing import Final

from starlette.types import Scope

AUDIT: Final = logging.getLogger("midrun.audit")

TARGET_MAX: Final = 300
"""Characters of a target that a record repeats."""

_INDENT: Final = "  | "
_TRACEBACKS: Final = logging.Formatter()


@dataclass(kw_only=True)
class AuditRecord:
    """One request as the audit log tells of it, filled in as the request is understood."""

    address: str
    action: str = "request"
    actor: str = ""  # empty: the caller is not known
    target: str = ""
    is_due: bool = False  # whether it is written for every outcome of the request

    def write(self, outcome: str) -> None:
        """Log the record; a request that was refused is a warning."""
        record = {
            "action": self.action,
            "actor": self.actor,
            "target": self.target[:TARGET_MAX],
            "outcome": outcome,
            "address": self.address,
        }
        level = logging.INFO if outcome == "done" else logging.WARNING
        # As ASCII: no control, line or direction character of a client's stands in it raw.
        AUDIT.log(level, "%s", json.dumps(record), extra={"audit": record})


def client_address(scope: Scope) -> str:
    """Return the client address of a request, as a trusted proxy reports it."""
    return (scope.get("client") or ("", 0))[0]


def escape(text: str) -> str:
    """Return `text` on one line, with an escape sequence for each unprintable character."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in text
    )


class EscapeFilter(logging.Filter):
    """Lets every record through, with its text and its traceback escaped."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Escape the message.

        A traceback keeps its lines, each indented, so that none can pose as a record.
        """
        record.msg, record.args = escape(record.getMessage()), None
        if record.exc_info and not record.exc_text:
            lines = _TRACEBACKS.formatException(record.exc_info).splitlines()
            record.exc_text = textwrap.indent("\n".join(map(escape, lines)), _INDENT)
        return True


_ESCAPES: Final = EscapeFilter()


def escape_loggers(*names: str) -> None:
    """Escape all that these loggers log, and those below them that exist.

    A filter of a logger does not see the records of the loggers below it, so each gets one. A
    handler would; but with any handler in place, Python no longer prints warnings by itself.
    """
    for name in [*names, *logging.root.manager.loggerDict]:
        if any(name == top or name.startswith(f"{top}.") for top in names):
            logging.getLogger(name).addFilter(_ESCAPES)
