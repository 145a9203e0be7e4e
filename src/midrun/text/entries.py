"""Describe journal entries in sentences: asks, the life of a run, controls.

`describe_entry` finds the function for the type of an entry and passes it the states before
and after the entry. The function returns a `Clause`: the subject, the short form, and the end
of the sentence, which the short form leaves out. `call_entries` holds the functions for calls,
undo and the conversation. `midrun feed` and the terminal show the sentences, the timeline of
the page shows the short forms.
"""

from typing import Final

from midrun.core import entries as e
from midrun.core.evolve import evolve
from midrun.core.evolve.asks import CLOSE_REASON_TEXTS, is_edit_under_four_eyes
from midrun.core.evolve.calls import get_call
from midrun.core.ids import MICROS_PER_SECOND, Micros, RunId
from midrun.core.journaled_text import describe_unmade, quote_title
from midrun.core.state import Ask, State, find_asked_use
from midrun.core.stops import AnyOf, Stop, get_cap_name
from midrun.core.values import Phase, Residue
from midrun.text.call_entries import CALL_DESCRIBE_FUNCTIONS, CONVERSATION_DESCRIBE_FUNCTIONS
from midrun.text.phrases import (
    AGENT_SUBJECT,
    RUN_SUBJECT,
    SHORT_MAX_CHARS,
    Clause,
    DescribeFunctions,
    EntryText,
    describe_request,
    flatten,
    format_actor,
    format_arguments,
    format_call,
    format_caller,
    format_child_call,
    format_condition,
    format_count,
    format_duration,
    format_error,
    format_files,
    format_reason,
    format_run,
    format_time_until,
    is_automatic,
    join_names,
    quote,
    quote_value,
)
from midrun.text.report import build_report

# ── asks ──────────────────────────────────────────────────────────────────────────────────

_ROLE_ARTICLES: Final = {"operator": "an"}
_ASK_CLOSE_TEXTS: Final = {
    **CLOSE_REASON_TEXTS,
    "expired": "it expired",
    "evidence": "the outcome of the call is known now",
    "elsewhere": "it was decided in the child run",
}


def _describe_ask_opened(entry: e.AskOpened, _: State, after: State) -> Clause:
    call = get_call(after, entry.call)
    named = format_call(after, entry.call)
    asker = format_caller(call, after) if entry.ask_kind == "question" else RUN_SUBJECT
    if entry.ask_kind == "child":
        asker = format_child_call(after, call)
    terms = _format_ask_terms(entry, after)
    if entry.ask_kind == "approval":
        wanted = f"{named}{format_arguments(call.use.args)}"
        if call.use.title:  # the arguments, too: the title is only a summary of them
            return Clause(asker, f"asks for approval ({entry.ask}): {wanted}", terms)
        return Clause(asker, f"asks {entry.ask}: may {wanted} be called?", terms)
    if entry.ask_kind == "unsure":
        return Clause(asker, f"asks {entry.ask}: did {named} take effect?", terms)
    if entry.child_ask_kind == "approval":  # the child's call, with all that is decided about
        use = find_asked_use(_get_ask(after, entry.ask), call)
        asked = quote_title(use.title) if use.title else flatten(use.tool)
        wanted = f"{asked}{format_arguments(use.args)}"
        return Clause(asker, f"asks for approval ({entry.ask}): {wanted}", terms)
    question = quote(entry.question) if entry.question.strip() else "how should it continue?"
    shown = format_files(entry.files)
    return Clause(asker, f"asks {entry.ask}: {question}{shown}", terms)


