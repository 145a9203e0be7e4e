"""The OpenAI chat protocol: one kind of chunk; thinking is not signed."""

from collections.abc import Iterator

from tests.support.providers.script import Answer, Call, Denied, Part, Text, Thinking
from tests.support.providers.wire import Fields, Frame, IdSource, Protocol, encode_json

FINISHES = {"stop": "stop", "length": "length", "filtered": "content_filter"}


def frames(answer: Answer, model: str, numbers: IdSource) -> Iterator[Frame]:
    """Yield the answer as chat completion chunks."""
    whole: Fields = {
        "id": numbers.make_id("chatcmpl"),
        "object": "chat.completion.chunk",
        "created": 1,
        "model": model,
    }

    def chunk(change: Fields, finish: str | None = None, *, delta: bool = False) -> Frame:
        choice: Fields = {"index": 0, "delta": change, "finish_reason": finish}
        return Frame(encode_json({**whole, "choices": [choice], "usage": None}), delta=delta)

    yield chunk({"role": "assistant", "content": ""})
    calls = 0
    for part in answer.parts:
        if isinstance(part, Call):
            yield chunk({"tool_calls": [_make_call(part, calls, numbers)]})
        for piece in part.pieces:
            yield chunk(_make_change(part, piece, calls), delta=True)
        calls += isinstance(part, Call)
    stopped_for_calls = answer.calls and answer.finish == "stop"
    yield chunk({}, "tool_calls" if stopped_for_calls else FINISHES[answer.finish])
    if answer.usage is not None:
        counted: Fields = {
            "prompt_tokens": answer.usage.taken,
            "completion_tokens": answer.usage.given,
            "total_tokens": answer.usage.taken + answer.usage.given,
        }
        yield Frame(encode_json({**whole, "choices": [], "usage": counted}))
    yield Frame("[DONE]")


def _make_call(part: Call, index: int, numbers: IdSource) -> Fields:
    function: Fields = {"name": part.tool, "arguments": ""}
    id_ = part.id or numbers.make_id("call")
    return {"index": index, "id": id_, "type": "function", "function": function}


def _make_change(part: Part, piece: str, index: int) -> Fields:
    match part:
        case Text():
            return {"content": piece}
        case Thinking():
            return {"reasoning_content": piece}
        case Call():
            return {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}


def make_error_body(denied: Denied) -> Fields:
    """Return the error body of an OpenAI API."""
    return {
        "error": {
            "message": denied.message,
            "type": denied.kind,
            "code": denied.kind,
            "param": None,
        }
    }


CHAT = Protocol("/chat/completions", frames, make_error_body)
