"""Lines for the entries of a run, printed above the bar.

One function per kind of entry, listed in `LINES_BY_KIND`. Kinds without a function print
nothing, because the bar shows them already. Each function gets the state before and after.
"""

from collections.abc import Callable, Mapping
from typing import Final

from midrun.core import entries as e
from midrun.core.journaled_text import describe_unmade, line
from midrun.core.state import Call, State
from midrun.core.values import Item
from midrun.text.phrases import GLIMPSE, is_told_elsewhere, shown
from midrun.tui.escape import exact
from midrun.tui.style import Line, emphasised

MINUS: Final = "\N{MINUS SIGN}"
DASH: Final = "\N{EN DASH}"


def told(entry: e.Entry, before: State, after: State) -> list[Line]:
    """Return the lines of `entry`, which led from `before` to `after`."""
    return ARMS[type(entry)](entry, before, after) if type(entry) in ARMS else []


def _call(state: State, call: str) -> Call:
    named = state.call(call)
    assert named is not None, "entries name calls that exist"
    return named


def _by(name: str) -> str:
    return f" by {name}" if name else ""


def _one(look: str, mark: str, text: str) -> list[Line]:
    return [[(look, f"{mark} {text}")]]


def _started(entry: e.RunStarted, _: State, __: State) -> list[Line]:
    return [[("bold", shown(entry.task))]]


def _stood_down(_: e.StoodDown, __: State, ___: State) -> list[Line]:
    return _one("dim", "·", "the worker stopped; the run waits for another one")


def _failed(entry: e.RunFailed, _: State, __: State) -> list[Line]:
    return _one("bad", "!", f"failed: {shown(entry.error)}")


def _completed(_: e.RunCompleted, __: State, ___: State) -> list[Line]:
    return _one("good", "✓", "completed")


def _pause(entry: e.PauseRequested, _: State, __: State) -> list[Line]:
    text = "pause requested" if entry.until is None else "paused for a moment"
    return _one("paused", "‖", f"{text}{_by(entry.by)}")


def _unpaused(entry: e.PauseWithdrawn, _: State, __: State) -> list[Line]:
    return _one("running", "▷", f"the pause was withdrawn{_by(entry.by)}")


def _paused(_: e.RunPaused, __: State, ___: State) -> list[Line]:
    return _one("paused", "‖", "paused")


def _resumed(entry: e.RunResumed, before: State, _: State) -> list[Line]:
    if entry.instruction:
        return _difference(entry.minus, entry.plus)
    waits = any(pending.kind == "redirect" for pending in before.pending)
    suffix = ", with a new instruction" if waits else ", no changes"
    return _one("dim", "=", f"resumed{_by(entry.by)}{suffix}")


def _difference(minus: str, plus: str) -> list[Line]:
    return [[("minus", f"{MINUS} {minus}")], [("plus", f"+ {plus}")]]


def _redirect(entry: e.RedirectRequested, _: State, __: State) -> list[Line]:
    when = "now" if entry.when == "now" else "at the next step"
    return _one("person", "↪", f"redirect {when}{_by(entry.by)}: {shown(entry.text)}")


def _redirected(entry: e.RedirectApplied, _: State, __: State) -> list[Line]:
    return _difference(entry.minus, entry.plus)


def _words_closed(entry: "e.RedirectClosed | e.MessageClosed", *_: State) -> list[Line]:
    if entry.why == "withdrawn":
        return _one("dim", "·", f"withdrawn{_by(entry.by)}: {shown(entry.text)}")
    return _one("bad", "!", f"it finished first. Your text: {entry.text}")


def _cap(entry: e.CapReached, before: State, _: State) -> list[Line]:
    unmade = describe_unmade(before, lambda call: call.use.tool)
    waiting = f"; {unmade}" if unmade else ""
    return _one("paused", "‖", f"cap reached: {entry.stop}{waiting}")


def _raised(entry: e.CapRaised, _: State, __: State) -> list[Line]:
    return _one("dim", "·", f"raised{_by(entry.by)}: {', '.join(entry.caps)}")