def _format_ask_terms(entry: e.AskOpened, state: State) -> str:
    """Return the terms of an ask in brackets: audience, four eyes, blocking, expiry."""
    name = entry.audience.removeprefix("user:")
    who = (
        name
        if name != entry.audience or not name
        else f"{_ROLE_ARTICLES.get(name, 'a')} {name}"
    )
    terms = [f"{who} decides"] if who else []
    if entry.four_eyes:
        excluded = " or ".join(_get_ask(state, entry.ask).excluded)
        starter = "the person who started the run"
        terms = [f"{who or 'any person'} may decide, but not {excluded or starter}"]
    if not entry.blocking:
        terms.append("the agent continues meanwhile")
    if entry.expires is not None:
        unanswered = "declined" if entry.ask_kind == "approval" else "dropped"
        terms.append(
            f"{unanswered} automatically after {format_time_until(state, entry.expires)}"
        )
    return f" ({'; '.join(terms)})" if terms else ""


def _describe_ask_answered(entry: e.AskAnswered, before: State, _: State) -> Clause:
    ask = _get_ask(before, entry.ask)
    decision = entry.decision
    about = _format_ask_subject(before, ask)
    if is_edit_under_four_eyes(ask, decision):
        what = f"changed the arguments of {about}{format_arguments(decision.value)}"
        then = "; another person must approve them"
        return describe_request(entry, f"{what} in {entry.ask}", then)
    if decision.choice == "approve":
        other = (
            f", with other arguments{format_arguments(decision.value)}"
            if decision.value
            else ""
        )
        return describe_request(entry, f"approved {entry.ask}, {about}", other)
    if decision.choice == "decline":
        what = f"declined {entry.ask}, {about}{format_reason(decision.reason)}"
        return Clause(format_actor(entry.by), what)
    said = quote_value(decision.value) + format_files(entry.files)
    return describe_request(entry, f"answered {entry.ask}, {about}: {said}")


def describe_ask_closure(ask: Ask) -> str:
    """Describe how an ask was closed, as a predicate of its decider: "answered “no”"."""
    decision = ask.decision
    if decision is None:
        return f"it was closed: {_ASK_CLOSE_TEXTS.get(ask.close_reason, 'it expired')}"
    if decision.choice == "approve":
        other = (
            f" with other arguments{format_arguments(decision.value)}" if decision.value else ""
        )
        return f"approved it{other}"
    if decision.choice == "decline":
        return f"declined it{format_reason(decision.reason)}"
    return f"answered {quote_value(decision.value)}"


def _format_ask_subject(state: State, ask: Ask) -> str:
    """Return the subject of an ask: its question or its call."""
    if ask.ask_kind == "child":
        return f"of {format_child_call(state, get_call(state, ask.call))}"
    if ask.ask_kind == "question":
        return quote(ask.question) if ask.question.strip() else format_call(state, ask.call)
    named = format_call(state, ask.call)
    return f"whether {named} took effect" if ask.ask_kind == "unsure" else named


def _describe_ask_closed(entry: e.AskClosed, before: State, _: State) -> Clause:
    about = _format_ask_subject(before, _get_ask(before, entry.ask))
    what = f"closed {entry.ask}, {about}, without a decision: {_ASK_CLOSE_TEXTS[entry.why]}"
    return Clause(RUN_SUBJECT, what)


def _get_ask(state: State, ask_id: str) -> Ask:
    ask = state.find_ask(ask_id)
    assert ask is not None, "evolve has found this ask already"
    return ask


ASK_DESCRIBE_FUNCTIONS: DescribeFunctions = {
    e.AskOpened: ("wait", _describe_ask_opened),
    e.AskAnswered: ("person", _describe_ask_answered),
    e.AskClosed: ("quiet", _describe_ask_closed),
}

# ── the life of a run ─────────────────────────────────────────────────────────────────────

_WAKE_TEXTS: Final = {
    "answered": "its question was answered",
    "approved": "its call was approved",
    "declined": "its call was declined",
    "edited": "the arguments of its call were changed",
    "child": "an ask of its child run was decided",
    "evidence": "the outcome of a call is known now",
    "frame": "a held topic was resumed or dropped",
    "lifted": "the halt was lifted",
    "message": "it received a message",
    "redirected": "it has a new instruction",
    "time": "a timer is due",
    "tool": "a person requested a call",
}
_STAND_DOWN_TEXTS: Final = {
    "halted": "the run is halted",
    "shutdown": "its process is shutting down",
}


