"""Keeping: evidence as it can be journaled, whatever somebody's code returned or said.

A call has happened by the time its outcome turns out to be too long, or no text that can be
stored. Then what can be kept of it is kept, and the rest is said in words.
"""

from msgspec.structs import replace

from midrun.codec.brief import safe_repr, safe_str
from midrun.codec.journal import encode_entry
from midrun.core.entries import (
    AskOpened,
    CallAborted,
    CallDone,
    CallFailed,
    CallSettled,
    Entry,
)
from midrun.core.evidence import AskPerson, Close, Evidence, Fail, SettleCall
from midrun.core.ids import AskId
from midrun.errors import NotJson, TooLarge


def kept(given: Evidence) -> Evidence:
    """Return `given`, or what of it can be journaled."""
    match given:
        case Close(outcome=outcome):
            problem = problem_of(outcome)
            return (
                given
                if problem is None
                else Close(epoch=given.epoch, outcome=_brief(outcome, problem))
            )
        case AskPerson():
            problem = problem_of(_asked(given))
            if problem is None:
                return given
            error = f"its question cannot be kept: {problem}"
            failed = CallFailed(call=given.call, error=error)
            return Close(epoch=given.epoch, outcome=failed)
        case SettleCall(call=call, happened=happened, result=result):
            if problem_of(CallSettled(call=call, happened=happened, result=result)) is None:
                return given
            return replace(given, result=safe_repr(result))
        case Fail(error=error, code=code):
            return Fail(epoch=given.epoch, error=safe_str(error), code=safe_str(code))
        case _:
            return given


def problem_of(entry: Entry) -> str | None:
    """Return why `entry` cannot be stored, or None."""
    try:
        encode_entry(entry)
    except (NotJson, TooLarge) as error:
        return safe_str(error)
    return None


def _asked(given: AskPerson) -> AskOpened:
    return AskOpened(
        ask=AskId("a1"),
        ask_kind="question",
        call=given.call,
        question=given.question,
        data=given.data,
        continuation=given.continuation,
    )


def _brief(outcome: Entry, problem: str) -> CallDone | CallFailed | CallAborted:
    """Return what can be said of an outcome that cannot be stored as it is."""
    match outcome:
        case CallDone(call=call, reply=None, result=result):
            shown = safe_repr(result)
            return CallDone(call=call, result=shown, encoding_error=problem)
        case CallDone(call=call):
            error = f"what the model said cannot be kept: {problem}"
            return CallFailed(call=call, error=error, code="model_error")
        case CallFailed(call=call, transient=transient, retry_at=retry_at):
            error = safe_str(outcome.error)
            return CallFailed(call=call, error=error, transient=transient, retry_at=retry_at)
        case CallAborted(call=call, final=final):
            return CallAborted(call=call, text=safe_str(outcome.text), final=final)
        case _:
            raise AssertionError(outcome)
