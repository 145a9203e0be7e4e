"""Convert the stream of a provider to pieces, and its end to a reply."""

from collections.abc import Iterator

import msgspec
from pydantic_ai.messages import (
    ModelResponse,
    ModelResponseStreamEvent,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ThinkingPart,
    ThinkingPartDelta,
    ToolCallPart,
    ToolCallPartDelta,
)

from midrun.codec.strict_json import normalize_json, parse_json
from midrun.core.values import Json, Reply, Use
from midrun.errors import ModelFailed, NotJson, TooLarge
from midrun.models.messages import dump_response
from midrun.ports.model import Piece


class PieceConverter:
    """Converts stream events to pieces; numbers calls in the order in which they start."""

    def __init__(self) -> None:
        self._calls: dict[int, tuple[str, int]] = {}  # part index → name of the tool, number

    def convert(self, streamed_part: ModelResponseStreamEvent) -> Iterator[Piece]:
        """Yield the piece that a watcher of the reply sees for an event; none for others."""
        match streamed_part:
            case PartStartEvent(index=index, part=ToolCallPart(tool_name=tool, args=args)):
                # Later deltas of this part have its index, but not the name of the tool.
                self._calls[index] = (tool, len(self._calls))
                yield self._make_args_piece(index, args)
            case PartDeltaEvent(index=index, delta=ToolCallPartDelta(args_delta=args)):
                if args and index in self._calls:
                    yield self._make_args_piece(index, args)
            case (
                PartStartEvent(part=TextPart(content=text))
                | PartDeltaEvent(delta=TextPartDelta(content_delta=text))
            ) if text:
                yield Piece(kind="text", text=replace_surrogates(text))
            case (
                PartStartEvent(part=ThinkingPart(content=text))
                | PartDeltaEvent(delta=ThinkingPartDelta(content_delta=text))
            ) if text:
                yield Piece(kind="thinking", text=replace_surrogates(text))
            case _:
                pass

    def _make_args_piece(self, index: int, args: Json) -> Piece:
        tool, call = self._calls[index]
        text = args if isinstance(args, str) else msgspec.json.encode(args).decode()
        return Piece(
            kind="args", text=replace_surrogates(text) if args else "", tool=tool, call=call
        )


def make_reply(model: str, response: ModelResponse) -> Reply:
    """Return the reply at the end of a stream.

    Raises:
        ModelFailed: The stream ended without an error, but the reply is not complete.
    """
    _check_finish(model, response)
    texts = [part.content for part in response.parts if isinstance(part, TextPart)]
    thoughts = [part.content for part in response.parts if isinstance(part, ThinkingPart)]
    uses = [_make_use(part) for part in response.parts if isinstance(part, ToolCallPart)]
    # The provider cut the reply at its maximum length. The last call may lack arguments, and
    # what is there may still be valid JSON: refuse it, and let the model ask again.
    if uses and response.finish_reason == "length" and _ends_in_a_call(response):
        uses[-1] = Use(
            tool=uses[-1].tool, refused="the reply was too long: it ends in this call"
        )
    return Reply(
        text=replace_surrogates("".join(texts)),
        thinking=replace_surrogates("\n\n".join(text for text in thoughts if text)),
        uses=tuple(uses),
        opaque=dump_response(response),
        window=response.usage.input_tokens,
    )


def replace_surrogates(text: str) -> str:
    """Return `text` with lone surrogates replaced, which UTF-8 cannot encode."""
    return text if text.isascii() else text.encode(errors="replace").decode()


def _check_finish(model: str, response: ModelResponse) -> None:
    if response.finish_reason == "content_filter":
        raise ModelFailed(model, "refused", "the provider would not answer this")
    if response.finish_reason == "error":
        raise ModelFailed(model, "server_error", "the provider gave the reply up", True)  # noqa: FBT003 - an error's fields are positional
    # A server that shuts down may end the stream cleanly, without a finish reason, and
    # pydantic-ai then assumes one. `provider_details` has the reason only if it was sent. A
    # model without a URL (a test model) sends none and is trusted.
    over_the_network = bool(response.provider_url)
    stated = (response.provider_details or {}).get("finish_reason")
    if response.state != "complete" or (over_the_network and not stated):
        detail = "the reply ended before it was whole"
        raise ModelFailed(model, "broken_stream", detail, True)  # noqa: FBT003 - as above


def _ends_in_a_call(response: ModelResponse) -> bool:
    return isinstance(response.parts[-1], ToolCallPart)


def _make_use(part: ToolCallPart[object]) -> Use:
    # Arguments that are not valid JSON do not fail the reply: the call is refused, and the
    # model reads why.
    try:
        args = (
            parse_json(part.args or "{}")
            if not isinstance(part.args, dict)
            else normalize_json(part.args)
        )
    except (NotJson, TooLarge) as error:
        return Use(
            tool=part.tool_name, refused=f"the arguments are not acceptable JSON: {error}"
        )
    if not isinstance(args, dict):
        return Use(tool=part.tool_name, refused="the arguments are not a JSON object")
    return Use(tool=part.tool_name, args=args)
