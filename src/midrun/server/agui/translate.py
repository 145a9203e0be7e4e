"""Translate the feed of a run to AG-UI events.

`AguiSegment` is given every entry and delta of one segment. It tracks the open message, step
and child runs: a client fails on a stream that ends while one of them is open. Text arrives
twice, as deltas while the model streams and as the journaled message. The segment sends only
the part that the deltas did not bring. `iter_final_events` ends the stream by the phase of the
run.
"""

from collections.abc import Iterator, Mapping
from typing import Final, TypeAlias

import msgspec

from midrun.agents.agent import Agent
from midrun.agents.outcome import AskView, make_ask_views
from midrun.core import entries as e
from midrun.core.evolve import fold
from midrun.core.ids import CallId, RunId, make_child_id
from midrun.core.journaled_text import format_outcome_phrase, shorten_to_line
from midrun.core.state import CallStage, CallState, State
from midrun.core.stops import AnyOf, MaxSteps, MaxTime, Stop
from midrun.core.transcript import Transcript, Turn
from midrun.core.values import Json, Phase
from midrun.driver.delta import Delta
from midrun.runs.values import FeedEntry, FeedItem
from midrun.server.agui.inputs import (
    CONTEXT_SEPARATOR,
    PAUSE_ID_PREFIX,
    ClientMessage,
    RunAgentInput,
)
from midrun.server.chat_threads import TokenUsage, find_unsent_part
from midrun.server.events import EVENT_TYPES
from midrun.server.schemas import to_wire
from midrun.text.report import build_report
from midrun.text.status import describe_hold

AguiEvent: TypeAlias = dict[str, object]

_CALL_ENDS: Final = (e.CallDone, e.CallFailed, e.CallAborted, e.CallSealed)
_TRANSLATED_ENTRIES: Final = (e.CallStarted, *_CALL_ENDS)


