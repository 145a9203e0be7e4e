"""Describe journal entries in sentences: asks, the life of a run, controls.

`describe_entry` finds the function for the type of an entry and passes it the states before
and after the entry. The function returns an `EntryText`: a subject and the rest of the
sentence. `call_entries` holds the functions for calls, undo and the conversation.
`midrun feed` shows these sentences line by line.
"""

from typing import Final

from midrun.core.entries import (
    AskAnswered,
    AskClosed,
    AskOpened,
    CancelRequested,
    CapRaised,
    CapReached,
    EndReached,
    Entry,
    LeaseTaken,
    PauseRequested,
    PauseWithdrawn,
    RedirectApplied,
    RedirectClosed,
    RedirectRequested,
    RequestNoted,
    ResidueAccepted,
    RunCancelled,
    RunCompleted,
    RunFailed,
    RunHalted,
    RunImported,
    RunLifted,
    RunPaused,
    RunResumed,
    RunStarted,
    RunWaiting,
    RunWoken,
    StoodDown,
    UndoRetried,
    VerdictGiven,
)
from midrun.core.evolve import evolve
from midrun.core.evolve.asks import BECAUSE, is_edit_under_four_eyes
from midrun.core.evolve.calls import call_of
from midrun.core.ids import SECOND, Micros, RunId
from midrun.core.journaled_text import describe_unmade
from midrun.core.state import Ask, State
from midrun.core.stops import AnyOf, Stop, cap_name
from midrun.core.values import Phase, Residue
from midrun.text.call_entries import CALL_TEXTS, CONVERSATION_TEXTS
from midrun.text.phrases import (
    AGENT,
    RUN,
    Sentences,
    Told,
    arguments,
    because,
    by_itself,
    call_named,
    caller,
    child_named,
    condition,
    fault,
    flat,
    listed,
    person,
    quoted,
    run_named,
    several,
    span,
    spoken,
    until,
)
from midrun.text.report import report

# ── asks ──────────────────────────────────────────────────────────────────────────────────

_ARTICLES: Final = {"operator": "an"}
_CLOSED: Final = {
    **BECAUSE,
    "expired": "it expired",
    "evidence": "the outcome of the call is known now",
    "elsewhere": "it was decided in the child run",
}


def _ask_opened(entry: AskOpened, _: State, after: State) -> Told:
    call = call_of(after, entry.call)
    named = call_named(after, entry.call)
    asker = caller(call, after) if entry.ask_kind == "question" else RUN
    if entry.ask_kind == "child":
        asker = child_named(after, call)
    terms = _terms(entry, after)
    if entry.ask_kind == "approval":
        wanted = f"{named}{arguments(call.use.args)}"
        return Told(who=asker, what=f"asks {entry.ask}: may {wanted} be called?{terms}")
    if entry.ask_kind == "unsure":
        return Told(who=asker, what=f"asks {entry.ask}: did {named} take effect?{terms}")
    question = quoted(entry.question) if entry.question.strip() else "how should it continue?"
    return Told(who=asker, what=f"asks {entry.ask}: {question}{terms}")


def _terms(entry: AskOpened, state: State) -> str:
    """Return the terms of an ask in brackets: audience, four eyes, blocking, expiry."""
    name = entry.audience.removeprefix("user:")
    who = name if name != entry.audience or not name else f"{_ARTICLES.get(name, 'a')} {name}"
    terms = [f"{who} decides"] if who else []
    if entry.four_eyes:
        excluded = " or ".join(_asked(state, entry.ask).excluded)
        starter = "the person who started the run"
        terms = [f"{who or 'any person'} may decide, but not {excluded or starter}"]
    if not entry.blocking:
        terms.append("the agent continues meanwhile")
    if entry.expires is not None:
        unanswered = "declined" if entry.ask_kind == "approval" else "dropped"
        terms.append(f"{unanswered} automatically after {until(state, entry.expires)}")
    return f" ({'; '.join(terms)})" if terms else ""


