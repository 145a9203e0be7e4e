"""Find the path at which the app is mounted in another application.

In ASGI, `path` is the whole path and `root_path` is the prefix at which the app is mounted.
Litestar removes the prefix from `path`, does not set `root_path`, and appends a slash. The path
that the client sent is still in `raw_path`, from which both are restored.
"""

from urllib.parse import quote, unquote

from starlette.responses import Response
from starlette.types import Scope


def restore_mount_path(scope: Scope) -> Scope:
    """Return `scope` with the whole `path` and the `root_path` that ASGI requires.

    `scope` is returned unchanged if it has them already, or if they cannot be derived.
    """
    path: str = scope["path"]
    sent = unquote((scope.get("raw_path") or b"").decode("ascii", "replace"))
    below = path.rstrip("/")
    root = sent.rstrip("/").removesuffix(below)
    # Cut off: the sent path is a prefix followed by `path`, which begins at a slash. With "//"
    # in the path, the host may have normalised it, and the comparison proves nothing.
    was_cut = sent != path and root + below == sent.rstrip("/") and f"{below}/"[0] == "/"
    if not was_cut or "//" in sent:
        return scope
    return {**scope, "path": sent, "root_path": root}


def mount_path(scope: Scope) -> str:
    """Return the path at which the app is mounted, without a final slash."""
    root: str = scope.get("root_path", "")
    return root.rstrip("/")


def path_below_mount(scope: Scope) -> str:
    """Return the path below the mount path; "" for the mount path itself."""
    path: str = scope["path"]
    return path.removeprefix(mount_path(scope))


def redirect_to_slash(scope: Scope) -> Response:
    """Redirect to the same path with a final slash.

    The links of the page are relative, and need it.
    """
    # Relative: the client may see the host application below yet another prefix.
    name = scope["path"].rpartition("/")[2]
    return Response(status_code=307, headers={"Location": f"{quote(name)}/"})