class AguiSegment:
    """Translates one run. `state` is the state up to the last entry that was given.

    `is_current_version`: the client speaks 1.0. An older client fails on an event type that it
    does not know. `own_calls` are the calls of frontend tools whose results the client has.
    """

    def __init__(
        self,
        state: State,
        *,
        is_current_version: bool,
        own_calls: frozenset[str] = frozenset(),
    ) -> None:
        self.state = state
        self._is_current_version = is_current_version
        self._own_calls = own_calls
        self._token_usage = TokenUsage()
        self._child_is_open: dict[CallId, bool] = {}  # started child → whether it is still open
        self._open_text_id = ""  # the id of the open text message, ...
        self._sent_text = ""  # ... and its text so far
        self._open_thinking_id = ""  # the id of the open reasoning message, ...
        self._sent_thinking = ""  # ... and its text so far
        self._open_step = ""  # the name of the open step

    def translate(self, item: FeedItem) -> Iterator[AguiEvent]:
        """Yield the AG-UI events of one entry or delta."""
        if isinstance(item, Delta):
            yield from self._translate_delta(item)
            return
        # The events of an entry follow from the state after it: a message or a call exists
        # only then. `before` shows which messages and calls the entry has added.
        record = e.Record(seq=item.seq, at=item.at, entry=item.entry, epoch=item.epoch)
        before, self.state = self.state, fold(self.state.run, [record], self.state)
        entry = item.entry
        if isinstance(entry, e.CallStarted) and entry.call_kind == "model":
            yield from self._begin_step(entry)
        elif isinstance(entry, e.CallStarted) and entry.call_kind == "child":
            yield from self._begin_child(entry.call)
        elif (
            isinstance(entry, _CALL_ENDS)
            and (call := self.state.find_call(entry.call)) is not None
        ):
            if call.call_kind == "model":
                self._token_usage.count_entry(entry)
                yield from self._finish_message(before)
            else:
                yield from self._end_child(call)
                # The client has the result of a call that it made itself.
                if make_call_ref(self.state, call.id) not in self._own_calls:
                    yield _make_call_result(self.state, call)
        # Everything else is passed on under Midrun's own names, for clients that know them.
        if not isinstance(entry, _TRANSLATED_ENTRIES):
            yield make_custom_event(item)

    def close_message_and_step(self) -> Iterator[AguiEvent]:
        """Yield the ends of the open message and step."""
        yield from self._end_text()
        yield from self._end_thinking()
        if self._open_step:
            yield {"type": "STEP_FINISHED", "stepName": self._open_step}
            self._open_step = ""

    def close_all(self) -> Iterator[AguiEvent]:
        """Yield the ends of all that is open; the run rests, and its children are suspended."""
        yield from self.close_message_and_step()
        for call, is_open in self._child_is_open.items():
            if is_open:
                yield _make_suspended_child(make_child_id(self.state.run, call))

    @property
    def usage(self) -> dict[str, int]:
        """The tokens of the model calls, as far as the provider has reported them."""
        total, prompt = self._token_usage.total, self._token_usage.prompt
        usage = {"totalTokens": total} if total else {}
        if prompt is not None:
            usage |= {"inputTokens": prompt, "outputTokens": total - prompt}
        return usage

    # ── parts of a segment ────────────────────────────────────────────────────────────────

    def _begin_child(self, call: CallId) -> Iterator[AguiEvent]:
        """Yield the start of a child run, once; another attempt continues the same child."""
        started = self.state.find_call(call)
        if self._is_current_version and started is not None and call not in self._child_is_open:
            self._child_is_open[call] = True
            own, by = make_child_id(self.state.run, call), make_call_ref(self.state, call)
            about = {"subagentRunId": own, "name": started.use.tool, "parentToolCallId": by}
            yield {"type": "SUBAGENT_STARTED", **about}

    def _end_child(self, call: CallState) -> Iterator[AguiEvent]:
        """Yield the end of a child run, also of one that started in an earlier segment."""
        if call.call_kind != "child" or call.stage is CallStage.SEALED:
            return
        yield from self._begin_child(call.id)  # nothing if it started in this segment
        if self._child_is_open.get(call.id):
            self._child_is_open[call.id] = False
            own, message = (
                make_child_id(self.state.run, call.id),
                call.error or format_outcome_phrase(call),
            )
            if call.stage is CallStage.DONE:
                yield {"type": "SUBAGENT_FINISHED", "subagentRunId": own, "result": call.result}
            elif self.state.phase is Phase.PAUSING:  # the child resumes with its parent
                yield _make_suspended_child(own)
            else:
                yield {"type": "SUBAGENT_ERROR", "subagentRunId": own, "message": message}

    def _begin_step(self, entry: e.CallStarted) -> Iterator[AguiEvent]:
        yield from self.close_message_and_step()
        kind = "summary of the history" if entry.purpose == "condense" else "step"
        self._open_step = f"{kind} {self.state.meter.steps}"
        yield {"type": "STEP_STARTED", "stepName": self._open_step}

    def _translate_delta(self, delta: Delta) -> Iterator[AguiEvent]:
        # The message is not in the journal yet. Its index there will be the current length, so
        # the deltas and the journaled message have the same id.
        own = message_id(self.state, len(self.state.messages))
        if delta.kind == "text" and delta.opening:
            yield from self._add_missing_text(own, delta.text)
        elif delta.kind == "text":
            yield from self._add_text(own, delta.text)
        elif delta.kind == "thinking":
            yield from self._add_thinking(f"{own}-thinking", delta)
        # Deltas of arguments are dropped: the call's arguments follow whole with its message.
        elif delta.kind != "args":
            value = {"call": delta.call, "tool": delta.tool, "text": delta.text}
            yield {"type": "CUSTOM", "name": f"midrun.call.{delta.kind}", "value": value}

    def _add_text(self, own_id: str, text: str) -> Iterator[AguiEvent]:
        yield from self._end_thinking()  # the reasoning ends where the text begins
        if self._open_text_id != own_id:
            yield from self._end_text()
            self._open_text_id, self._sent_text = own_id, ""
            yield {"type": "TEXT_MESSAGE_START", "messageId": own_id, "role": "assistant"}
        if text:
            self._sent_text += text
            yield {"type": "TEXT_MESSAGE_CONTENT", "messageId": own_id, "delta": text}

    def _add_thinking(self, own_id: str, delta: Delta) -> Iterator[AguiEvent]:
        if self._open_thinking_id != own_id:
            yield from self._end_thinking()
            self._open_thinking_id, self._sent_thinking = own_id, ""
            yield {"type": "REASONING_START", "messageId": own_id}
            yield {"type": "REASONING_MESSAGE_START", "messageId": own_id, "role": "reasoning"}
        text = delta.text
        if delta.opening:  # the whole text so far; send only the part that is new to the client
            text = find_unsent_part(self._sent_thinking, text)
        if text:
            self._sent_thinking += text
            yield {"type": "REASONING_MESSAGE_CONTENT", "messageId": own_id, "delta": text}

    def _end_text(self) -> Iterator[AguiEvent]:
        if self._open_text_id:
            yield {"type": "TEXT_MESSAGE_END", "messageId": self._open_text_id}
            self._open_text_id = ""

    def _end_thinking(self) -> Iterator[AguiEvent]:
        if self._open_thinking_id:
            yield {"type": "REASONING_MESSAGE_END", "messageId": self._open_thinking_id}
            yield {"type": "REASONING_END", "messageId": self._open_thinking_id}
            self._open_thinking_id = ""

    def _finish_message(self, before: State) -> Iterator[AguiEvent]:
        """Yield the missing rest of a model's message, and the calls that it requests."""
        state, own = self.state, ""
        for number in range(len(before.messages), len(state.messages)):
            if state.messages[number].role == "assistant":
                own = message_id(state, number)
                yield from self._add_missing_text(own, state.messages[number].text)
        yield from self._end_text()
        yield from self._end_thinking()
        # The calls that this reply has added to the state, in the order of the reply.
        for number in range(len(before.calls), len(state.calls)):
            call = state.calls[number]
            if call.call_kind != "model":
                yield from _iter_requested_call(state, call, own)

    def _add_missing_text(self, own_id: str, text: str) -> Iterator[AguiEvent]:
        """Yield the part of `text` that deltas did not bring; deltas may be lost.

        If the streamed text is not a prefix of `text` (an attempt was repeated), the message
        cannot be corrected here; the snapshot at the end of the segment does that.
        """
        sent = self._sent_text if self._open_text_id == own_id else ""
        if text.startswith(sent) and text != sent:
            yield from self._add_text(own_id, text[len(sent) :])


