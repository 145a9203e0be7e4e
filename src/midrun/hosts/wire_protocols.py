"""Wire protocols of model providers, as the gateway speaks them to both of its sides.

A `WireProtocol` reads a request (which messages it has, and which parts identify it), adds
messages to it, reads the events of a reply, and writes errors. It does no I/O.

The process reads the text of a streamed reply as it arrives (`LiveReply`).

The events of a reply are stored as they came, so that a process gets the same stream again when
it is answered from the journal. Consecutive deltas of one text are joined: a provider sends one
event for a few characters, and a journal entry must not be thirty times as large as its text.
"""

from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Any, ClassVar, Final, Literal, TypeAlias, cast

import anyio
import msgspec
from msgspec import Struct

from midrun.core.transcript import Turn
from midrun.core.values import Json, Reply, Spend
from midrun.hosts.upstream import ProviderName
from midrun.models.prices import make_spend
from midrun.models.prompt_texts import INTERRUPTED_NOTE, mark_runtime_text
from midrun.ports.model import Piece

Fields: TypeAlias = dict[str, Any]  # type: ignore[explicit-any]  # JSON of a provider, checked where it is read

VOLATILE_FIELDS: Final = frozenset(
    {"metadata", "user", "safety_identifier", "prompt_cache_key"}
)
"""Fields of a request that do not identify it: clients put ids of their session there."""

CACHE_MARK: Final = "cache_control"
"""A mark on a part of a prompt. Clients move it from request to request."""

LAST_TEXT_MAX_CHARS: Final = 120
"""Characters of the last message that the journal keeps, so that people recognize a request."""

PROVIDER_ID_KEY: Final = "midrun_provider_id"
"""The id of a response that continues a stopped one, and so has its id for the process."""

DONE_DATA: Final = "[DONE]"
"""The data of the last event of a streamed chat completion; it is not JSON."""


Release: TypeAlias = Literal["now", "later", "at the end"]
HELD: Final = "at the end"


class WireEvent(Struct, frozen=True):
    """One server-sent event: its name, and its data as JSON."""

    name: str
    data: Json

    def encode(self) -> bytes:
        """Return the bytes of the event."""
        name = f"event: {self.name}\n" if self.name else ""
        data = DONE_DATA if self.data == DONE_DATA else msgspec.json.encode(self.data).decode()
        return f"{name}data: {data}\n\n".encode()


class WireReply(Struct, frozen=True, kw_only=True):
    """The answer to a request, as the journal keeps it: events, or a body with its status."""

    status: int = 200
    events: tuple[tuple[str, Json], ...] = ()
    body: Json = None


class ReplyReader:
    """Collects what the journal needs of a reply, while its events are read."""

    def __init__(self) -> None:
        self.text: list[str] = []
        self.thinking: list[str] = []
        self.events: list[WireEvent] = []
        self.problem = ""  # an error that the provider sent inside the stream
        self.is_complete = False
        self.input_tokens = 0
        self.output_tokens = 0
        self.cached_tokens = 0
        self.cache_write_tokens = 0
        self.thinking_tokens = 0
        self.calls: dict[object, tuple[str, int]] = {}  # by the id of its part: name, number
        self._joined: tuple[object, list[str]] | None = None

    def add_piece(self, piece: Piece) -> Piece:
        """Note a piece of the text or of the thinking."""
        if piece.kind != "args":
            (self.text if piece.kind == "text" else self.thinking).append(piece.text)
        return piece

    def open_call(self, part: object, tool: str) -> Piece:
        """Note that a call of `tool` begins in `part`."""
        self.calls[part] = (tool, len(self.calls))
        return self.make_args_piece(part, "")

    def make_args_piece(self, part: object, text: str) -> Piece:
        """Return a piece of the arguments of the call in `part`."""
        tool, number = self.calls.get(part, ("", 0))
        return Piece(kind="args", text=text, tool=tool, call=number)

    def add_event(self, event: WireEvent, delta: "tuple[object, Fields, str] | None") -> None:
        """Keep `event`; join it with the last one if both are deltas of the same text.

        `delta` names the text, and has the dict and the key at which the text is.
        """
        if delta is None:
            self._finish_join()
            self.events.append(event)
            return
        name, fields, key = delta
        # A provider sends a text in hundreds of deltas. Joined, the journal has one event for
        # each text; the process gets the same message when it asks again.
        if self._joined is not None and self._joined[0] == name:
            self._joined[1].append(fields[key])
            return
        self._finish_join()
        self._joined = (name, [fields[key]])
        # The text is put in at the end of the join, into a dict that the event refers to.
        self._target, self._key = fields, key
        self.events.append(event)

    def _finish_join(self) -> None:
        if self._joined is not None:
            self._target[self._key] = "".join(self._joined[1])
            self._joined = None

    def make_reply(self, status: int = 200, body: Json = None) -> Reply:
        """Return the reply for the journal."""
        self._finish_join()
        events = tuple((event.name, event.data) for event in self.events)
        return Reply(
            text="".join(self.text),
            thinking="".join(self.thinking),
            opaque=msgspec.to_builtins(WireReply(status=status, events=events, body=body)),
            prompt_tokens=self.input_tokens,
        )

    def make_spend(self, model: str) -> Spend | None:
        """Return the usage that the provider reported; None if it reported none."""
        return make_spend(
            model,
            input_tokens=self.input_tokens,
            output_tokens=self.output_tokens,
            cached_tokens=self.cached_tokens,
            cache_write_tokens=self.cache_write_tokens,
            thinking_tokens=self.thinking_tokens,
        )


