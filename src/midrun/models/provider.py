"""`ProviderModel`: a model of any provider that pydantic-ai supports.

A broken provider can neither block a run nor fill its memory: the wait for the next piece and
the size of a reply are bounded. A reply that ends without a finish reason counts as broken, so
that no call is made whose arguments may be incomplete. Errors become `ModelFailed` with a
stable reason; the worker decides about retries.
"""

import os
import re
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Callable,
    Iterator,
    Sequence,
)
from contextlib import aclosing, asynccontextmanager, contextmanager
from decimal import ROUND_CEILING
from functools import partial
from inspect import signature
from typing import Any, Final, Self, TypeAlias, cast

import anyio
import msgspec
from pydantic_ai import exceptions
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import AgentStreamEvent, ModelResponse
from pydantic_ai.models import Model, infer_model
from pydantic_ai.providers import Provider, infer_provider_class
from pydantic_ai.settings import ModelSettings
from pydantic_ai.usage import RequestUsage

from midrun.agents.file import is_text_type
from midrun.codec.safe_repr import safe_str
from midrun.core.transcript import Turn
from midrun.core.values import FileRef, Spend
from midrun.core.values import ModelSettings as OwnSettings
from midrun.errors import Misconfigured, ModelFailed
from midrun.models.messages import (
    PieceConverter,
    make_messages,
    make_native_tool,
    make_parameters,
    make_reply,
)
from midrun.models.prices import OUTPUT_MAX_TOKENS
from midrun.ports.model import Finished, Piece, Prompt

# The cost of a reply, and an upper estimate of the cost of the next one.
#
# Prices come from the list in pydantic-ai. Amounts are in millionths of a dollar and are
# rounded up, so that rounding can never let a run exceed its cost cap.

PydanticModel: TypeAlias = Model[Any]  # type: ignore[explicit-any]  # with any SDK's client
"""A model of pydantic-ai."""

CHARS_PER_TOKEN: Final = 4
FILE_TOKENS: Final = 2_000
"""Estimated tokens of an image or another file that is not text. Providers differ."""

UNSENDABLE_ERRORS: Final = (NotImplementedError, RuntimeError, ValueError, TypeError)
"""Exceptions of pydantic-ai for a content that it cannot convert for a provider."""


