"""Translate the feed of a run to AG-UI events.

`AguiSegment` is given every entry and delta of one segment. It tracks the open message, step
and child runs: a client fails on a stream that ends while one of them is open. Text arrives
twice, as deltas while the model streams and as the journaled message. The segment sends only
the part that the deltas did not bring. `final_events` ends the stream by the phase of the run.
"""

from collections.abc import Iterator
from typing import Final, TypeAlias

import msgspec

from midrun.agents.agent import Agent
from midrun.agents.outcome import AskView, ask_views
from midrun.core import entries as e
from midrun.core.evolve import fold
from midrun.core.ids import CallId, RunId, child_id
from midrun.core.journaled_text import fate, line
from midrun.core.state import Call, Stage, State
from midrun.core.stops import AnyOf, MaxSteps, MaxTime, Stop
from midrun.core.transcript import Transcript, Turn
from midrun.core.values import TERMINAL, Json, Phase
from midrun.driver.live import Delta
from midrun.runs.values import FeedItem, Happened
from midrun.server.agui.inputs import CONTEXT_MARK, RunAgentInput
from midrun.server.agui.intents import PAUSE
from midrun.server.events import TYPES
from midrun.server.schemas import plain
from midrun.text.report import report

Event: TypeAlias = dict[str, object]

RESTING: Final = TERMINAL | {Phase.PAUSED, Phase.WAITING, Phase.FAILED, Phase.HALTED}
"""Phases in which a segment ends."""

_ENDS: Final = (e.CallDone, e.CallFailed, e.CallAborted, e.CallSealed)
_TOLD: Final = (e.CallStarted, *_ENDS)


