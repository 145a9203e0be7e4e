"""Sanitizing: make driver inputs storable, whatever user code or a model returned.

When a result turns out to be too large, or not encodable, the call has already happened. So its
outcome is not rejected: the storable part is kept, and the rest is replaced by a description.
"""

from collections.abc import Generator
from typing import Final, TypeVar, cast

from anyio.lowlevel import cancel_shielded_checkpoint
from msgspec.structs import replace

from midrun.codec.journal import encode_entry, prepare_entry
from midrun.codec.safe_repr import safe_repr, safe_str
from midrun.codec.strict_json import JsonLimits
from midrun.core.driver_inputs import AskPerson, CloseCall, DriverInput, FailRun, SettleCall
from midrun.core.entries import AskOpened, CallAborted, CallDone, CallFailed, CallSettled, Entry
from midrun.core.ids import AskId
from midrun.errors import NotJson, TooLarge

# Slices: run work that would block the event loop step by step.

T = TypeVar("T")

QUICK_LIMITS: Final = JsonLimits(max_bytes=32 * 1024)
"""A value within these limits is checked and encoded in less than two milliseconds."""


async def run_in_slices(steps: Generator[None, None, T]) -> T:
    """Run `steps` and return its result; yield to the event loop after each step.

    A cancellation is not delivered in here: the work is bounded, and it may process the result
    of a call that has happened, which must not be lost.
    """
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]  # as `steps` says
        await cancel_shielded_checkpoint()


EntryT = TypeVar("EntryT", bound=Entry)


async def sanitize_input(driver_input: DriverInput) -> DriverInput:
    """Return `driver_input`, reduced to the part that can be journaled.

    A large outcome is checked and encoded here, in slices, so that the event loop can run in
    between. The codec remembers the encoded text, and the store need not encode it again.
    """
    if isinstance(driver_input, CloseCall):
        # Nearly all outcomes are small and sound, and encoded in one go. The limit makes a
        # large one fail early, before it has blocked the event loop.
        try:
            encode_entry(driver_input.outcome, QUICK_LIMITS, keep=True)
        except (NotJson, TooLarge):
            pass
        else:
            return driver_input
    match driver_input:
        case CloseCall(outcome=outcome):
            prepared, problem = await _try_make_storable(outcome)
            if problem:
                return CloseCall(
                    epoch=driver_input.epoch, outcome=_shorten_outcome(outcome, problem)
                )
            return (
                driver_input
                if prepared is outcome
                else CloseCall(epoch=driver_input.epoch, outcome=prepared)
            )
        case AskPerson():
            # A question that cannot be stored cannot be asked: the call fails with the reason.
            prepared_ask, problem = await _try_make_storable(_make_ask_entry(driver_input))
            if not problem:
                return replace(driver_input, data=prepared_ask.data)
            error = f"its question cannot be kept: {problem}"
            failed = CallFailed(call=driver_input.call, error=error)
            return CloseCall(epoch=driver_input.epoch, outcome=failed)
        case SettleCall(call=call, happened=happened, result=result):
            settled = CallSettled(call=call, happened=happened, result=result)
            prepared_settled, problem = await _try_make_storable(settled)
            return replace(
                driver_input, result=safe_repr(result) if problem else prepared_settled.result
            )
        case FailRun(error=error, code=code):
            # The text of an exception may be anything: megabytes, or not valid Unicode.
            return FailRun(epoch=driver_input.epoch, error=safe_str(error), code=safe_str(code))
        case _:
            return driver_input


async def _try_make_storable(entry: EntryT) -> tuple[EntryT, str]:
    """Return `entry` in storable form and "", or `entry` itself and the problem."""
    try:
        return await make_storable(entry), ""
    except (NotJson, TooLarge) as error:
        return entry, safe_str(error)


async def make_storable(entry: EntryT) -> EntryT:
    """Return `entry` in storable form; encode a large one in slices.

    Raises:
        NotJson, TooLarge: the entry cannot be stored.
    """
    try:
        encode_entry(entry, QUICK_LIMITS)
    except TooLarge:
        return cast("EntryT", await run_in_slices(prepare_entry(entry)))
    return entry


def _make_ask_entry(driver_input: AskPerson) -> AskOpened:
    # Only to find out whether the question can be stored; its id does not matter.
    return AskOpened(
        ask=AskId("a1"),
        ask_kind="question",
        call=driver_input.call,
        question=driver_input.question,
        data=driver_input.data,
        continuation=driver_input.continuation,
        files=driver_input.files,
    )


def _shorten_outcome(outcome: Entry, problem: str) -> CallDone | CallFailed | CallAborted:
    """Return a storable outcome in place of one that is too large or not encodable."""
    match outcome:
        case CallDone(call=call, reply=None, result=result):
            # The call has taken effect, so its end must be journaled in some form. A call
            # without an end would be *unknown*, and perhaps made again.
            shown = safe_repr(result)
            return CallDone(call=call, result=shown, encoding_error=problem)
        case CallDone(call=call):  # of a model: a reply without its content is of no use
            error = f"what the model said cannot be kept: {problem}"
            return CallFailed(call=call, error=error, code="model_error")
        case CallFailed(call=call, transient=transient, retry_at=retry_at):
            error = safe_str(outcome.error)
            return CallFailed(call=call, error=error, transient=transient, retry_at=retry_at)
        case CallAborted(call=call, final=final):
            return CallAborted(call=call, text=safe_str(outcome.text), final=final)
        case _:
            raise AssertionError(outcome)
