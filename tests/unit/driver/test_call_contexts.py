"""`CallContexts`: contexts that all calls of a worker share."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import anyio
import pytest
from anyio.lowlevel import checkpoint

from midrun import Agent, Call, Midrun, tool
from midrun.agents.tool_context import ContextSource
from midrun.core.entries import CallDone
from midrun.driver import call_contexts
from midrun.driver.call_contexts import CallContexts
from midrun.driver.user_code import list_unfinished
from midrun.errors import ContextFailed
from midrun.models import ScriptedModel, Use
from midrun.ports.log_context import LogContext, get_log_context, set_log_context
from tests.support.run_journal import TIMEOUT_S, get_worker, read_entries, yield_until
from tests.support.store_choice import get_store_url
from tests.unit.runs.conftest import OpenMidrun, opened, path

__all__ = ["opened", "path"]  # fixtures


class Pool:
    """A context whose opening passes several awaits, and that counts what happens to it.

    `gate` holds the opening between two of them; `hold_close` holds the closing.
    """

    def __init__(self) -> None:
        self.log: list[str] = []
        self.gate = anyio.Event()
        self.opening = anyio.Event()
        self.hold_close = anyio.Event()
        self.hold_close.set()

    @asynccontextmanager
    async def open(self) -> AsyncIterator["Pool"]:
        """Open the pool."""
        self.log.append("begin")
        try:
            await checkpoint()
            self.opening.set()
            await self.gate.wait()
            await checkpoint()
        except BaseException:
            self.log.append("given up")
            raise
        self.log.append("open")
        try:
            yield self
        finally:
            with anyio.CancelScope(shield=True):
                await self.hold_close.wait()
            self.log.append("close")

    def source(self) -> ContextSource:
        """Return a source that opens the pool."""
        return ContextSource("agent clerk", self.open)


@pytest.fixture
async def contexts() -> AsyncIterator[CallContexts]:
    """The contexts of a worker, which is shut down at the end of the test."""
    with anyio.fail_after(TIMEOUT_S):
        async with anyio.create_task_group() as tasks:
            contexts = CallContexts(tasks)
            yield contexts
            await contexts.shut_down()


async def use(contexts: CallContexts, source: ContextSource, run_id: str = "run_1") -> object:
    """Open the context of a call, and return it."""
    async with contexts.open(source, run_id) as value:
        return value


async def test_several_first_calls_open_it_once(contexts: CallContexts) -> None:
    """Two agents with the same factory share it, too; the shutdown closes it."""
    pool = Pool()
    factory = pool.open
    seen: list[object] = []

    async def call(name: str) -> None:
        seen.append(await use(contexts, ContextSource(name, factory)))

    async with anyio.create_task_group() as calls:
        for n in range(5):
            calls.start_soon(call, f"agent {n}")
        await pool.opening.wait()
        pool.gate.set()
    assert seen == [pool] * 5
    assert pool.log == ["begin", "open"]
    await contexts.shut_down()
    assert pool.log == ["begin", "open", "close"]


async def test_a_stopped_call_leaves_the_others_waiting(contexts: CallContexts) -> None:
    pool = Pool()
    source, seen = pool.source(), list[object]()

    async def call() -> None:
        seen.append(await use(contexts, source))

    async with anyio.create_task_group() as calls:
        with anyio.CancelScope() as first:
            async with anyio.create_task_group() as stopped:
                stopped.start_soon(call)
                await pool.opening.wait()
                calls.start_soon(call)
                await checkpoint()
                first.cancel()
        pool.gate.set()
    assert seen == [pool]
    assert pool.log == ["begin", "open"]


@pytest.mark.parametrize("turns", range(8))
async def test_a_cancellation_at_each_await_leaves_nothing_half_open(
    contexts: CallContexts, turns: int
) -> None:
    """The opening ends with its last call, or it is finished; the next call has a context."""
    pool = Pool()
    pool.gate.set()
    source = pool.source()
    async with anyio.create_task_group() as call:
        call.start_soon(use, contexts, source)
        for _ in range(turns):
            await checkpoint()
        call.cancel_scope.cancel()
    assert await use(contexts, source) is pool
    assert pool.log.count("open") == 1
    assert pool.log.count("begin") == 1 + pool.log.count("given up")
    await contexts.shut_down()
    assert pool.log[-1] == "close"


async def test_an_opening_that_finishes_although_it_was_given_up_is_closed_at_once(
    contexts: CallContexts,
) -> None:
    """The cancellation is repeated, and would end the context while a call uses it."""
    pool, swallowed = Pool(), anyio.Event()

    @asynccontextmanager
    async def swallow() -> AsyncIterator[Pool]:
        try:
            async with pool.open() as opened:
                yield opened
        except anyio.get_cancelled_exc_class():
            swallowed.set()
            async with pool.open() as opened:
                yield opened

    source = ContextSource("agent clerk", swallow)
    async with anyio.create_task_group() as call:
        call.start_soon(use, contexts, source)
        await pool.opening.wait()
        call.cancel_scope.cancel()
    await swallowed.wait()
    async with anyio.create_task_group() as call:
        call.start_soon(use, contexts, source)  # waits for the end of the first opening
        await checkpoint()
        pool.gate.set()
    assert pool.log == ["begin", "given up", "begin", "open", "close", "begin", "open"]


async def test_a_factory_that_fails_fails_all_that_wait_and_the_next_call_tries_again(
    contexts: CallContexts,
) -> None:
    attempts, gate = 0, anyio.Event()

    async def connect() -> str:
        nonlocal attempts
        attempts += 1
        await gate.wait()
        if attempts == 1:
            raise OSError("no database")
        return "pool"

    source, problems = ContextSource("agent clerk", connect), list[str]()

    async def fail() -> None:
        with pytest.raises(ContextFailed) as failed:
            await use(contexts, source)
        problems.append(str(failed.value))

    async with anyio.create_task_group() as calls:
        calls.start_soon(fail)
        calls.start_soon(fail)
        await yield_until(lambda: attempts == 1)
        gate.set()
    problem = "Cannot open the context of agent clerk: OSError: no database."
    assert problems == [f"{problem} The next call opens it again."] * 2
    assert await use(contexts, source) == "pool"
    assert attempts == 2


async def test_a_context_that_ends_by_itself_is_opened_again(
    contexts: CallContexts, caplog: pytest.LogCaptureFixture
) -> None:
    """A task in its task group has failed; the worker and the next call go on."""
    breaks = [anyio.Event(), anyio.Event()]
    ended = 0

    @asynccontextmanager
    async def listen() -> AsyncIterator[int]:
        nonlocal ended
        number = ended

        async def work() -> None:
            await breaks[number].wait()
            raise OSError("connection lost")

        try:
            async with anyio.create_task_group() as group:
                group.start_soon(work)
                yield number
                group.cancel_scope.cancel()
        finally:
            ended += 1

    source = ContextSource("agent clerk", listen)
    assert await use(contexts, source) == 0
    breaks[0].set()
    await yield_until(lambda: ended == 1)
    assert await use(contexts, source) == 1
    assert "The context of agent clerk has ended: OSError: connection lost" in caplog.text


async def test_a_context_that_does_not_close_in_time_is_abandoned_by_name(
    contexts: CallContexts, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The close of a worker is bounded, also if the caller of the close is cancelled."""
    monkeypatch.setattr(call_contexts, "CLOSE_TIMEOUT_S", 0.0)
    monkeypatch.setattr(call_contexts, "STOP_GRACE", timedelta())
    pool = Pool()
    pool.gate.set()
    pool.hold_close = anyio.Event()
    assert await use(contexts, pool.source()) is pool
    await contexts.shut_down()
    assert "Abandoned context of agent clerk" in caplog.text
    assert "context of agent clerk" in list_unfinished()
    pool.hold_close.set()
    await yield_until(lambda: "context of agent clerk" not in list_unfinished())
    with pytest.raises(ContextFailed, match="the worker has shut down"):
        await use(contexts, pool.source())


