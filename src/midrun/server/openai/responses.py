"""`/responses`: replies with an id, which can be retrieved, followed and cancelled.

The id of a response names a run and the entry with the user's message, and so needs no storage:
a response is that part of the journal, translated. It ends where the run rests. A response
whose run was paused and resumed by another client continues, under the same id.

**Sequence numbers.** A client that lost its stream continues it with `starting_after`. The
number of an event is made of the entry it comes from, and of its place within that entry. A
piece of a text has the number of the entry that started the model call, plus the length of the
text so far. Live pieces are not stored, so a replay cuts the text into other pieces; but each
number stands for the same place in the text, and nothing is sent twice or left out.

Calls are items of the type `mcp_call`, because the server makes them, and an approval is an
`mcp_approval_request`. The client decides it by an `mcp_approval_response`, or by words.
"""

import re
from collections.abc import Iterator
from contextlib import aclosing, suppress
from typing import Final, TypeAlias

import msgspec
from msgspec import Struct
from msgspec.structs import replace
from starlette.responses import Response

from midrun import events as ev
from midrun.agents.outcome import AskView, make_ask_views
from midrun.core.ids import MICROS_PER_SECOND, CallId, RunId, Seq
from midrun.core.state import State
from midrun.core.values import RESTING_PHASES, TERMINAL_PHASES, Json, Phase
from midrun.errors import ControlRefused
from midrun.runs.run import Run
from midrun.runs.validation import ControlOptions
from midrun.server.chat_threads import (
    ChatMessage,
    ChatStream,
    ReplyEvents,
    SentMessage,
    TokenUsage,
    cancel_and_wait,
    check_agent,
    decide_approval,
    digest_content,
    find_ask,
    find_newest_run,
    find_unsent_part,
    make_attempt_id,
    send_message,
)
from midrun.server.feed_routes import SseWriter
from midrun.server.openai.requests import (
    ChatDocument,
    find_next_message,
    make_prefix,
    make_request_id,
    read_earlier_files,
    read_row_state,
    split_history,
)
from midrun.server.problem_details import HttpProblem
from midrun.server.request_checks import make_base_url
from midrun.server.request_context import RequestContext, json_response
from midrun.server.rest_text import describe_rest, find_error, format_arguments

JsonObject: TypeAlias = dict[str, object]

NUMBERS_PER_ENTRY: Final = 10_000_000
"""Sequence numbers of one entry. With them, 900 million entries fit into 53 bits."""

TEXT_NUMBERS_START: Final = 100
"""The first number of a text within its entry; those before it are for other events."""

ID_PATTERN: Final = re.compile(r"resp_(?P<run>[A-Za-z0-9_]+)-(?P<seq>[0-9]{1,16})(?P<mode>b?)")

THREAD_PREFIX: Final = "resp-"
"""The beginning of the name of a thread that a request without a name begins."""


class ResponseId(Struct, frozen=True, kw_only=True):
    """The id of a response: its run, the entry at which it begins, and its mode."""

    run: RunId
    begins_at: Seq
    background: bool = False

    def __str__(self) -> str:
        return f"resp_{self.run}-{self.begins_at}{'b' if self.background else ''}"

    @classmethod
    def parse(cls, text: str) -> "ResponseId":
        """Read an id.

        Raises:
            HttpProblem: 404, no response has such an id.
        """
        found = ID_PATTERN.fullmatch(text)
        if found is None:
            raise HttpProblem("response_not_found", 404, f"Cannot find response {text!r}.")
        seq, mode = Seq(max(int(found["seq"]), 1)), found["mode"]
        return cls(run=RunId(found["run"]), begins_at=seq, background=bool(mode))


# ── requests ──────────────────────────────────────────────────────────────────────────────


class ConversationInput(Struct, frozen=True, kw_only=True):
    """The thread of a request."""

    id: str


