"""The OpenAI responses protocol: items that open, grow and close; thinking is encrypted."""

from collections.abc import Iterator
from itertools import count

from tests.support.providers import chat
from tests.support.providers.script import Answer, Call, Part, Text, Thinking
from tests.support.providers.wire import Fields, Frame, Numbers, Protocol, encoded

CUT_SHORT = {"length": "max_output_tokens", "filtered": "content_filter"}


class _Writing:
    """One response being written: its frames are numbered, its items collected."""

    def __init__(self, answer: Answer, model: str, numbers: Numbers) -> None:
        self.answer = answer
        self.model = model
        self.numbers = numbers
        self.id = numbers.id("resp")
        self.items: list[Fields] = []
        self._sequence = count()

    def frame(self, kind: str, fields: Fields, *, delta: bool = False) -> Frame:
        numbered = {"type": kind, "sequence_number": next(self._sequence), **fields}
        return Frame(encoded(numbered), name=kind, delta=delta)

    def on_item(self, kind: str, id_: str, fields: Fields, *, delta: bool = False) -> Frame:
        at: Fields = {"item_id": id_, "output_index": len(self.items)}
        return self.frame(kind, {**at, **fields}, delta=delta)

    def opened(self, item: Fields) -> Frame:
        fields: Fields = {"output_index": len(self.items), "item": item}
        return self.frame("response.output_item.added", fields)

    def closed(self, item: Fields) -> Frame:
        fields: Fields = {"output_index": len(self.items), "item": item}
        self.items.append(item)
        return self.frame("response.output_item.done", fields)

    def standing(self, kind: str) -> Frame:
        return self.frame(f"response.{kind}", {"response": self._response(kind)})

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
            "usage": _counted(self.answer) if ended else None,
            "error": None,
            "incomplete_details": {"reason": short} if short else None,
            "instructions": None,
            "metadata": {},
            "temperature": 1,
            "top_p": 1,
        }


def frames(answer: Answer, model: str, numbers: Numbers) -> Iterator[Frame]:
    """Yield the answer as the messages of a streamed response."""
    writing = _Writing(answer, model, numbers)
    yield writing.standing("created")
    yield writing.standing("in_progress")
    for part in answer.parts:
        match part:
            case Text():
                yield from _text(writing, part)
            case Thinking():
                yield from _reasoning(writing, part)
            case Call():
                yield from _call(writing, part)
    yield writing.standing("incomplete" if answer.finish in CUT_SHORT else "completed")


def _text(writing: _Writing, part: Text) -> Iterator[Frame]:
    id_ = writing.numbers.id("msg")
    item: Fields = {"id": id_, "type": "message", "role": "assistant"}
    at: Fields = {"content_index": 0}
    empty: Fields = {"type": "output_text", "text": "", "annotations": []}
    yield writing.opened({**item, "status": "in_progress", "content": []})
    yield writing.on_item("response.content_part.added", id_, {**at, "part": empty})
    for piece in part.pieces:
        fields: Fields = {**at, "delta": piece, "logprobs": []}
        yield writing.on_item("response.output_text.delta", id_, fields, delta=True)
    said: Fields = {**at, "text": _joined(part), "logprobs": []}
    yield writing.on_item("response.output_text.done", id_, said)
    whole = {**empty, "text": _joined(part)}
    yield writing.on_item("response.content_part.done", id_, {**at, "part": whole})
    yield writing.closed({**item, "status": "completed", "content": [whole]})


def _reasoning(writing: _Writing, part: Thinking) -> Iterator[Frame]:
    id_ = writing.numbers.id("rs")
    item: Fields = {"id": id_, "type": "reasoning", "encrypted_content": part.signature}
    at: Fields = {"summary_index": 0}
    empty: Fields = {"type": "summary_text", "text": ""}
    yield writing.opened({**item, "summary": []})
    yield writing.on_item("response.reasoning_summary_part.added", id_, {**at, "part": empty})
    kind = "response.reasoning_summary_text.delta"
    for piece in part.pieces:
        yield writing.on_item(kind, id_, {**at, "delta": piece}, delta=True)
    yield writing.closed({**item, "summary": [{**empty, "text": _joined(part)}]})


def _call(writing: _Writing, part: Call) -> Iterator[Frame]:
    id_ = writing.numbers.id("fc")
    call = part.id or writing.numbers.id("call")
    item: Fields = {"id": id_, "type": "function_call", "call_id": call, "name": part.tool}
    kind = "response.function_call_arguments"
    yield writing.opened({**item, "status": "in_progress", "arguments": ""})
    for piece in part.pieces:
        yield writing.on_item(f"{kind}.delta", id_, {"delta": piece}, delta=True)
    args = _joined(part)
    yield writing.on_item(f"{kind}.done", id_, {"arguments": args, "name": part.tool})
    yield writing.closed({**item, "status": "completed", "arguments": args})


def _joined(part: Part) -> str:
    return "".join(part.pieces)


def _counted(answer: Answer) -> Fields | None:
    if answer.usage is None:
        return None
    return {
        "input_tokens": answer.usage.taken,
        "output_tokens": answer.usage.given,
        "total_tokens": answer.usage.taken + answer.usage.given,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens_details": {"reasoning_tokens": 0},
    }


RESPONSES = Protocol("/responses", frames, chat.refusal)