def _ask_answered(entry: AskAnswered, before: State, _: State) -> Told:
    ask = _asked(before, entry.ask)
    decision = entry.decision
    about = _about(before, ask)
    who = person(entry.by)
    if is_edit_under_four_eyes(ask, decision):
        what = f"changed the arguments of {about}{arguments(decision.value)}"
        then = "; another person must approve them"
        return Told(who=who, what=f"{what} in {entry.ask}{then}{because(entry.reason)}")
    if decision.choice == "approve":
        other = f", with other arguments{arguments(decision.value)}" if decision.value else ""
        return Told(
            who=who, what=f"approved {entry.ask}, {about}{other}{because(entry.reason)}"
        )
    if decision.choice == "decline":
        return Told(who=who, what=f"declined {entry.ask}, {about}{because(decision.reason)}")
    said = spoken(decision.value)
    return Told(who=who, what=f"answered {entry.ask}, {about}: {said}{because(entry.reason)}")


def describe_closure(ask: Ask) -> str:
    """Describe how an ask was closed, as a predicate of its decider: "answered “no”"."""
    decision = ask.decision
    if decision is None:
        return f"it was closed: {_CLOSED.get(ask.closed, 'it expired')}"
    if decision.choice == "approve":
        other = f" with other arguments{arguments(decision.value)}" if decision.value else ""
        return f"approved it{other}"
    if decision.choice == "decline":
        return f"declined it{because(decision.reason)}"
    return f"answered {spoken(decision.value)}"


def _about(state: State, ask: Ask) -> str:
    """Return the subject of an ask: its question or its call."""
    if ask.ask_kind == "child":
        return f"of {child_named(state, call_of(state, ask.call))}"
    if ask.ask_kind == "question":
        return quoted(ask.question) if ask.question.strip() else call_named(state, ask.call)
    named = call_named(state, ask.call)
    return f"whether {named} took effect" if ask.ask_kind == "unsure" else named


def _ask_closed(entry: AskClosed, before: State, _: State) -> Told:
    about = _about(before, _asked(before, entry.ask))
    what = f"closed {entry.ask}, {about}, without a decision: {_CLOSED[entry.why]}"
    return Told(who=RUN, what=what)


def _asked(state: State, ask_: str) -> Ask:
    ask = state.ask(ask_)
    assert ask is not None, "evolve has found this ask already"
    return ask


ASK_TEXTS: Sentences = {
    AskOpened: _ask_opened,
    AskAnswered: _ask_answered,
    AskClosed: _ask_closed,
}

# ── the life of a run ─────────────────────────────────────────────────────────────────────

_WOKEN: Final = {
    "answered": "its question was answered",
    "approved": "its call was approved",
    "declined": "its call was declined",
    "edited": "the arguments of its call were changed",
    "child": "an ask of its child run was decided",
    "evidence": "the outcome of a call is known now",
    "frame": "a suspended topic was resumed or dropped",
    "lifted": "the halt was lifted",
    "message": "it received a message",
    "redirected": "it has a new instruction",
    "time": "a timer is due",
    "tool": "a person requested a call",
}
_LEFT: Final = {
    "halted": "the run is halted",
    "shutdown": "its process is shutting down",
}


def _run_started(entry: RunStarted, _: State, after: State) -> Told:
    run = f"{run_named(after.run)} with the agent {entry.agent}"
    history = len(entry.history)
    said = f", after {several(history, 'earlier message')}" if history else ""
    stop = f"; it runs {_bounds(entry.stop)}" if entry.stop is not None else ""
    task = quoted(entry.task)
    if entry.forked is not None:
        first = f"{run_named(entry.forked.run)} at entry {entry.forked.seq}"
        what = f"forked {first}: {task} is the task of {run}{said}{stop}"
        return Told(who=person(entry.by), what=what)
    if entry.parent is not None:
        parent = f"the parent {run_named(entry.parent.run)}"
        return Told(who=parent, what=f"started {run}: {task}{said}{stop}")
    return Told(who=person(entry.by), what=f"started {run}: {task}{said}{stop}")