def _describe_run_started(entry: e.RunStarted, _: State, after: State) -> Clause:
    run = f"{format_run(after.run)} with the agent {entry.agent}"
    history = len(entry.history)
    said = f", after {format_count(history, 'earlier message')}" if history else ""
    stop = f"; it runs {_format_bounds(entry.stop)}" if entry.stop is not None else ""
    task = quote(entry.task) + format_files(entry.files)
    who = format_actor(entry.by)
    if entry.parent is not None and entry.forked is None:
        who = f"the parent {format_run(entry.parent.run)}"
    if entry.forked is not None:
        first = f"{format_run(entry.forked.run)} at entry {entry.forked.seq}"
        more = f"{said}{stop}"
        return Clause(who, f"forked {first}: {task} is the task of {run}", more)
    # People know the run by its task; its id is for other terminals and programs.
    return Clause(who, f"started the run: {task}", f" ({run}{said}{stop})")


def _describe_run_imported(entry: e.RunImported, before: State, _: State) -> Clause:
    seal = f"signed with the key {entry.kid}" if entry.kid else "not signed"
    of = f" of {format_run(entry.checkpoint)}" if entry.checkpoint != before.run else ""
    above = format_count(before.seq, "entry", "entries")
    what = f"imported the {above} above from a checkpoint"
    return Clause(format_actor(entry.by), what, f"{of}, {seal}")


def _format_bounds(stop: Stop) -> str:
    """Return the stop condition of a run as an adverbial: "for at most 3 turns"."""
    if isinstance(stop, AnyOf):
        return " or ".join(map(_format_bounds, stop.parts))
    capped = get_cap_name(stop) not in {"", "repeats"}
    return format_condition(f"for {stop}" if capped else f"until {stop}")


def _describe_lease_taken(entry: e.LeaseTaken, before: State, _: State) -> Clause:
    named = f" ({entry.holder})" if entry.holder else ""
    how = "took the run"
    # Every regular end of a lease has an entry. If the run is still leased, the previous
    # worker died or lost contact with the store.
    if before.is_leased:
        how = "took the run over from a worker that was lost"
    changed = before.agent_fingerprint and entry.agent_fingerprint not in {
        "",
        before.agent_fingerprint,
    }
    return Clause(
        "a worker", how + (", with another version of the agent" * bool(changed)), named
    )


def _describe_stood_down(entry: e.LeaseReleased, _: State, __: State) -> Clause:
    why = _STAND_DOWN_TEXTS.get(entry.why, entry.why)
    return Clause("the worker", "released the run" + (f": {why}" if why else ""))


def _describe_run_waiting(_: e.RunWaiting, before: State, __: State) -> Clause:
    asks = [before.asks[n - 1].id for n in before.open_asks]
    what = f"waits for a decision on {join_names(asks)}" if asks else "waits"
    return Clause(RUN_SUBJECT, what)


def _describe_run_woken(entry: e.RunWoken, _: State, __: State) -> Clause:
    why = _WAKE_TEXTS.get(entry.why, entry.why)
    return Clause(RUN_SUBJECT, "can continue" + (f": {why}" if why else ""))


def _describe_run_completed(entry: e.RunCompleted, before: State, _: State) -> Clause:
    if not entry.output.strip():
        return Clause(RUN_SUBJECT, "completed without an answer")
    # The answer is usually the message directly above. Do not quote it twice.
    last = before.messages[-1] if len(before.messages) else None
    if last is not None and last.role == "assistant" and last.text.endswith(entry.output):
        return Clause(RUN_SUBJECT, "completed; its answer is the last message")
    return Clause(RUN_SUBJECT, f"completed with the answer {quote(entry.output)}")


def _describe_run_failed(entry: e.RunFailed, before: State, _: State) -> Clause:
    can_resume = "; it can be resumed"
    if before.error is not None and before.error.error == entry.error:
        return Clause(RUN_SUBJECT, "failed because of this error", can_resume)
    return Clause(RUN_SUBJECT, f"failed: {format_error(entry.error)}", can_resume)


