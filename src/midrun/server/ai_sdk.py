"""The Vercel AI SDK (`useChat`, versions 6 and 7): its UI message stream over runs.

A chat of the AI SDK is a thread. `POST /ai/{agent}` sends the user's newest message, or the
user's decisions about approvals, to the thread's run (`chat_threads`), and streams the reply as
one assistant message until the run rests. The journal has the conversation, so the older
messages in the body are not read.

**One assistant message** holds everything since the user's newest message. Its id is made of
the run and of the entry with that message, which the journal finds by its request id. So a
client that reloads, or whose connection broke, gets the same message again from its beginning
(`GET …/stream`), under the same id. After an approval the message continues: only its new parts
are sent.

The chunks are those that the versions 6 and 7 share. A client throws on a type that it does not
know, on a delta without its start, and on the result of a call that its message does not have.
"""

from collections.abc import Iterator
from contextlib import aclosing
from typing import Annotated, Final, TypeAlias, cast

import msgspec
from msgspec import Meta, Struct
from starlette.responses import Response

from midrun import events as ev
from midrun.agents.file import File
from midrun.agents.outcome import make_ask_views
from midrun.core.ids import CallId, RunId, Seq
from midrun.core.state import Ask, State
from midrun.core.transcript import CallResult, Transcript, Turn
from midrun.core.values import DRIVABLE_PHASES, Actor, FileRef, Json, Phase
from midrun.runs.control_bodies import ID_MAX_CHARS
from midrun.runs.run import Run
from midrun.runs.validation import ControlOptions
from midrun.runs.views import list_caps
from midrun.server.chat_threads import (
    FIRST_SEQ,
    ONLY_FILES_TEXT,
    ChatMessage,
    ChatStream,
    ReplyEvents,
    decide_approval,
    digest_content,
    find_ask,
    find_earlier_request,
    find_newest_run,
    find_unsent_part,
    make_attempt_id,
    read_file_part,
    send_message,
    send_to_run,
    stop_thread,
)
from midrun.server.feed_routes import SseWriter
from midrun.server.overlays import build_permitted_buttons
from midrun.server.problem_details import HttpProblem
from midrun.server.request_checks import mount_path
from midrun.server.request_context import RequestContext, json_response
from midrun.server.schemas import to_wire
from midrun.text.report import build_report
from midrun.text.status import describe_hold

Chunk: TypeAlias = dict[str, object]

STREAM_HEADER: Final = ("x-vercel-ai-ui-message-stream", "v1")


# ── requests ──────────────────────────────────────────────────────────────────────────────


class UiMessage(Struct, frozen=True, kw_only=True):
    """A message of the client. Unknown fields are ignored."""

    id: str = ""
    role: str = ""
    parts: tuple[dict[str, Json], ...] = ()

    @property
    def text(self) -> str:
        """The text of all text parts."""
        texts = [str(part.get("text", "")) for part in self.parts if part.get("type") == "text"]
        return "\n".join(texts).strip()

    def read_files(self) -> tuple[File, ...]:
        """Return the files of the message.

        Raises:
            HttpProblem: 422, a file is not in the message itself, but behind an address.
        """
        parts = [part for part in self.parts if part.get("type") == "file"]
        return tuple(self._read_file(number, part) for number, part in enumerate(parts, 1))

    def _read_file(self, number: int, part: dict[str, Json]) -> File:
        name = str(part.get("filename") or f"file-{number}")
        kind = str(part.get("mediaType", "unknown"))
        return read_file_part(self.id, name, kind, str(part.get("url", "")))

    def list_decisions(self) -> Iterator[tuple[str, bool, dict[str, Json]]]:
        """Yield the user's decisions: the id of the approval, whether approved, the details."""
        for part in self.parts:
            approval = part.get("approval")
            if part.get("state") == "approval-responded" and isinstance(approval, dict):
                yield str(approval.get("id", "")), approval.get("approved") is True, approval