def _run_imported(entry: RunImported, before: State, _: State) -> Told:
    seal = f"signed with the key {entry.kid}" if entry.kid else "not signed"
    of = f" of {run_named(entry.checkpoint)}" if entry.checkpoint != before.run else ""
    above = several(before.seq, "entry", "entries")
    what = f"imported the {above} above from a checkpoint{of}, {seal}"
    return Told(who=person(entry.by), what=what)


def _bounds(stop: Stop) -> str:
    """Return the stop condition of a run as an adverbial: "for at most 3 steps"."""
    if isinstance(stop, AnyOf):
        return " or ".join(map(_bounds, stop.parts))
    capped = cap_name(stop) not in {"", "repeats"}
    return condition(f"for {stop}" if capped else f"until {stop}")


def _lease_taken(entry: LeaseTaken, before: State, _: State) -> Told:
    worker = f"worker {entry.holder}" if entry.holder else "a worker"
    how = "took the run"
    # Every regular end of a lease has an entry. If the run is still leased, the previous
    # worker died or lost contact with the store.
    if before.leased:
        how = "took the run over from a worker that was lost"
    changed = before.agent_print and entry.agent_print not in {"", before.agent_print}
    return Told(who=worker, what=how + (", with another version of the agent" * bool(changed)))


def _stood_down(entry: StoodDown, _: State, __: State) -> Told:
    why = _LEFT.get(entry.why, entry.why)
    return Told(who="the worker", what="released the run" + (f": {why}" if why else ""))


def _run_waiting(_: RunWaiting, before: State, __: State) -> Told:
    asks = [before.asks[n - 1].id for n in before.open_asks]
    what = f"waits for a decision on {listed(asks)}" if asks else "waits"
    return Told(who=RUN, what=what)


def _run_woken(entry: RunWoken, _: State, __: State) -> Told:
    why = _WOKEN.get(entry.why, entry.why)
    return Told(who=RUN, what="can continue" + (f": {why}" if why else ""))


def _run_completed(entry: RunCompleted, before: State, _: State) -> Told:
    if not entry.output.strip():
        return Told(who=RUN, what="completed without an answer")
    # The answer is usually the message directly above. Do not quote it twice.
    last = before.messages[-1] if len(before.messages) else None
    if last is not None and last.role == "assistant" and last.text.endswith(entry.output):
        return Told(who=RUN, what="completed; its answer is the last message")
    return Told(who=RUN, what=f"completed with the answer {quoted(entry.output)}")


def _run_failed(entry: RunFailed, before: State, _: State) -> Told:
    if before.error is not None and before.error.error == entry.error:
        return Told(who=RUN, what="failed because of this error; it can be resumed")
    return Told(who=RUN, what=f"failed: {fault(entry.error)}; it can be resumed")


LIFECYCLE_TEXTS: Sentences = {
    RunStarted: _run_started,
    RunImported: _run_imported,
    LeaseTaken: _lease_taken,
    StoodDown: _stood_down,
    RunWaiting: _run_waiting,
    RunWoken: _run_woken,
    RunCompleted: _run_completed,
    RunFailed: _run_failed,
}

# ── controls ──────────────────────────────────────────────────────────────────────────────
# A request ("asked to cancel the run") and its effect ("is cancelled") are two entries, and
# their sentences differ: a reader must not take a request for its effect.

_THEN: Final = {
    Phase.QUEUED: "the run continues",
    Phase.RUNNING: "the run continues",
    Phase.PAUSING: "the run is pausing",
    Phase.PAUSED: "the run is still paused",
    Phase.WAITING: "the run is still waiting",
    Phase.FAILED: "the run is still failed",
    Phase.CANCELLING: "the cancel continues",
}
_CAPS: Final = {"tool_calls": "tool calls", "repeats": "repetitions"}


def _pause_requested(entry: PauseRequested, before: State, after: State) -> Told:
    when = "now" if entry.now else "at its next step"
    # This entry follows `TakenOver`, which has named the person. Make the run the subject.
    if entry.why == "taken_over" and before.wheel == entry.by:
        return Told(who=RUN, what=f"will pause for {person(entry.by)} {when}")
    if entry.now and before.hold is not None and before.hold.now:
        when = "without waiting any longer"
    elif entry.until is not None:
        when += f", for {until(after, entry.until)} at most"
    why = because(entry.reason)
    return Told(who=person(entry.by), what=f"asked the run to pause {when}{why}")