LIFECYCLE_DESCRIBE_FUNCTIONS: DescribeFunctions = {
    e.RunStarted: ("person", _describe_run_started),
    e.RunImported: ("person", _describe_run_imported),
    e.LeaseTaken: ("detail", _describe_lease_taken),
    e.LeaseReleased: ("quiet", _describe_stood_down),
    e.RunWaiting: ("detail", _describe_run_waiting),
    e.RunWoken: ("detail", _describe_run_woken),
    e.RunCompleted: ("good", _describe_run_completed),
    e.RunFailed: ("bad", _describe_run_failed),
}

# ── controls ──────────────────────────────────────────────────────────────────────────────
# A request ("asked to cancel the run") and its effect ("is cancelled") are two entries, and
# their sentences differ: a reader must not take a request for its effect.

_AFTER_LIFT_TEXTS: Final = {
    Phase.QUEUED: "the run continues",
    Phase.RUNNING: "the run continues",
    Phase.PAUSING: "the run is pausing",
    Phase.PAUSED: "the run is still paused",
    Phase.WAITING: "the run is still waiting",
    Phase.FAILED: "the run is still failed",
    Phase.CANCELLING: "the cancel continues",
}
_CAP_NOUNS: Final = {"steps": "turns", "tool_calls": "tool calls", "repeats": "repetitions"}


def _describe_pause_requested(entry: e.PauseRequested, before: State, after: State) -> Clause:
    when = " now" if entry.now else ""
    # This entry follows `TakenOver`, which has named the person. Make the run the subject.
    if entry.why == "taken_over" and before.taken_over_by == entry.by:
        return Clause(RUN_SUBJECT, f"will pause for {format_actor(entry.by)}{when}")
    if entry.now and before.pause is not None and before.pause.now:
        when = " without waiting any longer"
    elif entry.until is not None:
        when += f", for {format_time_until(after, entry.until)} at most"
    return describe_request(entry, f"asked the run to pause{when}")


def _describe_pause_withdrawn(entry: e.PauseWithdrawn, _: State, __: State) -> Clause:
    if is_automatic(entry.by):
        return Clause(RUN_SUBJECT, "continues: the time limit of the pause is over")
    what = "withdrew the pause before it took effect"
    return describe_request(entry, what, "; the run continues")


def _describe_run_paused(entry: e.RunPaused, before: State, _: State) -> Clause:
    if entry.why == "cap":
        bound = (
            "its cap"
            if before.pause is not None and before.pause.cap_name
            else "its stop condition"
        )
        return Clause(RUN_SUBJECT, f"is paused at {bound}")
    if entry.why == "taken_over" and before.taken_over_by:
        more = f"; {before.taken_over_by} has taken over from the agent"
        return Clause(RUN_SUBJECT, "is paused", more)
    return Clause(RUN_SUBJECT, "is paused")


def _describe_run_resumed(entry: e.RunResumed, before: State, _: State) -> Clause:
    if is_automatic(entry.by):
        return Clause(RUN_SUBJECT, "continues: the time limit of the pause is over")
    if entry.instruction:
        change = f"with the instruction {quote(entry.instruction)}{format_files(entry.files)}"
    elif before.pending_redirects:
        change = "with the new instruction"
    else:
        change = "with no changes"
    return describe_request(entry, f"resumed the run {change}")


def _format_cap(name: str, bound: int) -> str:
    if name == "cost":
        return f"${bound / MICROS_PER_SECOND:g}"
    if name == "time":
        return f"{format_duration(bound)} of work"
    return f"{bound} {_CAP_NOUNS.get(name, name)}"


def _describe_cap_raised(entry: e.CapRaised, _: State, __: State) -> Clause:
    to = join_names(_format_cap(name, bound) for name, bound in entry.caps.items())
    return describe_request(entry, f"raised the cap to {to}")