def _imported(entry: e.RunImported, before: State, _: State) -> list[Line]:
    seal = "signed" if entry.kid else "unsigned"
    return _one(
        "person", "·", f"{before.seq} entries imported{_by(entry.by)}, {seal} checkpoint"
    )


def _cancel(entry: e.CancelRequested, _: State, __: State) -> list[Line]:
    undo = (
        "undo all effects that can be undone" if entry.undo == "all" else "keep finished work"
    )
    return _one("cancelling", "■", f"cancel requested{_by(entry.by)}: {undo}")


def _cancelled(_: e.RunCancelled, __: State, ___: State) -> list[Line]:
    return _one("cancelled", "■", "cancelled")


def _halted(entry: e.RunHalted, _: State, __: State) -> list[Line]:
    return _one("halted", "⊘", f"halted{_by(entry.by)}: {shown(entry.reason)}")


def _lifted(entry: e.RunLifted, _: State, __: State) -> list[Line]:
    return _one("running", "▷", f"lifted{_by(entry.by)}")


# ── calls ─────────────────────────────────────────────────────────────────────────────────


def _call_started(entry: e.CallStarted, _: State, after: State) -> list[Line]:
    if entry.call_kind == "model":
        return []
    use = _call(after, entry.call).use
    if is_told_elsewhere(use):
        return []
    again = f"  (attempt {entry.attempt})" if entry.attempt > 1 else ""
    why = f"  — {line(use.why)}" if use.why else ""
    args = "" if use.args is None else f" {exact(shown(use.args))}"
    return [[("bold", f"→ {use.tool}"), ("", args), ("dim", f"{why}{again}")]]


def _call_done(entry: e.CallDone, _: State, after: State) -> list[Line]:
    call = _call(after, entry.call)
    if call.call_kind == "model" or is_told_elsewhere(call.use):
        return []
    result = exact(shown(entry.result, GLIMPSE))
    return [[("good", f"✓ {call.use.tool}"), ("dim", f" {result}")]]


def _call_failed(entry: e.CallFailed, _: State, after: State) -> list[Line]:
    call = _call(after, entry.call)
    name = call.use.tool or "the model"
    again = "; it is retried" if call.again else ""
    return _one("bad", "!", f"{name}: {shown(entry.error)}{again}")


def _call_aborted(entry: e.CallAborted, _: State, after: State) -> list[Line]:
    call = _call(after, entry.call)
    return (
        [] if call.call_kind == "model" else _one("dim", "■", f"{call.use.tool} stopped midway")
    )


def _call_unknown(entry: e.CallUnknown, _: State, after: State) -> list[Line]:
    name = _call(after, entry.call).use.tool or "the model"
    return _one("waiting", "?", f"{name}: its outcome is unknown")


def _call_sealed(entry: e.CallSealed, _: State, after: State) -> list[Line]:
    return _one("dim", DASH, f"{_call(after, entry.call).use.tool}: {entry.why}")


def _call_settled(entry: e.CallSettled, _: State, after: State) -> list[Line]:
    texts = {True: "it did happen", False: "it did not happen", None: "still unknown"}
    name = _call(after, entry.call).use.tool
    return _one("dim", "·", f"{name}: {texts[entry.happened]}{_by(entry.by)}")


def _undo_started(entry: e.UndoStarted, _: State, after: State) -> list[Line]:
    verb = "undoing" if entry.action == "undo" else "releasing"
    return _one("cancelling", "↩", f"{verb} {_call(after, entry.call).use.tool}")


def _undo_done(entry: e.UndoDone, _: State, after: State) -> list[Line]:
    verb = "undone" if entry.action == "undo" else "released"
    return _one("good", "↩", f"{verb}: {_call(after, entry.call).use.tool}")


def _undo_failed(entry: "e.UndoFailed | e.UndoGaveUp", _: State, after: State) -> list[Line]:
    verb = "undone" if entry.action == "undo" else "released"
    name = _call(after, entry.call).use.tool
    retried = isinstance(entry, e.UndoFailed) and not entry.final
    again = "; it is retried" if retried else ""
    return _one("bad", "!", f"{name} could not be {verb}: {shown(entry.error)}{again}")


# ── people ────────────────────────────────────────────────────────────────────────────────