class LiveReply:
    """The events of a streamed reply, which the process may read while they arrive.

    A process may get text before the journal has it, but nothing on which it can act: neither
    a call nor the end of a reply. So an event is released at once, after the next one, or when
    the journal has the reply; see `WireProtocol.judge_event`.

    An attempt may be stopped after a part of it was released, by a redirect for example. The
    process cannot forget that part, so the reply of the next attempt is sent as its
    continuation, and it is stored together with it: after a restart the process must get the
    same message.
    """

    def __init__(self, protocol: "WireProtocol", body: Fields) -> None:
        self.parts: list[bytes] = []
        self.released = 0  # the parts that the process may have
        self.changed = anyio.Event()
        self._protocol = protocol
        self._body = body
        self._events: list[WireEvent] = []  # of `parts`
        self._earlier: list[WireEvent] = []  # released by attempts that were stopped
        self._is_held = False

    def begin_attempt(self) -> list[WireEvent]:
        """Forget the parts that were not released; return the events of the others."""
        # Parts that the process has not seen can be taken back. Those that it has seen cannot:
        # the new attempt continues after them.
        del self._events[self.released :], self.parts[self.released :]
        self._is_held = False
        if self._events:
            for event in self._protocol.close_parts(self._events):
                self._append(event)
            self.released = len(self.parts)
        self._earlier = [*self._events]
        return msgspec.json.decode(msgspec.json.encode(self._earlier), type=list[WireEvent])

    def add(self, event: WireEvent) -> WireEvent | None:
        """Take an event of the provider; return it as the continuation of the reply.

        None if it is not part of the continuation, such as a second beginning.
        """
        made = self._protocol.continue_reply(self._earlier, event) if self._earlier else event
        if made is None:
            return None
        if self._protocol.select_events(self._body, [made]):
            self._append(made)
        # Parts are released in their order. Once one has to wait for the journal, a call for
        # example, all later ones wait with it, also those that alone could be shown.
        release = self._protocol.judge_event(made)
        self._is_held |= release == "at the end"
        if release == "now" and not self._is_held:
            self.release()
        return made

    def release(self) -> None:
        """Let the process have all parts so far."""
        self.released = len(self.parts)
        # The new event is in place before the old one is set: a reader that wakes up and waits
        # again must not wait for an event that is set already.
        changed, self.changed = self.changed, anyio.Event()
        changed.set()

    def _append(self, event: WireEvent) -> None:
        # Encoded and copied now: the reader joins deltas in place.
        self.parts.append(event.encode())
        self._events.append(msgspec.json.decode(msgspec.json.encode(event), type=WireEvent))