def _describe_cap_reached(entry: e.CapReached, before: State, _: State) -> Clause:
    met = "reached a cap" if entry.cap else "met a condition to pause"
    unmade = describe_unmade(before, lambda call: format_call(before, call.id))
    waiting = f"; {unmade}" if unmade else ""
    return Clause(RUN_SUBJECT, f"{met}: {format_condition(entry.stop)}", waiting)


def _describe_end_reached(entry: e.StopReached, _: State, __: State) -> Clause:
    return Clause(RUN_SUBJECT, f"met a condition to end: {format_condition(entry.stop)}")


def _describe_verdict_given(entry: e.StopEvaluated, _: State, __: State) -> Clause:
    result = "is met" if entry.met else "is not met"
    return Clause(f"the stop condition {entry.name}", result)


def _describe_redirect_requested(entry: e.RedirectRequested, _: State, __: State) -> Clause:
    when = "now" if entry.when == "now" else "before its next turn"
    said = quote(entry.text) + format_files(entry.files)
    return describe_request(entry, f"asked to redirect the run {when}: {said}")


def _describe_redirect_applied(entry: e.RedirectApplied, _: State, __: State) -> Clause:
    old = f", instead of: {flatten(entry.minus)}" if entry.minus else ""
    return Clause(AGENT_SUBJECT, f"received the new instruction {quote(entry.plus)}", old)


def _describe_redirect_closed(entry: e.RedirectClosed, before: State, _: State) -> Clause:
    if entry.why == "withdrawn":
        what = f"withdrew the instruction {quote(entry.text)} before it was applied"
        return describe_request(entry, what, tone="quiet")
    asker = format_actor(next((p.by for p in before.pending if p.seq == entry.redirect), ""))
    # Not cut: the sender may want to use the text again.
    said = quote(entry.text, len(entry.text))
    what = f"returned the instruction {said} to {asker}: it will not be applied"
    return Clause(RUN_SUBJECT, what)


def _describe_cancel_requested(entry: e.CancelRequested, _: State, __: State) -> Clause:
    undo = "undo everything possible" if entry.undo == "all" else "keep finished work"
    return describe_request(entry, f"asked to cancel the run and {undo}")


def _describe_run_cancelled(entry: e.RunCancelled, before: State, _: State) -> Clause:
    # The report of the state before is complete: this entry only ends the run.
    report = build_report(before)
    lists = (("undone", report.undone), ("kept", report.done), ("unsure", report.unsure))
    counts = [f"{len(calls)} {name}" for name, calls in lists if calls]
    more = f"; calls: {', '.join(counts)}" if counts else ""
    if entry.residue:
        more += f"; cleanup failed: {_join_residue_calls(before, entry.residue)}"
    return Clause(RUN_SUBJECT, "is cancelled", more)


def _join_residue_calls(state: State, residue: tuple[Residue, ...]) -> str:
    return join_names(format_call(state, left.call) for left in residue)


def _describe_undo_retried(entry: e.UndoRetried, before: State, _: State) -> Clause:
    return describe_request(
        entry,
        f"asked to retry the failed cleanup: {_join_residue_calls(before, before.residue)}",
    )


def _describe_residue_accepted(entry: e.ResidueAccepted, before: State, _: State) -> Clause:
    return describe_request(
        entry, f"accepted the failed cleanup: {_join_residue_calls(before, before.residue)}"
    )


def _describe_run_halted(entry: e.RunHalted, _: State, __: State) -> Clause:
    kind, name = [*entry.scope.split(":", 1), ""][:2]
    scope = {
        "run": "the run",
        "all": "all runs, including this one",
        "agent": f"all runs of agent {name}, including this one",
        "label": f"all runs with the label {name}, including this one",
    }.get(kind, "the run")
    what = f"halted {scope}{format_reason(entry.reason)}"
    return Clause(format_actor(entry.by), what, "; nothing starts until the halt is lifted")


