"""The OpenAI responses protocol: items that open, grow and close; thinking is encrypted."""

from collections.abc import Iterator
from itertools import count

from tests.support.providers import chat
from tests.support.providers.script import Answer, Call, Part, Text, Thinking
from tests.support.providers.wire import Fields, Frame, IdSource, Protocol, encode_json

CUT_SHORT = {"length": "max_output_tokens", "filtered": "content_filter"}


class _ResponseWriter:
    """One response being written: its frames are numbered, its items collected."""

    def __init__(self, answer: Answer, model: str, numbers: IdSource) -> None:
        self.answer = answer
        self.model = model
        self.numbers = numbers
        self.id = numbers.make_id("resp")
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
        return self.make_frame(f"response.{kind}", {"response": self._response(kind)})

    def _response(self, kind: str) -> Fields:
        ended = kind in {"completed", "incomplete"}
        short = CUT_SHORT.get(self.answer.finish) if ended else None
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


def frames(answer: Answer, model: str, numbers: IdSource) -> Iterator[Frame]:
    """Yield the answer as the messages of a streamed response."""
    writing = _ResponseWriter(answer, model, numbers)
    yield writing.make_status("created")
    yield writing.make_status("in_progress")
    for part in answer.parts:
        match part:
            case Text():
                yield from _write_text(writing, part)
            case Thinking():
                yield from _write_reasoning(writing, part)
            case Call():
                yield from _write_call(writing, part)
    yield writing.make_status("incomplete" if answer.finish in CUT_SHORT else "completed")


def _write_text(writing: _ResponseWriter, part: Text) -> Iterator[Frame]:
    id_ = writing.numbers.make_id("msg")
    item: Fields = {"id": id_, "type": "message", "role": "assistant"}
    at: Fields = {"content_index": 0}
    empty: Fields = {"type": "output_text", "text": "", "annotations": []}
    yield writing.open_item({**item, "status": "in_progress", "content": []})
    yield writing.make_item_frame("response.content_part.added", id_, {**at, "part": empty})
    for piece in part.pieces:
        fields: Fields = {**at, "delta": piece, "logprobs": []}
        yield writing.make_item_frame("response.output_text.delta", id_, fields, delta=True)
    said: Fields = {**at, "text": _join_pieces(part), "logprobs": []}
    yield writing.make_item_frame("response.output_text.done", id_, said)
    whole = {**empty, "text": _join_pieces(part)}
    yield writing.make_item_frame("response.content_part.done", id_, {**at, "part": whole})
    yield writing.close_item({**item, "status": "completed", "content": [whole]})


def _write_reasoning(writing: _ResponseWriter, part: Thinking) -> Iterator[Frame]:
    id_ = writing.numbers.make_id("rs")
    item: Fields = {"id": id_, "type": "reasoning", "encrypted_content": part.signature}
    at: Fields = {"summary_index": 0}
    empty: Fields = {"type": "summary_text", "text": ""}
    yield writing.open_item({**item, "summary": []})
    yield writing.make_item_frame(
        "response.reasoning_summary_part.added", id_, {**at, "part": empty}
    )
    kind = "response.reasoning_summary_text.delta"
    for piece in part.pieces:
        yield writing.make_item_frame(kind, id_, {**at, "delta": piece}, delta=True)
    yield writing.close_item({**item, "summary": [{**empty, "text": _join_pieces(part)}]})


def _write_call(writing: _ResponseWriter, part: Call) -> Iterator[Frame]:
    id_ = writing.numbers.make_id("fc")
    call = part.id or writing.numbers.make_id("call")
    item: Fields = {"id": id_, "type": "function_call", "call_id": call, "name": part.tool}
    kind = "response.function_call_arguments"
    yield writing.open_item({**item, "status": "in_progress", "arguments": ""})
    for piece in part.pieces:
        yield writing.make_item_frame(f"{kind}.delta", id_, {"delta": piece}, delta=True)
    args = _join_pieces(part)
    yield writing.make_item_frame(f"{kind}.done", id_, {"arguments": args, "name": part.tool})
    yield writing.close_item({**item, "status": "completed", "arguments": args})


def _join_pieces(part: Part) -> str:
    return "".join(part.pieces)


def _make_usage(answer: Answer) -> Fields | None:
    if answer.usage is None:
        return None
    return {
        "input_tokens": answer.usage.taken,
        "output_tokens": answer.usage.given,
        "total_tokens": answer.usage.taken + answer.usage.given,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens_details": {"reasoning_tokens": 0},
    }


RESPONSES = Protocol("/responses", frames, chat.make_error_body)
