"""`POST /chat/completions`: a message to a thread, and the reply as one message.

A thread is named by the header in which Open WebUI sends the id of a chat, or by the key
`thread` of `metadata`. Then the journal has the conversation, and only the newest message of
the body is read. Without a name the client keeps the conversation: each request starts a run,
with the earlier messages as its history.

The text of the reply is `content`. Thinking and the calls of tools are `reasoning_content`, a
field that many clients show folded. `finish_reason` is "length" if the run has stopped before
its end, because a reader of that value knows that the text is not complete.
"""

from collections.abc import Iterator
from contextlib import aclosing
from typing import Final

import msgspec
from msgspec import Struct
from starlette.responses import Response

from midrun import events as ev
from midrun.core.ids import MICROS_PER_SECOND, CallId
from midrun.core.state import State
from midrun.core.values import Json, Phase
from midrun.runs.run import Run
from midrun.server.chat_threads import (
    ChatMessage,
    ChatStream,
    ReplyEvents,
    SentMessage,
    TokenUsage,
    check_agent,
    digest_content,
    find_newest_run,
    find_unsent_part,
    send_message,
)
from midrun.server.feed_routes import SseWriter
from midrun.server.openai.requests import (
    ChatDocument,
    make_request_id,
    read_earlier_files,
    read_row_state,
    split_history,
)
from midrun.server.problem_details import HttpProblem, make_openai_error
from midrun.server.request_checks import make_base_url, mount_path
from midrun.server.request_context import RequestContext, json_response
from midrun.server.rest_text import PARAGRAPH_BREAK, describe_rest, find_error

CHAT_HEADER: Final = "x-openwebui-chat-id"
"""The header in which Open WebUI sends the id of the chat."""

TEMPORARY_PREFIXES: Final = ("temporary:", "local:")
"""The beginnings of the ids of temporary chats in Open WebUI 0.12, and in older versions."""

TASK_PREFIX: Final = "### Task:"
"""The first words of the prompts by which Open WebUI asks for titles, tags and suggestions."""

OWNER: Final = "midrun"


# ── requests ──────────────────────────────────────────────────────────────────────────────


class StreamOptions(Struct, frozen=True, kw_only=True):
    """Options of a stream. Unknown fields are ignored."""

    include_usage: bool = False


class CompletionInput(Struct, frozen=True, kw_only=True):
    """The body of a request. Unknown fields are ignored."""

    model: str
    messages: tuple[dict[str, Json], ...] = ()
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    metadata: dict[str, Json] | None = None


async def list_models(context: RequestContext) -> Response:
    """List the agents, as models."""
    agents = [make_model(name) for name in context.server.mid.agents]
    return json_response({"object": "list", "data": agents})


async def show_model(context: RequestContext) -> Response:
    """Describe one agent, as a model."""
    check_agent(context, context.path["agent"])
    return json_response(make_model(context.path["agent"]))


def make_model(agent: str) -> dict[str, object]:
    """Return an agent as a model."""
    return {"id": agent, "object": "model", "created": 0, "owned_by": OWNER}


async def create_completion(context: RequestContext) -> Response:
    """Send the newest message to the thread's run, and return or stream the reply."""
    body = await context.decode_body(CompletionInput)
    check_agent(context, body.model)
    context.check_stream()
    sent = await _send(context, body)
    if body.stream:
        return CompletionStream(context, body, sent)
    reply = CompletionReply(context, body, sent)
    return ChatDocument(context, sent.run, reply.build)


async def _send(context: RequestContext, body: CompletionInput) -> SentMessage:
    newest, earlier = split_history(body.messages)
    chat = context.request.headers.get(CHAT_HEADER, "")
    if chat and newest.text.startswith(TASK_PREFIX):
        problem = (
            "Cannot do a task of Open WebUI in a chat: it would reach the agent as a message. "
            "Set a task model in the settings of Open WebUI, or turn titles, tags and "
            "suggestions off."
        )
        raise HttpProblem("invalid_body", 422, problem)
    thread = _name_thread(chat, body) or str((body.metadata or {}).get("thread") or "")
    row = await find_newest_run(context, body.model, thread) if thread else None
    state = await read_row_state(context, row)
    history, files = read_earlier_files(() if thread else earlier)
    message = ChatMessage(
        agent=body.model,
        thread=thread,
        text=newest.text,
        request_id=make_request_id(context, thread, newest, len(body.messages), state),
        history=history or None,
        files=(*files, *newest.files),
    )
    return await send_message(context, row, message, by_words=True)


