"""The history of a run: condensed, forked, and read by the next run of the thread."""

import pytest

from midrun.core import controls as c
from midrun.core import driver_inputs as v
from midrun.core.entries import (
    CallDone,
    HistoryCondensed,
    RunStarted,
)
from midrun.core.history import iter_history, make_fork_entry
from midrun.core.ids import CallId, Epoch
from midrun.core.journaled_text import shorten_to_line
from midrun.core.transitions import Refused
from midrun.core.values import Actor, Phase, Reply, RequestedCall
from midrun.testing.scenario import LEASED_RUN, RUN, given
from tests.unit.core.scenario_steps import leased_run

E1 = Epoch(1)
ANN, BO = Actor(name="ann"), Actor(name="bo")
MAIL = RequestedCall(tool="mail", args={"to": "bo"})


def test_a_history_beyond_its_window_is_condensed() -> None:
    """The journal keeps everything; the model gets a summary of the oldest messages."""
    run = given(RunStarted(agent="clerk", task="t", window=1000), LEASED_RUN[1])
    for number in range(1, 12):
        reply = Reply(
            text=f"{number}",
            uses=(RequestedCall(tool="x", refused="no"),),
            prompt_tokens=100 * number,
        )
        call = CallId(f"c{len(run.state.calls) + 1}")
        done = CallDone(call=call, reply=reply)
        run = run.starts(call).after(v.CloseCall(epoch=E1, outcome=done))
    condense = CallId(f"c{len(run.state.calls) + 1}")
    run = run.starts(condense)
    assert run.state.calls[-1].purpose == "condense"
    done = CallDone(call=condense, reply=Reply(text="so far: 1 to 4"))
    run = run.after(v.CloseCall(epoch=E1, outcome=done))
    condensed = run.entries[-1]
    assert isinstance(condensed, HistoryCondensed)
    assert (run.state.summary, len(run.state.messages) - run.state.condensed_count) == (
        "so far: 1 to 4",
        8,
    )
    assert run.state.meter.steps == 11
    next(iter(iter_history(run.state)))


def test_a_fork_starts_at_a_boundary_with_the_history_of_the_run() -> None:
    """It inherits no effects: the first run keeps or undoes them."""
    run = leased_run.replies(MAIL, text="I mail Bo.").starts("c2")
    busy = make_fork_entry(run.state, by=BO)
    assert isinstance(busy, Refused)
    assert busy.reason == "not_a_boundary"
    run = run.after(v.CloseCall(epoch=E1, outcome=CallDone(call=CallId("c2"), result="sent")))
    entry = make_fork_entry(run.state, by=BO, instruction="Try a letter")
    assert isinstance(entry, RunStarted)
    assert (entry.task, entry.by, entry.request_id) == ("Try a letter", "bo", "")
    assert entry.forked is not None
    assert (entry.forked.run, entry.forked.seq) == (RUN, run.state.seq)
    assert [m.text for m in entry.history] == [
        "Sort the mail",
        "I mail Bo.",
    ]
    (made,) = entry.history[1].made
    assert (made.tool, made.args, made.result) == ("mail", {"to": "bo"}, "sent")
    # The call in the history has its own id, because the fork numbers its calls from c1.
    assert run.state.find_call(made.call) is None
    forked = given(entry)
    assert (forked.state.phase, len(forked.state.calls)) == (Phase.QUEUED, 0)


def test_the_history_of_a_cancelled_run_says_that_it_is_partial() -> None:
    """The next run of the thread reads it."""
    run = leased_run.replies(text="half").when(c.Cancel()).advances()
    assert (
        list(iter_history(run.state))[-1].text == "That run was cancelled; its work is partial."
    )


def test_a_fork_needs_a_boundary_and_has_the_task_once() -> None:
    run = leased_run.replies(MAIL)
    assert isinstance(make_fork_entry(run.state, by=ANN), Refused)
    entry = make_fork_entry(leased_run.state, by=ANN)
    assert isinstance(entry, RunStarted)
    assert [m.text for m in given(entry).state.messages] == ["Sort the mail"]


@pytest.mark.parametrize("white_space", [0, 2000])
def test_a_long_task_is_shortened_to_one_line(white_space: int) -> None:
    """The line is the same as if the whole text was read."""
    task = "Write\n" + " " * white_space + "a memo. " * 1000
    assert shorten_to_line(task) == ("Write " + "a memo. " * 1000)[:79].rstrip() + "…"
