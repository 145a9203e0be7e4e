"""Compute the status line of a run.

One function per phase returns a `StatusLine`: a style (icon and colour), a word, a note, and
an announcement for screen readers and terminals. The page, the terminal and the command line
show the same line. The server adjusts it for one viewer (see `server.run_views`).
"""

from typing import Final, Literal

from midrun.core.journaled_text import (
    current,
    describe_unmade,
    goal,
    line,
    own_plan,
    place,
    who,
)
from midrun.core.state import State
from midrun.core.stops import caps
from midrun.core.undo import to_undo
from midrun.core.values import Phase, Value
from midrun.text.buttons import SCALES, stoppable, under_way

Look = Literal[
    "queued",
    "running",
    "pausing",
    "paused",
    "waiting",
    "cancelling",
    "cancelled",
    "completed",
    "failed",
    "halted",
    "halting",
    "lost",
]


class Sign(Value, kw_only=True):
    """The status of a run; the words are complete without the style."""

    look: Look  # selects icon and colour
    word: str
    by: str = ""  # the actor who caused the status, or ""
    note: str = ""  # current work, the thing it waits for, or the next plan item
    said: str = ""  # announced when the run enters this status, for users who do not look


_CAPS: Final = {
    "steps": "step",
    "tokens": "token",
    "cost": "cost",
    "time": "time",
    "tool_calls": "tool call",
    "repeats": "repetition",
}

UNHEARD: Final = "Worker not responding"


def sign(state: State) -> Sign:
    """Return the status line of a run in `state`."""
    return _SIGNS[state.phase](state)


def halting(before: Sign, by: str) -> Sign:
    """Return the status line of a run whose halt has not taken effect yet.

    The halt is in the store, and the run's worker has not appended `RunHalted` yet.
    """
    note = f"it was {before.word}" + (f", {before.note}" if before.note else "")
    return Sign(look="halting", word="Halting", by=by, note=note, said="Halting.")


def unheard_of(before: Sign) -> Sign:
    """Return the status line of a run whose worker sends no heartbeat."""
    note = f"it was {before.word}"
    return Sign(look="lost", word=UNHEARD, note=note, said=f"{UNHEARD}.")


def _queued(state: State) -> Sign:
    note = "starts as soon as a worker takes it"
    if state.meter.steps:
        note = "continues as soon as a worker takes it"
    return Sign(look="queued", word="Queued", note=note)


def _running(state: State) -> Sign:
    return Sign(look="running", word="Running", note=_at_work(state), said="Running.")


def _at_work(state: State) -> str:
    if state.frames:
        return f"answering: {goal(state)}"
    item = current(state.plan)
    if item is not None:
        return line(item.text)
    tools = [state.calls[n - 1].use.tool for n in state.in_flight]
    return ", ".join(tool or "thinking" for tool in tools)


def _pausing(state: State) -> Sign:
    calls = [state.calls[n - 1] for n in state.in_flight]
    now = state.hold is not None and state.hold.now
    # A pause without `now` lets tools finish; it stops model calls and tools with progress.
    finishing = [call for call in calls if not now and not stoppable(call)]
    named = finishing or calls
    names = ", ".join(call.use.tool or "the model" for call in named)
    verb = "finishing" if finishing else "stopping"
    return Sign(
        look="pausing",
        word="Taking over" if state.wheel else "Pausing",
        by=state.wheel or who(state.since_by),
        note=f"{verb} {names}" if names else "",
        said="Pausing after this call." if finishing else "Pausing. Stopping this call.",
    )


def _paused(state: State) -> Sign:
    hold, note = state.hold, _goes_on(state)
    unmade = describe_unmade(state, lambda call: call.use.tool)
    if state.wheel:
        said = "Paused. A person has taken over."
        return Sign(look="paused", word="Taken over", by=state.wheel, note=note, said=said)
    if hold is not None and hold.cap:
        name = _CAPS[hold.cap]
        _, bound = caps(state.stop, state.metered)[hold.cap]
        word = f"Paused at the {name} cap ({bound / SCALES.get(hold.cap, 1):g})"
        note = unmade or note
        return Sign(look="paused", word=word, note=note, said=f"Paused at the {name} cap.")
    if hold is not None and hold.why == "cap":
        said = "Paused by a stop condition."
        note = f"{state.stop}; {unmade}" if unmade else str(state.stop)
        return Sign(look="paused", word=said.rstrip("."), note=note, said=said)
    said = "Paused. Everything is kept."
    return Sign(look="paused", word="Paused", by=who(state.since_by), note=note, said=said)