async def test_a_close_that_raises_is_logged(
    contexts: CallContexts, caplog: pytest.LogCaptureFixture
) -> None:
    @asynccontextmanager
    async def open_badly() -> AsyncIterator[str]:
        yield "pool"
        raise OSError("connection lost")

    assert await use(contexts, ContextSource("agent clerk", open_badly)) == "pool"
    await contexts.shut_down()
    assert "Cannot close the context of agent clerk: OSError: connection lost" in caplog.text


async def test_a_shared_context_has_the_log_context_of_the_worker(
    contexts: CallContexts,
) -> None:
    """Its log records must not name the run that happened to open it."""
    set_log_context(LogContext(run="run_1"))
    source = ContextSource("agent clerk", get_log_context)
    assert await use(contexts, source) == LogContext()


async def test_a_factory_that_takes_the_run_is_opened_for_each_call(
    contexts: CallContexts,
) -> None:
    log: list[str] = []

    @asynccontextmanager
    async def open_for(run_id: str) -> AsyncIterator[str]:
        log.append(f"open {run_id}")
        yield run_id
        log.append("close")

    source = ContextSource("agent clerk", open_for)
    for run_id in ("run_1", "run_2"):
        assert await use(contexts, source, run_id) == run_id
    assert log == ["open run_1", "close", "open run_2", "close"]


