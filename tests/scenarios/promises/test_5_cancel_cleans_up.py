"""Promise 5: cancel cleans up.

Calls in flight are undone, with `undo="all"` also the finished ones, in reverse order. Held
resources are released at each end of a run. A failed undo is retried with the same key, also
after a crash. The report lists each call with its outcome, and keeps the partial work.
"""

import threading
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from pathlib import Path

import anyio
import pytest

from midrun import Agent, Call, Cancelled, ControlRefused, Midrun, Report, Run, pause_here, tool
from midrun.core.entries import (
    CallAborted,
    CallDone,
    ResidueAccepted,
    RunCancelled,
    UndoFailed,
    UndoGaveUp,
    UndoStarted,
    UndoUnknown,
)
from midrun.models import ScriptedModel, Use
from midrun.testing.controllable_tools import ControllableTools
from tests.scenarios.promises.killable_process import ONE_HOUR_AHEAD, EffectsFile, start_process
from tests.support.gated_model import GatedModel, GatedReply
from tests.support.run_journal import read_entries, yield_until
from tests.support.store_choice import get_store_url
from tests.support.undoable_drafts import (
    UNDO_ATTEMPTS,
    UndoableDrafts,
    get_names,
    make_fast_environment,
)
from tests.unit.runs.conftest import OpenMidrun

# ── the undo set, and its order ───────────────────────────────────────────────────────────


async def test_calls_are_undone_in_the_reverse_order_of_their_ends(
    opened: OpenMidrun,
) -> None:
    """The order in which they were requested or started does not matter."""
    drafts = UndoableDrafts()
    step: list[str | Use] = [Use("dictate", name=name) for name in "abc"]
    midrun = await opened(drafts.agent(step, Use("slow", name="x")))
    run = await midrun.start("actor", "go")
    for name in "abc":
        await drafts.controllable_tools.start(name).wait()
    for name in ("b", "c", "a"):
        drafts.controllable_tools.gate(name).set()
        await yield_until(partial(drafts.controllable_tools.completed.__contains__, name))
    await drafts.controllable_tools.start("x").wait()
    await run.cancel(undo="all")
    await run.until("cancelled")
    assert drafts.controllable_tools.undone == ["a", "c", "b"]


async def test_by_default_a_cancel_undoes_calls_in_flight_and_keeps_finished_ones(
    opened: OpenMidrun,
) -> None:
    """The undo of a call in flight gets no result."""
    drafts = UndoableDrafts()
    midrun = await opened(drafts.agent(Use("write", name="done"), Use("dictate", name="half")))
    run = await midrun.start("actor", "go")
    await drafts.controllable_tools.start("half").wait()
    await run.cancel()
    await run.until("cancelled")
    assert [(name, result) for name, _, result in drafts.undo_calls] == [("half", None)]
    report = await run.report()
    assert get_names(report.done) == ["done"]
    assert get_names(report.undone) == ["half"]


async def test_an_undo_gets_the_arguments_and_the_result_of_its_call(
    opened: OpenMidrun,
) -> None:
    drafts = UndoableDrafts()
    midrun = await opened(drafts.agent(Use("write", name="a"), Use("slow", name="x")))
    run = await midrun.start("actor", "go")
    await drafts.controllable_tools.start("x").wait()
    await run.cancel(undo="all")
    await run.until("cancelled")
    assert [(name, result) for name, _, result in drafts.undo_calls] == [("a", "a written")]


# ── release ───────────────────────────────────────────────────────────────────────────────


async def complete_run(run: Run, tools: ControllableTools) -> None:
    """Let the run complete."""
    tools.gate("x").set()
    await run.until("completed")


async def cancel_run(run: Run, _: ControllableTools) -> None:
    """Cancel the run; finished calls are kept."""
    await run.cancel()
    await run.until("cancelled")


async def cancel_paused_run(run: Run, _: ControllableTools) -> None:
    """Cancel the run while no worker drives it."""
    await run.pause(now=True)
    await run.until("paused")
    await run.cancel()
    await run.until("cancelled")