class WireProtocol:
    """Base of the three protocols. `path` is where clients send their requests."""

    path: ClassVar[str]
    provider: ClassVar[ProviderName]
    messages_field: ClassVar[str] = "messages"

    def list_messages(self, body: Fields) -> list[Json]:
        """Return the messages of a request.

        Raises:
            ValueError: It has none. The text is for the client.
        """
        found = body.get(self.messages_field)
        if not isinstance(found, list) or not found:
            raise ValueError(f"{self.messages_field} must be a list that is not empty")
        return cast("list[Json]", found)

    def find_problem(self, body: Fields) -> str:
        """Return why the gateway cannot take a request, or ""."""
        try:
            self.list_messages(body)
        except ValueError as error:
            return str(error)
        return ""

    def replace_messages(self, body: Fields, messages: list[Json]) -> Fields:
        """Return a request with other messages."""
        return {**body, self.messages_field: messages}

    def prepare(self, body: Fields) -> Fields:
        """Return the request as the provider gets it."""
        return body

    def has_history(self, body: Fields) -> bool:
        """Tell whether a request continues a conversation: it has a reply of the model."""
        return any(
            isinstance(message, dict) and message.get("role") == "assistant"
            for message in self.list_messages(body)
        )

    def make_messages(self, turns: Sequence[Turn]) -> list[Json]:
        """Return turns of the run as messages of the protocol."""
        messages: list[Json] = []
        for turn in turns:
            text = turn.text
            if turn.role == "runtime":
                text = mark_runtime_text(turn.text, turn.kind, turn.by)
            if text.strip():  # providers refuse an empty message
                messages.append(self._make_message(turn.role, text))
            if turn.interrupted:
                messages.append(self._make_message("user", INTERRUPTED_NOTE))
        return messages

    def _make_message(self, role: str, text: str) -> Json:
        return {"role": "assistant" if role == "assistant" else "user", "content": text}

    def read_event(self, event: WireEvent, reader: ReplyReader) -> Iterator[Piece]:
        """Note an event of a streamed reply, and yield its pieces for watchers."""
        raise NotImplementedError

    def read_body(self, body: Fields, reader: ReplyReader) -> None:
        """Note the body of a reply that was not streamed."""
        raise NotImplementedError

    def make_error(self, kind: str, message: str) -> Json:
        """Return the body of an error."""
        return {"error": {"message": message, "type": kind, "code": kind, "param": None}}

    def make_error_event(self, body: Json) -> WireEvent:
        """Return an error as an event of a stream that has begun."""
        return WireEvent("error", body)

    def make_ping(self) -> bytes:
        """Return bytes that keep a stream alive and mean nothing."""
        return b": waiting\n\n"

    def select_events(self, body: Fields, events: Sequence[WireEvent]) -> Sequence[WireEvent]:
        """Return the events that a client gets for its request."""
        del body
        return events

    def judge_event(self, event: WireEvent) -> Release:
        """Tell when the client may have an event: it must not act before the journal has it.

        "later" is for a part that a client cannot keep half, such as thinking that is signed
        at its end.
        """
        raise NotImplementedError

    def close_parts(self, events: Sequence[WireEvent]) -> Sequence[WireEvent]:
        """Return the events that close an unfinished reply, so that another can follow."""
        raise NotImplementedError

    def continue_reply(
        self, earlier: Sequence[WireEvent], event: WireEvent
    ) -> WireEvent | None:
        """Return an event of a new reply as the continuation of `earlier`; None to drop it."""
        raise NotImplementedError

    def find_alias(self, reply: WireReply) -> tuple[str, str] | None:
        """Return the id of a reply that the process knows and the provider's; None if equal."""
        del reply
        return None

    def rename_response(self, body: Fields, names: Mapping[str, str]) -> Fields:
        """Return a request with the ids of the provider."""
        del names
        return body


