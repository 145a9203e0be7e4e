"""Tests of other folders that are written for `Midrun`, run again with a server in between."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path
from types import ModuleType

import anyio
import pytest

from midrun import Agent, Midrun
from midrun.ports.environment import Environment
from midrun.server import Limits, app
from tests.scenarios.conversation import (
    test_side_questions,
    test_take_over,
    test_threads_and_forks,
)
from tests.scenarios.promises import test_3_a_request_is_not_its_effect as promise_3
from tests.scenarios.promises import test_7_redirect_keeps_the_work as promise_7
from tests.scenarios.promises import test_9_a_person_decides as promise_9
from tests.scenarios.promises import test_14_races_have_one_winner as promise_14
from tests.scenarios.promises.conftest import log
from tests.unit.client.actor_clients import ActorMidrun, authenticate
from tests.unit.client.conftest import TIMEOUT_S
from tests.unit.runs import test_controls
from tests.unit.runs.conftest import LONG_LEASE, OpenMidrun, verify_journals
from tests.unit.server.conftest import serve_on_loopback

__all__ = ["log"]  # a fixture of these tests

MODULES = (
    test_controls,
    test_side_questions,
    test_take_over,
    test_threads_and_forks,
    promise_3,
    promise_7,
    promise_9,
    promise_14,
)

SKIPPED = {
    "test_an_id_that_is_reused_for_something_else_is_refused": "over HTTP, ids are per caller",
    "test_a_run_is_started_once_however_often_it_is_asked_for": "over HTTP, ids are per caller",
    "test_a_refusal_is_repeated_as_it_was_told": "a client sends an id with every request",
    "test_only_the_audience_may_decide": "here every user is an operator",
    "test_others_are_refused_by_name_until_it_is_handed_back": "here every user is an operator",
    "test_a_tool_used_by_hand_needs_its_approval_too": "here every user is an operator",
    "test_a_call_that_ignores_its_pause_keeps_the_run_pausing_and_is_named": (
        "it expects a delta from before the feed was opened"
    ),
}
"""Tests that do not apply over HTTP or with these tokens, and why; other tests cover them."""

pytestmark = [pytest.mark.slow, pytest.mark.once]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return the path of the store."""
    return tmp_path / "runs.db"


@pytest.fixture
async def opened(path: Path) -> AsyncIterator[OpenMidrun]:
    """Give a function that serves agents and connects; journals are verified at the end."""
    with anyio.fail_after(TIMEOUT_S):
        async with AsyncExitStack() as stack:
            yield _make_opener(stack, path)  # type: ignore[misc]  # same methods, another class
        await verify_journals(path)


def _make_opener(stack: AsyncExitStack, path: Path) -> object:
    async def serve_and_connect(
        *agents: Agent, lease: timedelta = LONG_LEASE, key: bytes | None = None
    ) -> ActorMidrun:
        outside = Environment(lease=lease)
        mid = Midrun(f"sqlite:///{path}", agents=agents, key=key, outside=outside)
        await stack.enter_async_context(mid)
        limits = Limits(rate=1e6, burst=10**6, pending=10**3)
        port = await stack.enter_async_context(
            serve_on_loopback(app(mid, auth=authenticate, limits=limits))
        )
        return ActorMidrun(mid, f"http://127.0.0.1:{port}", stack)

    return serve_and_connect


def _find_tests(module: ModuleType) -> dict[str, object]:
    return {
        name: value
        for name, value in vars(module).items()
        if name.startswith("test_")
        and "opened" in getattr(value, "__annotations__", {})
        and name not in SKIPPED
    }


for _module in MODULES:
    globals().update(_find_tests(_module))
