"""Tests that were written for `Midrun`, again, with a server in between."""

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
from tests.scenarios.promises import test_7_redirect_at_rest as promise_7
from tests.scenarios.promises import test_9_a_person_decides as promise_9
from tests.scenarios.promises import test_14_races_have_one_winner as promise_14
from tests.scenarios.promises.conftest import log
from tests.unit.client.anybody import Anybody, anybody
from tests.unit.runs import test_controls
from tests.unit.runs.conftest import LEASE, Opener, verify_all
from tests.unit.server.conftest import listening

__all__ = ["log"]  # a fixture of theirs

PATIENCE = 120
AGAIN = (
    test_controls,
    test_side_questions,
    test_take_over,
    test_threads_and_forks,
    promise_3,
    promise_7,
    promise_9,
    promise_14,
)


OTHERWISE = {
    "test_an_id_that_is_reused_for_something_else_is_refused": "each caller has their own ids",
    "test_a_run_is_started_once_however_often_it_is_asked_for": "as above",
    "test_a_refusal_is_repeated_as_it_was_told": "a client has an id for every request",
    "test_only_the_audience_may_decide": "here everybody is an operator",
    "test_others_are_refused_by_name_until_it_is_handed_back": "so, too",
    "test_a_tool_used_by_hand_needs_its_approval_too": "so, too",
    "test_a_call_that_ignores_its_pause_keeps_the_run_pausing_and_is_named": (
        "it hopes for a delta of a moment before the feed was asked for"
    ),
}
"""What is not so over HTTP, or not with these tokens, and why; each has a test of its own."""

pytestmark = [pytest.mark.slow, pytest.mark.once]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Give the file that the test's runs are kept in."""
    return tmp_path / "runs.db"


@pytest.fixture
async def opened(path: Path) -> AsyncIterator[Opener]:
    """Give what serves a store and connects to it; afterwards every journal is verified."""
    with anyio.fail_after(PATIENCE):
        async with AsyncExitStack() as stack:
            yield _opener(stack, path)  # type: ignore[misc]  # it has the interface, not the name
        await verify_all(path)


def _opener(stack: AsyncExitStack, path: Path) -> object:
    async def open_one(
        *agents: Agent, lease: timedelta = LEASE, key: bytes | None = None
    ) -> Anybody:
        address, outside = f"sqlite:///{path}", Environment(lease=lease)
        mid = Midrun(address, agents=agents, key=key, outside=outside)
        await stack.enter_async_context(mid)
        made = app(mid, auth=anybody, limits=Limits(rate=1e6, burst=10**6, pending=10**3))
        port = await stack.enter_async_context(listening(made))
        return Anybody(mid, f"http://127.0.0.1:{port}", stack)

    return open_one


def _tests(module: ModuleType) -> dict[str, object]:
    return {
        name: value
        for name, value in vars(module).items()
        if name.startswith("test_")
        and "opened" in getattr(value, "__annotations__", {})
        and name not in OTHERWISE
    }


for _module in AGAIN:
    globals().update(_tests(_module))