class AnthropicMessages(WireProtocol):
    """The Messages protocol of Anthropic."""

    path = "/v1/messages"
    provider: ClassVar[ProviderName] = "anthropic"

    def read_event(self, event: WireEvent, reader: ReplyReader) -> Iterator[Piece]:
        """Note an event of a streamed message, and yield its pieces for watchers."""
        data = cast("Fields", event.data)
        delta, kind = data.get("delta") or {}, data.get("type")
        field = {"text_delta": "text", "thinking_delta": "thinking"}.get(str(delta.get("type")))
        place: tuple[object, Fields, str] | None = None
        match kind:
            case "message_start":
                self._read_usage(data["message"].get("usage"), reader)
            case "content_block_start" if data["content_block"].get("type") == "tool_use":
                yield reader.open_call(data["index"], data["content_block"]["name"])
            case "content_block_delta" if field is not None:
                place = ((data["index"], field), delta, field)
                name: Literal["text", "thinking"] = "text" if field == "text" else "thinking"
                yield reader.add_piece(Piece(kind=name, text=delta[field]))
            case "content_block_delta" if delta.get("type") == "input_json_delta":
                place = ((data["index"], "json"), delta, "partial_json")
                yield reader.make_args_piece(data["index"], delta["partial_json"])
            case "message_delta":
                self._read_usage(data.get("usage"), reader)
            case "message_stop":
                reader.is_complete = True
            case "error":
                reader.problem = _format_error(data)
            case _:
                pass
        if kind != "ping":
            reader.add_event(event, place)

    def read_body(self, body: Fields, reader: ReplyReader) -> None:
        """Note the body of a message that was not streamed."""
        self._read_usage(body.get("usage"), reader)
        for block in body.get("content") or ():
            if block.get("type") == "text":
                reader.text.append(block["text"])
            elif block.get("type") == "thinking":
                reader.thinking.append(block["thinking"])

    def _read_usage(self, usage: Fields | None, reader: ReplyReader) -> None:
        # Later events repeat the counts so far; tokens that were cached are counted apart.
        counts = usage or {}
        written = _read_count(counts, "cache_creation_input_tokens")
        cached = _read_count(counts, "cache_read_input_tokens")
        sent = _read_count(counts, "input_tokens") + written + cached
        reader.cache_write_tokens = max(reader.cache_write_tokens, written)
        reader.cached_tokens = max(reader.cached_tokens, cached)
        reader.input_tokens = max(reader.input_tokens, sent)
        reader.output_tokens = max(reader.output_tokens, _read_count(counts, "output_tokens"))

    def judge_event(self, event: WireEvent) -> Release:
        """Pass text on; hold thinking until its signature, and all else to the end."""
        data = cast("Fields", event.data)
        match data.get("type"):
            case "message_start" | "content_block_stop" | "ping":
                return "now"
            case "content_block_start":
                kind = data["content_block"].get("type")
                return "now" if kind == "text" else "later" if "thinking" in kind else HELD
            case "content_block_delta":
                kind = data["delta"].get("type")
                return "now" if kind == "text_delta" else "later"
            case _:
                return HELD

    def close_parts(self, events: Sequence[WireEvent]) -> Sequence[WireEvent]:
        """Return the end of the last block, if it is open."""
        kind, last = "content_block_stop", cast("Fields", events[-1].data)
        if last.get("type") not in {"content_block_start", "content_block_delta"}:
            return ()
        return (WireEvent(kind, {"type": kind, "index": last["index"]}),)

    def continue_reply(
        self, earlier: Sequence[WireEvent], event: WireEvent
    ) -> WireEvent | None:
        """Give each block the number after those of the earlier reply."""
        data = cast("Fields", event.data)
        if data.get("type") in {"message_start", "ping"}:
            return None
        if "index" not in data:
            return event
        blocks = [each for each in earlier if each.name == "content_block_start"]
        return WireEvent(event.name, {**data, "index": data["index"] + len(blocks)})

    def make_error(self, kind: str, message: str) -> Json:
        """Return the body of an error."""
        return {"type": "error", "error": {"type": kind, "message": message}}

    def make_ping(self) -> bytes:
        """Return the event by which the provider keeps a stream alive."""
        return WireEvent("ping", {"type": "ping"}).encode()