class Segment:
    """Translates one run. `state` is the state up to the last entry that was given.

    `is_current_version`: the client speaks 1.0. An older client fails on an event type that it
    does not know.
    """

    def __init__(self, state: State, *, current: bool) -> None:
        self.state = state
        self._current = current
        self._used: list[tuple[int, int]] = []  # tokens of each model call, and of its prompt
        self._children: dict[CallId, bool] = {}  # started child → whether it is still open
        self._speaking = ""  # the id of the open text message, ...
        self._said = ""  # ... and its text so far
        self._thinking = ""  # the id of the open reasoning message, ...
        self._thought = ""  # ... and its text so far
        self._step = ""  # the name of the open step

    def told(self, item: FeedItem) -> Iterator[Event]:
        """Yield the AG-UI events of one entry or delta."""
        if isinstance(item, Delta):
            yield from self._delta(item)
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
        elif isinstance(entry, _ENDS) and (call := self.state.call(entry.call)) is not None:
            if call.call_kind == "model":
                if isinstance(entry, e.CallDone) and entry.spent is not None:
                    window = 0 if entry.reply is None else entry.reply.window
                    self._used.append((entry.spent.tokens, window))
                yield from self._spoken(before)
            else:
                yield from self._end_child(call)
                yield _result(self.state, call)
        # Everything else is passed on under Midrun's own names, for clients that know them.
        if not isinstance(entry, _TOLD):
            yield custom(item)

    def closed(self) -> Iterator[Event]:
        """Yield the ends of the open message and step."""
        yield from self._end_text()
        yield from self._end_thinking()
        if self._step:
            yield {"type": "STEP_FINISHED", "stepName": self._step}
            self._step = ""

    def ended(self) -> Iterator[Event]:
        """Yield the ends of all that is open; the run rests, and its children are suspended."""
        yield from self.closed()
        for call, is_open in self._children.items():
            if is_open:
                yield _suspended(child_id(self.state.run, call))

    @property
    def rests(self) -> bool:
        """Whether the run is in a phase that ends the segment."""
        return self.state.phase in RESTING

    @property
    def usage(self) -> dict[str, int]:
        """The tokens of the model calls, as far as the provider has reported them."""
        total = sum(tokens for tokens, _ in self._used)
        prompts = sum(prompt for _, prompt in self._used)
        usage = {"totalTokens": total} if total else {}
        # The split is given only if every call reported its prompt: a partial sum would be
        # read as the whole.
        if total and all(0 < prompt <= tokens for tokens, prompt in self._used):
            usage |= {"inputTokens": prompts, "outputTokens": total - prompts}
        return usage

    # ── parts of a segment ────────────────────────────────────────────────────────────────

    def _begin_child(self, call: CallId) -> Iterator[Event]:
        """Yield the start of a child run, once; another attempt continues the same child."""
        started = self.state.call(call)
        if self._current and started is not None and call not in self._children:
            self._children[call] = True
            own, by = child_id(self.state.run, call), call_ref(self.state, call)
            about = {"subagentRunId": own, "name": started.use.tool, "parentToolCallId": by}
            yield {"type": "SUBAGENT_STARTED", **about}

    def _end_child(self, call: Call) -> Iterator[Event]:
        """Yield the end of a child run, also of one that started in an earlier segment."""
        if call.call_kind != "child" or call.stage is Stage.SEALED:
            return
        yield from self._begin_child(call.id)  # nothing if it started in this segment
        if self._children.get(call.id):
            self._children[call.id] = False
            own, message = child_id(self.state.run, call.id), call.error or fate(call)
            if call.stage is Stage.DONE:
                yield {"type": "SUBAGENT_FINISHED", "subagentRunId": own, "result": call.result}
            elif self.state.phase is Phase.PAUSING:  # the child resumes with its parent
                yield _suspended(own)
            else:
                yield {"type": "SUBAGENT_ERROR", "subagentRunId": own, "message": message}

    def _begin_step(self, entry: e.CallStarted) -> Iterator[Event]:
        yield from self.closed()
        kind = "summary of the history" if entry.purpose == "condense" else "step"
        self._step = f"{kind} {self.state.meter.steps}"
        yield {"type": "STEP_STARTED", "stepName": self._step}

    def _delta(self, delta: Delta) -> Iterator[Event]:
        # The message is not in the journal yet. Its index there will be the current length, so
        # the deltas and the journaled message have the same id.
        own = message_id(self.state, len(self.state.messages))
        if delta.kind == "text" and delta.opening:
            yield from self._rest_of(own, delta.text)
        elif delta.kind == "text":
            yield from self._text(own, delta.text)
        elif delta.kind == "thinking":
            yield from self._muse(f"{own}-thinking", delta)
        # Deltas of arguments are dropped: the call's arguments follow whole with its message.
        elif delta.kind != "args":
            value = {"call": delta.call, "tool": delta.tool, "text": delta.text}
            yield {"type": "CUSTOM", "name": f"midrun.call.{delta.kind}", "value": value}

    def _text(self, own: str, text: str) -> Iterator[Event]:
        yield from self._end_thinking()  # the reasoning ends where the text begins
        if self._speaking != own:
            yield from self._end_text()
            self._speaking, self._said = own, ""
            yield {"type": "TEXT_MESSAGE_START", "messageId": own, "role": "assistant"}
        if text:
            self._said += text
            yield {"type": "TEXT_MESSAGE_CONTENT", "messageId": own, "delta": text}

    def _muse(self, own: str, delta: Delta) -> Iterator[Event]:
        if self._thinking != own:
            yield from self._end_thinking()
            self._thinking, self._thought = own, ""
            yield {"type": "REASONING_START", "messageId": own}
            yield {"type": "REASONING_MESSAGE_START", "messageId": own, "role": "reasoning"}
        text = delta.text
        if delta.opening:  # the whole text so far; send only the part that is new to the client
            text = text[len(self._thought) :] if text.startswith(self._thought) else ""
        if text:
            self._thought += text
            yield {"type": "REASONING_MESSAGE_CONTENT", "messageId": own, "delta": text}

    def _end_text(self) -> Iterator[Event]:
        if self._speaking:
            yield {"type": "TEXT_MESSAGE_END", "messageId": self._speaking}
            self._speaking = ""

    def _end_thinking(self) -> Iterator[Event]:
        if self._thinking:
            yield {"type": "REASONING_MESSAGE_END", "messageId": self._thinking}
            yield {"type": "REASONING_END", "messageId": self._thinking}
            self._thinking = ""

    def _spoken(self, before: State) -> Iterator[Event]:
        """Yield the missing rest of a model's message, and the calls that it requests."""
        state, own = self.state, ""
        for number in range(len(before.messages), len(state.messages)):
            if state.messages[number].role == "assistant":
                own = message_id(state, number)
                yield from self._rest_of(own, state.messages[number].text)
        yield from self._end_text()
        yield from self._end_thinking()
        # The calls that this reply has added to the state, in the order of the reply.
        for number in range(len(before.calls), len(state.calls)):
            call = state.calls[number]
            if call.call_kind != "model":
                yield from _asked_for(state, call, own)

    def _rest_of(self, own: str, text: str) -> Iterator[Event]:
        """Yield the part of `text` that deltas did not bring; deltas may be lost.

        If the streamed text is not a prefix of `text` (an attempt was repeated), the message
        cannot be corrected here; the snapshot at the end of the segment does that.
        """
        sent = self._said if self._speaking == own else ""
        if text.startswith(sent) and text != sent:
            yield from self._text(own, text[len(sent) :])


def _suspended(child: RunId) -> Event:
    outcome = {"type": "suspended"}
    return {"type": "SUBAGENT_FINISHED", "subagentRunId": child, "outcome": outcome}


def custom(item: Happened) -> Event:
    """Return the custom event for an entry that AG-UI has no event type for."""
    value = {"seq": item.seq, "data": plain(item.entry)}
    return {"type": "CUSTOM", "name": f"midrun.{TYPES[type(item.entry)]}", "value": value}


