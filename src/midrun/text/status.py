"""Compute the status line of a run.

One function per phase returns a `StatusLine`: a style (icon and colour), a word, a note, and
an announcement for screen readers and terminals. The page, the terminal and the command line
show the same line. The server adjusts it for one viewer (see `server.run_views`).
"""

from html import escape
from typing import Final, Literal

from midrun.core.evolve.lifecycle import run_started
from midrun.core.journaled_text import (
    QUOTA_PREFIX,
    describe_unmade,
    find_current_item,
    format_actor_name,
    format_goal,
    format_position,
    get_topic_plan,
    quote_title,
    shorten_to_line,
)
from midrun.core.state import State
from midrun.core.stops import measure_caps
from midrun.core.undo import is_undo_due
from midrun.core.values import Phase, Value
from midrun.text.buttons import CAP_SCALES, describe_cancel_action, is_stoppable, quote_tool
from midrun.text.phrases import format_amount, format_condition

StatusStyle = Literal[
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


class StatusLine(Value, kw_only=True):
    """The status of a run; the words are complete without the style."""

    style: StatusStyle  # selects icon and colour
    word: str
    by: str = ""  # the actor who caused the status, or ""
    note: str = ""  # current work, the thing it waits for, or the next plan item
    announcement: str = (
        ""  # announced when the run enters this status, for users who do not look
    )


MODEL_AT_WORK: Final = "the model is at work"
"""The work during a model call. The journal does not say whether the model thinks or writes."""

CAP_NOUNS: Final = {
    "steps": "turn",
    "tokens": "token",
    "cost": "cost",
    "time": "time",
    "tool_calls": "tool call",
    "repeats": "repetition",
}

_ONGOING_STYLES: Final = frozenset({"pausing", "cancelling", "halting"})

WORKER_LOST_WORD: Final = "Worker not responding"


def build_status_line(state: State) -> StatusLine:
    """Return the status line of a run in `state`."""
    return _STATUS_LINE_BUILDERS[state.phase](state)


def mark_halting(status_line: StatusLine, by: str) -> StatusLine:
    """Return the status line of a run whose halt has not taken effect yet.

    The halt is in the store, and the run's worker has not appended `RunHalted` yet.
    """
    note = f"it was {status_line.word}" + (f", {status_line.note}" if status_line.note else "")
    return StatusLine(
        style="halting", word="Halting", by=by, note=note, announcement="Halting."
    )


def mark_lost(status_line: StatusLine) -> StatusLine:
    """Return the status line of a run whose worker sends no heartbeat."""
    note = f"it was {status_line.word}"
    return StatusLine(
        style="lost", word=WORKER_LOST_WORD, note=note, announcement=f"{WORKER_LOST_WORD}."
    )


def format_status_word(status_line: StatusLine, *, viewer: str = "") -> str:
    """Return the word with its actor: "Paused by ada", "Pausing, requested by ada".

    The viewer is "you", as on the page.
    """
    word, dash, more = status_line.word.partition(" — ")
    if not status_line.by:
        return status_line.word
    by = "you" if status_line.by == viewer else status_line.by
    # A person requests a pause, and the run pauses: it is not "pausing by" the person.
    verb = ", requested by" if status_line.style in _ONGOING_STYLES else " by"
    return f"{word}{verb} {by}{dash}{more}"


def describe_hold(state: State) -> str:
    """Say who holds a paused or halted run; AG-UI and A2A send this text."""
    if state.phase is Phase.HALTED:
        return "Halted by an operator. The run continues when the halt is lifted."
    by = f" by {format_actor_name(state.phase_by)}" if state.phase_by else ""
    where = format_position(state.plan, state.meter.steps)
    return f"Paused{by} at {where}. Everything is kept."


def _describe_queued(state: State) -> StatusLine:
    note = "starts as soon as a worker takes it"
    if state.meter.steps:
        note = "continues as soon as a worker takes it"
    return StatusLine(style="queued", word="Queued", note=note)


def _describe_running(state: State) -> StatusLine:
    return StatusLine(
        style="running", word="Running", note=_describe_work(state), announcement="Running."
    )


def _describe_work(state: State) -> str:
    if state.frames:
        return f"answering: {format_goal(state)}"
    item = find_current_item(state.plan)
    if item is not None:
        return shorten_to_line(item.text)
    tools = [state.calls[n - 1].use.label for n in state.in_flight]
    return ", ".join(tool or MODEL_AT_WORK for tool in tools)


def _describe_pausing(state: State) -> StatusLine:
    calls = [state.calls[n - 1] for n in state.in_flight]
    now = state.pause is not None and state.pause.now
    # A pause without `now` lets tools finish; it stops model calls and tools with progress.
    finishing = [call for call in calls if not now and not is_stoppable(call)]
    named = finishing or calls
    names = ", ".join(map(quote_tool, named))
    verb = "finishing" if finishing else "stopping"
    return StatusLine(
        style="pausing",
        word="Taking over" if state.taken_over_by else "Pausing",
        by=state.taken_over_by or format_actor_name(state.phase_by),
        note=f"{verb} {names}" if names else "",
        announcement="Pausing after this call."
        if finishing
        else "Pausing. Stopping this call.",
    )


def _describe_paused(state: State) -> StatusLine:
    pause, note = state.pause, _describe_next(state)
    unmade = describe_unmade(state, quote_tool)
    if state.taken_over_by:
        announcement = "Paused. A person has taken over."
        return StatusLine(
            style="paused",
            word="Taken over",
            by=state.taken_over_by,
            note=note,
            announcement=announcement,
        )
    if pause is not None and pause.cap_name:
        name = CAP_NOUNS[pause.cap_name]
        _, bound = measure_caps(state.stop, state.meter_with_time)[pause.cap_name]
        cap = format_amount(bound / CAP_SCALES.get(pause.cap_name, 1))
        word = f"Paused at the {name} cap ({cap})"
        note = unmade or note
        return StatusLine(
            style="paused", word=word, note=note, announcement=f"Paused at the {name} cap."
        )
    if pause is not None and pause.reason == "cap":
        stop = format_condition(pause.condition or str(state.stop))
        cause = "quota" if stop.startswith(QUOTA_PREFIX) else "stop condition"
        announcement = f"Paused by a {cause}."
        note = f"{stop}; {unmade}" if unmade else stop
        return StatusLine(
            style="paused", word=announcement.rstrip("."), note=note, announcement=announcement
        )
    announcement = "Paused. Everything is kept."
    return StatusLine(
        style="paused",
        word="Paused",
        by=format_actor_name(state.phase_by),
        note=note,
        announcement=announcement,
    )


def _describe_next(state: State) -> str:
    if (item := find_current_item(get_topic_plan(state))) is not None:
        return f"next: {shorten_to_line(item.text)}"
    return f"next: answering {format_goal(state)}" if state.frames else ""


def _describe_waiting(state: State) -> StatusLine:
    asks = [state.asks[n - 1] for n in state.open_asks]
    if not asks:
        return StatusLine(style="waiting", word="Waiting", announcement="Waiting.")
    # Name the ask that holds the run up. A non-blocking one only matters if there is no other.
    first = next((a for a in asks if a.blocking), asks[0])
    call = state.find_call(first.call)
    tool = call.use.label if call is not None else ""
    if first.effective_kind == "unsure":
        word, note = "Check one call", f"did {quote_title(tool)} go through?"
        return StatusLine(
            style="waiting", word=word, note=note, announcement="One call needs checking."
        )
    note = shorten_to_line(first.question or tool)
    return StatusLine(
        style="waiting",
        word="Waiting for a person",
        note=note,
        announcement=f"Waiting for you: {note}",
    )


def _describe_cancelling(state: State) -> StatusLine:
    # "Undoing 2 of 5": the total includes the calls whose undo is over already.
    wanted = [call for call in state.calls if is_undo_due(state, call) or call.undo.is_finished]
    over = sum(call.undo.is_finished for call in wanted)
    word, note, announcement = (
        "Cancelling — stopping",
        describe_cancel_action(state),
        "Cancelling. No new calls.",
    )
    if not state.is_leased:  # no worker has the run; the next one continues the cleanup
        word, note = "Cancelling", "cleans up as soon as a worker takes it"
    elif wanted and not state.in_flight:
        word = f"Cancelling — undoing {min(over + 1, len(wanted))} of {len(wanted)}"
        announcement = ""
    return StatusLine(
        style="cancelling",
        word=word,
        by=format_actor_name(state.phase_by),
        note=note,
        announcement=announcement,
    )


def _describe_cancelled(state: State) -> StatusLine:
    what, could = _describe_residue(state)
    return StatusLine(
        style="cancelled",
        word=f"Cancelled{what}",
        by=format_actor_name(state.phase_by),
        announcement=f"Cancelled. {could or 'The report is ready.'}",
    )


def _describe_completed(state: State) -> StatusLine:
    what, could = _describe_residue(state)
    unread = _describe_unread(state)
    return StatusLine(
        style="completed",
        word=f"Completed{what}",
        note=unread,
        announcement=" ".join(filter(None, ("Completed.", could, unread and f"{unread}."))),
    )


def _describe_unread(state: State) -> str:
    """Return how many messages the program of the agent did not read, or "".

    Only a hosted program can end without reading them: it has a loop of its own, and makes no
    model call after its last step.
    """
    if not state.run_started.hosted:
        return ""
    started = run_started(State(run=state.run), state.run_started)
    read = max((call.prompt_message_count for call in state.calls), default=0)
    unread = [
        index
        for index in range(max(read, len(started.messages)), len(state.messages))
        if state.messages[index].role == "user"
    ]
    if not unread:
        return ""
    count = len(unread)
    return "1 message was not read" if count == 1 else f"{count} messages were not read"


def _describe_residue(state: State) -> tuple[str, str]:
    """Return the residue that is not accepted yet, as a suffix and as a sentence."""
    if not state.residue or state.residue_accepted:
        return "", ""
    undos = sum(left.action == "undo" for left in state.residue)
    failed = ((undos, "undo", "undone"), (len(state.residue) - undos, "release", "released"))
    what = [f"{n} {noun}{'' if n == 1 else 's'}" for n, noun, _ in failed if n]
    could = [f"{n} could not be {verb}" for n, _, verb in failed if n]
    return f" — {' and '.join(what)} failed", f"{', '.join(could)}."


def _describe_failed(state: State) -> StatusLine:
    where = format_position(state.plan, state.meter.steps)
    error = shorten_to_line(state.error.error) if state.error is not None else ""
    return StatusLine(
        style="failed",
        word=f"Failed at {where}",
        note=error,
        announcement=f"Failed at {where}.",
    )


def _describe_halted(state: State) -> StatusLine:
    word = "Halted" if state.phase_by else "Halted by an operator"
    return StatusLine(
        style="halted",
        word=word,
        by=format_actor_name(state.phase_by),
        announcement="Halted by an operator.",
    )


_STATUS_LINE_BUILDERS: Final = {
    Phase.QUEUED: _describe_queued,
    Phase.RUNNING: _describe_running,
    Phase.PAUSING: _describe_pausing,
    Phase.PAUSED: _describe_paused,
    Phase.WAITING: _describe_waiting,
    Phase.CANCELLING: _describe_cancelling,
    Phase.CANCELLED: _describe_cancelled,
    Phase.COMPLETED: _describe_completed,
    Phase.FAILED: _describe_failed,
    Phase.HALTED: _describe_halted,
}


# The status in a notebook.


def format_status_html(run: str, state: State | None) -> str:
    """Return the status of a run as a line of HTML; without a state, only its id.

    Calls that block a thread are named: no control can stop them. In a notebook these are the
    blocking functions that were defined in a cell.
    """
    title = f"<strong>{escape(run)}</strong>"
    if state is None:
        return f"<div>{title} <em>not driven here: see await run.view()</em></div>"
    line = build_status_line(state)
    parts = [escape(part) for part in (line.word, line.note) if part]
    parts.append(f"turn {state.meter.steps}")
    calls = (state.calls[number - 1] for number in state.in_flight)
    stuck = [call.use.tool for call in calls if call.traits.unstoppable]
    if stuck:
        names = escape(", ".join(stuck))
        parts.append(f"{names} cannot be stopped: it runs in a thread of this process")
    return f"<div>{title} {' · '.join(parts)}</div>"
