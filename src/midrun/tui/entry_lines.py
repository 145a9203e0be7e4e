"""Lines for the entries of a run, printed above the bar.

One function per kind of entry, listed in `LINES_BY_KIND`. Kinds without a function print
nothing, because the bar shows them already. Each function gets the state before and after.
"""

from collections.abc import Callable, Mapping
from typing import Final

from midrun.core import entries as e
from midrun.core.journaled_text import describe_unmade, shorten_to_line
from midrun.core.state import Call, State
from midrun.core.values import PlanItem
from midrun.text.phrases import RESULT_MAX_CHARS, format_value, is_described_elsewhere
from midrun.tui.styled_text import StyledLine, show_hidden_characters, style_emphasis

MINUS_SIGN: Final = "\N{MINUS SIGN}"
EN_DASH: Final = "\N{EN DASH}"


def format_entry(entry: e.Entry, before: State, after: State) -> list[StyledLine]:
    """Return the lines of `entry`, which led from `before` to `after`."""
    return (
        LINES_BY_KIND[type(entry)](entry, before, after) if type(entry) in LINES_BY_KIND else []
    )


def _find_call(state: State, call: str) -> Call:
    named = state.find_call(call)
    assert named is not None, "entries name calls that exist"
    return named


def _format_by(name: str) -> str:
    return f" by {name}" if name else ""


def _single_line(style: str, mark: str, text: str) -> list[StyledLine]:
    return [[(style, f"{mark} {text}")]]


def _run_started(entry: e.RunStarted, _: State, __: State) -> list[StyledLine]:
    return [[("bold", format_value(entry.task))]]


def _stood_down(_: e.LeaseReleased, __: State, ___: State) -> list[StyledLine]:
    return _single_line("dim", "·", "the worker stopped; the run waits for another one")


def _run_failed(entry: e.RunFailed, _: State, __: State) -> list[StyledLine]:
    return _single_line("bad", "!", f"failed: {format_value(entry.error)}")


def _run_completed(_: e.RunCompleted, __: State, ___: State) -> list[StyledLine]:
    return _single_line("good", "✓", "completed")


def _pause_requested(entry: e.PauseRequested, _: State, __: State) -> list[StyledLine]:
    text = "pause requested" if entry.until is None else "paused for a moment"
    return _single_line("paused", "‖", f"{text}{_format_by(entry.by)}")


def _pause_withdrawn(entry: e.PauseWithdrawn, _: State, __: State) -> list[StyledLine]:
    return _single_line("running", "▷", f"the pause was withdrawn{_format_by(entry.by)}")


def _run_paused(_: e.RunPaused, __: State, ___: State) -> list[StyledLine]:
    return _single_line("paused", "‖", "paused")


def _run_resumed(entry: e.RunResumed, before: State, _: State) -> list[StyledLine]:
    if entry.instruction:
        return _draw_difference(entry.minus, entry.plus)
    waits = any(pending.kind == "redirect" for pending in before.pending)
    suffix = ", with a new instruction" if waits else ", no changes"
    return _single_line("dim", "=", f"resumed{_format_by(entry.by)}{suffix}")


def _draw_difference(minus: str, plus: str) -> list[StyledLine]:
    return [[("minus", f"{MINUS_SIGN} {minus}")], [("plus", f"+ {plus}")]]


def _redirect_requested(entry: e.RedirectRequested, _: State, __: State) -> list[StyledLine]:
    when = "now" if entry.when == "now" else "at the next step"
    return _single_line(
        "person", "↪", f"redirect {when}{_format_by(entry.by)}: {format_value(entry.text)}"
    )


def _redirect_applied(entry: e.RedirectApplied, _: State, __: State) -> list[StyledLine]:
    return _draw_difference(entry.minus, entry.plus)


def _text_closed(entry: "e.RedirectClosed | e.MessageClosed", *_: State) -> list[StyledLine]:
    if entry.why == "withdrawn":
        return _single_line(
            "dim", "·", f"withdrawn{_format_by(entry.by)}: {format_value(entry.text)}"
        )
    return _single_line("bad", "!", f"it finished first. Your text: {entry.text}")


def _cap_reached(entry: e.CapReached, before: State, _: State) -> list[StyledLine]:
    unmade = describe_unmade(before, lambda call: call.use.tool)
    waiting = f"; {unmade}" if unmade else ""
    return _single_line("paused", "‖", f"cap reached: {entry.stop}{waiting}")


def _cap_raised(entry: e.CapRaised, _: State, __: State) -> list[StyledLine]:
    return _single_line("dim", "·", f"raised{_format_by(entry.by)}: {', '.join(entry.caps)}")


def _run_imported(entry: e.RunImported, before: State, _: State) -> list[StyledLine]:
    seal = "signed" if entry.kid else "unsigned"
    return _single_line(
        "person", "·", f"{before.seq} entries imported{_format_by(entry.by)}, {seal} checkpoint"
    )


