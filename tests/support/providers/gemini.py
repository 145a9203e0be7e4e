"""The Gemini protocol: whole parts in each chunk; thinking is marked, and signed at its end.

A call is one delta: the protocol has its arguments as an object and does not stream them. Its
pieces must be JSON together.
"""

import json
from base64 import b64encode
from collections.abc import Iterator

from tests.support.providers.script import Answer, Call, HttpError, Part, Text, Thinking
from tests.support.providers.wire import Fields, Frame, IdSource, Protocol, encode_json

FINISHES = {"stop": "STOP", "length": "MAX_TOKENS", "filtered": "SAFETY"}


def make_frames(answer: Answer, model: str, ids: IdSource) -> Iterator[Frame]:
    """Yield the answer as chunks of `streamGenerateContent`."""
    whole: Fields = {"modelVersion": model, "responseId": ids.make_id("resp")}
    signature = ""
    for part in answer.parts:
        for piece in _make_pieces(part):
            if signature and not isinstance(part, Thinking):
                piece["thoughtSignature"], signature = signature, ""
            candidate = {"index": 0, "content": {"role": "model", "parts": [piece]}}
            yield Frame(encode_json({"candidates": [candidate], **whole}), delta=True)
        if isinstance(part, Thinking):
            signature = b64encode(part.signature.encode()).decode()
    last: Fields = {"index": 0, "finishReason": FINISHES[answer.finish]}
    if signature:
        piece = {"text": "", "thoughtSignature": signature}
        last["content"] = {"role": "model", "parts": [piece]}
    yield Frame(encode_json({"candidates": [last], **whole, **_make_usage(answer)}))


def _make_pieces(part: Part) -> Iterator[Fields]:
    match part:
        case Text():
            for piece in part.pieces:
                yield {"text": piece}
        case Thinking():
            for piece in part.pieces:
                yield {"text": piece, "thought": True}
        case Call(tool=tool, id=id_):
            call: Fields = {"name": tool, "args": json.loads("".join(part.pieces) or "{}")}
            yield {"functionCall": {**call, **({"id": id_} if id_ else {})}}


def _make_usage(answer: Answer) -> Fields:
    if answer.usage is None:
        return {}
    given, made = answer.usage.input_tokens, answer.usage.output_tokens
    return {
        "usageMetadata": {
            "promptTokenCount": given,
            "candidatesTokenCount": made,
            "totalTokenCount": given + made,
        }
    }


def make_error_body(denied: HttpError) -> Fields:
    """Return the error body of the Gemini API."""
    return {"error": {"code": denied.status, "message": denied.message, "status": denied.kind}}


GENERATE = Protocol(":streamGenerateContent", make_frames, make_error_body)