def _make_suspended_child(child: RunId) -> AguiEvent:
    outcome = {"type": "suspended"}
    return {"type": "SUBAGENT_FINISHED", "subagentRunId": child, "outcome": outcome}


def make_custom_event(item: FeedEntry) -> AguiEvent:
    """Return the custom event for an entry that AG-UI has no event type for."""
    value = {"seq": item.seq, "data": to_wire(item.entry)}
    return {"type": "CUSTOM", "name": f"midrun.{EVENT_TYPES[type(item.entry)]}", "value": value}


def message_id(state: State, number: int) -> str:
    """Return the id of the message with index `number`, which need not exist yet."""
    return f"{state.run}-m{number}"


def make_call_ref(state: State, call: CallId) -> str:
    """Return an id of a tool call that is unique over all runs."""
    return f"{state.run}-{call}"


def list_messages(
    state: State, own: Mapping[str, ClientMessage], files_url: str
) -> list[AguiEvent]:
    """Return the whole conversation.

    `own` maps a user's text to the message of the client; the files of other messages are
    addresses below `files_url`.
    """
    shown: list[AguiEvent] = []
    # Numbers are indexes in the whole history. The transcript begins after the condensed part,
    # for which a summary, if any, stands as one message.
    first = state.condensed_count - bool(state.summary)
    for number, turn in enumerate(Transcript(state), first):
        # Calls of earlier runs of the thread have the same numbers as calls of this run.
        is_earlier = number < len(state.run_started.history)
        own_id = message_id(state, number)
        if turn.role == "user":
            shown.append(_make_user_message(turn, own_id, own, files_url))
        else:
            shown += _iter_turn_messages(state, turn, own_id, is_earlier=is_earlier)
    return shown


