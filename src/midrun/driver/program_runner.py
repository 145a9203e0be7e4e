"""Runs the hosted program of a run, and answers its calls from the journal.

`agents.program` explains hosted programs. The `ProgramRunner` of a run is the other side of
`ProgramCalls`:

1. The core lists the effect `RunHost` while the program must run. `update`, which the
   dispatcher calls in every turn of the run loop, starts the program in a user task.
2. The program makes a call at a position. If the journal has a call there that has ended, its
   outcome is returned. Otherwise the runner submits `ProposeCall`, and the program waits.
3. The run loop journals the proposal and, if nothing forbids it, the start of the call. The
   dispatcher takes the function or the stream from the waiting program (`get_tool`,
   `open_stream`) and makes the call in a task of its own. `is_attached` holds a call back until
   the program waits for it: after a restart, the program has to get there first.
4. The journaled end of the call changes the state. `update` sees it, and the program continues.
5. The program returns, and the runner submits `FinishHostedAgent`.

Before a run comes to rest, the core does not list `RunHost` any more. When no call is in
flight, `update` cancels the program, and `is_running` keeps the run from resting until the
program has ended.

**Words of people.** A redirect or a message becomes a message of the run. It is added to the
first model call that starts after it. `Call.prompt_message_count` records how far the messages
were when a call started, so a later replay adds the same turns to the same calls. If the words
came after the last reply of the program, that model call is made again, with its reply and the
words added. Otherwise a program that ends with this reply would never read them.
"""

import contextvars
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial
from typing import Final

import anyio
from msgspec.structs import replace

from midrun.agents.agent import Agent
from midrun.agents.program import ModelOutcome, OpenStream
from midrun.agents.tool import Tool
from midrun.core.driver_inputs import DriverInput, FailRun, FinishHostedAgent, ProposeCall
from midrun.core.entries import AnswerGiven
from midrun.core.evolve.lifecycle import run_started
from midrun.core.ids import RunId
from midrun.core.state import Call, CallStage, State
from midrun.core.transcript import Turn, make_final_result, make_turn
from midrun.core.values import CallResult, Json, Phase, RequestedCall
from midrun.driver.context import DriverContext
from midrun.driver.notifications import Wakeup
from midrun.driver.redaction import redact_struct
from midrun.driver.sanitize import make_storable, sanitize_input
from midrun.driver.user_code import CodeStopped, UserCode, format_exception, must_reraise
from midrun.errors import Misconfigured
from midrun.ports.model import Finished, Piece

PROGRAM_FAILED_CODE: Final = "program_failed"
"""The code of a run whose hosted program raised an exception."""

PROGRAM_DEPARTED_CODE: Final = "program_departed"
"""The code of a run whose program made another call than the journal has at the position."""

CALLS_LEFT_CODE: Final = "program_left_calls"
"""The code of a run whose program returned while calls of it were open."""


class _WaitingCall:
    """A call that the program waits for, and how to make it."""

    __slots__ = ("caller_context", "changed", "open_stream", "tool", "use")

    def __init__(
        self, use: RequestedCall, tool: Tool | None, open_stream: OpenStream | None
    ) -> None:
        self.use = use
        self.tool = tool
        self.open_stream = open_stream
        # Frameworks keep their run in context variables: the call is made in a copy of them.
        self.caller_context = contextvars.copy_context()
        self.changed = anyio.Event()


