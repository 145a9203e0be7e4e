"""Every control of a run has its command, at a store and at a server."""

import inspect
from pathlib import Path
from typing import cast

import anyio
import pytest

from midrun import Midrun
from midrun.cli.command_specs import COMMAND_GROUPS
from midrun.models import Use
from midrun.runs.protocols import AnyRun
from midrun.runs.values import Receipt
from tests.scenarios.promises.drafts import ATTEMPTS, Drafts, hasty
from tests.unit.cli.typist import APP, Typist

pytestmark = pytest.mark.usefixtures("gate")


def started(url: Typist, agent: str, task: str = "Find cats") -> str:
    """Start a run that the server drives until it rests, and return its id."""
    return cast("str", url("run", agent, task, "--json").values[-1]["run_id"])


def working(midrun: Typist, url: Typist) -> str:
    """Start a run that is at work until the gate opens, and return its id."""
    run = started(url, "aside", "Ask me")
    assert midrun("answer", run, "blue").code == 0
    until(midrun, run, in_flight="search")
    return run


def until(midrun: Typist, run: str, **wanted: str) -> dict[str, object]:
    """Look at a run until it is as wanted, and return its view."""
    while True:  # pytest's timeout is the net
        (view,) = midrun("show", run, "--json").values
        flying = cast("list[dict[str, str]]", view.get("in_flight", []))
        if (
            wanted.get("in_flight") in {None, *(call["tool"] for call in flying)}
            and wanted.get("phase", view["phase"]) == view["phase"]
        ):
            return view


def test_what_a_program_can_ask_of_a_run_can_be_typed() -> None:
    """Under the same name, with dashes: nobody has to learn it twice."""
    typed = {name for commands in COMMAND_GROUPS.values() for name in commands}
    asked = {
        name.replace("_", "-")
        for name, method in inspect.getmembers(AnyRun, inspect.isfunction)
        if inspect.signature(method).return_annotation is Receipt
    }
    assert len(asked) == 19
    assert asked - typed == set()
    assert {"fork", "report", "export", "feed", "show", "verify"} <= typed


def test_a_person_takes_over_and_hands_back(midrun: Typist, url: Typist) -> None:
    """What they say and do is the assistant's, and the agent is told."""
    run = started(url, "aside", "Ask me")
    assert midrun("take-over", run).code == 0
    assert "Hand back" in midrun("show", run).out
    assert "(hand-back)" in midrun("show", run).out
    assert midrun("write", run, "It is a cat.").code == 0
    refused = midrun("resume", run)
    assert (refused.code, "taken_over" in refused.err) == (1, True)
    assert f"midrun hand-back {run}" in refused.err
    back = midrun("hand-back", run, "Go on")
    assert back.code == 0, back.err
    assert "It is a cat." in midrun("feed", run).out
    assert midrun("cancel", run).code == 0


@pytest.mark.usefixtures("open_gate")
def test_a_person_uses_a_tool_of_the_agent(midrun: Typist, url: Typist) -> None:
    """At a store somebody has to say which app has it; a server knows."""
    run = started(url, "aside", "Ask me")
    assert midrun("take-over", run).code == 0
    app = ("--app", str(APP)) if "--store" in midrun.where else ()
    if app:
        unknown = midrun("use-tool", run, "search", '{"q": "cats"}')
        assert (unknown.code, "unknown_agent" in unknown.err) == (1, True)
    bad = midrun("use-tool", run, "search", '{"z": 1}', *app)
    assert (bad.code, "bad_arguments" in bad.err) == (1, True), bad.err
    assert midrun("use-tool", run, "search", '{"q": "dogs"}', *app).code == 0
    until(midrun, run, phase="paused")
    assert "all about dogs" in midrun("feed", run).out
    assert midrun("cancel", run).code == 0


def test_words_that_wait_are_withdrawn(midrun: Typist, url: Typist, gate: Path) -> None:
    """By their number, or the newest of them."""
    run = working(midrun, url)
    nothing = midrun("withdraw", run)
    assert (nothing.code, "no request is pending" in nothing.err) == (1, True)
    (first,) = midrun("redirect", run, "Dogs", "--json").values
    assert midrun("redirect", run, "Birds").code == 0
    assert midrun("withdraw", run, str(first["seq"])).code == 0
    shown = midrun("show", run).out
    assert ("Birds" in shown, "Dogs" in shown) == (True, False)
    assert midrun("withdraw", run).code == 0
    assert "Birds" not in midrun("show", run).out
    gate.touch()
    assert "the run completed" in midrun("feed", run, "--follow").out