def _make_user_message(
    turn: Turn, own_id: str, own: Mapping[str, ClientMessage], files_url: str
) -> AguiEvent:
    # The user's own text, without the context that was appended to it for the agent.
    text = turn.text.partition(CONTEXT_SEPARATOR)[0]
    if (message := own.get(text)) is not None:
        return {"id": message.id, "role": "user", "content": message.content}
    if not turn.files:
        return {"id": own_id, "role": "user", "content": text}
    parts: list[AguiEvent] = [{"type": "text", "text": text}]
    for file in turn.files:
        kind = file.media_type.partition("/")[0]
        source = {"type": "url", "value": f"{files_url}/{file.hash}"}
        parts.append(
            {
                "type": kind if kind in _MEDIA_PARTS else "document",
                "source": source | {"mimeType": file.media_type},
                "metadata": {"filename": file.name},
            }
        )
    return {"id": own_id, "role": "user", "content": parts}


_MEDIA_PARTS: Final = frozenset({"image", "audio", "video"})
"""Types of parts that are named like the first half of a media type."""


def _iter_turn_messages(
    state: State, turn: Turn, own_id: str, *, is_earlier: bool
) -> Iterator[AguiEvent]:
    if turn.role == "assistant":
        refs = {
            use.call: f"{own_id}-{use.call}" if is_earlier else make_call_ref(state, use.call)
            for use in turn.uses
        }
        calls = [
            {
                "id": refs[use.call],
                "type": "function",
                "function": {"name": use.tool, "arguments": _format_json_text(use.args)},
            }
            for use in turn.uses
        ]
        message: AguiEvent = {"id": own_id, "role": "assistant", "content": turn.text}
        yield message | ({"toolCalls": calls} if calls else {})
        # A call that waits for a decision has no result. A client that executes the call, a
        # frontend tool, finds it by that.
        asked = () if is_earlier else [state.asks[n - 1].call for n in state.open_asks]
        for use in turn.uses:
            if use.call in asked:
                continue
            yield {
                "id": f"{refs[use.call]}-result",
                "role": "tool",
                "toolCallId": refs[use.call],
                "content": use.problem or _format_json_text(use.result),
            }
    else:
        yield {"id": own_id, "role": "system", "content": turn.text}


def _iter_requested_call(
    state: State, call: CallState, parent_message: str
) -> Iterator[AguiEvent]:
    own = make_call_ref(state, call.id)
    start: AguiEvent = {"toolCallId": own, "toolCallName": call.use.tool}
    if parent_message:
        start["parentMessageId"] = parent_message
    yield {"type": "TOOL_CALL_START", **start}
    yield {
        "type": "TOOL_CALL_ARGS",
        "toolCallId": own,
        "delta": _format_json_text(call.use.args),
    }
    yield {"type": "TOOL_CALL_END", "toolCallId": own}


def _make_call_result(state: State, call: CallState) -> AguiEvent:
    own = make_call_ref(state, call.id)
    content = (
        _format_json_text(call.result)
        if call.stage is CallStage.DONE
        else call.error or format_outcome_phrase(call)
    )
    return {
        "type": "TOOL_CALL_RESULT",
        "messageId": f"{own}-result",
        "toolCallId": own,
        "content": content,
        "role": "tool",
    }


def _format_json_text(value: Json) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


# The end of a segment: the events for the phase in which the run rests.

_TEXT_SCHEMA = {"type": "string"}


