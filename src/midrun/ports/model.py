"""The port of a model: takes a prompt and streams a reply.

The driver closes a stream by leaving its context, at any moment. The model must then close its
connection to the provider before the context is left. To stop reading is not enough: the
provider would keep generating, and billing.

Models do not retry. The driver does, because it journals each attempt and each wait, and a run
can be paused between two attempts.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Literal, Protocol

from msgspec import Struct

from midrun.core.transcript import Transcript
from midrun.core.values import NO_SPEND, Json, ModelSettings, Reply, Spend


class ToolSpec(Struct, frozen=True, kw_only=True):
    """The description of a tool for a model; `schema` is the JSON Schema of its arguments."""

    name: str
    description: str
    schema: Json


class Prompt(Struct, frozen=True, kw_only=True):
    """The input of one model call."""

    instructions: str
    transcript: Transcript
    tools: tuple[ToolSpec, ...] = ()
    runtime_request: str = (
        ""  # a last message of the runtime, such as "summarize"; not in the journal
    )
    run_id: str = ""
    attempt_id: str = ""  # of the call and its attempt: unique in the run
    settings: ModelSettings = ModelSettings()
    provider_tools: tuple[object, ...] = ()  # names, or native tools of pydantic-ai
    has_fixed_instructions: bool = True  # a provider can cache them
    # The bodies of the files that the transcript names, by hash. A file that is not here, such
    # as one of a deleted run, is only named.
    files: Mapping[str, bytes] = {}


class Piece(Struct, frozen=True, kw_only=True):
    """A part of a streamed reply. `call` numbers the tool calls of this reply.

    Parts of kind `args` are the JSON text of the arguments of the call of `tool`.
    """

    kind: Literal["text", "thinking", "args"]
    text: str
    tool: str = ""
    call: int = 0


class Finished(Struct, frozen=True, kw_only=True):
    """The last item of a stream: the complete reply and its usage.

    The uses of `reply` have a tool and arguments only; `refused` says so if the arguments are
    not JSON. `spent` is None if the provider reported no usage. Its cost counts only if the
    model is `priced`.
    """

    reply: Reply
    spent: Spend | None = None


class Model(Protocol):
    """A model of some provider.

    `name` is shown to people and is part of the agent's fingerprint. For a model that is not
    `priced`, a cap on cost cannot be enforced.
    """

    name: str

    @property
    def priced(self) -> bool:
        """Whether the cost of a call is known."""
        ...

    def stream(
        self, prompt: Prompt
    ) -> AbstractAsyncContextManager[AsyncIterator[Piece | Finished]]:
        """Stream one reply.

        Raises, when entered or while iterated:
            ModelFailed: the provider refused, or the stream broke off. All text that arrived
                before has been yielded.
        """
        ...

    def reserve(self, prompt: Prompt) -> Spend:
        """Return an upper estimate for the call, which is reserved while it is in flight."""
        ...


class Unpriced:
    """Base class for models without prices: reserves nothing."""

    priced = False

    def reserve(self, prompt: Prompt) -> Spend:
        """Reserve nothing."""
        del prompt
        return NO_SPEND
