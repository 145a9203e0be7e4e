"""The stream of a model of the OpenAI Agents SDK, while the SDK's runner waits for the reply.

The runner of a step asks for a whole reply. `RelayModel` stands for the agent's own model: it
streams the reply, passes the pieces on, and returns the whole. So the runner is one coroutine,
which ends, with the connection to the provider closed, when it is cancelled.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any, Final, NoReturn, TypeAlias, cast

from agents import ModelBehaviorError, ModelResponse
from agents.items import TResponseOutputItem
from agents.models.interface import Model, ModelProvider
from agents.usage import Usage
from openai.types.responses import Response, ResponseFunctionToolCall

from midrun.codec.safe_repr import safe_str
from midrun.errors import ModelFailed
from midrun.ports.model import Piece

TRANSIENT_CODES: Final = {"server_error": "server_error", "rate_limit_exceeded": "rate_limited"}
"""Codes of a failed response that are worth a retry, with their reasons."""

OpenStream: TypeAlias = Callable[..., AsyncGenerator[object]]  # type: ignore[explicit-any]


class ReplyStream:
    """The events of one reply: pieces for watchers, the complete response, or a failure."""

    def __init__(self, model: str) -> None:
        self.pieces: asyncio.Queue[Piece | None] = asyncio.Queue()
        self.response: Response | None = None
        self.failure: ModelFailed | None = None
        self.thinking = ""
        self._model = model
        self._done: list[TResponseOutputItem] = []
        self._calls: dict[int, tuple[str, int]] = {}  # output index → tool, number

    def take(self, event: object) -> None:
        """Take an event of the stream.

        Raises:
            ModelFailed: The provider gave up the reply.
        """
        kind = str(getattr(event, "type", ""))
        given: Any = event  # type: ignore[explicit-any]  # its fields depend on its kind
        if kind in {"response.output_text.delta", "response.refusal.delta"}:
            self._send("text", given.delta)
        elif kind in {"response.reasoning_summary_text.delta", "response.reasoning_text.delta"}:
            self.thinking += make_storable(given.delta)
            self._send("thinking", given.delta)
        elif kind == "response.output_item.added":
            if isinstance(given.item, ResponseFunctionToolCall):
                self._calls[given.output_index] = (given.item.name, len(self._calls))
                self._send("args", "", given.output_index)
        elif kind == "response.function_call_arguments.delta":
            self._send("args", given.delta, given.output_index)
        elif kind == "response.output_item.done":
            self._done.append(given.item)
        elif kind == "response.completed":
            self.response = given.response
            # Some servers leave the items out of the last event.
            given.response.output = given.response.output or self._done
        elif kind in {"response.incomplete", "response.failed", "error", "response.error"}:
            # Kept here as well: nothing is signalled by an exception through the runner.
            self.failure = self._make_failure(getattr(given, "response", None), given)
            raise self.failure

    def close(self) -> None:
        """End the pieces."""
        self.pieces.put_nowait(None)

    def _send(self, kind: str, text: str | None, index: int = -1) -> None:
        tool, call = self._calls.get(index, ("", 0))
        storable = make_storable(text or "")
        if kind == "args":
            self.pieces.put_nowait(Piece(kind="args", text=storable, tool=tool, call=call))
        elif storable:
            is_text = kind == "text"
            self.pieces.put_nowait(Piece(kind="text" if is_text else "thinking", text=storable))

    def _make_failure(self, response: Response | None, event: object) -> ModelFailed:
        details = response.incomplete_details if response else None
        if details is not None and details.reason:
            filtered = details.reason == "content_filter"
            reason = "refused" if filtered else "bad_output"
            return ModelFailed(self._model, reason, f"the reply was cut off: {details.reason}")
        error: object = response.error if response else event
        code = str(getattr(error, "code", None) or "")
        text = safe_str(getattr(error, "message", None) or code or "no reason was given")
        known = TRANSIENT_CODES.get(code)
        return ModelFailed(self._model, known or "server_error", text, transient=bool(known))


def make_storable(text: str) -> str:
    """Return `text` with lone surrogates replaced, which UTF-8 cannot encode."""
    return text if text.isascii() else text.encode(errors="replace").decode()


class RelayModel(Model):
    """Passes the request of the runner on to the agent's own model, and streams the reply."""

    def __init__(self, model: Model, stream: ReplyStream) -> None:
        self._model = model
        self._stream = stream

    async def get_response(self, *arguments: object, **options: object) -> ModelResponse:
        """Stream a reply of the model, and return the whole."""
        open_ = cast("OpenStream", self._model.stream_response)
        async with aclosing(open_(*arguments, **options)) as events:
            async for event in events:
                self._stream.take(event)
        if (response := self._stream.response) is None:
            raise ModelBehaviorError("the reply ended before it was whole")
        usage = Usage()
        if response.usage is not None:
            usage = Usage(
                requests=1,
                input_tokens=response.usage.input_tokens,
                output_tokens=response.usage.output_tokens,
                total_tokens=response.usage.total_tokens,
            )
        return ModelResponse(output=response.output, usage=usage, response_id=response.id)

    async def _cleanup_on_run_end(self, owner: object) -> None:
        await self._model._cleanup_on_run_end(owner)  # noqa: SLF001 - a hook of the base class

    def stream_response(self, *arguments: object, **options: object) -> NoReturn:
        """Refuse: the runner of a step does not stream."""
        raise NotImplementedError("the runner of a step calls get_response")


class RelayProvider(ModelProvider):
    """Finds models by name, as the SDK does, and relays them."""

    def __init__(self, provider: ModelProvider, stream: ReplyStream) -> None:
        self._provider = provider
        self._stream = stream

    def get_model(self, model_name: str | None) -> Model:
        """Return the relayed model with this name."""
        return RelayModel(self._provider.get_model(model_name), self._stream)
