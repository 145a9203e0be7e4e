"""`GatewayCalls`: turns the requests of a hosted process into calls of its run.

**Which call is it?** After a restart the process makes its calls again, and some clients make
several at once. So a call is recognized by its content, and not by its number: a model request
by a digest, a tool call by its name and arguments. A call that the journal does not have is
new, but only after the process has asked again for all calls that have ended. Before that, the
process has departed from its journal, and the run fails with an error that names both calls.
With `is_parallel` such a call waits instead: it may have overtaken the others.

**A process that keeps its own history** (`keeps_history`) does not ask again. It continues a
session that it has stored itself. Its first request completes the model call that was stopped.
Tool calls that were open are made before the process starts, and the first request tells the
model the results of all tool calls: the session may lack those that came last.

**Words of people** are added to a request on its way to the provider. The process does not know
them, so they are added again, at the same place, to every later request of the conversation:
one that begins with the same messages.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Final, NamedTuple

import anyio
import msgspec
from anyio.abc import TaskGroup

from midrun.agents.program import ProgramCalls, describe_use
from midrun.agents.tool import Tool
from midrun.core.state import CallStage, CallState
from midrun.core.transcript import Turn, make_final_result
from midrun.core.values import CallResult, Json, RequestedCall
from midrun.errors import ProcessFailed
from midrun.hosts.upstream_client import ModelRequest, UpstreamClient
from midrun.hosts.wire_protocols import LiveReply, WireReply, describe_request, digest_messages
from midrun.models.prompt_texts import format_result
from midrun.ports.model import Finished, Piece

PATIENCE_S: Final = 30.0
"""Seconds for which a call waits until all calls that have ended were asked for again."""

ABANDONED_MAX: Final = 100
"""Requests whose client has gone, and which it may send again for the same reply."""

NOTED_MAX_CALLS: Final = 50
NOTED_MAX_CHARS: Final = 500
"""Tool calls, and characters of each, in the note to the model after a restart."""

RESTART_TEXT: Final = (
    "The process of this agent was stopped and started again. Its journal has these tool calls "
    "so far. They have ended: do not make them again for the same purpose.\n{calls}"
)
SESSION_LOST_TEXT: Final = (
    "was started again without its history: its first request has no earlier reply, but the "
    "run has made tool calls. Continue the session of the process, or host it without "
    "keeps_history"
)


class PendingReply:
    """A model request of the process, and its reply when the journal has it."""

    def __init__(self, request: ModelRequest) -> None:
        self.request = request
        self.messages = request.protocol.list_messages(request.body)
        self.identity = describe_request(request.protocol, request.body)
        self.live = LiveReply(request.protocol, request.body)
        self.reply: WireReply | None = None  # when the journal has it
        self.is_abandoned = False  # its client has disconnected


class _AddedTurns(NamedTuple):
    """Turns that were added after the messages with these digests."""

    prefix: tuple[str, ...]
    turns: tuple[Turn, ...]


class GatewayCalls:
    """Makes the calls of one process of one run, in `tasks`."""

    def __init__(
        self,
        calls: ProgramCalls,
        tools: Sequence[Tool],
        client: UpstreamClient,
        tasks: TaskGroup,
        *,
        keeps_history: bool,
        is_parallel: bool,
    ) -> None:
        self._calls = calls
        self._tools: Mapping[str, Tool] = {tool.name: tool for tool in tools}
        self._client = client
        self._tasks = tasks
        self._keeps_history = keeps_history
        self._is_parallel = is_parallel
        self._journaled = calls.list_calls()  # by earlier processes of this run
        # A model call that was stopped is made again at its position: the newest counts.
        self._newest = {call.use.position: call for call in self._journaled}
        self._last_position = max(map(int, self._newest), default=0)
        self._taken: set[str] = set()  # positions of the calls of this process
        self._changed = anyio.Event()  # `_taken` has grown
        self._lock = anyio.Lock()
        self._added: list[_AddedTurns] = []
        self._note: tuple[Turn, ...] = ()  # for the first request, after a restart
        self._undelivered: list[PendingReply] = []
        self._provider_ids: dict[str, str] = {}  # of responses, by the id that was sent

    @property
    def is_restart(self) -> bool:
        """Whether an earlier process of this run has made calls."""
        return bool(self._journaled)

    # ── model calls ───────────────────────────────────────────────────────────────────────

    def request_reply(self, request: ModelRequest) -> PendingReply:
        """Start a model call; or return the one that an equal request has started.

        Clients send a request again when its connection was lost. The call continues, and its
        reply answers the second request. Two equal requests at the same time are two calls,
        unless the client says that it sends one again: then its first connection is lost, even
        if that was not noticed yet.
        """
        pending = PendingReply(request)
        # A request is compared by its content: a client does not say to which earlier request a
        # repeated one belongs.
        for sent in self._undelivered:
            is_lost = sent.is_abandoned or request.is_repeated
            if is_lost and sent.identity == pending.identity:
                sent.is_abandoned = False
                return sent
        self._forget_abandoned()
        self._undelivered.append(pending)
        self._tasks.start_soon(self._make_model_call, pending)
        return pending

    def end_request(self, pending: PendingReply, *, is_delivered: bool) -> None:
        """Note that a client has got the reply, or has gone before that."""
        if is_delivered and pending in self._undelivered:
            self._undelivered.remove(pending)
        pending.is_abandoned = not is_delivered

    def _forget_abandoned(self) -> None:
        """Forget the oldest requests without a client; their calls continue."""
        abandoned = [each for each in self._undelivered if each.is_abandoned]
        for each in abandoned[: max(0, len(abandoned) - ABANDONED_MAX)]:
            self._undelivered.remove(each)

    async def _make_model_call(self, pending: PendingReply) -> None:
        if self._keeps_history:
            self._check_session(pending)
        identity = None if self._keeps_history else pending.identity
        use = RequestedCall(tool="", kind="model", args=identity)
        position = await self._choose_position(use)
        note, self._note = self._note, ()
        open_stream = partial(self._open_stream, pending, note)
        outcome = await self._calls.call_model(position, open_stream, identity)
        if turns := (*note, *outcome.added):
            self._added.append(_AddedTurns(digest_messages(pending.messages), turns))
        # From here on the journal has the reply. Only now may the process see its calls and its
        # end.
        pending.reply = msgspec.convert(outcome.reply.opaque, WireReply)
        if alias := pending.request.protocol.find_alias(pending.reply):
            self._provider_ids[alias[0]] = alias[1]
        pending.live.release()

    def _open_stream(
        self, pending: PendingReply, note: Sequence[Turn], added: Sequence[Turn]
    ) -> AbstractAsyncContextManager[AsyncIterator[Piece | Finished]]:
        request = pending.request
        messages = self._insert_added_turns(pending)
        messages += request.protocol.make_messages([*note, *added])
        body = request.protocol.rename_response(request.body, self._provider_ids)
        if messages != pending.messages:
            body = request.protocol.replace_messages(body, messages)
        return self._client.stream(request, request.protocol.prepare(body), pending.live)

    def _insert_added_turns(self, pending: PendingReply) -> list[Json]:
        """Return the messages of a request, with the turns that its conversation lacks."""
        digests = digest_messages(pending.messages)
        messages: list[Json] = []
        for index, message in enumerate(pending.messages):
            messages.append(message)
            for added in self._added:
                # A later request of the same conversation repeats the messages of the earlier
                # one and adds its own. A request that ends exactly there is that earlier one:
                # it gets the turns from its call.
                if index + 1 < len(digests) and added.prefix == digests[: index + 1]:
                    messages += pending.request.protocol.make_messages(added.turns)
        return messages

    # ── tool calls ────────────────────────────────────────────────────────────────────────

    async def call_tool(self, tool: Tool, args: dict[str, Json]) -> CallResult:
        """Make a tool call of the process, or return its outcome from the journal."""
        outcome: list[CallResult] = []
        ended = anyio.Event()

        async def make_call() -> None:
            position = await self._choose_position(RequestedCall(tool=tool.name, args=args))
            outcome.append(await self._calls.call_tool(position, tool, args))
            ended.set()

        # In a task of the gateway: the call continues if the client disconnects.
        self._tasks.start_soon(make_call)
        await ended.wait()
        return outcome[0]

    # ── positions ─────────────────────────────────────────────────────────────────────────

    async def _choose_position(self, use: RequestedCall) -> str:
        """Return the position of a call of the process; see the module."""
        is_patient = self._is_parallel
        while True:
            # The lock keeps two equal calls, made at once, from finding the same position.
            async with self._lock:
                position = await self._find_position(use)
                missing = "" if position else self._find_missing()
                if missing and not is_patient:
                    self._calls.stop_departed(missing, f"calls {describe_use(use)}")
                    await anyio.sleep_forever()  # the program is being stopped
                if position or not missing:
                    return self._take(position or self._make_position())
                changed = self._changed
            with anyio.move_on_after(PATIENCE_S) as timeout:
                await changed.wait()
            is_patient = not timeout.cancelled_caught

    async def _find_position(self, use: RequestedCall) -> str:
        if not self._keeps_history:
            return await self._calls.find_position(use, self._taken)
        # Continue the model calls that were stopped: their text is given back to the model.
        unfinished = (
            position
            for position, call in self._newest.items()
            if call.call_kind == use.kind == "model" and call.stage is not CallStage.DONE
        )
        return next((each for each in unfinished if each not in self._taken), "")

    def _find_missing(self) -> str:
        """Return the position of the first call that the process must make again, or ""."""
        if self._keeps_history:
            return ""
        positions = (call.use.position for call in self._journaled if _is_awaited(call))
        return next((each for each in positions if each not in self._taken), "")

    def _make_position(self) -> str:
        self._last_position += 1
        return str(self._last_position)

    def _take(self, position: str) -> str:
        self._taken.add(position)
        changed, self._changed = self._changed, anyio.Event()
        changed.set()
        return position

    # ── processes that keep their own history ─────────────────────────────────────────────

    async def adopt_open_calls(self) -> None:
        """Make the tool calls that were open when the process ended; note all results.

        For a process that keeps its own history: it would not make them again.
        """
        if not self._keeps_history:
            return
        made = [call for call in self._journaled if call.call_kind != "model"]
        results: dict[str, CallResult] = {}

        async def adopt(call: CallState) -> None:
            tool, args = self._tools.get(call.use.tool), call.use.args
            if call.is_open and tool is not None and isinstance(args, dict):
                position = self._take(call.use.position)
                results[call.id] = await self._calls.call_tool(position, tool, args)
            else:
                results[call.id] = make_final_result(call)

        async with anyio.create_task_group() as tasks:
            for call in made:
                tasks.start_soon(adopt, call)
        if made:
            lines = [_format_call(results[call.id]) for call in made[-NOTED_MAX_CALLS:]]
            text = RESTART_TEXT.format(calls="\n".join(lines))
            self._note = (Turn(role="runtime", text=text, kind="restart"),)

    def _check_session(self, pending: PendingReply) -> None:
        """Refuse the first request after a restart if the process has lost its history.

        The model would begin anew. One reply may be missing: a process that is killed may not
        have stored its last one yet, and the note tells the model what the run has done.
        """
        replies = sum(
            call.call_kind == "model" and call.stage is CallStage.DONE
            for call in self._newest.values()
        )
        is_first = bool(self._note) and not self._added and replies > 1
        if is_first and not pending.request.protocol.has_history(pending.request.body):
            raise ProcessFailed("the process", SESSION_LOST_TEXT)


def _is_awaited(call: CallState) -> bool:
    """Tell whether a process must make `call` again before it can make a new one."""
    return call.call_kind != "model" or call.stage is CallStage.DONE or call.is_open


def _format_call(made: CallResult) -> str:
    args = msgspec.json.encode(made.args).decode()
    return f"- {made.tool} {args}: {format_result(made)}"[:NOTED_MAX_CHARS]
