"""The Anthropic messages protocol: content blocks that are streamed; thinking is signed."""

from collections.abc import Iterator

from tests.support.providers.script import Answer, Call, HttpError, Part, Text, Thinking
from tests.support.providers.wire import Fields, Frame, IdSource, Protocol, encode_json

FINISHES = {"stop": "end_turn", "length": "max_tokens", "filtered": "refusal"}


def make_frames(answer: Answer, model: str, ids: IdSource) -> Iterator[Frame]:
    """Yield the answer as the events of a streamed message."""
    yield _make_frame("message_start", message=_make_message(answer, model, ids))
    yield _make_frame("ping")
    for index, part in enumerate(answer.parts):
        block = _make_block(part, ids)
        yield _make_frame("content_block_start", index=index, content_block=block)
        for piece in part.pieces:
            yield _make_delta(index, _make_change(part, piece), delta=True)
        if isinstance(part, Thinking):
            yield _make_delta(index, {"type": "signature_delta", "signature": part.signature})
        yield _make_frame("content_block_stop", index=index)
    stopped_for_calls = answer.calls and answer.finish == "stop"
    reason = "tool_use" if stopped_for_calls else FINISHES[answer.finish]
    given = answer.usage.output_tokens if answer.usage else 0
    yield _make_frame(
        "message_delta",
        delta={"stop_reason": reason, "stop_sequence": None},
        usage={"output_tokens": given},
    )
    yield _make_frame("message_stop")


def _make_frame(kind: str, **fields: object) -> Frame:
    return Frame(encode_json({"type": kind, **fields}), name=kind)


def _make_delta(index: int, change: Fields, *, delta: bool = False) -> Frame:
    kind = "content_block_delta"
    data = encode_json({"type": kind, "index": index, "delta": change})
    return Frame(data, name=kind, delta=delta)


def _make_message(answer: Answer, model: str, ids: IdSource) -> Fields:
    return {
        "id": ids.make_id("msg"),
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": _make_usage(answer),
    }


def _make_usage(answer: Answer) -> Fields:
    usage = answer.usage
    if usage is None:
        return {"input_tokens": 0, "output_tokens": 0}
    # The protocol reports the input without the part that was read from the cache.
    fresh = usage.input_tokens - usage.cached_tokens
    cached: Fields = (
        {"cache_read_input_tokens": usage.cached_tokens} if usage.cached_tokens else {}
    )
    return {"input_tokens": fresh, "output_tokens": 1, **cached}


def _make_block(part: Part, ids: IdSource) -> Fields:
    match part:
        case Text():
            return {"type": "text", "text": ""}
        case Thinking():
            return {"type": "thinking", "thinking": "", "signature": ""}
        case Call(tool=tool, id=id_):
            return {
                "type": "tool_use",
                "id": id_ or ids.make_id("toolu"),
                "name": tool,
                "input": {},
            }


def _make_change(part: Part, piece: str) -> Fields:
    match part:
        case Text():
            return {"type": "text_delta", "text": piece}
        case Thinking():
            return {"type": "thinking_delta", "thinking": piece}
        case Call():
            return {"type": "input_json_delta", "partial_json": piece}


def make_error_body(denied: HttpError) -> Fields:
    """Return the error body of the Anthropic API."""
    return {"type": "error", "error": {"type": denied.kind, "message": denied.message}}


MESSAGES = Protocol("/messages", make_frames, make_error_body)