async def test_an_error_of_a_factory_that_takes_the_run_has_a_name(
    contexts: CallContexts,
) -> None:
    def refuse(run_id: str) -> None:
        raise LookupError(run_id)

    problem = "Cannot open the context of agent clerk: LookupError: run_1"
    with pytest.raises(ContextFailed, match=problem):
        await use(contexts, ContextSource("agent clerk", refuse))


# ── with a worker ────────────────────────────────────────────────────────────


@tool(idempotent=True)
async def use_pool(call: Call) -> bool:
    """Tell whether the call has the pool."""
    return isinstance(call.context, Pool)


def make_agent(pool: Pool, **options: object) -> Agent:
    """Return an agent whose one tool uses the pool."""
    model = ScriptedModel([Use("use_pool"), "Done."])
    return Agent("clerk", model=model, tools=[use_pool], context=pool.open, **options)  # type: ignore[arg-type]


async def test_a_worker_that_is_fenced_while_it_opens_begins_again(
    opened: OpenMidrun,
) -> None:
    """The call of the lost lease gives the opening up; that of the next lease has its own."""
    pool = Pool()
    midrun = await opened(make_agent(pool))
    run = await midrun.start("clerk", "go")
    await pool.opening.wait()
    get_worker(midrun)._fence_loops()
    await yield_until(lambda: pool.log[1:] == ["given up", "begin"])
    pool.gate.set()
    await run.until("completed")
    assert [done.result for done in await read_entries(run, CallDone)][1] is True
    assert pool.log == ["begin", "given up", "begin", "open"]


async def test_a_worker_that_closes_while_it_opens_gives_up(path: Path) -> None:
    """The run is given back with an aborted call, and another worker continues it."""
    pool = Pool()
    agent = make_agent(pool)
    async with Midrun(get_store_url(path), agents=[agent]) as midrun:
        run = await midrun.start("clerk", "go")
        await pool.opening.wait()
    assert pool.log == ["begin", "given up"]
    pool.gate.set()
    async with Midrun(get_store_url(path), agents=[agent]) as midrun:
        await (await midrun.get(run.id)).until("completed")
    assert pool.log[2:] == ["begin", "open", "close"]


async def test_a_failed_context_fails_a_model_call_by_name(opened: OpenMidrun) -> None:
    """The run can be resumed: the next model call opens the context again."""
    attempts = 0

    def connect() -> str:
        nonlocal attempts
        attempts += 1
        if attempts == 1:
            raise OSError("no database")
        return "You serve ada."

    def instruct(call: Call) -> str:
        return str(call.context)

    agent = Agent(
        "clerk", model=ScriptedModel(["Done."]), context=connect, instructions=instruct
    )
    run = await (await opened(agent)).start("clerk", "go")
    view = await run.until("failed")
    assert "Cannot open the context of agent clerk: OSError: no database." in view.error
    await run.resume()
    await run.until("completed")
    assert attempts == 2
