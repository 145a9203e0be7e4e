"""Placing: where in its host's address space the app is, whichever way the host says it.

As ASGI has it, `path` is the whole path and `root_path` the part of it that we are mounted at.
Litestar cuts that part off, names it nowhere, and ends what is left in a slash; what the client
really sent is still in `raw_path`.
"""

from urllib.parse import quote, unquote

from starlette.responses import Response
from starlette.types import Scope


def placed(scope: Scope) -> Scope:
    """Return `scope` with the whole path and where we are mounted, as ASGI has it.

    Where the host says so already, or nobody can tell, it is what was given.
    """
    path: str = scope["path"]
    sent = unquote((scope.get("raw_path") or b"").decode("ascii", "replace"))
    ours = path.rstrip("/")
    root = sent.rstrip("/").removesuffix(ours)
    was_cut = sent != path and root + ours == sent.rstrip("/") and f"{ours}/"[0] == "/"
    if not was_cut or "//" in sent:
        return scope
    return {**scope, "path": sent, "root_path": root}


def root_of(scope: Scope) -> str:
    """Return the path that the app is mounted at: empty, or one that begins with a slash."""
    root: str = scope.get("root_path", "")
    return root.rstrip("/")


def path_in(scope: Scope) -> str:
    """Return the path from there on; empty if it is just that, without a slash."""
    path: str = scope["path"]
    return path.removeprefix(root_of(scope))


def with_slash(scope: Scope) -> Response:
    """Send a browser on to the page, whose own links are relative to it."""
    name = scope["path"].rpartition("/")[2]
    return Response(status_code=307, headers={"Location": f"{quote(name)}/"})