def iter_final_events(
    segment: AguiSegment, agui_input: RunAgentInput, *, pause_as: str
) -> Iterator[AguiEvent]:
    """Yield the last events of a segment, by the phase in which the run rests."""
    state, own = segment.state, {"threadId": agui_input.thread_id, "runId": agui_input.run_id}
    success: AguiEvent = {"type": "RUN_FINISHED", **own, "outcome": {"type": "success"}}
    success |= {"usage": [segment.usage]} if segment.usage else {}
    match state.phase:
        case Phase.COMPLETED:
            yield success | {"result": state.output}
        case Phase.CANCELLED:
            # "cancelled" is an outcome since 1.0. Older clients get the error that CopilotKit
            # uses for a stopped run.
            value = {"markdown": str(build_report(state))}
            yield {"type": "CUSTOM", "name": "midrun.report", "value": value}
            yield (
                success | {"outcome": {"type": "cancelled"}}
                if agui_input.is_current_version
                else _make_run_error("STOPPED", "Run stopped by user")
            )
        case Phase.FAILED:
            error = state.error
            yield _make_run_error(
                *((error.code, error.error) if error is not None else ("", "failed"))
            )
        case Phase.HALTED:
            yield _make_run_error("HALTED", describe_hold(state))
        case Phase.PAUSED if pause_as == "success":
            value = {"message": describe_hold(state)}
            yield {"type": "CUSTOM", "name": "midrun.run.paused", "value": value}
            yield success
        case Phase.PAUSED:
            yield success | _make_interrupt_outcome(_make_pause_interrupt(state))
        case _:  # waiting
            asks = [ask for ask in make_ask_views(state) if not agui_input.has_tool_of(ask)]
            interrupts = [_make_ask_interrupt(state, ask) for ask in asks]
            yield success | (_make_interrupt_outcome(*interrupts) if interrupts else {})


def _make_run_error(code: str, message: str) -> AguiEvent:
    return {"type": "RUN_ERROR", "code": code.upper() or "FAILED", "message": message}


def _make_interrupt_outcome(*interrupts: AguiEvent) -> AguiEvent:
    return {"outcome": {"type": "interrupt", "interrupts": list(interrupts)}}


def _make_pause_interrupt(state: State) -> AguiEvent:
    schema = {"type": "object", "properties": {"instruction": _TEXT_SCHEMA}}
    return {
        "id": f"{PAUSE_ID_PREFIX}{state.phase_since}",
        "reason": "midrun:paused",
        "message": describe_hold(state),
        "responseSchema": schema,
    }


def _make_ask_interrupt(state: State, ask: AskView) -> AguiEvent:
    about: AguiEvent = {"id": f"{state.run}-{ask.id}"}
    wanted: AguiEvent
    if ask.kind == "approval":
        wanted = {"approved": {"type": "boolean"}, "editedArgs": {}}
        about |= {"reason": "tool_call", "toolCallId": make_call_ref(state, ask.call)}
    elif ask.kind == "unsure":
        wanted = {"answer": {"enum": ["yes", "no", "unknown"]}}
        about |= {"reason": "midrun:unsure"}
    else:
        wanted = {"answer": {}}
        about |= {"reason": "input_required"}
    schema = {"type": "object", "properties": wanted}
    return about | {"message": shorten_to_line(ask.question), "responseSchema": schema}


# Capabilities of an agent, in the terms of AG-UI.

_HUMAN_IN_THE_LOOP: AguiEvent = {
    "supported": True,
    "approvals": True,
    "interventions": True,
    "interrupts": True,
    "approveWithEdits": True,
}


def list_capabilities(agent: Agent) -> AguiEvent:
    """Return the capabilities of an agent, with the bounds of its own stop condition."""
    found: AguiEvent = {
        "transport": {"streaming": True, "resumable": True},
        "humanInTheLoop": _HUMAN_IN_THE_LOOP,
    }
    execution = _list_execution_bounds(agent.stop)
    return found | ({"execution": execution} if execution else {})


def _list_execution_bounds(stop: Stop | None) -> dict[str, int]:
    """Return the bounds of which the first that is reached stops the run.

    A bound inside `AllOf` or `Not` does not stop the run alone, so it is left out.
    """
    match stop:
        case MaxSteps(n):
            return {"maxIterations": n}
        case MaxTime(seconds, minutes):
            return {"maxExecutionTime": round((seconds + minutes * 60) * 1000)}  # milliseconds
        case AnyOf(parts):
            found: dict[str, int] = {}
            for name, bound in (
                pair for part in parts for pair in _list_execution_bounds(part).items()
            ):
                found[name] = min(bound, found.get(name, bound))
            return found
        case _:
            return {}