class OpenAIChat(WireProtocol):
    """The Chat Completions protocol of OpenAI, which many other providers speak."""

    path = "/v1/chat/completions"
    provider: ClassVar[ProviderName] = "openai"

    def prepare(self, body: Fields) -> Fields:
        """Return the request for the provider; ask it to report the usage of a stream."""
        if not body.get("stream"):
            return body
        options = {**(body.get("stream_options") or {}), "include_usage": True}
        return {**body, "stream_options": options}

    def select_events(self, body: Fields, events: Sequence[WireEvent]) -> Sequence[WireEvent]:
        """Leave out the usage, unless the client has asked for it: see `prepare`."""
        if (body.get("stream_options") or {}).get("include_usage"):
            return events
        return [
            event
            for event in events
            if not isinstance(event.data, dict) or event.data.get("choices")
        ]

    def judge_event(self, event: WireEvent) -> Release:
        """Pass text on, and hold all else to the end."""
        data = event.data if isinstance(event.data, dict) else {}
        choices = cast("list[Fields]", data.get("choices") or [])
        is_text = all(
            (each.get("delta") or {}).keys() <= {"role", "content", "reasoning_content"}
            and not each.get("finish_reason")
            for each in choices
        )
        return "now" if choices and is_text else HELD

    def close_parts(self, events: Sequence[WireEvent]) -> Sequence[WireEvent]:
        """Return a chunk that separates the texts."""
        last = cast("Fields", events[-1].data)
        choices = [{"index": 0, "delta": {"content": "\n\n"}, "finish_reason": None}]
        return (WireEvent("", {**last, "choices": choices}),)

    def continue_reply(
        self, earlier: Sequence[WireEvent], event: WireEvent
    ) -> WireEvent | None:
        """Give each chunk the id of the earlier completion, and leave out its role."""
        first = earlier[0].data
        if not isinstance(event.data, dict) or not isinstance(first, dict):
            return event
        data = cast("Fields", event.data)
        choices = [
            {
                **each,
                "delta": {k: v for k, v in (each.get("delta") or {}).items() if k != "role"},
            }
            for each in data.get("choices") or ()
        ]
        return WireEvent(event.name, {**data, "id": first.get("id"), "choices": choices})

    def read_event(self, event: WireEvent, reader: ReplyReader) -> Iterator[Piece]:
        """Note a chunk of a streamed completion, and yield its pieces for watchers."""
        if event.data == DONE_DATA:
            reader.is_complete = True
            reader.add_event(event, None)
            return
        data = cast("Fields", event.data)
        if data.get("error"):
            reader.problem = _format_error(data)
        self._read_usage(data.get("usage"), reader)
        place: tuple[object, Fields, str] | None = None
        for choice in data.get("choices") or ():
            delta = choice.get("delta") or {}
            if choice.get("finish_reason"):
                reader.is_complete = True
            for part in delta.get("tool_calls") or ():
                yield from self._read_call(part, reader)
            if thought := delta.get("reasoning_content"):
                yield reader.add_piece(Piece(kind="thinking", text=thought))
            if text := delta.get("content"):
                yield reader.add_piece(Piece(kind="text", text=text))
                alone = delta.keys() == {"content"} and len(data["choices"]) == 1
                if alone and not (choice.get("finish_reason") or choice.get("logprobs")):
                    place = (choice.get("index"), delta, "content")
        reader.add_event(event, place)

    def _read_call(self, part: Fields, reader: ReplyReader) -> Iterator[Piece]:
        function = part.get("function") or {}
        if function.get("name"):
            yield reader.open_call(part.get("index"), function["name"])
        if function.get("arguments"):
            yield reader.make_args_piece(part.get("index"), function["arguments"])

    def read_body(self, body: Fields, reader: ReplyReader) -> None:
        """Note the body of a completion that was not streamed."""
        self._read_usage(body.get("usage"), reader)
        for choice in body.get("choices") or ():
            reader.text.append((choice.get("message") or {}).get("content") or "")

    def _read_usage(self, usage: Fields | None, reader: ReplyReader) -> None:
        if usage:
            reader.input_tokens = _read_count(usage, "prompt_tokens")
            reader.output_tokens = _read_count(usage, "completion_tokens")
            _read_details(usage, "prompt_tokens_details", "completion_tokens_details", reader)


