"""The log context: the run, the call and the actor for which the current task works.

The driver sets it where a run loop or a call begins, the server where the caller of a
request is known. It is a context variable, so tasks that are started there have it, too: a log
record of a tool, or of a library that the tool uses, can be traced to its run. Nothing reads it
except the formatter of logs (`midrun.logs`).
"""

from collections.abc import Callable
from contextvars import ContextVar
from typing import Final

from msgspec import Struct


class LogContext(Struct, frozen=True):
    """The origin of log records. An empty field is not known.

    `hide_secrets` replaces the known secrets of the run in a text.
    """

    run: str = ""
    call: str = ""
    agent: str = ""
    actor: str = ""
    hide_secrets: Callable[[str], str] | None = None


NO_LOG_CONTEXT: Final = LogContext()

_CURRENT: Final[ContextVar[LogContext]] = ContextVar("midrun_log_context")


def get_log_context() -> LogContext:
    """Return the log context of the current task."""
    return _CURRENT.get(NO_LOG_CONTEXT)


set_log_context: Final = _CURRENT.set
"""Set the log context of the current task, and of tasks that it starts."""
