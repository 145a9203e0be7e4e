"""`call.context` and instructions that a function makes, on the ordinary loop."""

import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import anyio
import pytest

from midrun import Agent, Call, Completed, Failed, Midrun, Misconfigured, tool
from midrun.core.entries import CallAborted, CallDone, CallFailed, CallUnknown, ProgressSaved
from midrun.core.transcript import Transcript
from midrun.core.values import Json
from midrun.models import ScriptedModel, Use
from midrun.ports.model import Prompt
from midrun.stops import MaxSteps
from tests.support.run_journal import read_entries, read_journal, wait_for_entry
from tests.support.store_choice import get_store_url
from tests.unit.runs.conftest import OpenMidrun


class Account:
    """A context that records when it is opened and closed; it cannot be encoded."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.lock = threading.Lock()

    @asynccontextmanager
    async def open(self, run_id: str) -> AsyncIterator["Account"]:
        """Open the context for a call."""
        assert run_id.startswith("run_")
        self.log.append("open")
        try:
            yield self
        finally:
            self.log.append("close")


class RecordingModel(ScriptedModel):
    """A scripted model that records the instructions of each call."""

    def __init__(self, *turns: object) -> None:
        super().__init__(list(turns))  # type: ignore[arg-type]  # checked there
        self.instructions: list[str] = []

    def stream(self, prompt: Prompt):  # type: ignore[no-untyped-def]  # noqa: ANN201 - as the base
        """Record the instructions, and play the turn."""
        self.instructions.append(prompt.instructions)
        return super().stream(prompt)


def get_account(call: Call) -> Account:
    """Return the context of a call."""
    assert isinstance(call.context, Account)
    return call.context


async def refund(call: Call, args: Json, result: Json) -> None:
    """Undo a charge."""
    del args, result
    get_account(call).log.append("undone")


@tool(undo=refund)
async def charge(call: Call, cents: int) -> int:
    """Charge an account."""
    get_account(call).log.append(f"charged {cents}")
    return cents


@tool
async def look() -> str:
    """Look, without a context."""
    return "seen"


def block(call: Call) -> str:
    """Use the context in a blocking function."""
    get_account(call).log.append("blocked")
    return "done"


def make_agent(account: Account, *turns: object, **options: object) -> Agent:
    """Return an agent with this context and these turns."""
    model = RecordingModel(*turns)
    return Agent("clerk", model=model, context=account.open, **options)  # type: ignore[arg-type]


async def test_a_tool_that_takes_a_call_has_the_context_open_while_it_runs() -> None:
    """A tool that takes no call opens nothing, and nothing of the context is journaled."""
    account = Account()
    agent = make_agent(
        account, Use("look"), Use("charge", cents=5), "Done.", tools=[charge, look]
    )
    assert isinstance(await agent.run("go"), Completed)
    assert account.log == ["open", "charged 5", "close"]


async def test_a_context_manager_of_a_generator_is_entered_and_left() -> None:
    """Other objects that can be entered are passed on as they are."""
    log: list[str] = []

    @contextmanager
    def open_log() -> Iterator[str]:
        log.append("opened")
        try:
            yield "the log"
        finally:
            log.append("closed")

    @tool
    async def look_inside(call: Call) -> str:
        log.append(f"saw {call.context}")
        return ""

    model = ScriptedModel([Use("look_inside"), "Done."])
    agent = Agent("a", model=model, tools=[look_inside], context=open_log)
    assert isinstance(await agent.run("go"), Completed)
    assert log == ["opened", "saw the log", "closed"]


async def test_a_blocking_tool_in_a_thread_has_the_context() -> None:
    account = Account()
    agent = make_agent(account, Use("block"), "Done.", tools=[tool(block, in_process=True)])
    assert isinstance(await agent.run("go"), Completed)
    assert account.log == ["open", "blocked", "close"]


async def test_the_context_of_a_tool_in_a_thread_may_have_a_task_group(
    opened: OpenMidrun,
) -> None:
    """A pause meanwhile stops neither the thread nor the tasks of the context."""
    log, started, gate = list[str](), anyio.Event(), threading.Event()

    async def work_beside() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            log.append("tasks end")

    @asynccontextmanager
    async def open_group(run_id: str) -> AsyncIterator[anyio.Event]:
        assert run_id
        async with anyio.create_task_group() as group:
            group.start_soon(work_beside)
            yield started
            group.cancel_scope.cancel()

    def block(call: Call) -> str:
        assert isinstance(call.context, anyio.Event)
        anyio.from_thread.run_sync(call.context.set)
        assert gate.wait(60)
        log.append("blocked")
        return "done"

    agent = Agent(
        "clerk",
        model=ScriptedModel([Use("block"), "Done."]),
        tools=[tool(block, in_process=True)],
        context=open_group,
    )
    run = await (await opened(agent)).start("clerk", "go")
    await started.wait()
    await run.pause(now=True)
    gate.set()
    await run.until("paused")
    assert log == ["blocked", "tasks end"]
    assert [done.result for done in await read_entries(run, CallDone) if done.result] == [
        "done"
    ]


# ── a blocking tool in a process of its own ──────────────────────────────────


@contextmanager
def open_ledger() -> Iterator[Path]:
    """Open a folder in which the functions below count; it is named by a declared variable."""
    folder = Path(os.environ["LEDGER"])
    write_line(folder, "open")
    try:
        yield folder
    finally:
        write_line(folder, "close")


@contextmanager
def open_ledger_of(run_id: str) -> Iterator[Path]:
    """Open the ledger of one call, and fail to close it."""
    with open_ledger() as folder:
        write_line(folder, run_id[:4])
        yield folder
        raise OSError("commit failed")


def write_line(folder: Path, text: str) -> None:
    """Append a line, with the process that writes it."""
    with (folder / "log").open("a") as file:
        file.write(f"{text} {os.getpid()}\n")


def use_ledger(call: Call) -> int:
    """Use the context twice."""
    for _ in range(2):
        assert isinstance(call.context, Path)
        write_line(call.context, "used")
    return os.getpid()


def ignore_ledger(call: Call) -> str:
    """Take a call, and leave its context alone."""
    return call.run_id[:4]


def hang_in_ledger(call: Call) -> None:
    """Open the context, and never return."""
    assert isinstance(call.context, Path)
    call.save("opened")  # type: ignore[unused-awaitable]  # it blocks in a process
    threading.Event().wait()


def make_ledger_agent(folder: Path, *turns: object, **options: object) -> Agent:
    """Return an agent with blocking tools that count in `folder`."""
    chosen: dict[str, object] = {"context": open_ledger, **options}
    return Agent(
        "clerk",
        model=ScriptedModel(list(turns)),  # type: ignore[arg-type]  # checked there
        tools=[use_ledger, ignore_ledger, hang_in_ledger],
        tool_env={"LEDGER": str(folder)},
        **chosen,  # type: ignore[arg-type]
    )


def read_lines(folder: Path) -> list[list[str]]:
    """Return the words of each line in the ledger."""
    log = folder / "log"
    return [line.split() for line in log.read_text().splitlines()] if log.exists() else []


async def test_a_blocking_tool_in_a_process_opens_the_context_when_it_uses_it(
    opened: OpenMidrun, tmp_path: Path
) -> None:
    """Once in each process; the worker and a tool that does not use it open nothing."""
    turns = Use("use_ledger"), Use("ignore_ledger"), Use("use_ledger"), "Done."
    run = await (await opened(make_ledger_agent(tmp_path, *turns))).start("clerk", "go")
    await run.until("completed")
    first, ignored, second = [
        done.result for done in await read_entries(run, CallDone) if not done.reply
    ]
    assert ignored == "run_"
    assert first != second
    assert read_lines(tmp_path) == [
        [word, str(process)]
        for process in (first, second)
        for word in ("open", "used", "used", "close")
    ]


async def test_a_context_that_a_process_cannot_close_leaves_the_outcome_unknown(
    opened: OpenMidrun, tmp_path: Path
) -> None:
    agent = make_ledger_agent(tmp_path, Use("use_ledger"), "Done.", context=open_ledger_of)
    run = await (await opened(agent)).start("clerk", "go")
    await run.until("waiting")
    assert len(await read_entries(run, CallUnknown)) == 1
    assert [line[0] for line in read_lines(tmp_path)] == [
        "open", "run_", "used", "used", "close"
    ]  # fmt: skip


async def test_a_process_that_is_killed_takes_its_context_with_it(
    opened: OpenMidrun, tmp_path: Path
) -> None:
    """SIGTERM ends it at once: the context is not closed, and the run goes on."""
    agent = make_ledger_agent(tmp_path, Use("hang_in_ledger"))
    run = await (await opened(agent)).start("clerk", "go")
    await wait_for_entry(run, ProgressSaved)
    await run.cancel()
    await run.until("cancelled")
    assert [line[0] for line in read_lines(tmp_path)] == ["open"]


async def fail_to_open() -> None:
    """Fail, as an async factory."""
    raise OSError("never awaited")


@pytest.mark.parametrize(
    ("context", "problem"),
    [
        (lambda: None, "which cannot import the function of context="),
        (fail_to_open, "the function of context= is async"),
    ],
)
async def test_a_blocking_tool_in_a_process_is_told_that_it_cannot_have_the_context(
    opened: OpenMidrun, tmp_path: Path, context: Callable[[], object], problem: str
) -> None:
    """A tool that does not use the context works all the same."""
    turns = Use("use_ledger"), Use("ignore_ledger"), "Done."
    agent = make_ledger_agent(tmp_path, *turns, context=context)
    run = await (await opened(agent)).start("clerk", "go")
    await run.until("completed")
    (failed,) = await read_entries(run, CallFailed)
    assert problem in failed.error


async def test_a_factory_in_a_process_names_a_variable_that_is_not_declared(
    opened: OpenMidrun,
) -> None:
    agent = Agent(
        "clerk",
        model=ScriptedModel([Use("use_ledger"), "Done."]),
        tools=[use_ledger],
        context=open_ledger,
    )
    run = await (await opened(agent)).start("clerk", "go")
    await run.until("completed")
    (failed,) = await read_entries(run, CallFailed)
    assert failed.error.startswith("ContextFailed: Cannot open the context")
    assert "LEDGER" in failed.error
    assert "tool_env" in failed.error


# ── a context that all calls of a worker share ───────────────────────────────


class SharedAccount(Account):
    """An account whose factory takes no run, so that a worker opens it once."""

    @asynccontextmanager
    async def open_shared(self) -> AsyncIterator[Account]:
        """Open the context of a worker."""
        async with self.open("run_") as account:
            yield account


def make_sharing_agent(account: SharedAccount, *turns: object, **options: object) -> Agent:
    """Return an agent whose calls share the account."""
    model = RecordingModel(*turns)
    return Agent("clerk", model=model, context=account.open_shared, **options)  # type: ignore[arg-type]


async def test_a_worker_opens_the_context_once_and_closes_it_when_it_closes(
    path: Path,
) -> None:
    """Tools, threads, an undo and instructions of all its runs share it."""
    account, hanging = SharedAccount(), anyio.Semaphore(0)

    @tool
    async def hang(call: Call) -> None:
        get_account(call)
        hanging.release()
        await anyio.sleep_forever()

    agent = make_sharing_agent(
        account,
        [Use("charge", cents=1), Use("charge", cents=2), Use("block")],
        Use("hang"),
        tools=[charge, tool(block, in_process=True), hang],
        instructions=instruct,
    )
    for _ in range(2):  # two workers, one after the other
        account.log.clear()
        async with Midrun(get_store_url(path), agents=[agent]) as midrun:
            runs = [await midrun.start(agent, "go") for _ in range(2)]
            for _ in runs:
                await hanging.acquire()
            for run in runs:
                await run.cancel(undo="all")
                await run.until("cancelled")
            assert account.log[0] == "open"
            assert set(account.log[1:]) == {"charged 1", "charged 2", "blocked", "undone"}
        assert account.log[-1] == "close"
        assert (account.log.count("open"), account.log.count("close")) == (1, 1)


async def test_an_undo_has_the_context(opened: OpenMidrun) -> None:
    account = Account()
    waiting = anyio.Event()

    @tool
    async def wait() -> None:
        waiting.set()
        await anyio.Event().wait()

    agent = make_agent(account, Use("charge", cents=5), Use("wait"), tools=[charge, wait])
    run = await (await opened(agent)).start("clerk", "go")
    await waiting.wait()
    await run.cancel(undo="all")
    await run.until("cancelled")
    assert account.log == ["open", "charged 5", "close", "open", "undone", "close"]


async def test_a_stop_closes_the_context(opened: OpenMidrun) -> None:
    account, started = Account(), anyio.Event()

    @tool
    async def hang(call: Call) -> None:
        get_account(call).log.append("hangs")
        started.set()
        await anyio.Event().wait()

    run = await (await opened(make_agent(account, Use("hang"), tools=[hang]))).start(
        "clerk", "go"
    )
    await started.wait()
    await run.cancel()
    await run.until("cancelled")
    assert len(await read_entries(run, CallAborted)) == 1
    assert account.log == ["open", "hangs", "close"]


async def test_a_context_that_cannot_be_closed_leaves_the_outcome_unknown(
    opened: OpenMidrun,
) -> None:
    """The function has returned, but a commit in the context may have failed."""

    @asynccontextmanager
    async def session(run_id: str) -> AsyncIterator[str]:
        assert run_id
        yield "session"
        raise OSError("commit failed")

    @tool
    async def insert(call: Call) -> object:
        return call.context

    agent = Agent(
        "clerk", model=ScriptedModel([Use("insert"), "Done."]), tools=[insert], context=session
    )
    run = await (await opened(agent)).start("clerk", "go")
    await run.until("waiting")
    assert len(await read_entries(run, CallUnknown)) == 1
    await run.answer("yes")
    await run.until("completed")


async def test_a_context_that_cannot_be_opened_fails_the_call() -> None:
    def refuse() -> None:
        raise OSError("no database")

    seen: list[str] = []

    def end(messages: Transcript) -> str:
        seen.extend(use.problem for turn in messages for use in turn.uses)
        return "Done."

    model = ScriptedModel([Use("charge", cents=1), end])
    agent = Agent("clerk", model=model, tools=[charge], context=refuse)
    assert isinstance(await agent.run("go"), Completed)
    problem = "Cannot open the context of agent clerk: OSError: no database."
    assert seen == [f"ContextFailed: {problem} The next call opens it again."]


async def test_an_error_at_the_end_of_the_context_of_a_model_call_keeps_its_reply(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The model was paid for it, and has changed nothing that could be undone."""

    @asynccontextmanager
    async def session(run_id: str) -> AsyncIterator[str]:
        assert run_id
        yield "session"
        raise OSError("connection lost")

    def instruct_with(call: Call) -> str:
        return str(call.context)

    model = RecordingModel("Done.")
    outcome = await Agent(
        "clerk", model=model, context=session, instructions=instruct_with
    ).run("go")
    assert isinstance(outcome, Completed)
    assert (outcome.output, model.instructions) == ("Done.", ["session"])
    assert "Cannot close the context of call" in caplog.text
    assert "connection lost" in caplog.text