class OpenAIResponses(WireProtocol):
    """The Responses protocol of OpenAI."""

    path = "/v1/responses"
    provider: ClassVar[ProviderName] = "openai"
    messages_field = "input"

    def list_messages(self, body: Fields) -> list[Json]:
        """Return the input of a request as a list; a text is one message."""
        given = body.get("input")
        if isinstance(given, str) and given:
            return [self._make_message("user", given)]
        return super().list_messages(body)

    def has_history(self, body: Fields) -> bool:
        """Tell whether a request continues a conversation, here or at the provider."""
        kinds = {"function_call", "reasoning"}
        return (
            bool(body.get("previous_response_id") or body.get("conversation"))
            or any(
                isinstance(each, dict) and each.get("type") in kinds
                for each in self.list_messages(body)
            )
            or super().has_history(body)
        )

    def find_problem(self, body: Fields) -> str:
        """Refuse responses that continue without a connection: no control could stop them."""
        if body.get("background"):
            return "background must be false: a reply without a connection cannot be stopped"
        return super().find_problem(body)

    def judge_event(self, event: WireEvent) -> Release:
        """Pass text on; hold reasoning until its end, and all else to the end."""
        data = cast("Fields", event.data)
        kind = str(data.get("type")).removeprefix("response.")
        item = (data.get("item") or {}).get("type")
        if kind in {"output_item.added", "output_item.done"}:
            if item not in {"message", "reasoning"}:
                return HELD
            return "later" if (kind, item) == ("output_item.added", "reasoning") else "now"
        if kind in {"created", "in_progress", "content_part.added", "output_text.delta"}:
            return "now"
        later = kind.startswith("reasoning") or kind in {
            "output_text.done",
            "content_part.done",
        }
        return "later" if later else HELD

    def close_parts(self, events: Sequence[WireEvent]) -> Sequence[WireEvent]:
        """Return the end of the last item. The last event has all items that count."""
        datas = [cast("Fields", event.data) for event in events]
        added = [each for each in datas if each.get("type") == "response.output_item.added"]
        if not added or datas[-1].get("type") == "response.output_item.done":
            return ()
        opened, number = added[-1], datas[-1].get("sequence_number", len(events) - 1)
        index, item = opened["output_index"], opened["item"]
        text = "".join(
            each["delta"]
            for each in datas
            if each.get("type") == "response.output_text.delta"
            and each["output_index"] == index
        )
        part = {"type": "output_text", "text": text, "annotations": []}
        place = {"item_id": item.get("id"), "output_index": index, "content_index": 0}
        done = {**item, "status": "incomplete", "content": [part]}
        ends: list[Fields] = [
            {"type": "response.output_text.done", "text": text, "logprobs": [], **place},
            {"type": "response.content_part.done", "part": part, **place},
            {"type": "response.output_item.done", "output_index": index, "item": done},
        ]
        if not text:
            del ends[:2]
        return [
            WireEvent(end["type"], {**end, "sequence_number": number + 1 + n})
            for n, end in enumerate(ends)
        ]

    def continue_reply(
        self, earlier: Sequence[WireEvent], event: WireEvent
    ) -> WireEvent | None:
        """Number the events and items after those of the earlier response; keep its id."""
        data = dict(cast("Fields", event.data))
        if data.get("type") in {"response.created", "response.in_progress"}:
            return None
        items = [each for each in earlier if each.name == "response.output_item.added"]
        if "output_index" in data:
            data["output_index"] += len(items)
        if "sequence_number" in data:
            data["sequence_number"] += len(earlier)
        first = cast("Fields", earlier[0].data).get("response")
        response = data.get("response")
        if isinstance(response, dict) and first:
            data[PROVIDER_ID_KEY] = response.get("id")
            data["response"] = {**response, "id": first.get("id")}
        return WireEvent(event.name, data)

    def find_alias(self, reply: WireReply) -> tuple[str, str] | None:
        """Return the id of a response that the process knows, and the provider's own."""
        data = reply.events[-1][1] if reply.events else None
        if not isinstance(data, dict) or PROVIDER_ID_KEY not in data:
            return None
        response = cast("Fields", data["response"])
        return str(response["id"]), str(data[PROVIDER_ID_KEY])

    def rename_response(self, body: Fields, names: Mapping[str, str]) -> Fields:
        """Return a request that continues a response by the id of its provider."""
        known = names.get(str(body.get("previous_response_id")))
        return {**body, "previous_response_id": known} if known else body

    def read_event(self, event: WireEvent, reader: ReplyReader) -> Iterator[Piece]:
        """Note an event of a streamed response, and yield its pieces for watchers."""
        data = cast("Fields", event.data)
        kind, item = str(data.get("type")), data.get("item") or {}
        place: tuple[object, Fields, str] | None = None
        if kind.endswith(".delta") and isinstance(data.get("delta"), str):
            ids = ("item_id", "output_index", "content_index", "summary_index")
            if not data.get("logprobs"):
                place = ((kind, *(data.get(name) for name in ids)), data, "delta")
            yield from self._read_delta(kind, data, reader)
        elif kind == "response.output_item.added" and item.get("type") == "function_call":
            yield reader.open_call(item.get("id"), item["name"])
        elif kind in {"response.completed", "response.incomplete"}:
            reader.is_complete = True
            self._read_usage(data["response"].get("usage"), reader)
        elif kind in {"response.failed", "error"}:
            reader.problem = _format_error(data.get("response") or data)
        reader.add_event(event, place)

    def _read_delta(self, kind: str, data: Fields, reader: ReplyReader) -> Iterator[Piece]:
        if kind == "response.output_text.delta":
            yield reader.add_piece(Piece(kind="text", text=data["delta"]))
        elif kind.startswith("response.reasoning"):
            yield reader.add_piece(Piece(kind="thinking", text=data["delta"]))
        elif kind == "response.function_call_arguments.delta":
            yield reader.make_args_piece(data.get("item_id"), data["delta"])

    def read_body(self, body: Fields, reader: ReplyReader) -> None:
        """Note the body of a response that was not streamed."""
        self._read_usage(body.get("usage"), reader)
        for item in body.get("output") or ():
            for part in item.get("content") or ():
                reader.text.append(part.get("text") or "")

    def _read_usage(self, usage: Fields | None, reader: ReplyReader) -> None:
        if usage:
            reader.input_tokens = _read_count(usage, "input_tokens")
            reader.output_tokens = _read_count(usage, "output_tokens")
            _read_details(usage, "input_tokens_details", "output_tokens_details", reader)


