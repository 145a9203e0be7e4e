"""How a segment ends: what AG-UI is told when the run rests."""

from collections.abc import Iterator

from midrun.agents.outcome import AskView, ask_views
from midrun.core.report import report
from midrun.core.state import State
from midrun.core.values import Phase
from midrun.core.words import line
from midrun.server.agui.given import RunAgentInput
from midrun.server.agui.segment import Event, Segment, call_ref
from midrun.server.agui.wishes import PAUSE

_TEXT = {"type": "string"}


def finished(segment: Segment, given: RunAgentInput, *, pause_as: str) -> Iterator[Event]:
    """Yield the last events of a segment, for a run that rests as it was last told."""
    state, own = segment.state, {"threadId": given.thread_id, "runId": given.run_id}
    success: Event = {"type": "RUN_FINISHED", **own, "outcome": {"type": "success"}}
    success |= {"usage": [segment.usage]} if segment.usage else {}
    match state.phase:
        case Phase.COMPLETED:
            yield success | {"result": state.output}
        case Phase.CANCELLED:
            told = report(state)
            yield {"type": "CUSTOM", "name": "midrun.report", "value": {"markdown": str(told)}}
            yield (
                success | {"outcome": {"type": "cancelled"}}
                if given.current
                else _error("STOPPED", "Run stopped by user")
            )
        case Phase.FAILED:
            error = state.error
            yield _error(*((error.code, error.error) if error is not None else ("", "failed")))
        case Phase.HALTED:
            yield _error("HALTED", "An operator has halted this run; it goes on once lifted.")
        case Phase.PAUSED if pause_as == "success":
            value = {"message": _paused(state)}
            yield {"type": "CUSTOM", "name": "midrun.run.paused", "value": value}
            yield success
        case Phase.PAUSED:
            yield success | _interrupts(_pause(state))
        case _:
            asks = (_asked(state, ask) for ask in ask_views(state))
            yield success | _interrupts(*asks)


def _error(code: str, message: str) -> Event:
    return {"type": "RUN_ERROR", "code": code.upper() or "FAILED", "message": message}


def _interrupts(*given: Event) -> Event:
    return {"outcome": {"type": "interrupt", "interrupts": list(given)}}


def _paused(state: State) -> str:
    by = f" by {state.since_by}" if state.since_by else ""
    return f"Paused{by} at step {state.meter.steps}. Resume keeps context."


def _pause(state: State) -> Event:
    schema = {"type": "object", "properties": {"instruction": _TEXT}}
    return {
        "id": f"{PAUSE}{state.since}",
        "reason": "midrun:paused",
        "message": _paused(state),
        "responseSchema": schema,
    }


def _asked(state: State, ask: AskView) -> Event:
    about: Event = {"id": f"{state.run}-{ask.id}"}
    wanted: Event
    if ask.kind == "approval":
        wanted = {"approved": {"type": "boolean"}, "editedArgs": {}}
        about |= {"reason": "tool_call", "toolCallId": call_ref(state, ask.call)}
        message = ask.question or f"May {ask.tool} be called?"
    elif ask.kind == "unsure":
        wanted = {"answer": {"enum": ["yes", "no", "unknown"]}}
        about |= {"reason": "midrun:unsure"}
        message = f"Did {ask.tool} go through?"
    else:
        wanted = {"answer": {}}
        about |= {"reason": "input_required"}
        message = ask.question
    schema = {"type": "object", "properties": wanted}
    return about | {"message": line(message), "responseSchema": schema}