class ChatInput(Struct, frozen=True, kw_only=True, rename="camel"):
    """The body that `useChat` sends. Unknown fields are ignored."""

    id: Annotated[str, Meta(min_length=1, max_length=ID_MAX_CHARS)]
    messages: tuple[UiMessage, ...] = ()
    trigger: str = "submit-message"


async def send_chat(context: RequestContext) -> Response:
    """Send the newest message or the decisions to the thread's run, and stream the reply."""
    body, agent = await context.decode_body(ChatInput), context.path["agent"]
    context.check_stream()
    message = body.messages[-1] if body.messages else UiMessage()
    name = message.id or str(len(body.messages))
    text, files = "", cast("tuple[File, ...]", ())
    if message.role == "user":
        files = message.read_files()
        text = message.text or (ONLY_FILES_TEXT if files else "")
    sent = ChatMessage(
        agent=agent,
        thread=body.id,
        text=text,
        files=files,
        # An edited message has the id of the message that it replaces.
        request_id=_make_request_id(
            context, body.id, digest_content(name, agent, text, files=files)
        ),
    )
    row = await find_newest_run(context, agent, body.id)
    if row is not None:
        run = await context.server.mid.get(row.run)
        state = await context.server.views.read_state(run.id)
        if message.role == "assistant":
            return await _continue_message(context, run, state, message)
        # A message that was refused is not in the run: to repeat its reply is to send it.
        earlier = find_earlier_request(state, sent.request_id)
        was_refused = earlier is not None and earlier.refused
        if not text or (body.trigger == "regenerate-message" and not was_refused):
            return await _repeat_reply(context, run, state)
    reply = await send_message(context, row, sent)
    return MessageStream(context, reply.run, begins_at=reply.begins_at)


async def _repeat_reply(context: RequestContext, run: Run, state: State) -> Response:
    """Resume a failed or paused run, whose last message was sent before."""
    nothing = ChatMessage(
        agent=state.run_started.agent,
        thread=state.run_started.thread,
        text="",
        request_id=context.make_request_id(f"ai-repeat:{run.id}:{state.seq}"),
    )
    if await send_to_run(context, run, nothing, must_send=False) is None:
        problem = f"Cannot repeat a reply: run {run.id} has ended. Send a new message."
        raise HttpProblem("wrong_phase", 409, problem)
    return MessageStream(context, run, begins_at=_find_begin(context, state))


async def _continue_message(
    context: RequestContext, run: Run, state: State, message: UiMessage
) -> Response:
    """Send the decisions in an assistant message, and stream its further parts."""
    await _send_decisions(context, run, state, message)
    begins_at = _find_begin(context, state)
    seen = SeenParts.read(message, begins_at, state)
    return MessageStream(context, run, begins_at=begins_at, seen=seen)


async def resume_stream(context: RequestContext) -> Response:
    """Stream the current message again from its beginning; 204 if the run rests."""
    row = await find_newest_run(context, context.path["agent"], context.path["chat"])
    if row is None or row.head.phase not in DRIVABLE_PHASES:
        return Response(status_code=204)
    context.check_stream()
    run = await context.server.mid.get(row.run)
    state = await context.server.views.read_state(run.id)
    return MessageStream(context, run, begins_at=_find_begin(context, state))


async def stop_chat(context: RequestContext) -> Response:
    """Pause or cancel the thread's run, as `Bridges.stop` sets."""
    stopped = await stop_thread(context, context.path["agent"], context.path["chat"])
    return json_response({"stopped": stopped})


async def list_messages(context: RequestContext) -> Response:
    """Return the conversation of a thread as the messages that `useChat` begins with."""
    row = await find_newest_run(context, context.path["agent"], context.path["chat"])
    if row is None:
        return json_response({"messages": []})
    state = await context.server.views.read_state(row.run)
    root = mount_path(context.request.scope)
    messages = make_messages(state, _find_begin(context, state), root)
    if messages and messages[-1]["role"] == "assistant":
        parts = messages[-1]["parts"]
        assert isinstance(parts, list)
        parts.extend(ControlParts(context.actor).translate(state))
        parts.append(await make_view_chunk(context, row.run, state))
    return json_response({"messages": messages})


