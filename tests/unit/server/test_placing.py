"""Where the app is: as ASGI has it, and as Litestar does."""

import pytest
from starlette.types import Scope

from midrun.server.request_checks import mount_path, path_below_mount, restore_mount_path


def scope(path: str, *, raw: str | None = None, root: str = "") -> Scope:
    """Return what matters of a scope; `raw` is what was sent."""
    sent = {} if raw is None else {"raw_path": raw.encode()}
    return {"type": "http", "path": path, "root_path": root, **sent}


@pytest.mark.parametrize(
    "given",
    [
        scope("/v1/runs", raw="/v1/runs"),
        scope("/midrun/v1/runs", raw="/midrun/v1/runs", root="/midrun"),
        scope("/midrun/", raw="/midrun/", root="/midrun"),
        scope("/v1/runs/é", raw="/v1/runs/%C3%A9"),
        scope("/v1/runs"),  # a server need not say what was sent
    ],
)
def test_a_host_that_does_as_asgi_has_it_is_believed(given: Scope) -> None:
    """Starlette and FastAPI do, and a server without a host around us."""
    assert restore_mount_path(given) is given


@pytest.mark.parametrize(
    ("given", "root", "path"),
    [
        (scope("/v1/runs/", raw="/midrun/v1/runs"), "/midrun", "/v1/runs"),
        (scope("/v1/runs/", raw="/midrun/v1/runs/"), "/midrun", "/v1/runs/"),
        (scope("/", raw="/midrun/"), "/midrun", "/"),
        (scope("/", raw="/midrun"), "/midrun", ""),
        (scope("/v1/é/", raw="/a%20b/v1/%C3%A9"), "/a b", "/v1/é"),
        (scope("/v1/", raw="/proxy/midrun/v1", root="/proxy"), "/proxy/midrun", "/v1"),
    ],
)
def test_a_prefix_that_was_cut_off_is_found_again(given: Scope, root: str, path: str) -> None:
    """And the slash at the end is what was sent, not what the host made of it."""
    found = restore_mount_path(given)
    assert (mount_path(found), path_below_mount(found)) == (root, path)


@pytest.mark.parametrize(
    "given",
    [
        scope("/elsewhere", raw="/midrun/v1"),  # rewritten by somebody
        scope("/v1/runs/", raw="/midrun//v1//runs"),
        scope("/", raw="//evil.example"),  # would be a place of another host
        scope("x/healthz/", raw="/midrunx/healthz"),  # a path that only begins like ours
    ],
)
def test_a_path_that_nobody_can_tell_is_left_as_it_is(given: Scope) -> None:
    """Then nothing is found there, and nothing is given away."""
    assert restore_mount_path(given) is given
