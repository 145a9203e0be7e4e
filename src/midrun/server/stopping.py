"""Stopping: whether the web server that called us has been told to stop.

ASGI says so only when every connection has ended, and a stream does not end by itself: each
would wait for the other, and Ctrl-C would do nothing for as long as somebody has the page open.
The server of `midrun serve` closes our streams first. Uvicorn with an application that we are
mounted in knows nothing of us, but it has taken the signals of the process, and we can look.
"""

import signal

import uvicorn
from starlette.types import Scope


def is_stopping(scope: Scope) -> bool:
    """Tell whether the server that this request came in by is about to stop.

    Another server that stops in the same process is none of our business.
    """
    server = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
    if not isinstance(server, uvicorn.Server) or not server.should_exit:
        return False
    ours, connections = scope.get("server"), server.server_state.connections
    return any(getattr(each, "server", None) == ours for each in connections)