def _make_request_id(context: RequestContext, chat: str, message: str) -> str:
    return context.make_request_id(f"ai:{chat}:{message}")


def _find_begin(context: RequestContext, state: State) -> Seq:
    """Return the entry with the caller's newest message: the current reply begins there."""
    prefix = _make_request_id(context, state.run_started.thread, "")
    # The reply begins at an entry, not at a message of the client: a reload, or a second tab,
    # finds the same begin from the journal alone. A refused request has no reply.
    sent = (
        outcome.seq
        for request_id, outcome in state.requests.items()
        if request_id.startswith(prefix) and not outcome.refused
    )
    return max(sent, default=FIRST_SEQ)


async def _send_decisions(
    context: RequestContext, run: Run, state: State, message: UiMessage
) -> None:
    """Send the decisions that are new.

    The body has the whole message, and so decisions that were sent before.

    Raises:
        HttpProblem: 404, the run has no such ask.
        ControlRefused: another client decided before, and nothing else is left to decide.
    """
    decisions = [
        (find_ask(run, state, approval_id), approved, details)
        for approval_id, approved, details in message.list_decisions()
    ]
    new = [each for each in decisions if not each[0].close_reason]
    if not new:
        # Either this client repeats its decisions, or it was too late with the newest. The core
        # refuses a late one, with the name of the person who decided.
        new = [each for each in decisions if not _is_decided_so(each[0], approved=each[1])][-1:]
    for ask, approved, details in new:
        # Not the prefix of a message: a decision continues the reply.
        name = f"ai-decision:{run.id}:{ask.id}:{'approve' if approved else 'decline'}"
        request_id = make_attempt_id(state, context.make_request_id(name))
        options = ControlOptions(actor=context.actor, request_id=request_id)
        await decide_approval(run, ask, options, approved=approved, details=details)


def _is_decided_so(ask: Ask, *, approved: bool) -> bool:
    return ask.decision is not None and (ask.decision.choice == "approve") is approved


# ── the stream ────────────────────────────────────────────────────────────────────────────


class SeenParts(Struct, frozen=True, kw_only=True):
    """The part of a message that the client has: up to which entry, and with which calls."""

    seq: Seq
    call_ids: frozenset[str]

    @classmethod
    def read(cls, message: UiMessage, begins_at: Seq, state: State) -> "SeenParts":
        """Read it from the message of the client.

        Each stream ends with the view of the run, which has its seq. Another client may have
        decided meanwhile, so the run may be further than that.
        """
        seq = state.seq
        for part in message.parts:
            if part.get("type") == "data-midrun":
                try:
                    data = msgspec.convert(part.get("data"), dict[str, dict[str, Json]])
                    seq = msgspec.convert(data["run"]["seq"], Seq)
                except (msgspec.ValidationError, KeyError):
                    continue
        calls = {str(part["toolCallId"]) for part in message.parts if "toolCallId" in part}
        return cls(seq=min(max(seq, begins_at), state.seq), call_ids=frozenset(calls))