class ProgramRunner:
    """Runs the program of one run under one lease; implements `ProgramCalls`."""

    def __init__(
        self,
        context: DriverContext,
        agent: Agent,
        run: RunId,
        submit: Callable[[DriverInput], None],
        wakeup: Wakeup,
    ) -> None:
        self.run_id = run
        self._context = context
        self._agent = agent
        self._submit = submit
        self._wakeup = wakeup
        self._state = State(run=run)
        self._code: UserCode | None = None  # the program, while it runs
        self._ended = anyio.Event()
        self._is_grace_running = False
        self._end: DriverInput | None = None  # of the program; not submitted yet
        self._is_end_submitted = False  # its end is on its way to the journal
        self._waiting: dict[str, _WaitingCall] = {}  # by position
        self._proposed: set[str] = set()  # positions with a proposal on its way to the journal
        self._answered: set[str] = set()  # positions whose calls this program has the ends of
        self._numbers: dict[str, list[int]] = {}  # position → its calls, oldest first
        self._indexed_count = 0  # calls that are in `_numbers`

    # ── the side of the run loop ──────────────────────────────────────────────────────────

    @property
    def is_running(self) -> bool:
        """Whether code of the program may run; the run must not come to rest meanwhile."""
        return self._code is not None

    def is_attached(self, call: Call) -> bool:
        """Tell whether the program waits for `call`, so that it can be made."""
        if not call.use.position:
            return True  # of a person who has taken over
        waiting = self._waiting.get(call.use.position)
        if waiting is None or self._is_stopping:
            return False
        return not self._departs(call, waiting.use)

    @property
    def _is_stopping(self) -> bool:
        """Whether the program is not running, or must end: it may make no more calls."""
        return self._code is None or self._code.stopping_since is not None

    def update(self, state: State, *, is_wanted: bool, must_wait: bool) -> None:
        """Start or stop the program, and wake it where `state` has news for it.

        `is_wanted` says that the core lists the program as an effect. `must_wait` says that the
        run waits for the end of a program that does not stop; otherwise it waits for one grace.
        """
        self._state = state
        self._index_calls(state)
        if self._code is not None and not is_wanted and not state.in_flight:
            self._stop(self._code, must_wait=must_wait)
        elif self._end is not None:
            self._submit_end(state, is_wanted=is_wanted)
        elif is_wanted and not (self.is_running or self._is_end_submitted):
            self._start(state)
        for waiting in self._waiting.values():
            waiting.changed.set()

    def input_settled(self, driver_input: DriverInput) -> None:
        """Note that the run loop has journaled or dropped `driver_input`."""
        if isinstance(driver_input, ProposeCall):
            self._proposed.discard(driver_input.use.position)
        elif isinstance(driver_input, FinishHostedAgent | FailRun):
            self._is_end_submitted = False

    def close(self) -> None:
        """Stop the program because the epoch is over."""
        if self._code is not None and self._code.stopping_since is None:
            self._code.stop()

    def get_tool(self, call: Call) -> Tool | None:
        """Return the tool of the waiting program that makes `call`; None if it is gone."""
        waiting = self._find_waiting(call)
        return None if waiting is None else waiting.tool

    def get_context(self, call: Call) -> contextvars.Context | None:
        """Return the context variables of the code that waits for `call`."""
        waiting = self._find_waiting(call)
        return None if waiting is None else waiting.caller_context

    def _find_waiting(self, call: Call) -> _WaitingCall | None:
        waiting = self._waiting.get(call.use.position)
        if waiting is None:
            return None
        is_same = (waiting.use.kind, waiting.use.tool) == (call.use.kind, call.use.tool)
        return waiting if is_same else None

    def open_stream(
        self, call: Call, state: State
    ) -> AbstractAsyncContextManager[AsyncIterator[Piece | Finished]]:
        """Open the stream of a model call that the program waits for."""
        waiting = self._find_waiting(call)
        if waiting is None or waiting.open_stream is None:
            raise Misconfigured(f"call {call.id}", "the program does not wait for it any more")
        self._index_calls(state)
        added = self._list_added_turns(state, call.use.position)
        return waiting.open_stream(added)

    def _index_calls(self, state: State) -> None:
        for index in range(self._indexed_count, len(state.calls)):
            call = state.calls[index]
            if call.use.position:
                self._numbers.setdefault(call.use.position, []).append(call.number)
        self._indexed_count = max(self._indexed_count, len(state.calls))

    # ── starting and stopping the program ─────────────────────────────────────────────────

    def _start(self, state: State) -> None:
        label = f"program of agent {self._agent.name} (run {self.run_id})"
        self._code = UserCode(self._context.user_tasks, label, self._agent.grace)
        self._ended, self._is_grace_running = anyio.Event(), False
        self._answered.clear()
        self._waiting.clear()
        self._context.user_tasks.start(self._run(self._code, state.run_started.task))

    async def _run(self, code: UserCode, task: str) -> None:
        end: DriverInput | None = None
        with suppress(CodeStopped):
            end = await self._run_program(code, task)
        self._ended.set()
        if self._code is not code:
            return  # abandoned
        self._code = None
        # Code that was stopped may return or raise something else. That is not its end: the
        # program is run again later.
        if code.stopping_since is None:
            self._end = self._end or end
        self._wakeup.set()

    async def _run_program(self, code: UserCode, task: str) -> DriverInput:
        program, epoch = self._agent.program, self._state.epoch
        assert program is not None, "only an agent with a program has a runner"
        try:
            output = await code.run(partial(program, self, task))
            await make_storable(AnswerGiven(text=output))
            end: DriverInput = FinishHostedAgent(epoch=epoch, output=output)
        except CodeStopped:
            raise
        except BaseException as error:
            if must_reraise(error):
                raise
            end = FailRun(epoch=epoch, error=format_exception(error), code=PROGRAM_FAILED_CODE)
        return await sanitize_input(
            await redact_struct(self._context.secret_registry, self.run_id, end)
        )

    def _submit_end(self, state: State, *, is_wanted: bool) -> None:
        """Submit the end of the program once no call is in flight; run it again if refused.

        `decide` refuses the end if a redirect came meanwhile. Then the program is run again,
        and reads the redirect.
        """
        if self.is_running or state.in_flight or not is_wanted:
            return
        end, self._end = self._end, None
        if isinstance(end, FinishHostedAgent) and self._has_unread_words(state):
            # Run it again: it repeats its last model call, with the words added.
            self._start(state)
            return
        if isinstance(end, FinishHostedAgent) and state.open_calls:
            names = ", ".join(_describe(state.calls[n - 1].use) for n in state.open_calls)
            problem = f"the program returned before these calls had ended: {names}. Await them."
            end = FailRun(epoch=end.epoch, error=problem, code=CALLS_LEFT_CODE)
        if end is not None:
            self._is_end_submitted = True
            self._submit(end)

    def _stop(self, code: UserCode, *, must_wait: bool) -> None:
        if code.stopping_since is None:
            code.stop()
        if not (must_wait or self._is_grace_running):
            self._is_grace_running = True
            self._context.task_group.start_soon(self._abandon_after_grace, code)

    async def _abandon_after_grace(self, code: UserCode) -> None:
        with anyio.move_on_after(self._agent.grace.total_seconds()):
            await self._ended.wait()
            return
        if self._code is code:
            self._code = None
            self._waiting.clear()
            self._wakeup.set()

    # ── the side of the program: `ProgramCalls` ───────────────────────────────────────────

    async def call_model(self, position: str, open_stream: OpenStream) -> ModelOutcome:
        """Make a model call, or return its reply from the journal."""
        use = RequestedCall(tool="", kind="model", position=position)
        call = await self._make_call(_WaitingCall(use, None, open_stream))
        state = self._state
        return ModelOutcome(
            reply=make_turn(state, state.messages[call.reply_index]),
            added=self._list_added_turns(state, position),
        )

    async def call_tool(self, position: str, tool: Tool, args: dict[str, Json]) -> CallResult:
        """Make a call of `tool`, or return its outcome from the journal."""
        use = RequestedCall(tool=tool.name, args=args, position=position)
        use = self._agent.complete_use(use, tool)
        if use.traits.approve == "queue":
            # The program waits for the result: the approval cannot come later than that.
            use = replace(use, traits=replace(use.traits, approve="block"))
        call = await self._make_call(_WaitingCall(use, tool, None))
        return make_final_result(self._context.secret_registry.restore_call(self.run_id, call))

    async def _make_call(self, waiting: _WaitingCall) -> Call:
        position = waiting.use.position
        proposal = ProposeCall(epoch=self._state.epoch, use=waiting.use)
        proposal = await redact_struct(self._context.secret_registry, self.run_id, proposal)
        waiting.use = proposal.use
        if position in self._waiting or position in self._answered:
            problem = (
                f"Cannot make two calls at position {position}. Use each branch name once, and "
                "give each coroutine that runs in parallel a branch of its own."
            )
            raise Misconfigured(f"program of agent {self._agent.name}", problem)
        self._waiting[position] = waiting
        self._wakeup.set()  # the call may be journaled already, and could not start: see above
        try:
            while (ended := self._find_ended_call(proposal)) is None:
                waiting.changed = anyio.Event()
                await waiting.changed.wait()
            self._answered.add(position)
            return ended
        finally:
            if self._waiting.get(position) is waiting:
                del self._waiting[position]

    def _find_ended_call(self, proposal: ProposeCall) -> Call | None:
        """Return the call of `proposal` if it has ended; propose it if it is missing."""
        numbers = self._numbers.get(proposal.use.position)
        call = None if numbers is None else self._state.calls[numbers[-1] - 1]
        if call is None:
            self._propose(proposal)
            return None
        if self._departs(call, proposal.use):
            self._fail_departed(call, proposal.use)
            return None
        if call.is_open:
            return None
        if call.call_kind == "model" and self._must_repeat(call):
            self._propose(proposal)
            return None
        return call

    def _propose(self, proposal: ProposeCall) -> None:
        # In another phase, or after a take-over, `decide` would refuse it: the program waits.
        if self._state.phase is not Phase.RUNNING or self._state.taken_over_by:
            return
        # Nor may a program that must end: it makes its calls when it is run again.
        if self._is_stopping or self._state.answer is not None:
            return
        if proposal.use.position not in self._proposed:
            self._proposed.add(proposal.use.position)
            self._submit(proposal)

    def _must_repeat(self, call: Call) -> bool:
        """Tell whether an ended model call has no reply that the program can continue with."""
        if call.stage is not CallStage.DONE:
            return True  # stopped, failed or sealed; its partial text is added to the prompt
        is_newest = call.number == len(self._state.calls)
        return is_newest and self._has_unread_words(self._state)

    def _departs(self, call: Call, use: RequestedCall) -> bool:
        if (call.use.kind, call.use.tool) != (use.kind, use.tool):
            return True
        if call.use.args == use.args:
            return False
        # A person who was asked about the call may have changed its arguments. Redacted
        # arguments have placeholders, which differ between processes.
        was_asked = any(ask.call == call.id for ask in self._state.asks)
        lost = self._context.secret_registry.has_lost_secrets(self.run_id, call.use.args)
        return not (was_asked or lost)

    def _fail_departed(self, call: Call, use: RequestedCall) -> None:
        error = (
            f"Cannot continue the program: at position {use.position} the journal has "
            f"{_describe(call.use)}, but the program now calls {_describe(use)}. The code "
            "between the calls must be deterministic, and must not change while a run is "
            "unfinished."
        )
        if self._end is None:
            self._end = FailRun(
                epoch=self._state.epoch, error=error, code=PROGRAM_DEPARTED_CODE
            )
        self.close()

    # ── words of people ───────────────────────────────────────────────────────────────────

    def _list_added_turns(self, state: State, position: str) -> tuple[Turn, ...]:
        """Return the turns that the model call at `position` reads besides its own prompt."""
        attempts = [state.calls[number - 1] for number in self._numbers[position]]
        own_texts = {call.reply_index for call in attempts[:-1] if call.reply_index >= 0}
        indexes = set(own_texts)
        for call in attempts:
            if call.started_seq:
                first = self._count_read_messages(state, before=call)
                indexes.update(range(first, call.prompt_message_count))
        return tuple(
            make_turn(state, message)
            for index in sorted(indexes)
            if (message := state.messages[index]).role != "assistant" or index in own_texts
        )

    def _count_read_messages(self, state: State, *, before: Call | None = None) -> int:
        """Return how many messages the model calls that started before `before` have read."""
        counts = [
            call.prompt_message_count
            for numbers in self._numbers.values()
            for number in numbers
            if (call := state.calls[number - 1]).call_kind == "model"
            and (before is None or call.started_seq < before.started_seq)
        ]
        started = run_started(State(run=self.run_id), state.run_started)
        return max([len(started.messages), *counts])

    def _has_unread_words(self, state: State) -> bool:
        """Tell whether words came after the last reply, and the last call was a model call."""
        if not len(state.calls) or state.calls[-1].call_kind != "model":
            return False
        first = self._count_read_messages(state)
        return any(
            state.messages[index].role != "assistant"
            for index in range(first, len(state.messages))
        )


def _describe(use: RequestedCall) -> str:
    if use.kind == "model":
        return "a model call"
    args = use.args if isinstance(use.args, dict) else {}
    return f"{use.tool}({', '.join(f'{name}={value!r}' for name, value in args.items())})"