def _name_thread(chat: str, body: CompletionInput) -> str:
    """Return the name of the thread of a chat of Open WebUI.

    The id of a temporary chat is the connection of its page, so all temporary chats of a page
    have the same. The body has the whole conversation each time, and its first message tells
    them apart. Otherwise a new chat would continue the conversation of the one before.
    """
    if not chat.startswith(TEMPORARY_PREFIXES):
        return chat
    first = next((each for each in body.messages if each.get("role") == "user"), {})
    return f"{chat}:{digest_content(msgspec.json.encode(first.get('content')).decode())}"


# ── the reply ─────────────────────────────────────────────────────────────────────────────


class CompletionText:
    """Collects the text of a reply, and tells which part of it is new.

    The replies of several steps are one message, with a paragraph break between them.
    """

    def __init__(self) -> None:
        self.content = ""
        self.reasoning = ""
        self._call: CallId | None = None  # the model call that writes, ...
        self._sent = ""  # ... its text so far, ...
        self._sent_thinking = ""  # ... and its thinking
        self._summaries: set[CallId] = set()

    def translate(self, event: ev.RunEvent) -> Iterator[dict[str, str]]:
        """Yield the new parts of the message that an event adds."""
        match event:
            case ev.ReplyStarted():
                self._call, self._sent, self._sent_thinking = None, "", ""
                if event.purpose == "condense":  # a summary of the history is for the agent
                    self._summaries.add(event.call)
            case ev.TextDelta():
                yield from self._add_text(event.call, event.text, is_whole=event.opening)
            case ev.ReplyFinished() if event.reply:
                yield from self._add_text(event.call, event.reply, is_whole=True)
            case ev.ThinkingDelta():
                text = event.text
                if event.opening:
                    text = find_unsent_part(self._sent_thinking, text)
                self._sent_thinking += text
                yield from self._add("reasoning", text)
            case ev.ToolStarted() | ev.ToolFinished():
                break_before = PARAGRAPH_BREAK if self.reasoning else ""
                yield from self._add("reasoning", break_before + event.sentence)
            case _:  # entries and live output that a message does not show
                return

    def add_paragraph(self, text: str) -> Iterator[dict[str, str]]:
        """Yield a paragraph after the text so far."""
        yield from self._add("content", self._break_before + text if text else "")

    @property
    def _break_before(self) -> str:
        return PARAGRAPH_BREAK if self.content else ""

    def _add_text(self, call: CallId, text: str, *, is_whole: bool) -> Iterator[dict[str, str]]:
        if call in self._summaries:
            return
        text = find_unsent_part(self._sent, text) if is_whole else text
        if not text:
            return
        break_before = "" if self._call == call else self._break_before
        self._call, self._sent = call, self._sent + text
        yield from self._add("content", break_before + text)

    def _add(self, kind: str, text: str) -> Iterator[dict[str, str]]:
        if text and kind == "content":
            self.content += text
            yield {"content": text}
        elif text:
            self.reasoning += text
            yield {"reasoning_content": text}


