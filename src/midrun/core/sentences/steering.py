"""How steering is told. What was asked for and what happened sound different."""

from typing import Final

from midrun.core.entries import (
    CancelRequested,
    CapRaised,
    CapReached,
    EndReached,
    PauseRequested,
    PauseWithdrawn,
    RedirectApplied,
    RedirectClosed,
    RedirectRequested,
    RequestNoted,
    ResidueAccepted,
    RunCancelled,
    RunHalted,
    RunLifted,
    RunPaused,
    RunResumed,
    UndoRetried,
    VerdictGiven,
)
from midrun.core.ids import SECOND
from midrun.core.report import report
from midrun.core.sentences.phrases import (
    AGENT,
    RUN,
    Sentences,
    Told,
    because,
    by_itself,
    call_named,
    condition,
    flat,
    listed,
    person,
    quoted,
    span,
    until,
)
from midrun.core.state import State
from midrun.core.values import Phase, Residue
from midrun.core.words import describe_unmade

_THEN: Final = {
    Phase.QUEUED: "the run goes on",
    Phase.RUNNING: "the run goes on",
    Phase.PAUSING: "the run is about to pause",
    Phase.PAUSED: "the run stays paused",
    Phase.WAITING: "the run waits as before",
    Phase.FAILED: "the run stays failed",
    Phase.CANCELLING: "the cancel goes on",
}
_CAPS: Final = {"tool_calls": "tool calls", "repeats": "repetitions"}


def _pause_requested(entry: PauseRequested, before: State, after: State) -> Told:
    when = "now" if entry.now else "at its next step"
    if entry.why == "taken_over" and before.wheel == entry.by:
        return Told(who=RUN, what=f"is to pause for {person(entry.by)} {when}")
    if entry.now and before.hold is not None and before.hold.now:
        when = "without waiting any longer"
    elif entry.until is not None:
        when += f", for {until(after, entry.until)} at most"
    why = because(entry.reason)
    return Told(who=person(entry.by), what=f"asked the run to pause {when}{why}")


def _pause_withdrawn(entry: PauseWithdrawn, _: State, __: State) -> Told:
    if by_itself(entry.by):
        return Told(who=RUN, what="goes on: nobody held it any longer")
    what = f"took the pause back before it held; the run goes on{because(entry.reason)}"
    return Told(who=person(entry.by), what=what)


def _run_paused(entry: RunPaused, before: State, _: State) -> Told:
    if entry.why == "cap":
        bound = (
            "its cap" if before.hold is not None and before.hold.cap else "its stop condition"
        )
        return Told(who=RUN, what=f"is paused at {bound}")
    if entry.why == "taken_over" and before.wheel:
        return Told(who=RUN, what=f"is paused; {before.wheel} is in the agent's place")
    return Told(who=RUN, what="is paused")


def _run_resumed(entry: RunResumed, before: State, _: State) -> Told:
    if by_itself(entry.by):
        return Told(who=RUN, what="goes on: nobody held it any longer")
    if entry.instruction:
        course = f"with the instruction {quoted(entry.instruction)}"
    elif before.redirects:
        course = "on the new course"
    else:
        course = "with no changes"
    return Told(who=person(entry.by), what=f"resumed the run {course}{because(entry.reason)}")


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
    said = "said that the run is to stop here" if entry.met else "let the run go on"
    return Told(who=f"the stop condition {entry.name}", what=said)


def _redirect_requested(entry: RedirectRequested, _: State, __: State) -> Told:
    when = "now" if entry.when == "now" else "at its next step"
    what = f"asked the run to change course {when}: {quoted(entry.text)}{because(entry.reason)}"
    return Told(who=person(entry.by), what=what)


def _redirect_applied(entry: RedirectApplied, _: State, __: State) -> Told:
    old = f", instead of: {flat(entry.minus)}" if entry.minus else ""
    return Told(who=AGENT, what=f"was set on the new course {quoted(entry.plus)}{old}")


def _redirect_closed(entry: RedirectClosed, before: State, _: State) -> Told:
    said = quoted(entry.text)
    if entry.why == "withdrawn":
        what = f"took the new course {said} back before it was applied"
        return Told(who=person(entry.by), what=f"{what}{because(entry.reason)}")
    asker = person(next((p.by for p in before.pending if p.seq == entry.redirect), ""))
    what = f"gave {asker} the new course {said} back: it will not be applied"
    return Told(who=RUN, what=what)


def _cancel_requested(entry: CancelRequested, _: State, __: State) -> Told:
    undo = "everything undone that can be" if entry.undo == "all" else "finished work kept"
    what = f"asked for the run to be cancelled, with {undo}{because(entry.reason)}"
    return Told(who=person(entry.by), what=what)


def _run_cancelled(entry: RunCancelled, before: State, _: State) -> Told:
    told = report(before)
    fates = (("undone", told.undone), ("kept", told.done), ("unsure", told.unsure))
    came = [f"{len(deeds)} {fate}" for fate, deeds in fates if deeds]
    said = f"is cancelled; calls: {', '.join(came)}" if came else "is cancelled"
    if entry.residue:
        said += f"; left behind: {_left(before, entry.residue)}"
    return Told(who=RUN, what=said)


def _left(state: State, residue: tuple[Residue, ...]) -> str:
    return listed(call_named(state, left.call) for left in residue)


def _undo_retried(entry: UndoRetried, before: State, _: State) -> Told:
    what = f"asked for another try at what was left behind: {_left(before, before.residue)}"
    return Told(who=person(entry.by), what=f"{what}{because(entry.reason)}")


def _residue_accepted(entry: ResidueAccepted, before: State, _: State) -> Told:
    what = f"accepted what was left behind: {_left(before, before.residue)}"
    return Told(who=person(entry.by), what=f"{what}{because(entry.reason)}")


def _run_halted(entry: RunHalted, _: State, __: State) -> Told:
    kind, name = [*entry.scope.split(":", 1), ""][:2]
    scope = {
        "run": "the run",
        "all": "all runs, and with them this one",
        "agent": f"all runs of agent {name}, and with them this one",
        "label": f"all runs with the label {name}, and with them this one",
    }.get(kind, "the run")
    why = because(entry.reason)
    return Told(
        who=person(entry.by), what=f"halted {scope}{why}; nothing starts while it holds"
    )


def _run_lifted(entry: RunLifted, _: State, after: State) -> Told:
    then = _THEN.get(after.phase, "")
    what = "lifted the halt" + (f"; {then}" if then else "")
    return Told(who=person(entry.by), what=f"{what}{because(entry.reason)}")


def _request_noted(entry: RequestNoted, _: State, __: State) -> Told:
    verdict = flat(entry.verdict.replace("_", " "))
    if entry.refused:
        return Told(
            who=person(entry.by), what=f"asked for something and was refused: {verdict}"
        )
    by = f" by {person(entry.since_by)}" if entry.since_by else ""
    so = f"{verdict.removeprefix('already ')}{by}, since entry {entry.since}"
    return Told(who=person(entry.by), what=f"asked for something that was so already: {so}")


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