class MessageStream(ChatStream):
    """Streams one assistant message: from the entry `begins_at` until the run rests.

    If the client has `seen` a part of the message, only the rest is sent.
    """

    def __init__(
        self,
        context: RequestContext,
        run: Run,
        *,
        begins_at: Seq,
        seen: SeenParts | None = None,
    ) -> None:
        super().__init__(context, run, self._write_message)
        name, value = STREAM_HEADER
        self.headers[name] = value
        self._begins_at = begins_at
        self._seen = seen

    async def _write_message(self, writer: SseWriter) -> None:
        views, run, seen = self._context.server.views, self._run, self._seen
        now = await views.read_state(run.id)
        root = mount_path(self._context.request.scope)
        translator = ChunkTranslator(now, seen, root)
        message_id = make_message_id(now, self._begins_at)
        await self._write(writer, {"type": "start", "messageId": message_id})
        after = self._begins_at - 1 if seen is None else seen.seq
        reply = ReplyEvents(self._context, run, after)
        controls = ControlParts(self._context.actor)
        async with aclosing(reply.follow()) as events:
            async for event in events:
                await self._write(writer, *translator.translate(event))
                # The consequences are those of this moment: not of entries that are replayed.
                if isinstance(event, ev.EntryEvent) and event.seq >= now.seq:
                    await self._write(writer, *controls.translate(reply.state))
        view = await make_view_chunk(self._context, run.id, reply.state)
        await self._write(writer, *translator.close(), view)
        await self._write(writer, *make_final_chunks(reply.state))
        await writer.write(b"data: [DONE]\n\n")
        self.is_finished = True

    @staticmethod
    async def _write(writer: SseWriter, *chunks: Chunk) -> None:
        lines = [b"data: %b\n\n" % msgspec.json.encode(chunk) for chunk in chunks]
        await writer.write(b"".join(lines))


async def make_view_chunk(context: RequestContext, run: RunId, state: State) -> Chunk:
    """Return the run's view at `state`, with which a page can show `<midrun-controls>`."""
    shown = await context.server.views.show_state(state)
    root = mount_path(context.request.scope)
    data = {"run": to_wire(shown), "control_url": f"{root}/v1/runs/{run}"}
    return {"type": "data-midrun", "id": "run", "data": data}