PROTOCOLS: Final[Sequence[WireProtocol]] = (
    AnthropicMessages(),
    OpenAIChat(),
    OpenAIResponses(),
)


def choose_error_protocol(path: str, headers: Mapping[str, str]) -> WireProtocol:
    """Return the protocol in which the client of an unknown path reads errors."""
    anthropic, chat, _ = PROTOCOLS
    is_anthropic = path.startswith("/v1/messages") or "anthropic-version" in headers
    return anthropic if is_anthropic else chat


def digest_messages(messages: Sequence[Json]) -> tuple[str, ...]:
    """Return a digest of each message, without marks that clients move."""
    return tuple(_digest(message) for message in messages)


def describe_request(protocol: WireProtocol, body: Fields) -> dict[str, Json]:
    """Return the identity of a request, for the journal and for people.

    The history of a conversation grows with each request. So the journal keeps a digest of it,
    and of the last message the beginning of its text.
    """
    steady = {key: value for key, value in body.items() if key not in VOLATILE_FIELDS}
    messages = protocol.list_messages(body)
    return {
        "model": str(body.get("model", "")),
        "messages": len(messages),
        "last": _find_text(messages[-1])[:LAST_TEXT_MAX_CHARS],
        "digest": _digest([protocol.path, steady]),
    }


def _digest(value: Json) -> str:
    encoded = msgspec.json.encode(_drop_cache_marks(value), order="sorted")
    return sha256(encoded).hexdigest()[:16]


def _drop_cache_marks(value: Json) -> Json:
    if isinstance(value, dict):
        return {k: _drop_cache_marks(v) for k, v in value.items() if k != CACHE_MARK}
    if isinstance(value, list):
        return [_drop_cache_marks(each) for each in value]
    return value


def _find_text(message: Json) -> str:
    """Return the last text in a message of any protocol; "" if it has none."""
    if isinstance(message, str):
        return message
    if isinstance(message, list):
        return next((text for part in reversed(message) if (text := _find_text(part))), "")
    if isinstance(message, dict):
        for key in ("content", "text", "output", "arguments"):
            if text := _find_text(message.get(key)):
                return text
    return ""


def _read_details(usage: Fields, input_key: str, output_key: str, reader: ReplyReader) -> None:
    """Read the parts of the counts that both protocols of OpenAI report."""
    reader.cached_tokens = _read_count(usage.get(input_key) or {}, "cached_tokens")
    reader.thinking_tokens = _read_count(usage.get(output_key) or {}, "reasoning_tokens")


def _read_count(usage: Fields, name: str) -> int:
    count = usage.get(name)
    return count if type(count) is int and count > 0 else 0


def _format_error(data: Fields) -> str:
    error = data.get("error")
    found = error if isinstance(error, dict) else data
    kind, message = found.get("type") or found.get("code"), found.get("message")
    return f"{kind}: {message}"