def _pause_withdrawn(entry: PauseWithdrawn, _: State, __: State) -> Told:
    if by_itself(entry.by):
        return Told(who=RUN, what="continues: the time limit of the pause is over")
    reason = because(entry.reason)
    what = f"withdrew the pause before it took effect; the run continues{reason}"
    return Told(who=person(entry.by), what=what)


def _run_paused(entry: RunPaused, before: State, _: State) -> Told:
    if entry.why == "cap":
        bound = (
            "its cap" if before.hold is not None and before.hold.cap else "its stop condition"
        )
        return Told(who=RUN, what=f"is paused at {bound}")
    if entry.why == "taken_over" and before.wheel:
        return Told(who=RUN, what=f"is paused; {before.wheel} has taken over from the agent")
    return Told(who=RUN, what="is paused")


def _run_resumed(entry: RunResumed, before: State, _: State) -> Told:
    if by_itself(entry.by):
        return Told(who=RUN, what="continues: the time limit of the pause is over")
    if entry.instruction:
        change = f"with the instruction {quoted(entry.instruction)}"
    elif before.redirects:
        change = "with the new instruction"
    else:
        change = "with no changes"
    return Told(who=person(entry.by), what=f"resumed the run {change}{because(entry.reason)}")


def _amount(name: str, bound: int) -> str:
    if name == "cost":
        return f"${bound / SECOND:g}"
    if name == "time":
        return f"{span(bound)} of work"
    return f"{bound} {_CAPS.get(name, name)}"


def _cap_raised(entry: CapRaised, _: State, __: State) -> Told:
    to = listed(_amount(name, bound) for name, bound in entry.caps.items())
    return Told(who=person(entry.by), what=f"raised the cap to {to}{because(entry.reason)}")


def _cap_reached(entry: CapReached, before: State, _: State) -> Told:
    met = "reached a cap" if entry.cap else "met a condition to pause"
    unmade = describe_unmade(before, lambda call: call_named(before, call.id))
    waiting = f"; {unmade}" if unmade else ""
    return Told(who=RUN, what=f"{met}: {condition(entry.stop)}{waiting}")


def _end_reached(entry: EndReached, _: State, __: State) -> Told:
    return Told(who=RUN, what=f"met a condition to end: {condition(entry.stop)}")


def _verdict_given(entry: VerdictGiven, _: State, __: State) -> Told:
    result = "is met" if entry.met else "is not met"
    return Told(who=f"the stop condition {entry.name}", what=result)


def _redirect_requested(entry: RedirectRequested, _: State, __: State) -> Told:
    when = "now" if entry.when == "now" else "at its next step"
    what = f"asked to redirect the run {when}: {quoted(entry.text)}{because(entry.reason)}"
    return Told(who=person(entry.by), what=what)


def _redirect_applied(entry: RedirectApplied, _: State, __: State) -> Told:
    old = f", instead of: {flat(entry.minus)}" if entry.minus else ""
    return Told(who=AGENT, what=f"received the new instruction {quoted(entry.plus)}{old}")


def _redirect_closed(entry: RedirectClosed, before: State, _: State) -> Told:
    said = quoted(entry.text)
    if entry.why == "withdrawn":
        what = f"withdrew the instruction {said} before it was applied"
        return Told(who=person(entry.by), what=f"{what}{because(entry.reason)}")
    asker = person(next((p.by for p in before.pending if p.seq == entry.redirect), ""))
    what = f"returned the instruction {said} to {asker}: it will not be applied"
    return Told(who=RUN, what=what)


def _cancel_requested(entry: CancelRequested, _: State, __: State) -> Told:
    undo = "undo everything possible" if entry.undo == "all" else "keep finished work"
    what = f"asked to cancel the run and {undo}{because(entry.reason)}"
    return Told(who=person(entry.by), what=what)