# ── instructions ─────────────────────────────────────────────────────────────


async def instruct(call: Call) -> str:
    """Return the instructions of a step."""
    account = get_account(call)
    await call.note("thinking")
    return f"Account {len(account.log)}, step {len(call.transcript)} of {call.run_id[:4]}."


def instruct_plainly() -> str:
    """Return instructions that depend on nothing."""
    return "Be brief."


async def test_a_function_makes_the_instructions_of_each_step() -> None:
    account = Account()
    agent = make_agent(account, Use("look"), "Done.", tools=[look], instructions=instruct)
    assert isinstance(await agent.run("go"), Completed)
    model = agent.model
    assert isinstance(model, RecordingModel)
    assert model.instructions == ["Account 1, step 1 of run_.", "Account 3, step 2 of run_."]
    assert account.log == ["open", "close"] * 2


async def test_a_function_without_parameters_needs_no_context() -> None:
    account = Account()
    agent = make_agent(account, "Done.", instructions=instruct_plainly)
    assert isinstance(await agent.run("go"), Completed)
    assert isinstance(agent.model, RecordingModel)
    assert (agent.model.instructions, account.log) == (["Be brief."], [])


async def test_instructions_are_made_again_after_a_resume_in_another_process(
    path: Path,
) -> None:
    """The text may have changed meanwhile; only the conversation is journaled."""
    texts = iter(["Monday.", "Tuesday."])
    store = get_store_url(path)

    def instruct_by_day() -> str:
        return next(texts)

    def declare() -> Agent:
        return make_agent(
            Account(), Use("look"), "Done.", tools=[look], instructions=instruct_by_day
        )

    first, second = declare(), declare()
    assert first.fingerprint == second.fingerprint
    async with Midrun(store, agents=[first]) as midrun:
        run = await midrun.start("clerk", "go", stop=MaxSteps(1))
        await run.until("paused")
    async with Midrun(store, agents=[second]) as midrun:
        run = await midrun.get(run.id)
        await run.resume(caps={"steps": 5})
        await run.until("completed")
        journal = str(await read_journal(run))
    assert isinstance(second.model, RecordingModel)
    assert second.model.instructions == ["Tuesday."]
    assert "Monday" not in journal
    assert "Tuesday" not in journal