class ResponseInput(Struct, frozen=True, kw_only=True):
    """The body of a request. Unknown fields are ignored."""

    model: str = ""
    input: str | tuple[dict[str, Json], ...] = ""
    stream: bool | None = False
    background: bool | None = False
    previous_response_id: str | None = None
    conversation: str | ConversationInput | None = None

    @property
    def items(self) -> tuple[dict[str, Json], ...]:
        """The input as items."""
        if isinstance(self.input, str):
            return ({"role": "user", "content": self.input},) if self.input else ()
        return self.input

    @property
    def decisions(self) -> tuple[dict[str, Json], ...]:
        """The user's decisions about approvals."""
        return tuple(i for i in self.items if i.get("type") == "mcp_approval_response")

    @property
    def thread(self) -> str:
        """The name of the conversation; "" without one."""
        given = self.conversation
        return given.id if isinstance(given, ConversationInput) else given or ""


async def create_response(context: RequestContext) -> Response:
    """Send the newest input to the thread's run, and return or stream the response."""
    body = await context.decode_body(ResponseInput)
    if body.stream or not body.background:
        context.check_stream()
    sent = await _send(context, body)
    own = ResponseId(
        run=sent.run.id, begins_at=sent.begins_at, background=body.background is True
    )
    if body.stream:
        return ResponseStream(context, sent.run, own)
    reply = ResponseReply(context, sent.run, own, wait=not own.background)
    if own.background:
        return await reply.build()
    return ChatDocument(context, sent.run, reply.build)


async def show_response(context: RequestContext) -> Response:
    """Return a response as it is now, or stream it from `starting_after` on."""
    own, run = await _find_response(context, context.path["response"])
    state = await context.server.views.read_state(run.id)
    end = find_next_message(state, own.begins_at)
    if context.request.query_params.get("stream") != "true":
        return await ResponseReply(context, run, own, ends_before=end, wait=False).build()
    context.check_stream()
    after = context.read_number("starting_after", 0, minimum=0, maximum=2**53 - 1)
    return ResponseStream(context, run, own, ends_before=end, after_number=after)


async def cancel_response(context: RequestContext) -> Response:
    """Cancel the run of a response, and wait a few seconds until it is cancelled."""
    own, run = await _find_response(context, context.path["response"])
    # If the undos take longer than the wait, the response is still in progress, and a later
    # request shows its end. A response that is completed stays completed.
    with suppress(ControlRefused):
        await cancel_and_wait(context, run)
    return await ResponseReply(context, run, own, wait=False).build()


async def _find_response(context: RequestContext, text: str) -> tuple[ResponseId, Run]:
    """Return the response with this id, and its run, if the caller may see it."""
    own = ResponseId.parse(text)
    if await context.can_see(own.run):
        run = await context.server.mid.get(own.run)
        # An id can be made up: one beyond the journal would wait for an entry that never had a
        # request.
        if own.begins_at <= (await context.server.store.get_row(run.id)).seq:
            return own, run
    # A response of another user looks like one that does not exist.
    raise HttpProblem("response_not_found", 404, f"Cannot find response {own}.")


async def _send(context: RequestContext, body: ResponseInput) -> SentMessage:
    """Send the decisions and the newest message to their run, or start a run."""
    if body.previous_response_id:
        return await _send_to_run(context, body, body.previous_response_id)
    check_agent(context, body.model)
    newest, earlier = split_history(body.items)
    thread = body.thread
    row = await find_newest_run(context, body.model, thread) if thread else None
    state = await read_row_state(context, row)
    if body.decisions and row is not None and state is not None:
        run = await context.server.mid.get(row.run)
        return await _send_decisions(context, run, state, body)
    request_id = make_request_id(context, thread, newest, len(body.items), state)
    if not thread and not earlier:
        thread = THREAD_PREFIX + digest_content(request_id)
    history, files = read_earlier_files(() if thread else earlier)
    message = ChatMessage(
        agent=body.model,
        thread=thread,
        text=newest.text,
        request_id=request_id,
        history=None if thread else history,
        files=(*files, *newest.files),
    )
    return await send_message(context, row, message, by_words=True)