@pytest.mark.parametrize("end_run", [complete_run, cancel_run, cancel_paused_run])
async def test_held_resources_are_released_at_each_end_of_a_run(
    opened: OpenMidrun, end_run: Callable[[Run, ControllableTools], Awaitable[None]]
) -> None:
    """They are released in reverse order, each once."""
    tools = ControllableTools()
    script = (Use("lock", name="1"), Use("lock", name="2"), Use("slow", name="x"), "Done.")
    midrun = await opened(tools.agent(*script))
    run = await midrun.start("actor", "go")
    await tools.start("x").wait()
    assert tools.released == []
    await end_run(run, tools)
    assert tools.released == ["2", "1"]
    assert not (await run.report()).still_held


async def test_a_failed_run_keeps_its_resources_until_it_is_cancelled(
    opened: OpenMidrun,
) -> None:
    """A failed run can be resumed, so it has not ended."""
    tools = ControllableTools()
    midrun = await opened(tools.agent(Use("lock", name="1")))
    run = await midrun.start("actor", "go")
    await run.until("failed")
    assert tools.released == []
    await run.cancel()
    await run.until("cancelled")
    assert tools.released == ["1"]


async def test_a_release_that_always_fails_does_not_block_the_completion(
    path: Path,
) -> None:
    """After the last attempt the resource is reported as still held."""
    tries: list[str] = []

    async def unlock(call: Call, args: dict[str, str], result: object) -> None:
        del args, result
        tries.append(call.key)
        raise OSError("no connection")

    @tool(release=unlock)
    async def lock(name: str) -> str:
        """Hold a resource."""
        return f"{name} locked"

    agent = Agent("actor", model=ScriptedModel([Use("lock", name="t"), "Done."]), tools=[lock])
    with anyio.fail_after(60):
        async with Midrun(
            get_store_url(path), agents=[agent], outside=make_fast_environment()
        ) as midrun:
            run = await midrun.start("actor", "go")
            await run.until("completed")
            assert len(tries) == UNDO_ATTEMPTS
            assert len(set(tries)) == 1
            report = await run.report()
            assert get_names(report.still_held) == ["t"]
            assert not report.clean
            assert await midrun.verify(run.id)


# ── retries ───────────────────────────────────────────────────────────────────────────────


async def test_a_failed_undo_is_retried_with_the_same_key(path: Path) -> None:
    """Each attempt is an entry of its own."""
    drafts = UndoableDrafts()
    drafts.failures_left["a"] = 2
    agent = drafts.agent(Use("write", name="a"), Use("write", name="b"), Use("slow", name="x"))
    with anyio.fail_after(60):
        async with Midrun(
            get_store_url(path), agents=[agent], outside=make_fast_environment()
        ) as midrun:
            run = await midrun.start("actor", "go")
            await drafts.controllable_tools.start("x").wait()
            await run.cancel(undo="all")
            await run.until("cancelled")
            assert [name for name, _, _ in drafts.undo_calls] == ["b", "a", "a", "a"]
            keys = {name: key for name, key, _ in drafts.undo_calls}
            assert {key for name, key, _ in drafts.undo_calls if name == "a"} == {keys["a"]}
            assert keys["a"] != keys["b"]
            starts = [s.attempt for s in await read_entries(run, UndoStarted)]
            assert starts == [1, 1, 2, 3]
            assert drafts.controllable_tools.undone == ["b", "a"]
            assert (await run.report()).clean
            assert await midrun.verify(run.id)


async def test_an_undo_has_a_key_of_its_own(opened: OpenMidrun) -> None:
    """With the key of the call, a remote service would take the undo for a repetition."""
    drafts = UndoableDrafts()
    midrun = await opened(drafts.agent(Use("write", name="a"), Use("slow", name="x")))
    run = await midrun.start("actor", "go")
    await drafts.controllable_tools.start("x").wait()
    await run.cancel(undo="all")
    await run.until("cancelled")
    ((_, key, _),) = drafts.undo_calls
    assert key != drafts.call_keys["a"]