def _cancel_requested(entry: e.CancelRequested, _: State, __: State) -> list[StyledLine]:
    undo = (
        "undo all effects that can be undone" if entry.undo == "all" else "keep finished work"
    )
    return _single_line("cancelling", "■", f"cancel requested{_format_by(entry.by)}: {undo}")


def _run_cancelled(_: e.RunCancelled, __: State, ___: State) -> list[StyledLine]:
    return _single_line("cancelled", "■", "cancelled")


def _run_halted(entry: e.RunHalted, _: State, __: State) -> list[StyledLine]:
    return _single_line(
        "halted", "⊘", f"halted{_format_by(entry.by)}: {format_value(entry.reason)}"
    )


def _run_lifted(entry: e.RunLifted, _: State, __: State) -> list[StyledLine]:
    return _single_line("running", "▷", f"lifted{_format_by(entry.by)}")


# ── calls ─────────────────────────────────────────────────────────────────────────────────


def _call_started(entry: e.CallStarted, _: State, after: State) -> list[StyledLine]:
    if entry.call_kind == "model":
        return []
    use = _find_call(after, entry.call).use
    if is_described_elsewhere(use):
        return []
    again = f"  (attempt {entry.attempt})" if entry.attempt > 1 else ""
    why = f"  — {shorten_to_line(use.why)}" if use.why else ""
    args = "" if use.args is None else f" {show_hidden_characters(format_value(use.args))}"
    return [[("bold", f"→ {use.tool}"), ("", args), ("dim", f"{why}{again}")]]


def _call_done(entry: e.CallDone, _: State, after: State) -> list[StyledLine]:
    call = _find_call(after, entry.call)
    if call.call_kind == "model" or is_described_elsewhere(call.use):
        return []
    result = show_hidden_characters(format_value(entry.result, RESULT_MAX_CHARS))
    return [[("good", f"✓ {call.use.tool}"), ("dim", f" {result}")]]


def _call_failed(entry: e.CallFailed, _: State, after: State) -> list[StyledLine]:
    call = _find_call(after, entry.call)
    name = call.use.tool or "the model"
    again = "; it is retried" if call.must_retry else ""
    return _single_line("bad", "!", f"{name}: {format_value(entry.error)}{again}")


def _call_aborted(entry: e.CallAborted, _: State, after: State) -> list[StyledLine]:
    call = _find_call(after, entry.call)
    return (
        []
        if call.call_kind == "model"
        else _single_line("dim", "■", f"{call.use.tool} stopped midway")
    )


def _call_unknown(entry: e.CallUnknown, _: State, after: State) -> list[StyledLine]:
    name = _find_call(after, entry.call).use.tool or "the model"
    return _single_line("waiting", "?", f"{name}: its outcome is unknown")


def _call_sealed(entry: e.CallSealed, _: State, after: State) -> list[StyledLine]:
    return _single_line(
        "dim", EN_DASH, f"{_find_call(after, entry.call).use.tool}: {entry.why}"
    )


def _call_settled(entry: e.CallSettled, _: State, after: State) -> list[StyledLine]:
    texts = {True: "it did happen", False: "it did not happen", None: "still unknown"}
    name = _find_call(after, entry.call).use.tool
    return _single_line("dim", "·", f"{name}: {texts[entry.happened]}{_format_by(entry.by)}")


def _undo_started(entry: e.UndoStarted, _: State, after: State) -> list[StyledLine]:
    verb = "undoing" if entry.action == "undo" else "releasing"
    return _single_line("cancelling", "↩", f"{verb} {_find_call(after, entry.call).use.tool}")


def _undo_done(entry: e.UndoDone, _: State, after: State) -> list[StyledLine]:
    verb = "undone" if entry.action == "undo" else "released"
    return _single_line("good", "↩", f"{verb}: {_find_call(after, entry.call).use.tool}")


def _undo_failed(
    entry: "e.UndoFailed | e.UndoGaveUp", _: State, after: State
) -> list[StyledLine]:
    verb = "undone" if entry.action == "undo" else "released"
    name = _find_call(after, entry.call).use.tool
    retried = isinstance(entry, e.UndoFailed) and not entry.final
    again = "; it is retried" if retried else ""
    return _single_line(
        "bad", "!", f"{name} could not be {verb}: {format_value(entry.error)}{again}"
    )


# ── people ────────────────────────────────────────────────────────────────────────────────


def _ask_opened(entry: e.AskOpened, _: State, after: State) -> list[StyledLine]:
    use = _find_call(after, entry.call).use
    args = (
        ""
        if entry.ask_kind == "question"
        else f" {show_hidden_characters(format_value(use.args))}"
    )
    return _single_line(
        "waiting", "?", f"{entry.ask}: {format_value(entry.question or use.tool)}{args}"
    )