class ControlParts:
    """Makes the parts for caps and for the consequences of each control, when they change."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor
        self._sent: dict[str, object] = {}

    def translate(self, state: State) -> Iterator[Chunk]:
        """Yield the parts that differ in `state`; each replaces the one before."""
        data = {
            "caps": {"caps": to_wire(list_caps(state))},
            "consequences": to_wire(build_permitted_buttons(state, self._actor)),
        }
        for name, value in data.items():
            if self._sent.get(name) != value:
                self._sent[name] = value
                yield {"type": f"data-{name}", "id": name, "data": value}


class ChunkTranslator:
    """Translates the events of a run to chunks of one message.

    `state` is the newest state, to look up calls that the message does not have yet.
    """

    def __init__(self, state: State, seen: SeenParts | None, root: str = "") -> None:
        self._state = state
        self._root = root
        self._shown_ids = set(seen.call_ids) if seen is not None else set()
        self._open_part = ("", "")  # kind and id of the open text or reasoning, ...
        self._sent_text = ""  # ... and its text so far
        self._step_is_open = False

    def translate(self, event: ev.RunEvent) -> Iterator[Chunk]:
        """Yield the chunks of one event."""
        match event:
            case ev.ReplyStarted():
                yield from self.close()
                self._step_is_open = True
                yield {"type": "start-step"}
            case ev.TextDelta() | ev.ThinkingDelta():
                kind = "text" if isinstance(event, ev.TextDelta) else "reasoning"
                yield from self._add_text(kind, event.call, event.text, is_whole=event.opening)
            case ev.ReplyFinished():
                # A retry repeats the reply. The part of the failed attempt stays visible.
                if event.reply:
                    yield from self._add_text("text", event.call, event.reply, is_whole=True)
                yield from self._end_part()
            case ev.ToolStarted():
                yield from self._show_call(event.call, event.tool, event.args)
            case ev.ToolFinished() if not event.will_retry:
                yield from self._finish_call(event)
            case ev.AskStarted() | ev.AskFinished():
                yield from self._translate_ask(event)
            case ev.PlanChanged() | ev.ArtifactChanged() | ev.PhaseChanged():
                yield self._make_data(event)
            case _:  # entries and live output that no part of a message shows
                return

    def _make_data(self, event: ev.PlanChanged | ev.ArtifactChanged | ev.PhaseChanged) -> Chunk:
        """Return a part with data; a later one with the same id replaces it."""
        match event:
            case ev.PlanChanged():
                items = [to_wire(item) for item in event.items]
                return {"type": "data-plan", "id": "plan", "data": {"items": items}}
            case ev.ArtifactChanged(name=name, file=file):
                shown: Chunk = {"call": event.call, "name": name, "version": event.version}
                url = make_file_url(self._root, self._state.run, file)
                shown |= {"file": to_wire(file), "url": url}
                return {"type": "data-artifact", "id": f"artifact-{name}", "data": shown}
            case ev.PhaseChanged():
                data = {"phase": event.phase, "sentence": event.sentence}
                return {"type": "data-phase", "id": "phase", "data": data}

    def close(self) -> Iterator[Chunk]:
        """Yield the ends of the open text and of the open step."""
        yield from self._end_part()
        if self._step_is_open:
            self._step_is_open = False
            yield {"type": "finish-step"}

    def _add_text(self, kind: str, call: str, text: str, *, is_whole: bool) -> Iterator[Chunk]:
        """Add to a text. If it `is_whole`, send only the part that was not sent yet."""
        if self._open_part != (kind, call):
            yield from self._end_part()
            self._open_part, self._sent_text = (kind, call), ""
            yield {"type": f"{kind}-start", "id": f"{kind}-{call}"}
        if is_whole:
            text = find_unsent_part(self._sent_text, text)
        if text:
            self._sent_text += text
            yield {"type": f"{kind}-delta", "id": f"{kind}-{call}", "delta": text}

    def _end_part(self) -> Iterator[Chunk]:
        kind, call = self._open_part
        if kind:
            self._open_part = ("", "")
            yield {"type": f"{kind}-end", "id": f"{kind}-{call}"}

    def _show_call(self, call: CallId, tool: str, args: Json) -> Iterator[Chunk]:
        own = make_public_id(self._state, call)
        self._shown_ids.add(own)
        yield {
            "type": "tool-input-available",
            "toolCallId": own,
            "toolName": tool,
            "input": {} if args is None else args,
            "dynamic": True,
            "providerExecuted": True,  # the client must not execute it
        }

    def _show_unseen_call(self, call: CallId) -> Iterator[Chunk]:
        """Show a call that an earlier message has, so that this one can have its result."""
        found = self._state.find_call(call)
        if found is not None and make_public_id(self._state, call) not in self._shown_ids:
            yield from self._show_call(call, found.use.tool, found.use.args)

    def _finish_call(self, event: ev.ToolFinished) -> Iterator[Chunk]:
        yield from self._show_unseen_call(event.call)
        own = make_public_id(self._state, event.call)
        if event.outcome == "done":
            yield {
                "type": "tool-output-available",
                "toolCallId": own,
                "output": event.result,
                "dynamic": True,
                "providerExecuted": True,
            }
        else:
            yield {
                "type": "tool-output-error",
                "toolCallId": own,
                "errorText": event.error or event.sentence,
                "dynamic": True,
                "providerExecuted": True,
            }

    def _translate_ask(self, event: ev.AskStarted | ev.AskFinished) -> Iterator[Chunk]:
        own = make_public_id(self._state, event.ask)
        if isinstance(event, ev.AskStarted) and event.ask_kind == "approval":
            yield from self._show_call(event.call, event.tool, event.args)
            call = make_public_id(self._state, event.call)
            yield {"type": "tool-approval-request", "approvalId": own, "toolCallId": call}
        elif isinstance(event, ev.AskStarted):
            # The protocol has no question. As text it is shown, and the next message answers.
            question = event.question or event.sentence
            yield from self._add_text("text", event.ask, question, is_whole=True)
            yield from self._end_part()
        elif event.choice == "decline":
            ask = self._state.find_ask(event.ask)
            if ask is not None and ask.effective_kind == "approval":
                yield from self._show_unseen_call(ask.call)
                denied = make_public_id(self._state, ask.call)
                yield {"type": "tool-output-denied", "toolCallId": denied}


def make_final_chunks(state: State) -> Iterator[Chunk]:
    """Yield the end of a message, by the phase in which the run rests."""
    match state.phase:
        case Phase.COMPLETED:
            yield {"type": "finish", "finishReason": "stop"}
        case Phase.CANCELLED:
            data = {"markdown": str(build_report(state))}
            yield {"type": "data-report", "id": "report", "data": data}
            yield {"type": "abort", "reason": "The run is cancelled."}
        case Phase.PAUSED:
            yield {"type": "abort", "reason": describe_hold(state)}
        case Phase.FAILED:
            error = state.error.error if state.error is not None else "The run has failed."
            yield {"type": "error", "errorText": error}
            yield {"type": "finish", "finishReason": "error"}
        case Phase.HALTED:
            yield {"type": "error", "errorText": describe_hold(state)}
            yield {"type": "finish", "finishReason": "error"}
        case _:  # waiting
            yield {"type": "finish", "finishReason": "tool-calls"}


def make_message_id(state: State, begins_at: Seq) -> str:
    """Return the id of the assistant message that replies to the entry `begins_at`."""
    return f"{state.run}-{begins_at}"


def make_file_url(root: str, run: RunId, file: FileRef) -> str:
    """Return the path of a file on this server."""
    return f"{root}/v1/runs/{run}/files/{file.hash}"


def make_public_id(state: State, part: str) -> str:
    """Return the id of a call or an ask that is unique over all runs."""
    return f"{state.run}-{part}"


# ── the conversation so far ───────────────────────────────────────────────────────────────


def make_messages(state: State, begins_at: Seq, root: str = "") -> list[Chunk]:
    """Return the conversation as messages of the AI SDK.

    All turns of the agent between two messages of the user are one message. The last one has
    the id under which its stream continues.
    """
    messages: list[Chunk] = []
    parts: list[Chunk] = []
    first = state.condensed_count - bool(state.summary)
    for number, turn in enumerate(Transcript(state), first):
        own_id = f"{state.run}-m{number}"
        if turn.role == "user":
            said: list[Chunk] = [{"type": "text", "text": turn.text}]
            said += [
                {
                    "type": "file",
                    "mediaType": file.media_type,
                    "filename": file.name,
                    "url": make_file_url(root, state.run, file),
                }
                for file in turn.files
            ]
            messages.append({"id": own_id, "role": "user", "parts": said})
            parts = []
        elif turn.role == "assistant":
            if not parts:
                messages.append({"id": own_id, "role": "assistant", "parts": parts})
            # Calls of earlier runs of the thread have the same numbers as calls of this run.
            is_earlier = number < len(state.run_started.history)
            parts.extend(_make_parts(state, turn, f"{own_id}-" if is_earlier else ""))
    if messages and messages[-1]["role"] == "assistant":
        messages[-1]["id"] = make_message_id(state, begins_at)
    return messages


def _make_parts(state: State, turn: Turn, earlier: str) -> Iterator[Chunk]:
    yield {"type": "step-start"}
    if turn.text:
        yield {"type": "text", "text": turn.text, "state": "done"}
    for use in turn.uses:
        yield _make_tool_part(state, use, earlier)


def _make_tool_part(state: State, use: CallResult, earlier: str) -> Chunk:
    """Return the part of a call; `earlier` makes the id of a call of an earlier run unique."""
    part: Chunk = {
        "type": "dynamic-tool",
        "toolName": use.tool,
        "toolCallId": earlier + use.call if earlier else make_public_id(state, use.call),
        "input": {} if use.args is None else use.args,
        "providerExecuted": True,
    }
    asks = () if earlier else make_ask_views(state)
    ask = next((a for a in asks if a.call == use.call and a.kind == "approval"), None)
    if ask is not None:
        own = {"id": make_public_id(state, ask.id)}
        return part | {"state": "approval-requested", "approval": own}
    if use.problem:
        return part | {"state": "output-error", "errorText": use.problem}
    return part | {"state": "output-available", "output": use.result}