class Prices:
    """The prices of one model. `are_known` is False if the list does not have it."""

    def __init__(self, model: PydanticModel) -> None:
        self._name = model.model_name
        self._provider = model.system
        self._url = _find_url(model)
        self._output_tokens = (model.settings or {}).get("max_tokens", OUTPUT_MAX_TOKENS)
        self.are_known = (
            self._compute_usage_cost(RequestUsage(input_tokens=1, output_tokens=1)) is not None
        )

    def compute_spend(self, response: ModelResponse) -> Spend | None:
        """Return the usage that the provider reports for a reply; None if it reports none."""
        usage = response.usage
        if usage.unmeasured_requests or not usage.has_values():
            return None
        cost = _compute_cost(response)
        if cost is None:
            # The response names the model with a date (`…-2026-01-15`), which the price list
            # may not have. Use the name by which the model was requested.
            cost = self._compute_usage_cost(usage)
        tokens = usage.input_tokens + usage.output_tokens
        return Spend(
            tokens=tokens,
            cost=cost or 0,
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
            cached_tokens=usage.cache_read_tokens,
            thinking_tokens=usage.output_reasoning_tokens,
            unpriced_tokens=tokens if cost is None else 0,
        )

    def estimate_spend(self, prompt: Prompt) -> Spend:
        """Estimate the most that a reply to `prompt` may use: the prompt and a full reply."""
        characters = len(prompt.instructions)
        characters += sum(_count_characters(turn) for turn in prompt.transcript)
        characters += sum(len(msgspec.json.encode(tool)) for tool in prompt.tools)
        input_tokens = -(-characters // CHARS_PER_TOKEN)  # divided and rounded up
        output_tokens = prompt.settings.max_tokens or self._output_tokens
        usage = RequestUsage(input_tokens=input_tokens, output_tokens=output_tokens)
        return Spend(
            tokens=input_tokens + output_tokens, cost=self._compute_usage_cost(usage) or 0
        )

    def _compute_usage_cost(self, usage: RequestUsage) -> int | None:
        return _compute_cost(
            ModelResponse(
                parts=[],
                usage=usage,
                model_name=self._name,
                provider_name=self._provider,
                provider_url=self._url,
            )
        )


def _compute_cost(response: ModelResponse) -> int | None:
    if not response.model_name:
        return None
    try:
        price = response.cost().total_price
    except Exception:  # noqa: BLE001 - a problem with the price must not lose the reply
        return None
    return int((price * 1_000_000).to_integral_value(ROUND_CEILING))


def _find_url(model: PydanticModel) -> str | None:
    try:
        return model.base_url
    except (AttributeError, UserError):  # some providers have no URL, or none before a request
        return None


def _list_files(turn: Turn) -> list[FileRef]:
    return [*turn.files, *(file for made in turn.uses for file in made.files)]


def _count_characters(turn: Turn) -> int:
    characters = len(turn.text) + len(turn.thinking)
    for file in _list_files(turn):
        media = FILE_TOKENS * CHARS_PER_TOKEN
        characters += file.size if is_text_type(file.media_type) else media
    return characters + sum(len(msgspec.json.encode(made)) for made in turn.uses)


# Errors of providers, as `ModelFailed` with a stable reason.

DETAIL_MAX_CHARS: Final = 500

_ErrorReasons = Sequence[tuple[type[Exception], str, bool]]

# Exception, reason, whether it is transient; the first match counts.
ERROR_REASONS: Final[_ErrorReasons] = (
    (exceptions.ModelRateLimitError, "rate_limited", True),
    (exceptions.ModelQuotaExceededError, "refused", False),
    (exceptions.ModelUnavailableError, "overloaded", True),
    (exceptions.ModelServerError, "server_error", True),
    (exceptions.ModelTimeoutError, "timeout", True),
    (exceptions.ModelRequestTimeout, "timeout", True),
    (exceptions.ModelContextWindowExceededError, "context_too_long", False),
    (exceptions.ModelAuthenticationError, "unauthorized", False),
    (exceptions.ModelRequestRejectedError, "bad_request", False),
    (exceptions.ContentFilterError, "refused", False),
    (exceptions.UserError, "bad_request", False),
)

TRANSIENT_CODES: Final = {408: "timeout", 409: "server_error"}
"""Response codes below 500 that are transient, with their reasons."""


def make_failure(model: str, error: Exception, *, reply_started: bool) -> ModelFailed:
    """Convert an exception of a provider to `ModelFailed`.

    `reply_started` is True if the provider had accepted the request.
    """
    retry_after = getattr(error, "retry_after", None)
    reason, transient = _classify_error(error, reply_started=reply_started)
    detail = f"{type(error).__name__}: {error}"[:DETAIL_MAX_CHARS]
    return ModelFailed(model, reason, detail, transient, retry_after)


def _classify_error(error: Exception, *, reply_started: bool) -> tuple[str, bool]:
    for kind, reason, transient in ERROR_REASONS:
        if isinstance(error, kind):
            return reason, transient
    if isinstance(error, exceptions.ModelHTTPError):
        code = error.status_code
        return TRANSIENT_CODES.get(code, "bad_request"), code in TRANSIENT_CODES
    # Before the reply has started, it is a failed connection; later, a broken stream.
    if not reply_started and isinstance(error, exceptions.ModelConnectionError):
        return "connection", True
    # Any other exception of an SDK: the server sent something that is not in its protocol.
    return "broken_stream", True


IDLE_TIMEOUT_S: Final = 120.0
"""Seconds to wait for the next piece of a reply."""

REPLY_MAX_BYTES: Final = 2 * 1024 * 1024
"""Bytes of the text of a reply. A journal entry holds four times as much, because it stores the
reply twice: as text, and in the provider's own form with its overhead."""

PIECE_OVERHEAD_BYTES: Final = 16
"""Bytes that each piece counts besides its text, so that an endless stream of empty pieces
reaches the limit, too."""

CLOSE_TIMEOUT_S: Final = 5.0
"""Seconds to close a connection. A cancellation does not shorten them."""

__all__ = ["ProviderModel", "PydanticModel"]


class ProviderModel:
    """A midrun model over a model of pydantic-ai.

    As an async context manager it keeps the connections of its provider open from one reply to
    the next. Without it, each reply opens its own.

    Args:
        provided: The model of pydantic-ai.
        idle_s: Seconds to wait for the next piece of a reply.
        size_max: The largest reply, in bytes.
    """

    def __init__(
        self,
        provided: PydanticModel,
        *,
        idle_s: float = IDLE_TIMEOUT_S,
        size_max: int = REPLY_MAX_BYTES,
    ) -> None:
        self._model = provided
        self._idle_s = idle_s
        self._size_max = size_max
        self._prices = Prices(provided)
        self.name = provided.model_id
        self.priced = self._prices.are_known

    async def __aenter__(self) -> Self:
        await self._model.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        # Without the exception: closing connections does not depend on it.
        with anyio.move_on_after(CLOSE_TIMEOUT_S, shield=True):
            await self._model.__aexit__(None, None, None)

    def check_provider_tools(self, tools: Sequence[object]) -> None:
        """Check that the provider can execute these tools.

        Raises:
            Misconfigured: There is no such tool, or this model cannot use it.
        """
        made = [make_native_tool(tool) for tool in tools]
        supported = self._model.profile.get("supported_native_tools", frozenset())
        if refused := [tool.kind for tool in made if type(tool) not in supported]:
            can = ", ".join(sorted(tool.kind for tool in supported)) or "none"
            problem = (
                f"Cannot use the provider tool {refused[0]}: the model has {can}. Drop it."
            )
            raise Misconfigured(f"model {self.name}", problem)

    def reserve(self, prompt: Prompt) -> Spend:
        """Estimate the most that a reply to `prompt` may use."""
        return self._prices.estimate_spend(prompt)

    @asynccontextmanager
    async def stream(self, prompt: Prompt) -> AsyncIterator[AsyncIterator[Piece | Finished]]:
        """Stream one reply; leaving the context closes its connection.

        Raises:
            ModelFailed: The provider failed, sent too much, or did not complete the reply. It
                is also raised while the pieces are read.
        """
        async with self:
            request = self._model.request_stream(
                make_messages(prompt),
                self.make_settings(prompt.settings),
                make_parameters(prompt),
            )
            # Entered by hand and not with `async with`: the errors of entering it are
            # converted, and leaving it is shielded and bounded.
            with self._bound_wait(reply_started=False, prompt=prompt):
                streamed = await request.__aenter__()
            try:
                async with aclosing(self.stream_pieces(streamed, streamed.get)) as pieces:
                    yield pieces
            finally:
                # A pause cancels this task in order to stop the stream. Without the shield the
                # close would be cancelled as well, and the provider would keep generating.
                with anyio.move_on_after(CLOSE_TIMEOUT_S, shield=True):
                    await request.__aexit__(None, None, None)

    async def stream_pieces(
        self, events: AsyncIterable[AgentStreamEvent], get_response: Callable[[], ModelResponse]
    ) -> AsyncGenerator[Piece | Finished]:
        """Yield the pieces of a streamed reply, within the limits; then its end.

        Raises:
            ModelFailed: The provider failed, sent too much, or did not complete the reply.
        """
        pieces = PieceConverter()
        size = 0
        source = aiter(events)
        while True:
            with self._bound_wait(reply_started=True):
                event = await anext(source, None)
            if event is None:
                break
            for piece in pieces.convert(event):
                size += len(piece.text.encode())
                yield piece
            size += PIECE_OVERHEAD_BYTES
            if size > self._size_max:
                detail = f"the reply is larger than {self._size_max} bytes; given up"
                raise ModelFailed(self.name, "broken_stream", detail)
        response = get_response()
        yield Finished(
            reply=make_reply(self.name, response), spent=self._prices.compute_spend(response)
        )

    @contextmanager
    def _bound_wait(
        self, *, reply_started: bool, prompt: Prompt | None = None
    ) -> Iterator[None]:
        """Bound a wait for the provider, and convert its errors to `ModelFailed`."""
        with anyio.move_on_after(self._idle_s) as timeout:
            try:
                yield
            except Exception as error:
                if prompt is not None and (failure := self._find_file_failure(prompt, error)):
                    raise failure from error
                raise make_failure(self.name, error, reply_started=reply_started) from error
        if timeout.cancelled_caught:
            detail = f"nothing came for {self._idle_s:g} s"
            raise ModelFailed(self.name, "timeout", detail, transient=True)

    def _find_file_failure(self, prompt: Prompt, error: Exception) -> ModelFailed | None:
        """Return the failure of a model that does not take a file; None for other errors.

        pydantic-ai raises plain exceptions for contents that it cannot send to a provider.
        """
        if not prompt.files or not isinstance(error, UNSENDABLE_ERRORS):
            return None
        named = {file.hash: file for turn in prompt.transcript for file in _list_files(turn)}
        files = [named[key] for key in prompt.files if key in named]
        shown = ", ".join(f"“{file.name}” ({file.media_type})" for file in files)
        detail = f"it does not take one of these files: {shown}. {error}"[:DETAIL_MAX_CHARS]
        return ModelFailed(self.name, "file_refused", detail)

    def make_settings(self, settings: OwnSettings | None = None) -> ModelSettings | None:
        """Return the settings of a request: `settings`, and no retries of the SDK.

        The worker retries instead: its attempts are journaled, and a pause can stop them.
        """
        made = ModelSettings()
        if "max_retries" not in self._model.unsupported_settings:
            made["max_retries"] = 0
        if settings is None:  # of a hosted agent, which has its own
            return made or None
        made["cache"] = settings.cache is not False
        if settings.temperature is not None:
            made["temperature"] = settings.temperature
        if settings.top_p is not None:
            made["top_p"] = settings.top_p
        if settings.max_tokens is not None:
            made["max_tokens"] = settings.max_tokens
        if settings.thinking is not None:
            made["thinking"] = settings.thinking
        return cast("ModelSettings", {**made, **settings.extra})


# Models of pydantic-ai by name.

PydanticProvider: TypeAlias = Provider[Any]  # type: ignore[explicit-any]  # as above

OPENAI_KEY_VARIABLE: Final = "OPENAI_API_KEY"
NO_KEY: Final = "not-needed"

_VARIABLE_NAME: Final = re.compile(r"`([A-Z][A-Z0-9]*_[A-Z0-9_]+)`")


def is_provider(name: str) -> bool:
    """Tell whether the installed pydantic-ai has a provider with this name.

    Raises:
        ImportError: It has, and the package of the provider is not installed.
    """
    try:
        infer_provider_class(name)
    except ValueError:
        return False
    return True


def make_named_model(name: str, base_url: str | None = None) -> ProviderModel:
    """Return the model with the name `provider:model`, at `base_url` if that is given.

    Raises:
        Misconfigured: The provider cannot be used; its API key is not set, for example.
        ImportError: The package of the provider is not installed.
    """
    provider = name.partition(":")[0]
    try:
        if base_url is None:
            return ProviderModel(infer_model(name))
        return ProviderModel(infer_model(name, partial(_make_provider, base_url)))
    except ImportError:
        raise
    except Exception as error:
        # `UserError`, or an error of the provider's package, which looks for credentials.
        raise Misconfigured(
            f"model {name!r}", _explain_missing_setting(provider, error)
        ) from error


def _make_provider(base_url: str, name: str) -> PydanticProvider:
    """Return the provider with this name, at another address.

    Raises:
        UserError: It has one address only, or its API key is not set.
    """
    provider = infer_provider_class(name)
    parameters = signature(provider.__init__).parameters
    # Azure calls its address the endpoint.
    option = next((o for o in ("base_url", "azure_endpoint") if o in parameters), None)
    if option is None:
        raise UserError(f"Cannot set base_url: provider {name} has one address only. Drop it.")
    options: dict[str, object] = {option: base_url}
    if name.startswith("openai") and not os.environ.get(OPENAI_KEY_VARIABLE):
        options["api_key"] = NO_KEY  # a server of your own usually wants none
    return provider(**options)


CREDENTIALS: Final = {
    "bedrock": "Set AWS_DEFAULT_REGION, and credentials of AWS as AWS_ACCESS_KEY_ID and "
    "AWS_SECRET_ACCESS_KEY",
    "google-cloud": "Set GOOGLE_CLOUD_PROJECT, and GOOGLE_APPLICATION_CREDENTIALS to the file "
    "with the key of a service account",
    "openai-chatgpt": "Sign in with pydantic-ai, and pass its model object as model=",
    "openai-codex": "Run codex login",
}
"""The advice for providers whose errors do not name an environment variable."""


def _explain_missing_setting(provider: str, error: Exception) -> str:
    """Return an error text for a missing setting, from the error of pydantic-ai.

    Its text refers to classes of pydantic-ai, which the user may not know. Only the names of
    environment variables are taken from it.
    """
    place = "for the process that drives the run (midrun run, serve or worker)"
    scripted = "Without a key, midrun.models.ScriptedModel plays a model."
    variables = list(dict.fromkeys(_VARIABLE_NAME.findall(str(error))))
    if variables:
        return (
            f"Cannot reach {provider}: {' or '.join(variables)} is not set. Set this "
            f"environment variable {place}. {scripted}"
        )
    advice = CREDENTIALS.get(provider)
    if advice and type(error).__name__ in {"UserError", "DefaultCredentialsError"}:
        return (
            f"Cannot reach {provider}: no credentials are found. {advice}, {place}. {scripted}"
        )
    text = safe_str(error, 500)
    return text if text.startswith("Cannot ") else f"Cannot use {provider}: {text}"
