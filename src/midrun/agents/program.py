"""Hosted programs: agents whose loop is code of the user, not of Midrun.

The program of an agent decides itself which model and tool calls it makes, and in which order.
It makes them through `ProgramCalls`, so that each call is journaled, gated, paused, undone and
counted like the calls of any other agent.

A program has no memory of its own that survives: after a pause, a crash or a move to another
machine it is run again from its start. Each call that the journal has as ended is answered from
the journal and not made again, so the program arrives at the point where it was. That works if
the code between the calls is deterministic: with the same answers it must make the same calls.

A call is recognized by its **position**, a text that is unique within the run. The host chooses
it: "3" for the third call of a plain function, the path of the node for a graph. If the journal
has a different call at a position, the program has changed; the run fails, and its error names
both calls.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol, TypeAlias

from msgspec import Struct

from midrun.agents.tool import Tool
from midrun.core.ids import RunId
from midrun.core.transcript import Turn
from midrun.core.values import CallResult, Json
from midrun.ports.model import Finished, Piece

OpenStream: TypeAlias = Callable[
    [Sequence[Turn]], AbstractAsyncContextManager[AsyncIterator[Piece | Finished]]
]
"""Opens the stream of one model call of a program; see `ProgramCalls.call_model`."""


class ModelOutcome(Struct, frozen=True, kw_only=True):
    """The reply of a model call, and the turns that were added to its prompt.

    Attributes:
        reply: The reply; `reply.opaque` is the message in the format of the host.
        added: The turns that the program does not know of, oldest first. The host adds them to
            the history that it sends with later calls.
    """

    reply: Turn
    added: tuple[Turn, ...] = ()


class ProgramCalls(Protocol):
    """The calls that a hosted program can make. The driver implements it.

    Both methods wait while the run is paused, halted or waits for a person. They never raise
    because of a control: the driver cancels the program instead.
    """

    run_id: RunId

    async def call_model(self, position: str, open_stream: OpenStream) -> ModelOutcome:
        """Make a model call, or return its reply from the journal.

        `open_stream` is called for each attempt, with the turns to add to the prompt: texts of
        people that came since the last model call, and the text of earlier attempts of this
        call, which were stopped midway.
        """
        ...

    async def call_tool(self, position: str, tool: Tool, args: dict[str, Json]) -> CallResult:
        """Make a call of `tool`, or return its outcome from the journal.

        The outcome has a `result`, or a `problem`: the call failed, was declined or stopped.
        """
        ...


Program: TypeAlias = Callable[[ProgramCalls, str], Awaitable[str]]
"""A hosted program: takes its calls and the task, and returns the answer of the run."""
