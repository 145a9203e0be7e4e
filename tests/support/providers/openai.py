"""The OpenAI protocols: chat completions (thinking is not signed) and responses (encrypted)."""

from collections.abc import Iterator
from itertools import count

from tests.support.providers.script import Answer, Call, HttpError, Part, Text, Thinking
from tests.support.providers.wire import Fields, Frame, IdSource, Protocol, encode_json

CHAT_FINISHES = {"stop": "stop", "length": "length", "filtered": "content_filter"}
INCOMPLETE_REASONS = {"length": "max_output_tokens", "filtered": "content_filter"}


# ── chat completions ─────────────────────────────────────────────────────────────────────


def make_chat_frames(answer: Answer, model: str, ids: IdSource) -> Iterator[Frame]:
    """Yield the answer as chat completion chunks."""
    whole: Fields = {
        "id": ids.make_id("chatcmpl"),
        "object": "chat.completion.chunk",
        "created": 1,
        "model": model,
    }

    def make_chunk(change: Fields, finish: str | None = None, *, delta: bool = False) -> Frame:
        choice: Fields = {"index": 0, "delta": change, "finish_reason": finish}
        return Frame(encode_json({**whole, "choices": [choice], "usage": None}), delta=delta)

    yield make_chunk({"role": "assistant", "content": ""})
    calls = 0
    for part in answer.parts:
        if isinstance(part, Call):
            yield make_chunk({"tool_calls": [_make_chat_call(part, calls, ids)]})
        for piece in part.pieces:
            yield make_chunk(_make_chat_change(part, piece, calls), delta=True)
        calls += isinstance(part, Call)
    stopped_for_calls = answer.calls and answer.finish == "stop"
    yield make_chunk({}, "tool_calls" if stopped_for_calls else CHAT_FINISHES[answer.finish])
    if answer.usage is not None:
        usage: Fields = {
            "prompt_tokens": answer.usage.input_tokens,
            "completion_tokens": answer.usage.output_tokens,
            "total_tokens": answer.usage.input_tokens + answer.usage.output_tokens,
            "prompt_tokens_details": {"cached_tokens": answer.usage.cached_tokens},
            "completion_tokens_details": {"reasoning_tokens": answer.usage.thinking_tokens},
        }
        yield Frame(encode_json({**whole, "choices": [], "usage": usage}))
    yield Frame("[DONE]")


def _make_chat_call(part: Call, index: int, ids: IdSource) -> Fields:
    function: Fields = {"name": part.tool, "arguments": ""}
    id_ = part.id or ids.make_id("call")
    return {"index": index, "id": id_, "type": "function", "function": function}


def _make_chat_change(part: Part, piece: str, index: int) -> Fields:
    match part:
        case Text():
            return {"content": piece}
        case Thinking():
            return {"reasoning_content": piece}
        case Call():
            return {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}


def make_error_body(denied: HttpError) -> Fields:
    """Return the error body of an OpenAI API."""
    return {
        "error": {
            "message": denied.message,
            "type": denied.kind,
            "code": denied.kind,
            "param": None,
        }
    }


# ── responses ────────────────────────────────────────────────────────────────────────────


class _ResponseWriter:
    """Writes one response: numbers its frames and collects its items."""

    def __init__(self, answer: Answer, model: str, ids: IdSource) -> None:
        self.answer = answer
        self.model = model
        self.ids = ids
        self.id = ids.make_id("resp")
        self.items: list[Fields] = []
        self._sequence = count()

    def make_frame(self, kind: str, fields: Fields, *, delta: bool = False) -> Frame:
        numbered = {"type": kind, "sequence_number": next(self._sequence), **fields}
        return Frame(encode_json(numbered), name=kind, delta=delta)

    def make_item_frame(
        self, kind: str, id_: str, fields: Fields, *, delta: bool = False
    ) -> Frame:
        at: Fields = {"item_id": id_, "output_index": len(self.items)}
        return self.make_frame(kind, {**at, **fields}, delta=delta)

    def open_item(self, item: Fields) -> Frame:
        fields: Fields = {"output_index": len(self.items), "item": item}
        return self.make_frame("response.output_item.added", fields)

    def close_item(self, item: Fields) -> Frame:
        fields: Fields = {"output_index": len(self.items), "item": item}
        self.items.append(item)
        return self.make_frame("response.output_item.done", fields)

    def make_status(self, kind: str) -> Frame:
        return self.make_frame(f"response.{kind}", {"response": self._make_response(kind)})

    def _make_response(self, kind: str) -> Fields:
        ended = kind in {"completed", "incomplete"}
        short = INCOMPLETE_REASONS.get(self.answer.finish) if ended else None
        return {
            "id": self.id,
            "object": "response",
            "created_at": 1,
            "status": kind if ended else "in_progress",
            "model": self.model,
            "output": self.items,
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "usage": _make_usage(self.answer) if ended else None,
            "error": None,
            "incomplete_details": {"reason": short} if short else None,
            "instructions": None,
            "metadata": {},
            "temperature": 1,
            "top_p": 1,
        }