def _ask_answered(entry: e.AskAnswered, _: State, __: State) -> list[StyledLine]:
    decision = entry.decision
    text = {
        "answer": f"answered{_format_by(entry.by)}: {format_value(decision.value)}",
        "approve": f"approved{_format_by(entry.by)}",
        "decline": f"declined{_format_by(entry.by)} {format_value(decision.reason)}".rstrip(),
    }[decision.choice]
    return _single_line("person", "·", f"{entry.ask}: {text}")


def _ask_closed(entry: e.AskClosed, _: State, __: State) -> list[StyledLine]:
    return _single_line("dim", "·", f"{entry.ask}: {entry.why}")


def _message_received(entry: e.MessageReceived, _: State, __: State) -> list[StyledLine]:
    lines = [[("person", f"» {entry.by or 'a user'}: {format_value(entry.text)}")]]
    return [*lines, style_emphasis(f"  {entry.ack}", "dim")] if entry.ack else lines


def _frame_pushed(entry: e.FramePushed, _: State, __: State) -> list[StyledLine]:
    return _single_line("dim", "⋯", f"held: {entry.goal}")


def _frame_abandoned(entry: e.FrameAbandoned, _: State, __: State) -> list[StyledLine]:
    return [style_emphasis(f"⋯ {entry.text}", "dim")] if entry.text else []


def _plan_made(entry: e.PlanMade, before: State, _: State) -> list[StyledLine]:
    known = set(before.plan)
    marks = {"done": "✓", "running": "▷", "failed": "!", "dropped": EN_DASH}
    new: list[PlanItem] = [item for item in entry.items if item not in known]
    return [[("dim", f"  {marks.get(i.state, '○')} {shorten_to_line(i.text)}")] for i in new]


def _history_condensed(_: e.HistoryCondensed, __: State, ___: State) -> list[StyledLine]:
    return _single_line("dim", "·", "older messages were summarised for the model")


def _answer_given(entry: e.AnswerGiven, _: State, __: State) -> list[StyledLine]:
    return [[("", text)] for text in entry.text.splitlines()]


def _taken_over(entry: e.TakenOver, _: State, __: State) -> list[StyledLine]:
    return _single_line("person", "·", f"taken over{_format_by(entry.by)}")


def _person_wrote(entry: e.PersonWrote, _: State, __: State) -> list[StyledLine]:
    return _single_line("person", "·", f"{entry.by}: {format_value(entry.text)}")


def _handed_back(entry: e.HandedBack, _: State, __: State) -> list[StyledLine]:
    return _single_line("person", "·", f"handed back{_format_by(entry.by)}")


EntryFormatter = Callable[..., list[StyledLine]]  # type: ignore[explicit-any]  # each takes the one kind it is filed under

LINES_BY_KIND: Final[Mapping[type[e.Entry], EntryFormatter]] = {
    e.RunStarted: _run_started,
    e.RunImported: _run_imported,
    e.LeaseReleased: _stood_down,
    e.RunFailed: _run_failed,
    e.RunCompleted: _run_completed,
    e.PauseRequested: _pause_requested,
    e.PauseWithdrawn: _pause_withdrawn,
    e.RunPaused: _run_paused,
    e.RunResumed: _run_resumed,
    e.RedirectRequested: _redirect_requested,
    e.RedirectApplied: _redirect_applied,
    e.RedirectClosed: _text_closed,
    e.CapReached: _cap_reached,
    e.CapRaised: _cap_raised,
    e.CancelRequested: _cancel_requested,
    e.RunCancelled: _run_cancelled,
    e.RunHalted: _run_halted,
    e.RunLifted: _run_lifted,
    e.CallStarted: _call_started,
    e.CallDone: _call_done,
    e.CallFailed: _call_failed,
    e.CallAborted: _call_aborted,
    e.CallUnknown: _call_unknown,
    e.CallSealed: _call_sealed,
    e.CallSettled: _call_settled,
    e.UndoStarted: _undo_started,
    e.UndoDone: _undo_done,
    e.UndoFailed: _undo_failed,
    e.UndoGaveUp: _undo_failed,
    e.AskOpened: _ask_opened,
    e.AskAnswered: _ask_answered,
    e.AskClosed: _ask_closed,
    e.MessageReceived: _message_received,
    e.MessageClosed: _text_closed,
    e.FramePushed: _frame_pushed,
    e.FrameAbandoned: _frame_abandoned,
    e.PlanMade: _plan_made,
    e.HistoryCondensed: _history_condensed,
    e.AnswerGiven: _answer_given,
    e.TakenOver: _taken_over,
    e.PersonWrote: _person_wrote,
    e.HandedBack: _handed_back,
}

KINDS_WITHOUT_LINES: Final = frozenset(e.ENTRY_TYPES) - LINES_BY_KIND.keys()
"""Kinds without lines: the bar or a later entry shows them, or they are internal."""