async def _send_to_run(
    context: RequestContext, body: ResponseInput, previous: str
) -> SentMessage:
    """Send the input to the run of an earlier response, or start the next in its thread."""
    own, run = await _find_response(context, previous)
    state = await context.server.views.read_state(run.id)
    if body.decisions:
        return await _send_decisions(context, run, state, body)
    started = state.run_started
    agent, thread = body.model or started.agent, started.thread
    row = await context.server.store.get_row(run.id)
    if state.phase in TERMINAL_PHASES or agent != started.agent:
        if not thread:
            problem = (
                f"Cannot continue response {own}: it began with a history in the input, and "
                "its run has ended. Send the whole conversation as input."
            )
            raise HttpProblem("wrong_phase", 409, problem)
        row = await find_newest_run(context, agent, thread) or row
    state = await context.server.views.read_state(row.run)
    newest, _ = split_history(body.items)
    message = ChatMessage(
        agent=agent,
        thread=thread,
        text=newest.text,
        request_id=make_request_id(context, thread, newest, len(body.items), state),
        files=newest.files,
    )
    is_other = state.run_started.agent != agent
    return await send_message(context, None if is_other else row, message, by_words=True)


async def _send_decisions(
    context: RequestContext, run: Run, state: State, body: ResponseInput
) -> SentMessage:
    """Send decisions about approvals; the response begins with the last of them.

    Raises:
        HttpProblem: 404, the run has no such ask; 422, there is a message beside them.
        ControlRefused: another client decided before, or the run has ended.
    """
    if any(item.get("role") == "user" for item in body.items):
        problem = (
            "Cannot take a message together with a decision: a message redirects the run, and "
            "that withdraws an approval. Send the message after the decision."
        )
        raise HttpProblem("invalid_body", 422, problem)
    begins_at = []
    prefix = make_prefix(context, state.run_started.thread)
    for item in body.decisions:
        name = str(item.get("approval_request_id", "")).removeprefix(APPROVAL_PREFIX)
        ask, approved = find_ask(run, state, name), item.get("approve") is True
        own = f"{prefix}decision:{ask.id}:{'approve' if approved else 'decline'}"
        request_id = make_attempt_id(state, own)
        options = ControlOptions(actor=context.actor, request_id=request_id)
        receipt = await decide_approval(run, ask, options, approved=approved, details=item)
        begins_at.append(receipt.seq)
    return SentMessage(run=run, state=state, begins_at=max(begins_at))


# ── the reply ─────────────────────────────────────────────────────────────────────────────

APPROVAL_PREFIX: Final = "mcpr_"

STATUSES: Final = {
    Phase.QUEUED: "queued",
    Phase.PAUSED: "incomplete",
    Phase.HALTED: "incomplete",
    Phase.FAILED: "failed",
    Phase.CANCELLED: "cancelled",
    Phase.COMPLETED: "completed",
    Phase.WAITING: "completed",  # the question is its end; the answer begins another
}
"""The status of a response by the phase of its run; any other phase is "in_progress"."""


class TextItem(Struct, kw_only=True):
    """A message of the agent that is being written."""

    id: str
    number: int  # the sequence number before its first piece
    index: int
    text: str = ""