@pytest.mark.parametrize("made", [None, 7])
async def test_a_function_that_returns_no_text_fails_the_run(made: object) -> None:
    agent = make_agent(Account(), "Done.", instructions=lambda: made)
    failed = await agent.run("go")
    assert isinstance(failed, Failed)
    assert failed.code == "agent_code_failed"
    assert "must return a str" in failed.error


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        ({"context": "db"}, "context must be a function that makes the dependencies"),
        ({"context": lambda pool: pool}, "context must be callable as context"),
        ({"instructions": lambda text: text}, "must be a function that takes"),
    ],
)
def test_a_context_or_instructions_that_cannot_be_called_are_refused(
    options: dict[str, object], advice: str
) -> None:
    with pytest.raises(Misconfigured, match=advice):
        Agent("clerk", model=ScriptedModel([]), **options)  # type: ignore[arg-type]  # on purpose


def test_the_fingerprint_has_the_name_of_the_function_and_not_the_context() -> None:
    def fingerprint(instructions: str | Callable[[], str], **options: object) -> str:
        model = ScriptedModel([])
        return Agent("a", model=model, instructions=instructions, **options).fingerprint  # type: ignore[arg-type]

    assert fingerprint(instruct_plainly) == fingerprint(instruct_plainly, context=dict)
    assert fingerprint(instruct_plainly) != fingerprint("Be brief.")