class CompletionReply:
    """Builds the reply to one request: the whole document, or the chunks of a stream."""

    def __init__(
        self, context: RequestContext, body: CompletionInput, sent: SentMessage
    ) -> None:
        self.events = ReplyEvents(context, sent.run, sent.begins_at - 1)
        self._context = context
        self._body = body
        self._sent = sent
        self._text = CompletionText()
        self._created = context.server.mid.now() // MICROS_PER_SECOND

    async def build(self) -> Response:
        """Return the document when the run rests; an error if it has failed."""
        async with aclosing(self.events.follow()) as events:
            async for event in events:
                for _ in self._text.translate(event):
                    pass
        state = self.events.state
        if state.phase is Phase.FAILED:
            raise make_failure(self._sent.run, state)
        for _ in self._text.add_paragraph(self._describe_rest(state)):
            pass
        message = {"role": "assistant", "content": self._text.content, "refusal": None}
        if self._text.reasoning:
            message["reasoning_content"] = self._text.reasoning
        choice = {
            "index": 0,
            "message": message,
            "finish_reason": find_finish_reason(state),
            "logprobs": None,
        }
        usage = {"usage": make_usage(self.events.usage)}
        head = self._make_head("chat.completion")
        return json_response(head | {"choices": [choice]} | usage | self._make_link(state))

    def translate(self, event: ev.RunEvent) -> Iterator[dict[str, object]]:
        """Yield the chunks of one event."""
        for delta in self._text.translate(event):
            yield self.make_chunk(delta)

    def make_chunk(
        self, delta: dict[str, str], finish_reason: str | None = None
    ) -> dict[str, object]:
        """Return a chunk with this part of the message."""
        choice = {"index": 0, "delta": delta, "finish_reason": finish_reason, "logprobs": None}
        return self._make_head("chat.completion.chunk") | {"choices": [choice]}

    def close(self) -> Iterator[dict[str, object]]:
        """Yield the last chunks, by the phase in which the run rests."""
        state = self.events.state
        if state.phase is Phase.FAILED:
            yield make_openai_error(make_failure(self._sent.run, state))
            return
        for delta in self._text.add_paragraph(self._describe_rest(state)):
            yield self.make_chunk(delta)
        yield self.make_chunk({}, find_finish_reason(state)) | self._make_link(state)
        options = self._body.stream_options
        if options is not None and options.include_usage:
            head = self._make_head("chat.completion.chunk")
            yield head | {"choices": [], "usage": make_usage(self.events.usage)}

    def _describe_rest(self, state: State) -> str:
        base = make_base_url(self._context.request)
        return describe_rest(state, self._sent.begins_at, base)

    def _make_head(self, kind: str) -> dict[str, object]:
        own = f"chatcmpl-{self._sent.run.id}-{self._sent.begins_at}"
        return {"id": own, "object": kind, "created": self._created, "model": self._body.model}

    def _make_link(self, state: State) -> dict[str, object]:
        """Return the member with which a page can show `<midrun-controls>`."""
        root = mount_path(self._context.request.scope)
        link = {"run_id": state.run, "phase": state.phase, "seq": state.seq}
        return {"midrun": link | {"control_url": f"{root}/v1/runs/{state.run}"}}


class CompletionStream(ChatStream):
    """Streams the reply to one request until the run rests."""

    def __init__(
        self, context: RequestContext, body: CompletionInput, sent: SentMessage
    ) -> None:
        super().__init__(context, sent.run, self._write_reply)
        self._reply = CompletionReply(context, body, sent)

    async def _write_reply(self, writer: SseWriter) -> None:
        reply = self._reply
        first = reply.make_chunk({"role": "assistant", "content": ""})
        await _write_chunks(writer, first)
        async with aclosing(reply.events.follow()) as events:
            async for event in events:
                await _write_chunks(writer, *reply.translate(event))
        await _write_chunks(writer, *reply.close())
        await writer.write(b"data: [DONE]\n\n")
        self.is_finished = True


async def _write_chunks(writer: SseWriter, *chunks: dict[str, object]) -> None:
    lines = [b"data: %b\n\n" % msgspec.json.encode(chunk) for chunk in chunks]
    await writer.write(b"".join(lines))


def make_failure(run: Run, state: State) -> HttpProblem:
    """Return the error of a failed run."""
    problem = f"Run {run.id} has failed: {find_error(state)} The next message resumes it."
    return HttpProblem("run_failed", 502, problem)


def find_finish_reason(state: State) -> str:
    """Return "stop" if the agent has said all for now, else "length"."""
    return "stop" if state.phase in {Phase.COMPLETED, Phase.WAITING} else "length"


def make_usage(usage: TokenUsage) -> dict[str, int] | None:
    """Return the tokens of the reply; None if a provider has not reported them."""
    prompt, total = usage.prompt, usage.total
    if prompt is None:
        return None
    return {
        "prompt_tokens": prompt,
        "completion_tokens": total - prompt,
        "total_tokens": total,
    }
