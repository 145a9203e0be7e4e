"""Write logs as text or JSON, each record with its run, call, agent and actor.

`midrun serve` and `midrun worker` call `configure_logs`. A program that uses Midrun as a
library configures logging itself; Midrun never does. It may call `configure_logs`, or use
`MidrunFormatter` in a handler of its own:

    from midrun.logs import configure_logs

    configure_logs(level="info", log_format="json")

The formatter adds the `LogContext` of the task that logs, also to the records of tools and
libraries. It replaces the secrets that it can recognise: the given ones, those that were found
in the run, and texts that look like one (an API key, `password=…`). It also escapes characters
that are not printable, so that no text from outside can forge a line.
"""

import json
import logging
import textwrap
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final, Literal, TextIO

from midrun.codec.redaction import run_steps, search_text
from midrun.errors import Misconfigured
from midrun.ports.log_context import LogContext, get_log_context

LogFormat = Literal["text", "json"]

LOG_LEVELS: Final = ("debug", "info", "warning", "error")
LOG_FORMATS: Final[tuple[LogFormat, ...]] = ("text", "json")

ACCESS_LOGGER: Final = "midrun.access"
"""The logger of the access log: one record for each request to a server."""

HIDDEN: Final = "[redacted]"

SECRET_MIN_CHARS: Final = 6
"""The shortest given secret that is searched for: a shorter one would hit ordinary words."""

EXTRA_FIELDS: Final = ("audit", "access")
"""Attributes of a record that JSON output contains as objects."""

_TRACEBACK_INDENT: Final = "  | "


def configure_logs(
    *,
    level: str = "info",
    log_format: LogFormat = "text",
    secrets: Iterable[str] = (),
    access: bool = False,
    stream: TextIO | None = None,
) -> logging.Handler:
    """Write the logs of this process to `stream` (standard error); return the handler.

    `level` is that of Midrun's own loggers; other loggers keep theirs. `secrets` are replaced
    wherever they appear. `access` writes the access log of a server, too.

    Raises:
        Misconfigured: the level or the format does not exist.
    """
    if level not in LOG_LEVELS:
        raise Misconfigured(
            "log_level", f"must be one of {', '.join(LOG_LEVELS)}, got {level!r}"
        )
    if log_format not in LOG_FORMATS:
        problem = f"must be one of {', '.join(LOG_FORMATS)}, got {log_format!r}"
        raise Misconfigured("log_format", problem)
    handler = logging.StreamHandler(stream)
    handler.setFormatter(MidrunFormatter(log_format, secrets=secrets))
    logging.getLogger().addHandler(handler)
    logging.getLogger("midrun").setLevel(level.upper())
    logging.getLogger("midrun.audit").setLevel(logging.INFO)  # never lost, whatever the level
    logging.getLogger(ACCESS_LOGGER).setLevel(logging.INFO if access else logging.WARNING)
    return handler


class MidrunFormatter(logging.Formatter):
    """Formats records as lines of text or JSON, with the log context and without secrets."""

    def __init__(self, log_format: LogFormat = "text", *, secrets: Iterable[str] = ()) -> None:
        super().__init__()
        self._is_json = log_format == "json"
        # The longest first: one secret may contain another.
        known = {secret for secret in secrets if len(secret) >= SECRET_MIN_CHARS}
        self._secrets = sorted(known, key=len, reverse=True)

    def format(self, record: logging.LogRecord) -> str:
        """Return `record` as one line; a traceback in text has lines of its own."""
        context = get_log_context()
        message = self._hide(record.getMessage(), context)
        problem = self._hide(self._format_traceback(record), context)
        origin = {
            name: value
            for name in ("run", "call", "agent", "actor")
            if (value := getattr(record, name, "") or getattr(context, name))
        }
        if self._is_json:
            return self._format_json(record, origin, message, problem, context)
        fields = "".join(f" {name}={value}" for name, value in origin.items())
        head = f"{_format_time(record)} {record.levelname} {record.name}{fields}"
        lines = textwrap.indent("\n".join(map(escape, problem.splitlines())), _TRACEBACK_INDENT)
        return f"{escape(f'{head}: {message}')}{lines and chr(10) + lines}"

    def _format_json(
        self,
        record: logging.LogRecord,
        origin: dict[str, str],
        message: str,
        problem: str,
        context: LogContext,
    ) -> str:
        line: dict[str, object] = {
            "time": _format_time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": message,
            **origin,
        }
        for name in EXTRA_FIELDS:
            extra: object = getattr(record, name, None)
            if isinstance(extra, dict):
                line[name] = {
                    key: self._hide(value, context) if isinstance(value, str) else value
                    for key, value in extra.items()
                }
        if problem:
            line["traceback"] = problem
        # ASCII: control, line and direction characters are escaped.
        return json.dumps(line)

    def _format_traceback(self, record: logging.LogRecord) -> str:
        if record.exc_text:
            return record.exc_text
        return self.formatException(record.exc_info) if record.exc_info else ""

    def _hide(self, text: str, context: LogContext) -> str:
        """Replace the secrets in `text`."""
        for secret in self._secrets:
            text = text.replace(secret, HIDDEN)
        if context.hide_secrets is not None:
            text = context.hide_secrets(text)
        for start, end in reversed(run_steps(search_text(text, names=True))):
            text = f"{text[:start]}{HIDDEN}{text[end:]}"
        return text


def _format_time(record: logging.LogRecord) -> str:
    at = datetime.fromtimestamp(record.created, UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def escape(text: str) -> str:
    """Return `text` with an escape sequence for each unprintable character."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in text
    )
