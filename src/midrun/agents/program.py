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

from collections.abc import AsyncIterator, Awaitable, Callable, Container, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol, TypeAlias

from msgspec import Struct

from midrun.agents.tool import Tool
from midrun.core.ids import RunId
from midrun.core.state import CallState
from midrun.core.transcript import Turn
from midrun.core.values import CallResult, Json, RequestedCall
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


class ProgramOutput(Struct, frozen=True, kw_only=True):
    """The output of a program: a text, and the same as JSON data if it has such."""

    text: str
    value: Json = None


class ProgramCalls(Protocol):
    """The calls that a hosted program can make. The driver implements it.

    `call_model` and `call_tool` wait while the run is paused, halted or waits for a person.
    They never raise because of a control: the driver cancels the program instead.
    """

    run_id: RunId

    async def call_model(
        self, position: str, open_stream: OpenStream, facts: dict[str, Json] | None = None
    ) -> ModelOutcome:
        """Make a model call, or return its reply from the journal.

        `open_stream` is called for each attempt, with the turns to add to the prompt: texts of
        people that no earlier call of the same branch has read, and the text of earlier
        attempts of this call, which were stopped midway. The branch is the position up to its
        last slash. `facts` are journaled with the call.
        """
        ...

    async def call_tool(self, position: str, tool: Tool, args: dict[str, Json]) -> CallResult:
        """Make a call of `tool`, or return its outcome from the journal.

        The outcome has a `result`, or a `problem`: the call failed, was declined or stopped.
        """
        ...

    def list_calls(self) -> tuple[CallState, ...]:
        """Return the calls of the program that the journal has, oldest first."""
        ...

    async def find_position(self, use: RequestedCall, taken: Container[str]) -> str:
        """Return the position of the oldest journaled call that `use` may repeat, or "".

        For a host that knows its calls by their content alone: the call that the program has
        proposed with the same content. If there is none, a call of the same tool whose secrets
        this process does not know. Positions in `taken` are left out: the program has made
        their calls again already.
        """
        ...

    def hide_secret(self, secret: str) -> None:
        """Redact `secret` in everything that is journaled of this run from now on."""
        ...

    def choose_position(self, branch: str, use: RequestedCall) -> str:
        """Return the position of a call in a branch whose calls may come in any order.

        After a restart, calls that were made in parallel may come in another order. So the call
        gets the position at which the journal has the same call, and else the next number.
        """
        ...

    def rewind(self, branch: str) -> None:
        """Let the program make the calls of a branch, and of those in it, once more.

        A framework may execute a part again in the same run of the program. The calls that have
        ended are answered from the journal.
        """
        ...

    def get_unanswered(self) -> Mapping[str, RequestedCall]:
        """Return the calls that the journal had before this start and that were not made yet.

        The key is the position. A program that has passed such a position has changed.
        """
        ...

    def stop_departed(self, position: str, action: str) -> None:
        """Fail the run, because the program does `action` instead of the journaled call."""
        ...


Program: TypeAlias = Callable[[ProgramCalls, str], Awaitable[str | ProgramOutput]]
"""A hosted program: takes its calls and the task, and returns the answer of the run."""


def describe_use(use: RequestedCall) -> str:
    """Return a call as a text for an error: its name with its arguments."""
    args = use.args if isinstance(use.args, dict) else {}
    if use.kind == "model" and (node := args.get("node")):
        return f"a model call in node {node}"
    if use.kind == "model" and not args:
        return "a model call"
    name = "a model call " if use.kind == "model" else use.tool
    return f"{name}({', '.join(f'{name}={value!r}' for name, value in args.items())})"