def _goes_on(state: State) -> str:
    if (item := current(own_plan(state))) is not None:
        return f"next: {line(item.text)}"
    return f"next: answering {goal(state)}" if state.frames else ""


def _waiting(state: State) -> Sign:
    asks = [state.asks[n - 1] for n in state.open_asks]
    if not asks:
        return Sign(look="waiting", word="Waiting", said="Waiting.")
    # Name the ask that holds the run up. A non-blocking one only matters if there is no other.
    first = next((a for a in asks if a.blocking), asks[0])
    call = state.call(first.call)
    tool = call.use.tool if call is not None else ""
    if first.kind == "unsure":
        word, note = "Check one call", f"did {tool} go through?"
        return Sign(look="waiting", word=word, note=note, said="One call needs checking.")
    note = line(first.question or tool)
    return Sign(
        look="waiting", word="Waiting for a person", note=note, said=f"Waiting for you: {note}"
    )


def _cancelling(state: State) -> Sign:
    # "Undoing 2 of 5": the total includes the calls whose undo is over already.
    wanted = [call for call in state.calls if to_undo(state, call) or call.undo.over]
    over = sum(call.undo.over for call in wanted)
    word, note, said = "Cancelling — stopping", under_way(state), "Cancelling. No new calls."
    if not state.leased:  # no worker has the run; the next one continues the cleanup
        word, note = "Cancelling", "cleans up as soon as a worker takes it"
    elif wanted and not state.in_flight:
        word = f"Cancelling — undoing {min(over + 1, len(wanted))} of {len(wanted)}"
        said = ""
    return Sign(look="cancelling", word=word, by=who(state.since_by), note=note, said=said)


def _cancelled(state: State) -> Sign:
    what, could = _left(state)
    return Sign(
        look="cancelled",
        word=f"Cancelled{what}",
        by=who(state.since_by),
        said=f"Cancelled. {could or 'The report is ready.'}",
    )


def _completed(state: State) -> Sign:
    what, could = _left(state)
    return Sign(look="completed", word=f"Completed{what}", said=f"Completed. {could}".rstrip())


def _left(state: State) -> tuple[str, str]:
    """Return the residue that is not accepted yet, as a suffix and as a sentence."""
    if not state.residue or state.residue_accepted:
        return "", ""
    undos = sum(left.action == "undo" for left in state.residue)
    failed = ((undos, "undo", "undone"), (len(state.residue) - undos, "release", "released"))
    what = [f"{n} {noun}{'' if n == 1 else 's'}" for n, noun, _ in failed if n]
    could = [f"{n} could not be {verb}" for n, _, verb in failed if n]
    return f" — {' and '.join(what)} failed", f"{', '.join(could)}."


def _failed(state: State) -> Sign:
    where = place(state.plan, state.meter.steps)
    error = line(state.error.error) if state.error is not None else ""
    return Sign(
        look="failed", word=f"Failed at {where}", note=error, said=f"Failed at {where}."
    )


def _halted(state: State) -> Sign:
    word = "Halted" if state.since_by else "Halted by an operator"
    return Sign(look="halted", word=word, by=who(state.since_by), said="Halted by an operator.")


_SIGNS: Final = {
    Phase.QUEUED: _queued,
    Phase.RUNNING: _running,
    Phase.PAUSING: _pausing,
    Phase.PAUSED: _paused,
    Phase.WAITING: _waiting,
    Phase.CANCELLING: _cancelling,
    Phase.CANCELLED: _cancelled,
    Phase.COMPLETED: _completed,
    Phase.FAILED: _failed,
    Phase.HALTED: _halted,
}