def make_response_frames(answer: Answer, model: str, ids: IdSource) -> Iterator[Frame]:
    """Yield the answer as the events of a streamed response."""
    writer = _ResponseWriter(answer, model, ids)
    yield writer.make_status("created")
    yield writer.make_status("in_progress")
    for part in answer.parts:
        match part:
            case Text():
                yield from _write_text(writer, part)
            case Thinking():
                yield from _write_reasoning(writer, part)
            case Call():
                yield from _write_call(writer, part)
    yield writer.make_status(
        "incomplete" if answer.finish in INCOMPLETE_REASONS else "completed"
    )


def _write_text(writer: _ResponseWriter, part: Text) -> Iterator[Frame]:
    id_ = writer.ids.make_id("msg")
    item: Fields = {"id": id_, "type": "message", "role": "assistant"}
    at: Fields = {"content_index": 0}
    empty: Fields = {"type": "output_text", "text": "", "annotations": []}
    yield writer.open_item({**item, "status": "in_progress", "content": []})
    yield writer.make_item_frame("response.content_part.added", id_, {**at, "part": empty})
    for piece in part.pieces:
        fields: Fields = {**at, "delta": piece, "logprobs": []}
        yield writer.make_item_frame("response.output_text.delta", id_, fields, delta=True)
    said: Fields = {**at, "text": _join_pieces(part), "logprobs": []}
    yield writer.make_item_frame("response.output_text.done", id_, said)
    whole = {**empty, "text": _join_pieces(part)}
    yield writer.make_item_frame("response.content_part.done", id_, {**at, "part": whole})
    yield writer.close_item({**item, "status": "completed", "content": [whole]})


def _write_reasoning(writer: _ResponseWriter, part: Thinking) -> Iterator[Frame]:
    id_ = writer.ids.make_id("rs")
    item: Fields = {"id": id_, "type": "reasoning", "encrypted_content": part.signature}
    at: Fields = {"summary_index": 0}
    empty: Fields = {"type": "summary_text", "text": ""}
    yield writer.open_item({**item, "summary": []})
    yield writer.make_item_frame(
        "response.reasoning_summary_part.added", id_, {**at, "part": empty}
    )
    kind = "response.reasoning_summary_text.delta"
    for piece in part.pieces:
        yield writer.make_item_frame(kind, id_, {**at, "delta": piece}, delta=True)
    yield writer.close_item({**item, "summary": [{**empty, "text": _join_pieces(part)}]})


def _write_call(writer: _ResponseWriter, part: Call) -> Iterator[Frame]:
    id_ = writer.ids.make_id("fc")
    call = part.id or writer.ids.make_id("call")
    item: Fields = {"id": id_, "type": "function_call", "call_id": call, "name": part.tool}
    kind = "response.function_call_arguments"
    yield writer.open_item({**item, "status": "in_progress", "arguments": ""})
    for piece in part.pieces:
        yield writer.make_item_frame(f"{kind}.delta", id_, {"delta": piece}, delta=True)
    args = _join_pieces(part)
    yield writer.make_item_frame(f"{kind}.done", id_, {"arguments": args, "name": part.tool})
    yield writer.close_item({**item, "status": "completed", "arguments": args})


def _join_pieces(part: Part) -> str:
    return "".join(part.pieces)


def _make_usage(answer: Answer) -> Fields | None:
    if answer.usage is None:
        return None
    return {
        "input_tokens": answer.usage.input_tokens,
        "output_tokens": answer.usage.output_tokens,
        "total_tokens": answer.usage.input_tokens + answer.usage.output_tokens,
        "input_tokens_details": {
            "cached_tokens": answer.usage.cached_tokens,
            "cache_write_tokens": 0,
        },
        "output_tokens_details": {"reasoning_tokens": answer.usage.thinking_tokens},
    }


CHAT = Protocol("/chat/completions", make_chat_frames, make_error_body)
RESPONSES = Protocol("/responses", make_response_frames, make_error_body)