def test_a_thought_that_is_held_is_dropped(midrun: Typist, url: Typist, gate: Path) -> None:
    """The one on top, if none is named; without one, that is said."""
    run = started(url, "aside", "Ask me")
    nothing = midrun("drop-frame", run)
    assert (nothing.code, "no topic is held" in nothing.err) == (1, True)
    assert midrun("say", run, "How far?").code == 0
    until(midrun, run, in_flight="search")
    assert "held     f1  Ask me" in midrun("show", run).out
    assert "drop-frame" in midrun("show", run).out
    wrong = midrun("resume-frame", run, "f9")
    assert (wrong.code, "no_such_frame" in wrong.err) == (1, True)
    assert midrun("drop-frame", run).code == 0
    gate.touch()
    until(midrun, run, phase="completed")


def test_a_pause_that_does_not_come_to_its_end_is_forced(midrun: Typist, url: Typist) -> None:
    """The call that did not respond is unknown from then on."""
    run = working(midrun, url)
    assert midrun("pause", run).code == 0
    forced = midrun("force-pause", run, "--json")
    assert forced.values[0]["control"] == "force_pause"
    assert forced.values[0]["phase"] == "paused"
    assert midrun("cancel", run).code == 0


@pytest.mark.usefixtures("open_gate")
def test_a_cap_is_raised_by_name(midrun: Typist, url: Typist) -> None:
    """Those that there are; an option's name is none of them."""
    run = started(url, "capped")
    assert midrun("raise-cap", run, "steps=7").code == 0
    assert "steps: 1 of 7" in midrun("show", run).out
    for slip in ("actor=5", "staps=9"):
        said = midrun("raise-cap", run, slip)
        assert (said.code, "the caps are: steps" in said.err) == (1, True), said.err


@pytest.mark.usefixtures("open_gate")
def test_a_run_that_is_over_is_continued_in_another(midrun: Typist, url: Typist) -> None:
    """With its own journal; the first stays as it is."""
    run = started(url, "searcher")
    (made,) = midrun("fork", run, "Now dogs", "--json").values
    assert (made["of"], made["control"]) == (run, "fork")
    assert made["run_id"] != run
    assert "Now dogs" in midrun("feed", str(made["run_id"]), "--follow").out
    entries = midrun("feed", run, "--json").values
    amid = [entry["seq"] for entry in entries if entry["kind"] == "CallStarted"]
    off = midrun("fork", run, "--at", str(amid[-1]))
    assert (off.code, "not_a_boundary" in off.err) == (1, True), off.err


def test_a_feed_that_is_followed_ends_when_the_run_has_failed(
    midrun: Typist, url: Typist
) -> None:
    """Nothing more comes by itself; how it ended is the exit code, as of `run`."""
    run = started(url, "failing")
    followed = midrun("feed", run, "--follow")
    assert (followed.code, "no words after" in followed.out) == (1, True)
    (view,) = midrun("show", run, "--json").values
    assert midrun("feed", run, "--follow", "--after", str(view["seq"])).code == 1
    assert midrun("cancel", run).code == 0
    assert midrun("feed", run, "--follow").code == 3


async def _leaves_something(store: str) -> str:
    drafts = Drafts()
    drafts.fails["a"] = 2 * ATTEMPTS  # also if what an earlier test left is tried again here
    agent = drafts.agent(Use("write", name="a"), Use("slow", name="x"))
    with anyio.fail_after(60):
        async with Midrun(store, agents=[agent], outside=hasty()) as near:
            run = await near.start("actor", "go")
            await drafts.stage.start("x").wait()
            await run.cancel(undo="all")
            await run.until("cancelled")
            return run.id


def test_what_could_not_be_undone_is_taken_as_it_is(
    midrun: Typist, served: tuple[Path, str]
) -> None:
    """Once; where nothing is left, nobody is told that they could."""
    run = anyio.run(_leaves_something, f"sqlite:///{served[0]}/runs.db")
    shown = midrun("show", run).out
    assert "Retry undo: Tries again to undo 1 call.  (retry-undo)" in shown
    assert "accept-residue" in shown
    assert midrun("accept-residue", run).code == 0
    again = midrun("accept-residue", run)
    assert (again.code, "no_residue" in again.err) == (1, True)
    assert "accept_residue," not in again.err
    assert midrun("retry-undo", run).code == 0
