"""What a model is: something that is given a prompt and streams a reply.

The driver closes a stream by leaving its context, at any moment. A model that is closed must
close its connection to the provider before the context is left: not reading is not a pause.
Models do not retry: an attempt, and the wait before the next, belong to the driver, which
journals them and can be paused in the middle of them.
"""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Literal, Protocol

from msgspec import Struct

from midrun.core.transcript import Transcript
from midrun.core.values import NOTHING, Json, Reply, Spend


class ToolSpec(Struct, frozen=True, kw_only=True):
    """A tool as a model is told of it. `schema` is the JSON Schema of its arguments."""

    name: str
    description: str
    schema: Json


class Prompt(Struct, frozen=True, kw_only=True):
    """Everything a model is given."""

    instructions: str
    transcript: Transcript
    tools: tuple[ToolSpec, ...] = ()
    asked: str = ""  # by the runtime, after everything: a summary, say; no part of the run


class Piece(Struct, frozen=True, kw_only=True):
    """A piece of a reply that is being streamed. `call` numbers the calls of this reply.

    The pieces of kind `args` are the JSON text of the arguments of the call `tool`.
    """

    kind: Literal["text", "thinking", "args"]
    text: str
    tool: str = ""
    call: int = 0


class Finished(Struct, frozen=True, kw_only=True):
    """The last thing in a stream: the whole reply, and what it used.

    The uses of `reply` have a tool and arguments only; arguments that were not JSON are
    `refused` in words. `spent` is None where the provider did not say; its cost counts only if
    the model is `priced`.
    """

    reply: Reply
    spent: Spend | None = None


class Model(Protocol):
    """A model of some provider.

    `name` is shown and is part of the agent's fingerprint; `priced` tells whether its cost is
    known, without which a cap on money cannot be kept.
    """

    name: str
    priced: bool

    def stream(
        self, prompt: Prompt
    ) -> AbstractAsyncContextManager[AsyncIterator[Piece | Finished]]:
        """Stream one reply.

        Raises, when entered or while iterated:
            ModelFailed: the provider said no, or broke off. Everything it had said until then
                has been yielded.
        """
        ...

    def reserve(self, prompt: Prompt) -> Spend:
        """Return the most that answering `prompt` is expected to use; set aside meanwhile."""
        ...


class Unpriced:
    """What a model need not say: that its calls cost nothing anybody counts."""

    priced = False

    def reserve(self, prompt: Prompt) -> Spend:
        """Set nothing aside."""
        del prompt
        return NOTHING