def _describe_run_lifted(entry: e.RunLifted, _: State, after: State) -> Clause:
    then = _AFTER_LIFT_TEXTS.get(after.phase, "")
    return describe_request(entry, "lifted the halt" + (f"; {then}" if then else ""))


def _describe_request_noted(entry: e.RequestNoted, _: State, __: State) -> Clause:
    verdict = flatten(entry.verdict.replace("_", " "))
    if entry.refused:
        return Clause(format_actor(entry.by), f"sent a request that was refused: {verdict}")
    by = f"by {format_actor(entry.since_by)}, " if entry.since_by else ""
    what = f"sent a request that changed nothing: {verdict}"
    return Clause(format_actor(entry.by), what, f" ({by}since entry {entry.since})")


CONTROL_DESCRIBE_FUNCTIONS: DescribeFunctions = {
    e.PauseRequested: ("hold", _describe_pause_requested),
    e.PauseWithdrawn: ("go", _describe_pause_withdrawn),
    e.RunPaused: ("hold", _describe_run_paused),
    e.RunResumed: ("go", _describe_run_resumed),
    e.CapRaised: ("person", _describe_cap_raised),
    e.CapReached: ("hold", _describe_cap_reached),
    e.StopReached: ("detail", _describe_end_reached),
    e.StopEvaluated: ("detail", _describe_verdict_given),
    e.RedirectRequested: ("person", _describe_redirect_requested),
    e.RedirectApplied: ("go", _describe_redirect_applied),
    e.RedirectClosed: ("bad", _describe_redirect_closed),
    e.CancelRequested: ("stop", _describe_cancel_requested),
    e.RunCancelled: ("stop", _describe_run_cancelled),
    e.UndoRetried: ("person", _describe_undo_retried),
    e.ResidueAccepted: ("person", _describe_residue_accepted),
    e.RunHalted: ("stop", _describe_run_halted),
    e.RunLifted: ("go", _describe_run_lifted),
    e.RequestNoted: ("detail", _describe_request_noted),
}

DESCRIBE_FUNCTIONS: Final[DescribeFunctions] = {
    **LIFECYCLE_DESCRIBE_FUNCTIONS,
    **CONTROL_DESCRIBE_FUNCTIONS,
    **CALL_DESCRIBE_FUNCTIONS,
    **ASK_DESCRIBE_FUNCTIONS,
    **CONVERSATION_DESCRIBE_FUNCTIONS,
}
"""All kinds of entries. A test checks that none is missing."""


def describe_entry(entry: e.Entry, before: State, after: State) -> EntryText:
    """Describe `entry`, which led from the state `before` to the state `after`."""
    usual_tone, describe = DESCRIBE_FUNCTIONS[type(entry)]
    who, short, more, tone = describe(entry, before, after)
    return EntryText(
        who=who,
        sentence=f"{who} {short}{more}",
        short=flatten(short, SHORT_MAX_CHARS),
        tone=tone or usual_tone,
    )


_DELTA_SENTENCES: Final = {
    "text": "the agent is writing",
    "thinking": "the agent is thinking",
    "args": "the agent is writing a call of {}",
    "not_responding": "{} does not respond",
}


def describe_delta(kind: str, tool: str, text: str) -> str:
    """Describe live output; quote its text only if it is the note of a tool.

    `tool` is the title of the call, or the name of its tool as words.
    """
    named = tool or "a call"
    if kind == "note":
        return f"{named}: {flatten(text)}"
    return _DELTA_SENTENCES[kind].format(named)


class JournalDescriber:
    """Describes the entries of one journal one by one, from the first or after a state."""

    def __init__(self, run: RunId, state: State | None = None) -> None:
        self.state = State(run=run) if state is None else state

    def describe_next(self, entry: e.Entry, at: Micros) -> EntryText:
        """Describe the next entry, which the store stamped with `at`.

        Raises:
            JournalCorrupt: `entry` may not follow the entries read before.
        """
        before = self.state
        self.state = evolve(before, entry, at)
        return describe_entry(entry, before, self.state)
