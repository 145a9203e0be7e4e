"""What a provider streams, as pieces and in the end as a reply."""

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

from midrun.codec.strict_json import checked, parse
from midrun.core.values import Json, Reply, Use
from midrun.errors import ModelFailed, NotJson, TooLarge
from midrun.models.messages import kept
from midrun.ports.model import Piece


class Pieces:
    """Turns what is streamed into pieces; calls are numbered in the order they are begun."""

    def __init__(self) -> None:
        self._calls: dict[int, tuple[str, int]] = {}  # tool and number, by the part's index

    def of(self, streamed: ModelResponseStreamEvent) -> Iterator[Piece]:
        """Yield what somebody who watches the reply should see of it."""
        match streamed:
            case PartStartEvent(index=index, part=ToolCallPart(tool_name=tool, args=args)):
                self._calls[index] = (tool, len(self._calls))
                yield self._args(index, args)
            case PartDeltaEvent(index=index, delta=ToolCallPartDelta(args_delta=args)):
                if args and index in self._calls:
                    yield self._args(index, args)
            case (
                PartStartEvent(part=TextPart(content=text))
                | PartDeltaEvent(delta=TextPartDelta(content_delta=text))
            ) if text:
                yield Piece(kind="text", text=sound(text))
            case (
                PartStartEvent(part=ThinkingPart(content=text))
                | PartDeltaEvent(delta=ThinkingPartDelta(content_delta=text))
            ) if text:
                yield Piece(kind="thinking", text=sound(text))
            case _:
                pass

    def _args(self, index: int, args: Json) -> Piece:
        tool, call = self._calls[index]
        text = args if isinstance(args, str) else msgspec.json.encode(args).decode()
        return Piece(kind="args", text=sound(text) if args else "", tool=tool, call=call)


def whole(model: str, response: ModelResponse) -> Reply:
    """Return the reply that a stream came to, if it is one.

    Raises:
        ModelFailed: the stream ended in good order, but the reply is not whole.
    """
    _check_finish(model, response)
    said = [part.content for part in response.parts if isinstance(part, TextPart)]
    thought = [part.content for part in response.parts if isinstance(part, ThinkingPart)]
    uses = [_use(part) for part in response.parts if isinstance(part, ToolCallPart)]
    if uses and response.finish_reason == "length" and _ends_in_a_call(response):
        uses[-1] = Use(
            tool=uses[-1].tool, refused="the reply was too long: it ends in this call"
        )
    return Reply(
        text=sound("".join(said)),
        thinking=sound("\n\n".join(text for text in thought if text)),
        uses=tuple(uses),
        opaque=kept(response),
        window=response.usage.input_tokens,
    )


def sound(text: str) -> str:
    """Return `text` as Unicode that can be stored: half a surrogate pair cannot."""
    return text if text.isascii() else text.encode(errors="replace").decode()


def _check_finish(model: str, response: ModelResponse) -> None:
    if response.finish_reason == "content_filter":
        raise ModelFailed(model, "refused", "the provider would not answer this")
    if response.finish_reason == "error":
        raise ModelFailed(model, "server_error", "the provider gave the reply up", True)  # noqa: FBT003 - an error's fields are positional
    # A server that goes away in good order says no reason; pydantic-ai then supposes one.
    over_the_network = bool(response.provider_url)
    stated = (response.provider_details or {}).get("finish_reason")
    if response.state != "complete" or (over_the_network and not stated):
        detail = "the reply ended before it was whole"
        raise ModelFailed(model, "broken_stream", detail, True)  # noqa: FBT003 - as above


def _ends_in_a_call(response: ModelResponse) -> bool:
    return isinstance(response.parts[-1], ToolCallPart)


def _use(part: ToolCallPart[object]) -> Use:
    try:
        args = (
            parse(part.args or "{}") if not isinstance(part.args, dict) else checked(part.args)
        )
    except (NotJson, TooLarge) as error:
        return Use(
            tool=part.tool_name, refused=f"the arguments are not acceptable JSON: {error}"
        )
    if not isinstance(args, dict):
        return Use(tool=part.tool_name, refused="the arguments are not a JSON object")
    return Use(tool=part.tool_name, args=args)