async def test_a_failed_undo_waits_before_its_retry(opened: OpenMidrun) -> None:
    """This test uses the real clock; the other tests of retries use a fast one."""
    drafts = UndoableDrafts()
    drafts.failures_left["a"] = 1
    midrun = await opened(drafts.agent(Use("write", name="a"), Use("slow", name="x")))
    run = await midrun.start("actor", "go")
    await drafts.controllable_tools.start("x").wait()
    await run.cancel(undo="all")
    await run.until("cancelled")
    (failed,) = await read_entries(run, UndoFailed)
    at = [r.at for r in await midrun.store.read(run.id) if isinstance(r.entry, UndoStarted)]
    assert failed.retry_at is not None
    assert at[0] < failed.retry_at <= at[1]


async def test_an_undo_that_always_fails_is_reported_and_the_others_still_run(
    path: Path,
) -> None:
    """After a repair, an operator retries it."""
    drafts = UndoableDrafts()
    drafts.failures_left["b"] = UNDO_ATTEMPTS
    turns = [Use("write", name=name) for name in "abc"]
    agent = drafts.agent(*turns, Use("slow", name="x"))
    with anyio.fail_after(60):
        async with Midrun(
            get_store_url(path), agents=[agent], outside=make_fast_environment()
        ) as midrun:
            run = await midrun.start("actor", "go")
            await drafts.controllable_tools.start("x").wait()
            await run.cancel(undo="all")
            await run.until("cancelled")
            assert [name for name, _, _ in drafts.undo_calls] == [
                "c",
                *"b" * UNDO_ATTEMPTS,
                "a",
            ]
            (given_up,) = await read_entries(run, UndoGaveUp)
            (ended,) = await read_entries(run, RunCancelled)
            assert [left.call for left in ended.residue] == [given_up.call]
            report = await run.report()
            assert get_names(report.undone) == ["c", "a"]  # in the order of their undos
            assert get_names(report.not_undone) == ["b"]
            assert "cannot reach b" in report.not_undone[0].note
            assert not report.clean
            receipt = await run.retry_undo(actor="operator:olga")
            assert receipt.phase == "cancelling"
            await run.until("cancelled")
            assert drafts.controllable_tools.undone == ["c", "a", "b"]
            assert (await run.report()).clean
            assert len({key for name, key, _ in drafts.undo_calls if name == "b"}) == 1
            with pytest.raises(ControlRefused, match="no_residue"):
                await run.retry_undo(actor="operator:olga")
            assert await midrun.verify(run.id)


async def test_an_operator_can_accept_the_residue(path: Path) -> None:
    """The acceptance is journaled; the report still lists the call as not undone."""
    drafts = UndoableDrafts()
    drafts.failures_left["a"] = UNDO_ATTEMPTS
    agent = drafts.agent(Use("write", name="a"), Use("slow", name="x"))
    with anyio.fail_after(60):
        async with Midrun(
            get_store_url(path), agents=[agent], outside=make_fast_environment()
        ) as midrun:
            run = await midrun.start("actor", "go")
            await drafts.controllable_tools.start("x").wait()
            with pytest.raises(ControlRefused, match="no_residue"):
                await run.accept_residue(actor="operator:olga")
            await run.cancel(undo="all")
            await run.until("cancelled")
            assert (await midrun.store.get_row(run.id)).head.attention
            await run.accept_residue(actor="operator:olga", reason="it is a draft")
            (accepted,) = await read_entries(run, ResidueAccepted)
            assert (accepted.by, accepted.reason) == ("olga", "it is a draft")
            assert not (await midrun.store.get_row(run.id)).head.attention
            assert get_names((await run.report()).not_undone) == ["a"]
            with pytest.raises(ControlRefused, match="no_residue"):
                await run.accept_residue(actor="operator:olga")