def message_id(state: State, number: int) -> str:
    """Return the id of the message with index `number`, which need not exist yet."""
    return f"{state.run}-m{number}"


def call_ref(state: State, call: CallId) -> str:
    """Return an id of a tool call that is unique over all runs."""
    return f"{state.run}-{call}"


def messages(state: State, ids: dict[str, str]) -> list[Event]:
    """Return the whole conversation; `ids` maps a user's text to the client's id of it."""
    shown: list[Event] = []
    # Numbers are indexes in the whole history. The transcript begins after the condensed part,
    # for which a summary, if any, stands as one message.
    first = state.condensed - bool(state.summary)
    for number, turn in enumerate(Transcript(state), first):
        shown += _shown(state, turn, message_id(state, number), ids)
    return shown


def _shown(state: State, turn: Turn, own: str, ids: dict[str, str]) -> Iterator[Event]:
    if turn.role == "assistant":
        calls = [
            {
                "id": call_ref(state, use.call),
                "type": "function",
                "function": {"name": use.tool, "arguments": _json(use.args)},
            }
            for use in turn.uses
        ]
        message: Event = {"id": own, "role": "assistant", "content": turn.text}
        yield message | ({"toolCalls": calls} if calls else {})
        for use in turn.uses:
            yield {
                "id": f"{call_ref(state, use.call)}-result",
                "role": "tool",
                "toolCallId": call_ref(state, use.call),
                "content": use.problem or _json(use.result),
            }
    elif turn.role == "user":
        # The user's own text, without the context that was appended to it for the agent.
        text = turn.text.partition(CONTEXT_MARK)[0]
        yield {"id": ids.get(text, own), "role": "user", "content": text}
    else:
        yield {"id": own, "role": "system", "content": turn.text}


def _asked_for(state: State, call: Call, by: str) -> Iterator[Event]:
    own = call_ref(state, call.id)
    start: Event = {"toolCallId": own, "toolCallName": call.use.tool}
    if by:
        start["parentMessageId"] = by
    yield {"type": "TOOL_CALL_START", **start}
    yield {"type": "TOOL_CALL_ARGS", "toolCallId": own, "delta": _json(call.use.args)}
    yield {"type": "TOOL_CALL_END", "toolCallId": own}


def _result(state: State, call: Call) -> Event:
    own = call_ref(state, call.id)
    content = _json(call.result) if call.stage is Stage.DONE else call.error or fate(call)
    return {
        "type": "TOOL_CALL_RESULT",
        "messageId": f"{own}-result",
        "toolCallId": own,
        "content": content,
        "role": "tool",
    }


def _json(value: Json) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


# The end of a segment: the events for the phase in which the run rests.

_TEXT = {"type": "string"}


def finished(segment: Segment, given: RunAgentInput, *, pause_as: str) -> Iterator[Event]:
    """Yield the last events of a segment, by the phase in which the run rests."""
    state, own = segment.state, {"threadId": given.thread_id, "runId": given.run_id}
    success: Event = {"type": "RUN_FINISHED", **own, "outcome": {"type": "success"}}
    success |= {"usage": [segment.usage]} if segment.usage else {}
    match state.phase:
        case Phase.COMPLETED:
            yield success | {"result": state.output}
        case Phase.CANCELLED:
            # "cancelled" is an outcome since 1.0. Older clients get the error that CopilotKit
            # uses for a stopped run.
            value = {"markdown": str(report(state))}
            yield {"type": "CUSTOM", "name": "midrun.report", "value": value}
            yield (
                success | {"outcome": {"type": "cancelled"}}
                if given.current
                else _error("STOPPED", "Run stopped by user")
            )
        case Phase.FAILED:
            error = state.error
            yield _error(*((error.code, error.error) if error is not None else ("", "failed")))
        case Phase.HALTED:
            yield _error(
                "HALTED", "An operator halted this run. It continues when the halt is lifted."
            )
        case Phase.PAUSED if pause_as == "success":
            value = {"message": _paused(state)}
            yield {"type": "CUSTOM", "name": "midrun.run.paused", "value": value}
            yield success
        case Phase.PAUSED:
            yield success | _interrupts(_pause(state))
        case _:  # waiting
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


# Capabilities of an agent, in the terms of AG-UI.

_HUMAN: Event = {
    "supported": True,
    "approvals": True,
    "interventions": True,
    "interrupts": True,
    "approveWithEdits": True,
}


def capabilities(agent: Agent) -> Event:
    """Return the capabilities of an agent, with the bounds of its own stop condition."""
    found: Event = {
        "transport": {"streaming": True, "resumable": True},
        "humanInTheLoop": _HUMAN,
    }
    execution = _execution(agent.stop)
    return found | ({"execution": execution} if execution else {})


def _execution(stop: Stop | None) -> dict[str, int]:
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
            for name, bound in (pair for part in parts for pair in _execution(part).items()):
                found[name] = min(bound, found.get(name, bound))
            return found
        case _:
            return {}