def _ask(entry: e.AskOpened, _: State, after: State) -> list[Line]:
    use = _call(after, entry.call).use
    args = "" if entry.ask_kind == "question" else f" {exact(shown(use.args))}"
    return _one("waiting", "?", f"{entry.ask}: {shown(entry.question or use.tool)}{args}")


def _answered(entry: e.AskAnswered, _: State, __: State) -> list[Line]:
    decision = entry.decision
    text = {
        "answer": f"answered{_by(entry.by)}: {shown(decision.value)}",
        "approve": f"approved{_by(entry.by)}",
        "decline": f"declined{_by(entry.by)} {shown(decision.reason)}".rstrip(),
    }[decision.choice]
    return _one("person", "·", f"{entry.ask}: {text}")


def _ask_closed(entry: e.AskClosed, _: State, __: State) -> list[Line]:
    return _one("dim", "·", f"{entry.ask}: {entry.why}")


def _message(entry: e.MessageReceived, _: State, __: State) -> list[Line]:
    lines = [[("person", f"» {entry.by or 'a user'}: {shown(entry.text)}")]]
    return [*lines, emphasised(f"  {entry.ack}", "dim")] if entry.ack else lines


def _frame(entry: e.FramePushed, _: State, __: State) -> list[Line]:
    return _one("dim", "⋯", f"held: {entry.goal}")


def _dropped(entry: e.FrameAbandoned, _: State, __: State) -> list[Line]:
    return [emphasised(f"⋯ {entry.words}", "dim")] if entry.words else []


def _plan(entry: e.PlanMade, before: State, _: State) -> list[Line]:
    known = set(before.plan)
    marks = {"done": "✓", "running": "▷", "failed": "!", "dropped": DASH}
    new: list[Item] = [item for item in entry.items if item not in known]
    return [[("dim", f"  {marks.get(i.mark, '○')} {line(i.text)}")] for i in new]


def _condensed(_: e.HistoryCondensed, __: State, ___: State) -> list[Line]:
    return _one("dim", "·", "older messages were summarised for the model")


def _answer(entry: e.AnswerGiven, _: State, __: State) -> list[Line]:
    return [[("", text)] for text in entry.text.splitlines()]


def _taken_over(entry: e.TakenOver, _: State, __: State) -> list[Line]:
    return _one("person", "·", f"taken over{_by(entry.by)}")


def _wrote(entry: e.PersonWrote, _: State, __: State) -> list[Line]:
    return _one("person", "·", f"{entry.by}: {shown(entry.text)}")


def _handed_back(entry: e.HandedBack, _: State, __: State) -> list[Line]:
    return _one("person", "·", f"handed back{_by(entry.by)}")


Arm = Callable[..., list[Line]]  # type: ignore[explicit-any]  # each takes the one kind it is filed under

ARMS: Final[Mapping[type[e.Entry], Arm]] = {
    e.RunStarted: _started,
    e.RunImported: _imported,
    e.StoodDown: _stood_down,
    e.RunFailed: _failed,
    e.RunCompleted: _completed,
    e.PauseRequested: _pause,
    e.PauseWithdrawn: _unpaused,
    e.RunPaused: _paused,
    e.RunResumed: _resumed,
    e.RedirectRequested: _redirect,
    e.RedirectApplied: _redirected,
    e.RedirectClosed: _words_closed,
    e.CapReached: _cap,
    e.CapRaised: _raised,
    e.CancelRequested: _cancel,
    e.RunCancelled: _cancelled,
    e.RunHalted: _halted,
    e.RunLifted: _lifted,
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
    e.AskOpened: _ask,
    e.AskAnswered: _answered,
    e.AskClosed: _ask_closed,
    e.MessageReceived: _message,
    e.MessageClosed: _words_closed,
    e.FramePushed: _frame,
    e.FrameAbandoned: _dropped,
    e.PlanMade: _plan,
    e.HistoryCondensed: _condensed,
    e.AnswerGiven: _answer,
    e.TakenOver: _taken_over,
    e.PersonWrote: _wrote,
    e.HandedBack: _handed_back,
}

QUIET: Final = frozenset(e.KINDS) - ARMS.keys()
"""Kinds without lines: the bar or a later entry shows them, or they are internal."""