# ── after a crash ─────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("point", ["discard:before", "discard:after"])
async def test_an_undo_interrupted_by_a_crash_is_repeated_with_the_same_key(
    path: Path, tmp_path: Path, opened: OpenMidrun, point: str
) -> None:
    """Undos run at least once; a remote service recognises a repetition by the key."""
    effects = EffectsFile(tmp_path)
    with start_process("cancel", path, tmp_path, "drafts", point) as process:
        run_id = process.read_line()
        process.kill()
    assert (await (await opened()).get(run_id)).id == run_id
    agents = [effects.agent("drafts")]
    async with Midrun(get_store_url(path), agents=agents, outside=ONE_HOUR_AHEAD) as midrun:
        run = await midrun.get(run_id)
        await run.until("cancelled")
        assert len(await read_entries(run, UndoUnknown)) == 1
        assert [start.attempt for start in await read_entries(run, UndoStarted)] == [1, 2, 1]
        assert (await run.report()).clean
    twice = point == "discard:after"
    discarded = [line for line in effects.read_effects() if line.startswith("discard")]
    assert discarded == ["discard 2"] * (1 + twice) + ["discard 1"]
    assert (
        len(
            {
                key
                for line, key in zip(effects.read_effects(), effects.read_keys(), strict=True)
                if line == "discard 2"
            }
        )
        == 1
    )


async def test_a_cancel_without_a_worker_is_cleaned_up_by_the_next_one(
    path: Path, opened: OpenMidrun
) -> None:
    """The process that cancels the paused run has no agents."""
    tools = ControllableTools()
    agent = tools.agent(Use("draft", name="a"), Use("lock", name="t"), Use("slow", name="x"))
    async with Midrun(get_store_url(path), agents=[agent]) as first:
        run = await first.start("actor", "go")
        await tools.start("x").wait()
        await run.pause(now=True)
        await run.until("paused")
    without_agents = await opened()
    found = await without_agents.get(run.id)
    assert (await found.cancel(undo="all")).phase == "cancelling"
    assert tools.undone == []
    await opened(agent)
    await found.until("cancelled")
    assert (tools.undone, tools.released) == (["a"], ["t"])


# ── calls whose outcome is not certain ────────────────────────────────────────────────────


async def test_a_call_that_ends_after_the_cancel_is_undone_with_its_result(
    opened: OpenMidrun,
) -> None:
    """It was in flight when the cancel came, so its success does not exempt it."""
    drafts = UndoableDrafts()

    @tool(undo=drafts.discard)
    async def insist(name: str) -> str:
        """Wait for the gate in a shielded scope, and finish."""
        drafts.controllable_tools.start(name).set()
        with anyio.CancelScope(shield=True):
            await drafts.controllable_tools.gate(name).wait()
        return f"{name} insisted"

    model = ScriptedModel([Use("insist", name="a")])
    midrun = await opened(Agent("actor", model=model, tools=[insist]))
    run = await midrun.start("actor", "go")
    await drafts.controllable_tools.start("a").wait()
    await run.cancel()
    drafts.controllable_tools.gate("a").set()
    await run.until("cancelled")
    assert [d.result for d in await read_entries(run, CallDone) if not d.reply] == [
        "a insisted"
    ]
    assert [(name, result) for name, _, result in drafts.undo_calls] == [("a", "a insisted")]
    assert get_names((await run.report()).undone) == ["a"]


@pytest.mark.parametrize("script", ["book", "fetch"])
async def test_an_unknown_first_attempt_counts_when_the_second_one_is_stopped(
    path: Path, tmp_path: Path, script: str
) -> None:
    """The first attempt took effect and was killed; the second was stopped before that."""
    with start_process("drive", path, tmp_path, script, f"{script}:after") as process:
        run_id = process.read_line()
        process.kill()
    effects = EffectsFile(tmp_path, stop_at=f"{script}:before")
    agents = [effects.agent(script)]
    with anyio.fail_after(60):
        async with Midrun(get_store_url(path), agents=agents, outside=ONE_HOUR_AHEAD) as midrun:
            run = await midrun.get(run_id)
            await effects.reached.wait()
            await run.cancel()
            await run.until("cancelled")
            report = await run.report()
            assert len(await read_entries(run, CallAborted)) == 1
            assert await midrun.verify(run_id)
    if script == "book":
        assert effects.read_effects() == ["book a", "discard a"]
        assert get_names(report.undone) == ["a"]
        assert report.clean
    else:
        assert effects.read_effects() == ["fetch a"]
        assert get_names(report.unsure) == ["a"]
        assert not report.clean