class ResponseTranslator:
    """Translates the events of a reply to the items and the stream events of a response.

    Events up to the number `after_number` are left out: the client has them.
    """

    def __init__(self, own: ResponseId, after_number: int = 0) -> None:
        self.output: list[JsonObject] = []
        self._own = own
        self._after_number = after_number
        self._entry = own.begins_at  # the newest entry, ...
        self._next = 1  # ... and its next free number
        self._open: TextItem | None = None
        self._call_start: dict[CallId, Seq] = {}
        self._summaries: set[CallId] = set()
        self._calls: dict[CallId, int] = {}  # call → its index in the output

    def translate(self, event: ev.RunEvent) -> Iterator[JsonObject]:
        """Yield the stream events of one event."""
        if isinstance(event, ev.EntryEvent) and event.seq > self._entry:
            self._entry, self._next = event.seq, 1
        match event:
            case ev.ReplyStarted():
                self._call_start[event.call] = event.seq
                if event.purpose == "condense":  # a summary of the history is for the agent
                    self._summaries.add(event.call)
            case ev.TextDelta():
                yield from self._add_text(event.call, event.text, is_whole=event.opening)
            case ev.ReplyFinished():
                if event.reply:
                    yield from self._add_text(event.call, event.reply, is_whole=True)
                status = "completed" if event.outcome == "done" else "incomplete"
                yield from self._end_text(status)
            case ev.ToolStarted():
                yield from self._start_call(event.call, event.tool, event.args)
            case ev.ToolFinished() if not event.will_retry:
                yield from self._finish_call(event)
            case _:  # entries and live output that no item shows
                return

    def add_rest(self, state: State, base_url: str) -> Iterator[JsonObject]:
        """Yield the items for a run at rest: requests for approval, and a text."""
        yield from self._end_text("incomplete")
        for ask in make_ask_views(state):
            if ask.effective_kind == "approval":
                yield from self._add_item(make_approval_item(state, ask))
        if text := describe_rest(state, self._own.begins_at, base_url):
            call = CallId(f"rest{state.seq}")
            self._call_start[call] = state.seq
            yield from self._add_text(call, text, is_whole=True)
            yield from self._end_text("completed")

    def make_event(self, kind: str, **members: object) -> Iterator[JsonObject]:
        """Yield an event with the next number of the newest entry, unless the client has it."""
        number = self._entry * NUMBERS_PER_ENTRY + self._next
        yield from self._make_numbered(kind, number, **members)

    def _make_numbered(self, kind: str, number: int, **members: object) -> Iterator[JsonObject]:
        entry, place = divmod(number, NUMBERS_PER_ENTRY)
        if entry == self._entry:
            self._next = max(self._next, place + 1)
        if number > self._after_number:
            yield {"type": kind, "sequence_number": number, **members}

    # ── texts ─────────────────────────────────────────────────────────────────────────────

    def _add_text(self, call: CallId, text: str, *, is_whole: bool) -> Iterator[JsonObject]:
        if call in self._summaries:
            return
        # A reply that began before this response counts from its beginning. A hosted agent's
        # answer has no model call; it comes whole, with one entry.
        start = self._call_start.get(call, self._own.begins_at) if call else self._entry
        own = f"msg_{self._own.run}-{start}{call}"
        if self._open is None or self._open.id != own:
            yield from self._end_text("incomplete")
            yield from self._start_text(own, start)
        item = self._open
        assert item is not None, "a text has been started"
        text = find_unsent_part(item.text, text) if is_whole else text
        before = item.number + len(item.text)
        item.text += text
        # The client may have a part of this piece: a replay has other pieces.
        known = min(max(self._after_number - before, 0), len(text))
        if text[known:]:
            where = {"item_id": own, "output_index": item.index, "content_index": 0}
            yield from self._make_numbered(
                "response.output_text.delta",
                before + len(text),
                **where,
                delta=text[known:],
                logprobs=[],
            )

    def _start_text(self, own: str, start: Seq) -> Iterator[JsonObject]:
        number = max(start, self._own.begins_at) * NUMBERS_PER_ENTRY + TEXT_NUMBERS_START
        item = TextItem(id=own, number=number + 1, index=len(self.output))
        self._open = item
        shown = make_message_item(item, "in_progress", [])
        self.output.append(shown)
        yield from self._make_numbered(
            "response.output_item.added", number, output_index=item.index, item=shown
        )
        where = {"item_id": own, "output_index": item.index, "content_index": 0}
        yield from self._make_numbered(
            "response.content_part.added", number + 1, **where, part=make_text_part("")
        )

    def _end_text(self, status: str) -> Iterator[JsonObject]:
        item, self._open = self._open, None
        if item is None:
            return
        part = make_text_part(item.text)
        where = {"item_id": item.id, "output_index": item.index, "content_index": 0}
        yield from self.make_event(
            "response.output_text.done", **where, text=item.text, logprobs=[]
        )
        yield from self.make_event("response.content_part.done", **where, part=part)
        yield from self._finish_item(item.index, make_message_item(item, status, [part]))

    # ── calls ─────────────────────────────────────────────────────────────────────────────

    def _start_call(self, call: CallId, tool: str, args: Json) -> Iterator[JsonObject]:
        if call in self._calls:  # another attempt
            return
        self._calls[call] = len(self.output)
        item: JsonObject = {
            "type": "mcp_call",
            "id": f"mcp_{self._own.run}-{call}",
            "name": tool,
            "server_label": SERVER_LABEL,
            "arguments": format_arguments(args),
            "status": "in_progress",
        }
        self.output.append(item)
        index = self._calls[call]
        yield from self.make_event("response.output_item.added", output_index=index, item=item)
        where = {"item_id": item["id"], "output_index": index}
        yield from self.make_event("response.mcp_call.in_progress", **where)

    def _finish_call(self, event: ev.ToolFinished) -> Iterator[JsonObject]:
        # A call that began before this response has no item yet, and its arguments are in the
        # response before.
        yield from self._start_call(event.call, event.tool, None)
        index = self._calls[event.call]
        is_done = event.outcome == "done"
        item = dict(self.output[index])
        item |= {"status": "completed" if is_done else "failed"}
        result = event.result
        text = result if isinstance(result, str) else format_arguments(result)
        item |= {"output": text} if is_done else {"error": make_call_error(event)}
        where = {"item_id": item["id"], "output_index": index}
        kind = "completed" if is_done else "failed"
        yield from self.make_event(f"response.mcp_call.{kind}", **where)
        yield from self._finish_item(index, item)

    def _add_item(self, item: JsonObject) -> Iterator[JsonObject]:
        index = len(self.output)
        self.output.append(item)
        yield from self.make_event("response.output_item.added", output_index=index, item=item)
        yield from self._finish_item(index, item)

    def _finish_item(self, index: int, item: JsonObject) -> Iterator[JsonObject]:
        self.output[index] = item
        yield from self.make_event("response.output_item.done", output_index=index, item=item)


