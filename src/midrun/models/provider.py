"""A model of any provider that pydantic-ai speaks to.

A broken provider cannot hold a run up or fill its memory: the wait for the next piece has a
bound, and a reply a largest size. A reply that ends without saying that it is whole counts as
broken off, so that no call is made which was not finished being asked for.
"""

import re
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager
from types import TracebackType
from typing import Final, Self

import anyio
from pydantic_ai import exceptions
from pydantic_ai.exceptions import UserError
from pydantic_ai.models import StreamedResponse, infer_model, known_model_names
from pydantic_ai.providers import infer_provider_class
from pydantic_ai.settings import ModelSettings

from midrun.core.values import Spend
from midrun.errors import Misconfigured, ModelFailed
from midrun.models.messages import parameters, told
from midrun.models.prices import Prices, Provided
from midrun.models.streaming import Pieces, whole
from midrun.ports.model import Finished, Piece, Prompt

# What can go wrong with a provider, as `ModelFailed` with a stable reason.

DETAIL_MAX: Final = 500

_Sorts = Sequence[tuple[type[Exception], str, bool]]

SORTS: Final[_Sorts] = (  # the first that fits: error, reason, transient
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

PASSING: Final = {408: "timeout", 409: "server_error"}  # statuses that pass, of those below 500


def failure(model: str, error: Exception, *, began: bool) -> ModelFailed:
    """Return what `error` means. `began` tells whether the reply had begun to come."""
    retry_after = getattr(error, "retry_after", None)
    reason, transient = _sorted(error, began=began)
    detail = f"{type(error).__name__}: {error}"[:DETAIL_MAX]
    return ModelFailed(model, reason, detail, transient, retry_after)


def _sorted(error: Exception, *, began: bool) -> tuple[str, bool]:
    for kind, reason, transient in SORTS:
        if isinstance(error, kind):
            return reason, transient
    if isinstance(error, exceptions.ModelHTTPError):
        return PASSING.get(error.status_code, "bad_request"), error.status_code in PASSING
    if not began and isinstance(error, exceptions.ModelConnectionError):
        return "connection", True
    # Whatever else an SDK raises over what it was sent: it was not what the protocol says.
    return "broken_stream", True


IDLE_S: Final = 120.0
SIZE_MAX: Final = 2 * 1024 * 1024
"""In bytes. An entry has room for four times as much: it holds a reply in the provider's words
too, and a reply has to fit."""

EACH: Final = 16
"""What a streamed piece counts besides its text: a stream of empty ones has an end as well."""

CLOSE_S: Final = 5.0
"""How long it may take to close a connection. A cancellation does not cut that short."""

__all__ = ["Provided", "ProviderModel"]


class ProviderModel:
    """A model over one of pydantic-ai's.

    `idle_s` bounds the wait for the next piece, `size_max` the reply, in bytes. As a
    context manager it keeps the connections of its provider open from one reply to the next;
    otherwise each reply opens its own.
    """

    def __init__(
        self, provided: Provided, *, idle_s: float = IDLE_S, size_max: int = SIZE_MAX
    ) -> None:
        self._provided = provided
        self._idle_s = idle_s
        self._size_max = size_max
        self._prices = Prices(provided)
        self.name = provided.model_id
        self.priced = self._prices.known

    async def __aenter__(self) -> Self:
        await self._provided.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None:
        with anyio.move_on_after(CLOSE_S, shield=True):
            await self._provided.__aexit__(None, None, None)

    def reserve(self, prompt: Prompt) -> Spend:
        """Return the most that answering is expected to use."""
        return self._prices.reserve(prompt)

    @asynccontextmanager
    async def stream(self, prompt: Prompt) -> AsyncIterator[AsyncIterator[Piece | Finished]]:
        """Stream one reply; its connection is closed when the context is left."""
        async with self:
            request = self._provided.request_stream(
                told(prompt), self._settings(), parameters(prompt)
            )
            with self._guarded(began=False):
                streamed = await request.__aenter__()
            try:
                async with aclosing(self._pieces(streamed)) as pieces:
                    yield pieces
            finally:
                with anyio.move_on_after(CLOSE_S, shield=True):
                    await request.__aexit__(None, None, None)

    async def _pieces(self, streamed: StreamedResponse) -> AsyncGenerator[Piece | Finished]:
        pieces = Pieces()
        size = 0
        source = aiter(streamed)
        while True:
            with self._guarded(began=True):
                came = await anext(source, None)
            if came is None:
                break
            for piece in pieces.of(came):
                size += len(piece.text.encode())
                yield piece
            size += EACH
            if size > self._size_max:
                detail = f"the reply is larger than {self._size_max} bytes; given up"
                raise ModelFailed(self.name, "broken_stream", detail)
        response = streamed.get()
        yield Finished(reply=whole(self.name, response), spent=self._prices.spent(response))

    @contextmanager
    def _guarded(self, *, began: bool) -> Iterator[None]:
        """Bound a wait for the provider, and say in our words what comes of it."""
        with anyio.move_on_after(self._idle_s) as patience:
            try:
                yield
            except Exception as error:
                raise failure(self.name, error, began=began) from error
        if patience.cancelled_caught:
            detail = f"nothing came for {self._idle_s:g} s"
            raise ModelFailed(self.name, "timeout", detail, transient=True)

    def _settings(self) -> ModelSettings | None:
        """Forbid the SDK to try again: attempts are the driver's, journaled and pausable."""
        if "max_retries" in self._provided.unsupported_settings:
            return None
        return ModelSettings(max_retries=0)


# The models that pydantic-ai knows by name.

_VARIABLE: Final = re.compile(r"`([A-Z][A-Z0-9]*_[A-Z0-9_]+)`")


def found(name: str) -> ProviderModel:
    """Return the model of that name, which has a provider and a colon in it.

    Raises:
        Misconfigured: there is no such provider, or it lacks its key.
        ImportError: the provider's package is not installed.
    """
    provider = name.partition(":")[0]
    try:
        infer_provider_class(provider)
    except ValueError as error:
        problem = f"no provider is called {provider!r}; there are {', '.join(_providers())}"
        raise Misconfigured(f"model {name!r}", problem) from error
    try:
        return ProviderModel(infer_model(name))
    except UserError as error:
        raise Misconfigured(f"model {name!r}", _advice(provider, str(error))) from error


def _advice(provider: str, problem: str) -> str:
    """Return the remedy for a setting that pydantic-ai reports as missing.

    Its own text speaks of its own classes; of that only the variables are of use here.
    """
    variables = list(dict.fromkeys(_VARIABLE.findall(problem)))
    if not variables:
        return problem
    return (
        f"Cannot reach {provider}: {' or '.join(variables)} is not set. Set this environment "
        "variable for the process that drives the run (midrun run, serve or worker). Without a "
        "key, midrun.models.ScriptedModel plays a model."
    )


def _providers() -> list[str]:
    """Return the providers by name, without the gateways to them."""
    named = {name.partition(":")[0] for name in known_model_names() if ":" in name}
    return sorted(provider for provider in named if "/" not in provider)