async def test_undo_unknown_false_skips_a_call_that_may_not_have_happened(
    opened: OpenMidrun,
) -> None:
    """The report lists it as not undone, so that a person can look at it."""
    tools = ControllableTools()
    tried: list[str] = []

    async def refund(call: Call, args: dict[str, str], result: object) -> None:
        del call, result
        tried.append(args["name"])

    @tool(undo=refund, undo_unknown=False)
    async def charge(call: Call, name: str) -> str:
        """Charge a card when the test opens the gate."""
        del call
        tools.start(name).set()
        await tools.gate(name).wait()
        return "charged"

    model = ScriptedModel([[Use("charge", name="a"), Use("charge", name="b")]])
    midrun = await opened(Agent("actor", model=model, tools=[charge]))
    run = await midrun.start("actor", "go")
    await tools.start("a").wait()
    await tools.start("b").wait()
    tools.gate("a").set()
    with anyio.fail_after(60):
        while (await run.view()).effects[0].stage != "done":
            await anyio.lowlevel.checkpoint()
    await run.cancel(undo="all")
    await run.until("cancelled")
    assert tried == ["a"]
    report = await run.report()
    assert (get_names(report.undone), get_names(report.not_undone)) == (["a"], ["b"])
    assert "may not have happened" in report.not_undone[0].note


async def test_an_undo_that_hangs_times_out_and_is_retried(path: Path) -> None:
    """Its limit is the timeout of its tool."""
    tools, tries = ControllableTools(), []

    async def discard(call: Call, args: dict[str, str], result: object) -> None:
        del args, result
        tries.append(call.key)
        if len(tries) == 1:
            await anyio.sleep_forever()

    @tool(undo=discard, timeout=timedelta(milliseconds=50))
    async def write(name: str) -> str:
        """Write a draft."""
        return f"{name} written"

    script = [Use("write", name="a"), Use("slow", name="x")]
    agent = Agent("actor", model=ScriptedModel(script), tools=[*tools.tools(), write])
    with anyio.fail_after(60):
        async with Midrun(
            get_store_url(path), agents=[agent], outside=make_fast_environment()
        ) as midrun:
            run = await midrun.start("actor", "go")
            await tools.start("x").wait()
            await run.cancel(undo="all")
            await run.until("cancelled")
            assert [f.error for f in await read_entries(run, UndoFailed)] == [
                "it took too long"
            ]
            assert [s.attempt for s in await read_entries(run, UndoStarted)] == [1, 2]
            assert len(tries) == 2
            assert len(set(tries)) == 1
            assert (await run.report()).clean


async def test_an_undo_that_asks_a_person_fails_and_is_retried(path: Path) -> None:
    """No question is opened during a cancel."""
    tools = ControllableTools()
    tries: list[int] = []

    async def discard(call: Call, args: dict[str, str], result: object) -> None:
        del call, args, result
        tries.append(len(tries))
        if len(tries) == 1:
            pause_here("Really?")

    @tool(undo=discard)
    async def write(name: str) -> str:
        """Write a draft."""
        return f"{name} written"

    script = [Use("write", name="a"), Use("slow", name="x")]
    agent = Agent("actor", model=ScriptedModel(script), tools=[*tools.tools(), write])
    with anyio.fail_after(60):
        async with Midrun(
            get_store_url(path), agents=[agent], outside=make_fast_environment()
        ) as midrun:
            run = await midrun.start("actor", "go")
            await tools.start("x").wait()
            await run.cancel(undo="all")
            view = await run.until("cancelled")
            assert view.asks == ()
            assert len(tries) == 2
            assert len(await read_entries(run, UndoFailed)) == 1


# ── the report ────────────────────────────────────────────────────────────────────────────

GRACE = timedelta(milliseconds=500)
"""Long enough for all tools that can be stopped, also on a slow machine."""