SERVER_LABEL: Final = "midrun"


def make_message_item(item: TextItem, status: str, content: list[JsonObject]) -> JsonObject:
    """Return the item of a text."""
    return {
        "type": "message",
        "id": item.id,
        "role": "assistant",
        "status": status,
        "content": content,
    }


def make_text_part(text: str) -> JsonObject:
    """Return a text as a part of a message."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def make_call_error(event: ev.ToolFinished) -> JsonObject:
    """Return the error of a call."""
    return {"type": "mcp_tool_execution_error", "content": event.error or event.sentence}


def make_approval_item(state: State, ask: AskView) -> JsonObject:
    """Return the request for an approval."""
    return {
        "type": "mcp_approval_request",
        "id": f"{APPROVAL_PREFIX}{state.run}-{ask.id}",
        "name": ask.tool,
        "server_label": SERVER_LABEL,
        "arguments": format_arguments(ask.args),
    }


class ResponseReply:
    """Builds one response: the whole object, or the events of a stream."""

    def __init__(
        self,
        context: RequestContext,
        run: Run,
        own: ResponseId,
        *,
        ends_before: Seq | None = None,
        wait: bool = True,
        after_number: int = 0,
    ) -> None:
        self.events = ReplyEvents(
            context, run, own.begins_at - 1, ends_before=ends_before, wait=wait
        )
        self.translator = ResponseTranslator(own, after_number)
        self._context = context
        self._own = own
        self._created = 0

    async def load_time(self) -> None:
        """Read the time of the entry at which the response begins."""
        store, own = self._context.server.store, self._own
        records = await store.read(own.run, after=Seq(own.begins_at - 1), limit=1)
        self._created = records[0].at // MICROS_PER_SECOND

    async def build(self) -> Response:
        """Return the object when the events have ended."""
        await self.load_time()
        async with aclosing(self.events.follow()) as events:
            async for event in events:
                for _ in self.translator.translate(event):
                    pass
        for _ in self.close():
            pass
        return json_response(self.make_response(self.events.state))

    def open(self, state: State) -> Iterator[JsonObject]:
        """Yield the first events."""
        first = self.make_response(replace(state, phase=Phase.RUNNING))
        yield from self.translator.make_event("response.created", response=first)
        yield from self.translator.make_event("response.in_progress", response=first)

    def close(self) -> Iterator[JsonObject]:
        """Yield the last items, and the event that ends the stream, if the run rests."""
        state = self.events.state
        if state.phase not in RESTING_PHASES:
            return
        base = make_base_url(self._context.request)
        yield from self.translator.add_rest(state, base)
        ends = {"completed", "failed", "incomplete"}
        status = STATUSES[state.phase]
        # The protocol has no event for a cancelled response; its status tells it.
        kind = f"response.{status if status in ends else 'incomplete'}"
        yield from self.translator.make_event(kind, response=self.make_response(state))

    def make_response(self, state: State) -> JsonObject:
        """Return the response in this state of its run."""
        status, started = STATUSES.get(state.phase, "in_progress"), state.run_started
        is_incomplete = status == "incomplete"
        error = {"code": "server_error", "message": find_error(state)}
        return {
            "id": str(self._own),
            "object": "response",
            "created_at": self._created,
            "model": started.agent,
            "status": status,
            "background": self._own.background,
            "output": self.translator.output,
            "error": error if status == "failed" else None,
            "incomplete_details": {"reason": str(state.phase)} if is_incomplete else None,
            "conversation": {"id": started.thread} if started.thread else None,
            "metadata": {"run_id": state.run, "phase": str(state.phase)},
            "usage": make_usage(self.events.usage),
            "instructions": None,
            "parallel_tool_calls": True,
            "temperature": None,
            "tool_choice": "auto",
            "tools": [],
            "top_p": None,
        }


class ResponseStream(ChatStream):
    """Streams one response until its run rests."""

    def __init__(
        self,
        context: RequestContext,
        run: Run,
        own: ResponseId,
        *,
        ends_before: Seq | None = None,
        after_number: int = 0,
    ) -> None:
        super().__init__(context, run, self._write_response)
        self._reply = ResponseReply(
            context, run, own, ends_before=ends_before, after_number=after_number
        )
        self.is_finished = own.background  # leaving it does not stop the run

    async def _write_response(self, writer: SseWriter) -> None:
        reply = self._reply
        await reply.load_time()
        state = await self._context.server.views.read_state(self._run.id)
        await _write_events(writer, reply.open(state))
        async with aclosing(reply.events.follow()) as events:
            async for event in events:
                await _write_events(writer, reply.translator.translate(event))
        await _write_events(writer, reply.close())
        self.is_finished = True


async def _write_events(writer: SseWriter, events: Iterator[JsonObject]) -> None:
    lines = [
        b"event: %b\ndata: %b\n\n" % (str(event["type"]).encode(), msgspec.json.encode(event))
        for event in events
    ]
    await writer.write(b"".join(lines))


def make_usage(usage: TokenUsage) -> JsonObject | None:
    """Return the tokens of the response; None if a provider has not reported them."""
    prompt, total = usage.prompt, usage.total
    if prompt is None:
        return None
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": total - prompt,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": total,
    }