def _run_cancelled(entry: RunCancelled, before: State, _: State) -> Told:
    # The report of the state before is complete: this entry only ends the run.
    told = report(before)
    fates = (("undone", told.undone), ("kept", told.done), ("unsure", told.unsure))
    came = [f"{len(deeds)} {fate}" for fate, deeds in fates if deeds]
    said = f"is cancelled; calls: {', '.join(came)}" if came else "is cancelled"
    if entry.residue:
        said += f"; cleanup failed: {_left(before, entry.residue)}"
    return Told(who=RUN, what=said)


def _left(state: State, residue: tuple[Residue, ...]) -> str:
    return listed(call_named(state, left.call) for left in residue)


def _undo_retried(entry: UndoRetried, before: State, _: State) -> Told:
    what = f"asked to retry the failed cleanup: {_left(before, before.residue)}"
    return Told(who=person(entry.by), what=f"{what}{because(entry.reason)}")


def _residue_accepted(entry: ResidueAccepted, before: State, _: State) -> Told:
    what = f"accepted the failed cleanup: {_left(before, before.residue)}"
    return Told(who=person(entry.by), what=f"{what}{because(entry.reason)}")


def _run_halted(entry: RunHalted, _: State, __: State) -> Told:
    kind, name = [*entry.scope.split(":", 1), ""][:2]
    scope = {
        "run": "the run",
        "all": "all runs, including this one",
        "agent": f"all runs of agent {name}, including this one",
        "label": f"all runs with the label {name}, including this one",
    }.get(kind, "the run")
    why = because(entry.reason)
    what = f"halted {scope}{why}; nothing starts until the halt is lifted"
    return Told(who=person(entry.by), what=what)


def _run_lifted(entry: RunLifted, _: State, after: State) -> Told:
    then = _THEN.get(after.phase, "")
    what = "lifted the halt" + (f"; {then}" if then else "")
    return Told(who=person(entry.by), what=f"{what}{because(entry.reason)}")


def _request_noted(entry: RequestNoted, _: State, __: State) -> Told:
    verdict = flat(entry.verdict.replace("_", " "))
    if entry.refused:
        return Told(who=person(entry.by), what=f"sent a request that was refused: {verdict}")
    by = f"by {person(entry.since_by)}, " if entry.since_by else ""
    what = f"sent a request that changed nothing: {verdict} ({by}since entry {entry.since})"
    return Told(who=person(entry.by), what=what)


CONTROL_TEXTS: Sentences = {
    PauseRequested: _pause_requested,
    PauseWithdrawn: _pause_withdrawn,
    RunPaused: _run_paused,
    RunResumed: _run_resumed,
    CapRaised: _cap_raised,
    CapReached: _cap_reached,
    EndReached: _end_reached,
    VerdictGiven: _verdict_given,
    RedirectRequested: _redirect_requested,
    RedirectApplied: _redirect_applied,
    RedirectClosed: _redirect_closed,
    CancelRequested: _cancel_requested,
    RunCancelled: _run_cancelled,
    UndoRetried: _undo_retried,
    ResidueAccepted: _residue_accepted,
    RunHalted: _run_halted,
    RunLifted: _run_lifted,
    RequestNoted: _request_noted,
}

SENTENCES: Final[Sentences] = {
    **LIFECYCLE_TEXTS,
    **CONTROL_TEXTS,
    **CALL_TEXTS,
    **ASK_TEXTS,
    **CONVERSATION_TEXTS,
}
"""Type of entry → the function that describes it. A test checks that no type is missing."""


def aloud(entry: Entry, before: State, after: State) -> Told:
    """Describe `entry`, which led from the state `before` to the state `after`."""
    return SENTENCES[type(entry)](entry, before, after)


class Reader:
    """Describes the entries of one journal, one by one from the first."""

    def __init__(self, run: RunId) -> None:
        self.state = State(run=run)

    def read(self, entry: Entry, at: Micros) -> Told:
        """Describe the next entry, which the store stamped with `at`.

        Raises:
            JournalCorrupt: `entry` may not follow the entries read before.
        """
        before = self.state
        self.state = evolve(before, entry, at)
        return aloud(entry, before, self.state)