class EveryOutcome:
    """An agent whose calls have each outcome that a report lists."""

    def __init__(self) -> None:
        self.drafts = UndoableDrafts()
        self.thread_gate = threading.Event()

    def agent(self) -> Agent:
        """Return the agent."""
        tools, thread_gate = self.drafts.controllable_tools, self.thread_gate

        @tool
        async def boom(name: str) -> str:
            """Fail."""
            raise ValueError(name)

        @tool(approve=True)
        async def send(name: str) -> str:
            """Need an approval."""
            tools.completed.append(name)
            return name

        @tool(in_process=True)
        def unstoppable(name: str) -> str:
            """Wait in a thread, which cannot be stopped."""
            anyio.from_thread.run_sync(tools.start(name).set)
            thread_gate.wait()
            return name

        script: list[list[str | Use]] = [
            ["Some work first. ", Use("write", name="kept"), Use("boom", name="failed")],
            [
                "And more. ",
                Use("dictate", name="undone"),
                Use("dictate", name="not_undone"),
                Use("slow", name="stopped"),
                Use("unstoppable", name="unsure"),
                Use("send", name="never"),
                Use("lock", name="table"),
            ],
        ]
        all_tools = [*tools.tools(), *self.drafts.tools(), boom, send, unstoppable]
        return Agent("actor", model=ScriptedModel(script), tools=all_tools, grace=GRACE)


async def test_the_report_lists_each_call_under_its_outcome(path: Path) -> None:
    agent_calls = EveryOutcome()
    tools = agent_calls.drafts.controllable_tools
    agent_calls.drafts.failures_left["not_undone"] = UNDO_ATTEMPTS
    with anyio.fail_after(60):
        async with Midrun(
            get_store_url(path), agents=[agent_calls.agent()], outside=make_fast_environment()
        ) as midrun:
            run = await midrun.start("actor", "the whole lot")
            for name in ("undone", "not_undone", "stopped", "unsure", "table"):
                await tools.start(name).wait()
            try:
                await run.cancel()
                outcome = await run.result()
            finally:
                agent_calls.thread_gate.set()
            assert isinstance(outcome, Cancelled)
            report = outcome.report
            assert get_names(report.done) == ["kept"]
            assert get_names(report.released) == ["table"]
            assert get_names(report.failed) == ["failed"]
            assert get_names(report.undone) == tools.undone == ["undone"]
            assert get_names(report.not_undone) == ["not_undone"]
            assert get_names(report.stopped) == ["stopped"]
            assert get_names(report.unsure) == ["unsure"]
            assert get_names(report.never_started) == ["never"]
            assert tools.completed == ["kept", "table"]
            assert tools.released == ["table"]
            assert report.partial == "And more. "
            check_markdown(report)
            assert await midrun.verify(run.id)


def check_markdown(report: Report) -> None:
    """Check that the Markdown lists each call in its section."""
    text = str(report)
    for title, name in (
        ("Done and kept", "kept"),
        ("Undone", "undone"),
        ("Could not be undone", "not_undone"),
        ("Stopped midway", "stopped"),
        ("Unknown whether it happened", "unsure"),
        ("Never started", "never"),
    ):
        section = text.split(f"## {title}\n")[1].split("## ", 1)[0]
        assert f"name “{name}”" in section


async def test_the_text_of_an_interrupted_model_is_kept(opened: OpenMidrun) -> None:
    """It is in the outcome, the report and the view."""
    model = GatedModel(GatedReply("Chapter one. ", "Chapter two.", gate="half"))
    midrun = await opened(Agent("writer", model=model))
    run = await midrun.start("writer", "write a book")
    await model.reached("half").wait()
    await run.cancel()
    outcome = await run.result()
    assert isinstance(outcome, Cancelled)
    assert outcome.report.partial == "Chapter one. "
    assert (await run.view()).output == "Chapter one. "
    assert outcome.report.clean


async def test_a_cancelled_run_that_changed_nothing_has_a_clean_report(
    opened: OpenMidrun,
) -> None:
    """Its only call was read-only."""
    tools = ControllableTools()
    midrun = await opened(tools.agent(Use("read", name="a")))
    run = await midrun.start("actor", "go")
    await tools.start("a").wait()
    await run.cancel()
    await run.until("cancelled")
    report = await run.report()
    assert report.clean
    assert (report.done, report.undone, report.unsure) == ((), (), ())
