"""Runs the hosted program of a run, and answers its calls from the journal.

`agents.program` explains hosted programs. The `ProgramRunner` of a run is the other side of
`ProgramCalls`:

1. The core lists the effect `RunProgram` while the program must run. `update`, which the
   dispatcher calls in every turn of the run loop, starts the program in a user task.
2. The program makes a call at a position. If the journal has a call there that has ended, its
   outcome is returned. Otherwise the runner submits `ProposeCall`, and the program waits.
3. The run loop journals the proposal and, if nothing forbids it, the start of the call. The
   dispatcher takes the function or the stream from the waiting program (`get_tool`,
   `open_stream`) and makes the call in a task of its own. `is_attached` holds a call back until
   the program waits for it: after a restart, the program has to get there first.
4. The journaled end of the call changes the state. `update` sees it, and the program continues.
5. The program returns, and the runner submits `FinishHostedAgent`.

Before a run comes to rest, the core does not list `RunProgram` any more. When no call is in
flight, `update` cancels the program, and `is_running` keeps the run from resting until the
program has ended. If calls of one branch wait for a person, the other branches continue first;
see `_settle`.

**Words of people.** A redirect or a message becomes a message of the run. It is added to the
first model call that starts after it, and to the first one of each other branch. The state
has the number of messages when a call was proposed and when it started, so a later replay adds
the same turns to the same calls. If the words came after the last reply of the program, that
model call is made again, with its reply and the words added. Otherwise a program that ends with
this reply would never read them.
"""

import contextvars
from collections.abc import AsyncIterator, Callable, Container, Mapping
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial
from itertools import pairwise
from typing import Final

import anyio
from anyio.lowlevel import checkpoint
from msgspec.structs import replace

from midrun.agents.agent import Agent
from midrun.agents.program import ModelOutcome, OpenStream, ProgramOutput, describe_use
from midrun.agents.tool import Tool
from midrun.core.driver_inputs import DriverInput, FailRun, FinishHostedAgent, ProposeCall
from midrun.core.entries import AnswerGiven
from midrun.core.evolve.lifecycle import run_started
from midrun.core.ids import SEQ_ZERO, RunId, Seq
from midrun.core.retries import find_failure
from midrun.core.state import CallStage, CallState, State
from midrun.core.transcript import Turn, make_final_result, make_turn
from midrun.core.values import CallResult, Json, Phase, RequestedCall
from midrun.driver.context import DriverContext
from midrun.driver.notifications import Wakeup
from midrun.driver.redaction import add_title, redact_struct
from midrun.driver.sanitize import make_storable, sanitize_input
from midrun.driver.user_code import CodeStopped, UserCode, format_exception, must_reraise
from midrun.errors import Misconfigured
from midrun.ports.model import Finished, Piece

PROGRAM_FAILED_CODE: Final = "program_failed"
"""The code of a run whose hosted program raised an exception."""

PROGRAM_DEPARTED_CODE: Final = "program_departed"
"""The code of a run whose program made another call than the journal has at the position."""

SETTLE_TURNS: Final = 100
"""Turns of the event loop in which a program arrives at its next call, if it only computes."""

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
        self.changed = Wakeup()


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
        self._settling_seq = SEQ_ZERO  # the state in which the program may make more calls
        self._settled_seq = SEQ_ZERO  # the state in which it has made none
        self._end: DriverInput | None = None  # of the program; not submitted yet
        self._is_end_submitted = False  # its end is on its way to the journal
        self._waiting: dict[str, _WaitingCall] = {}  # by position
        self._proposed: set[str] = set()  # positions with a proposal on its way to the journal
        self._answered: set[str] = set()  # positions whose calls this program has the ends of
        self._has_departed = False
        self._numbers: dict[str, list[int]] = {}  # position → its calls, oldest first
        self._numbered: dict[str, list[str]] = {}  # branch → its positions that are numbers
        self._indexed_count = 0  # calls that are in `_numbers`
        self._chosen: set[str] = set()  # results of `choose_position`
        self._unanswered: dict[str, RequestedCall] = {}  # see `get_unanswered`
        self._words: list[int] = []  # indexes of the messages that are texts of people
        self._read_message_count = 0  # messages that `_words` was made from

    # ── the side of the run loop ──────────────────────────────────────────────────────────

    @property
    def is_running(self) -> bool:
        """Whether code of the program may run; the run must not come to rest meanwhile."""
        return self._code is not None

    def is_attached(self, call: CallState) -> bool:
        """Tell whether the program waits for `call`, so that it can be made."""
        if not call.use.position:
            return True  # of a person who has taken over
        waiting = self._waiting.get(call.use.position)
        if waiting is None or self._is_stopping:
            return False
        return not self._is_departure(call, waiting.use)

    @property
    def _is_stopping(self) -> bool:
        """Whether the program is not running, or must end: it may make no more calls."""
        return self._code is None or self._code.stopping_since is not None

    def update(self, state: State, *, is_wanted: bool, must_wait: bool) -> None:
        """Start or stop the program, and wake it where `state` has news for it.

        `is_wanted` says that the core lists the program as an effect. `must_wait` says that the
        run waits for the end of a program that does not stop; otherwise it waits for one grace.
        """
        # The state comes first: each waiting call that is woken below looks at it again.
        self._state = state
        self._index_calls(state)
        # A call in flight ends first, also in a run that is being paused. Its outcome is
        # journaled while the program still waits for it, and the replay finds it there.
        if self._code is not None and not is_wanted and not state.in_flight:
            if self._settled_seq != state.seq and _waits_for_person(state):
                self._settle(self._code, state.seq)
            else:
                self._stop(self._code, must_wait=must_wait)
        elif self._end is not None:
            self._submit_end(state, is_wanted=is_wanted)
        elif is_wanted and not (self.is_running or self._is_end_submitted):
            self._start(state)
        for position, waiting in self._waiting.items():
            # The program has nothing to do for a call that is being made: do not wake it.
            call = self._find_call(position)
            if call is None or not call.is_open or self._is_departure(call, waiting.use):
                waiting.changed.set()

    def note_removed_input(self, driver_input: DriverInput) -> None:
        """Note that the run loop has journaled or dropped `driver_input`."""
        if isinstance(driver_input, ProposeCall):
            self._proposed.discard(driver_input.use.position)
        elif isinstance(driver_input, FinishHostedAgent | FailRun):
            self._is_end_submitted = False

    def close(self) -> None:
        """Stop the program because the epoch is over."""
        if self._code is not None and self._code.stopping_since is None:
            self._code.stop()

    def get_tool(self, call: CallState) -> Tool | None:
        """Return the tool of the waiting program that makes `call`; None if it is gone."""
        waiting = self._find_waiting(call)
        return None if waiting is None else waiting.tool

    def get_context(self, call: CallState) -> contextvars.Context | None:
        """Return the context variables of the code that waits for `call`."""
        waiting = self._find_waiting(call)
        return None if waiting is None else waiting.caller_context

    def _find_waiting(self, call: CallState) -> _WaitingCall | None:
        waiting = self._waiting.get(call.use.position)
        if waiting is None:
            return None
        is_same = (waiting.use.kind, waiting.use.tool) == (call.use.kind, call.use.tool)
        return waiting if is_same else None

    def open_stream(
        self, call: CallState, state: State
    ) -> AbstractAsyncContextManager[AsyncIterator[Piece | Finished]]:
        """Open the stream of a model call that the program waits for."""
        waiting = self._find_waiting(call)
        if waiting is None or waiting.open_stream is None:
            raise Misconfigured(f"call {call.id}", "the program does not wait for it any more")
        self._index_calls(state)
        added = self._list_added_turns(state, call.use.position)
        return waiting.open_stream(added)

    def _index_calls(self, state: State) -> None:
        call_count, message_count = len(state.calls), len(state.messages)
        for index in range(self._indexed_count, call_count):
            call = state.calls[index]
            # A position is "branch/name". A host names it, or `choose_position` gives it a
            # number; only the numbered ones are searched again by content, branch by branch.
            # One position may have several calls: a model call whose reply was lost is proposed
            # again at the same position.
            if position := call.use.position:
                if position not in self._numbers:
                    branch, _, name = position.rpartition("/")
                    if name.isdecimal():
                        self._numbered.setdefault(branch, []).append(position)
                self._numbers.setdefault(position, []).append(call.number)
        self._indexed_count = max(self._indexed_count, call_count)
        if not self._read_message_count:  # the task is no text that is added to a prompt
            # The first entry alone tells how many messages the task and the history have.
            started = run_started(State(run=self.run_id), state.run_started)
            self._read_message_count = len(started.messages)
        for index in range(self._read_message_count, message_count):
            if state.messages[index].role != "assistant":
                self._words.append(index)
        self._read_message_count = max(self._read_message_count, message_count)

    # ── starting and stopping the program ─────────────────────────────────────────────────

    def _start(self, state: State) -> None:
        label = f"program of agent {self._agent.name} (run {self.run_id})"
        self._code = UserCode(self._context.user_tasks, label, self._agent.grace)
        self._ended, self._is_grace_running = anyio.Event(), False
        self._answered.clear()
        self._waiting.clear()
        self._chosen.clear()
        self._has_departed = False
        # Calls of the journal that this start of the program has not repeated yet. A host can
        # tell by them that the program has passed one of them without making it, and so departs
        # from its journal.
        self._unanswered = {
            position: state.calls[numbers[-1] - 1].use
            for position, numbers in self._numbers.items()
        }
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
            given = await code.run(partial(program, self, task))
            output = ProgramOutput(text=given) if isinstance(given, str) else given
            await make_storable(AnswerGiven(text=output.text, value=output.value))
            end: DriverInput = FinishHostedAgent(
                epoch=epoch, output=output.text, value=output.value
            )
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
            names = ", ".join(describe_use(state.calls[n - 1].use) for n in state.open_calls)
            problem = f"the program returned before these calls had ended: {names}. Await them."
            end = FailRun(epoch=end.epoch, error=problem, code=CALLS_LEFT_CODE)
        if end is not None:
            self._is_end_submitted = True
            self._submit(end)

    def _settle(self, code: UserCode, seq: Seq) -> None:
        """Let the program make its next calls before the run waits for a person.

        A call of one branch waits for a person, and a call of another has just ended. That
        branch needs some turns of the event loop to arrive at its next call. If it makes one,
        the state changes.
        """

        async def count_turns() -> None:
            for _ in range(SETTLE_TURNS):
                await checkpoint()
                if self._code is not code or self._settling_seq != seq:
                    return
            self._settled_seq = seq
            self._wakeup.set()

        if self._settling_seq != seq:
            self._settling_seq = seq
            self._context.task_group.start_soon(count_turns)

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

    async def call_model(
        self, position: str, open_stream: OpenStream, facts: dict[str, Json] | None = None
    ) -> ModelOutcome:
        """Make a model call, or return its reply from the journal."""
        use = RequestedCall(tool="", kind="model", position=position, args=facts)
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

    async def _make_call(self, waiting: _WaitingCall) -> CallState:
        position = waiting.use.position
        proposal = ProposeCall(epoch=self._state.epoch, use=waiting.use)
        secrets = self._context.secret_registry
        # The journal has the redacted form, so only the redacted form can be compared with it.
        proposal = await redact_struct(secrets, self.run_id, proposal)
        if waiting.tool is not None:
            use = add_title(secrets, self.run_id, self._agent, proposal.use, waiting.tool)
            proposal = replace(proposal, use=use)
        waiting.use = proposal.use
        if position in self._waiting or position in self._answered:
            problem = (
                f"Cannot make two calls at position {position}. Use each branch name once, and "
                "give each coroutine that runs in parallel a branch of its own."
            )
            raise Misconfigured(f"program of agent {self._agent.name}", problem)
        self._waiting[position] = waiting
        # After a restart the journal may have this call as proposed. `is_attached` has held it
        # back until now: have the run loop look again.
        self._wakeup.set()
        try:
            while (ended := self._find_ended_call(proposal)) is None:
                await waiting.changed.wait()
            self._answered.add(position)
            self._unanswered.pop(position, None)
            return ended
        finally:
            if self._waiting.get(position) is waiting:
                del self._waiting[position]

    def _find_ended_call(self, proposal: ProposeCall) -> CallState | None:
        """Return the call of `proposal` if it has ended; propose it if it is missing."""
        if self._has_departed:
            return None  # it is being stopped
        call = self._find_call(proposal.use.position)
        if call is None:
            self._propose(proposal)
            return None
        if self._is_departure(call, proposal.use):
            self._fail_departed(call, proposal.use)
            return None
        if call.is_open:
            return None
        if call.call_kind == "model" and self._lacks_reply(call):
            self._propose(proposal)
            return None
        return call

    def _find_call(self, position: str) -> CallState | None:
        """Return the newest call at `position`."""
        numbers = self._numbers.get(position)
        return None if numbers is None else self._state.calls[numbers[-1] - 1]

    def list_calls(self) -> tuple[CallState, ...]:
        """Return the calls of the program that the journal has, oldest first."""
        restore = self._context.secret_registry.restore_call
        calls = self._state.calls
        return tuple(restore(self.run_id, call) for call in calls if call.use.position)

    async def find_position(self, use: RequestedCall, taken: Container[str]) -> str:
        """Return the position of the oldest journaled call that `use` may repeat, or ""."""
        proposal = ProposeCall(epoch=self._state.epoch, use=use)
        proposal = await redact_struct(self._context.secret_registry, self.run_id, proposal)
        use = proposal.use
        calls = [
            call
            for call in self._state.calls
            if (position := call.use.position) and position not in taken
        ]
        # An equal call first: one whose secrets are lost may be a call with any arguments.
        found = next((call for call in calls if self._is_repeated(call, use)), None)
        if found is None and use.kind != "model":
            same_tool = (call for call in calls if call.use.tool == use.tool)
            found = next((call for call in same_tool if self._has_lost_args(call)), None)
        return "" if found is None else found.use.position

    def hide_secret(self, secret: str) -> None:
        """Redact `secret` in everything that is journaled of this run from now on."""
        if self._context.secret_registry.is_enabled:
            self._context.secret_registry.get_run(self.run_id).redact(secret)

    def choose_position(self, branch: str, use: RequestedCall) -> str:
        """Return the position of the same call in the journal, else the next number."""
        journaled = self._numbered.get(branch, ())
        free = [position for position in journaled if position not in self._chosen]
        calls = [call for position in free if (call := self._find_call(position))]
        # Coroutines that run in parallel arrive in another order after a restart. So the number
        # is not counted: the call is looked up by its content among those that are not taken
        # yet.
        found = next((call for call in calls if self._is_repeated(call, use)), None)
        if found is None and calls:
            # The prompt of a model call may differ, for example by the date in it. But if calls
            # were made in parallel, the reply of one must not be taken for that of another.
            found = calls[0]
            if use.kind == "model" and _has_overlap(calls):
                self._fail_departed(found, use)
        if found is not None:
            position = found.use.position
        else:
            number = 1
            while (position := f"{branch}/{number}") in self._chosen:
                number += 1
        self._chosen.add(position)
        return position

    def rewind(self, branch: str) -> None:
        """Let the program make the calls of a branch, and of those in it, once more."""
        prefix = f"{branch}/"
        for positions in (self._chosen, self._answered):
            positions -= {position for position in positions if position.startswith(prefix)}

    def get_unanswered(self) -> Mapping[str, RequestedCall]:
        """Return the calls that were journaled before this start and were not made yet."""
        return self._unanswered

    def stop_departed(self, position: str, action: str) -> None:
        """Fail the run, because the program does `action` instead of the journaled call."""
        call = self._find_call(position)
        assert call is not None, f"{position} is not journaled"
        self._fail(call, action)

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

    def _lacks_reply(self, call: CallState) -> bool:
        """Tell whether an ended model call has no reply that the program can continue with."""
        if call.stage is not CallStage.DONE:
            return True  # stopped, failed or sealed; its partial text is added to the prompt
        is_newest = call.number == len(self._state.calls)
        return is_newest and self._has_unread_words(self._state)

    def _is_repeated(self, call: CallState, use: RequestedCall) -> bool:
        """Tell whether the program has proposed `call` with the content of `use`."""
        if (call.use.kind, call.use.tool) != (use.kind, use.tool):
            return False
        if use.kind == "model":
            return _get_identity(call.use.args) == _get_identity(use.args)
        return self._get_proposed_args(call) == use.args

    def _is_departure(self, call: CallState, use: RequestedCall) -> bool:
        """Tell whether the program wants `use` where the journal has another call."""
        if (call.use.kind, call.use.tool) != (use.kind, use.tool):
            return True
        # A host that makes an open call itself has the arguments that were approved.
        if use.kind == "model" or call.use.args == use.args or self._is_repeated(call, use):
            return False
        return not self._has_lost_args(call)

    def _has_lost_args(self, call: CallState) -> bool:
        # Redacted arguments have placeholders, which differ between processes.
        lost = self._context.secret_registry.has_lost_secrets
        return lost(self.run_id, self._get_proposed_args(call))

    def _get_proposed_args(self, call: CallState) -> Json:
        """Return the arguments of a tool call as the program proposed them.

        A person who approves the call may change them. The first ask has the original ones;
        an ask that follows a change has the changed ones.
        """
        asks = (a for a in self._state.asks if a.call == call.id and a.ask_kind == "approval")
        first = next(asks, None)
        return call.use.args if first is None else first.data

    def _fail_departed(self, call: CallState, use: RequestedCall) -> None:
        self._fail(call, f"calls {describe_use(use)}")

    def _fail(self, call: CallState, action: str) -> None:
        error = (
            f"Cannot continue the program: at position {call.use.position} the journal has "
            f"{describe_use(call.use)}, but the program now {action}. The code between the "
            "calls must be deterministic, and must not change while a run is unfinished."
        )
        self._has_departed = True
        if self._end is None:
            self._end = FailRun(
                epoch=self._state.epoch, error=error, code=PROGRAM_DEPARTED_CODE
            )
        self.close()

    # ── words of people ───────────────────────────────────────────────────────────────────

    def _list_added_turns(self, state: State, position: str) -> tuple[Turn, ...]:
        """Return the turns that the model call at `position` reads besides its own prompt."""
        # Two kinds of turns are added. Partial replies of earlier attempts of this very call:
        # the model continues after them. And words of people that came before this call started
        # and that no earlier call of the branch has read. Both are computed from numbers that
        # the journal fixes, so a replay adds the same turns.
        attempts = [state.calls[number - 1] for number in self._numbers[position]]
        own_texts = {call.reply_index for call in attempts[:-1] if call.reply_index >= 0}
        count = max(call.prompt_message_count for call in attempts)
        words = [index for index in self._words if index < count]
        if words:
            read = self._count_read_messages(state, attempts[0])
            words = [index for index in words if index >= read]
        return tuple(
            make_turn(state, state.messages[index]) for index in sorted({*own_texts, *words})
        )

    def _count_read_messages(self, state: State, call: CallState) -> int:
        """Return how many messages the program has read that is about to make `call`.

        A call in the same branch, or in one around or inside it, has given them to the program
        if it had ended before `call` was proposed. A call in another branch has a prompt of its
        own: what it has read is not known in this branch. Nor is it if both calls were made at
        the same time.
        """
        branch = _get_branch(call.use.position)
        counts = [
            other.prompt_message_count
            for position, numbers in self._numbers.items()
            if branch.startswith(theirs := _get_branch(position)) or theirs.startswith(branch)
            for number in numbers
            if 0 <= (other := state.calls[number - 1]).reply_index < call.proposed_message_count
            and other.stage is CallStage.DONE
        ]
        return max(counts, default=0)

    def _has_unread_words(self, state: State) -> bool:
        """Tell whether words came after the last reply, and the last call was a model call."""
        if not len(state.calls) or state.calls[-1].call_kind != "model":
            return False
        if not self._words:
            return False
        calls = (state.calls[n - 1] for numbers in self._numbers.values() for n in numbers)
        return self._words[-1] >= max(call.prompt_message_count for call in calls)


def _waits_for_person(state: State) -> bool:
    """Tell whether the program is only stopped because its open calls wait for people."""
    return (
        state.phase is Phase.RUNNING
        and bool(state.open_calls)
        and state.answer is None
        and not state.taken_over_by
        and find_failure(state, state.active_calls) is None
    )


def _get_branch(position: str) -> str:
    """Return the branch of a position: the part up to its last slash, with that slash."""
    return position[: position.rfind("/") + 1]


def _get_identity(facts: Json) -> Json:
    """Return the part of the facts of a model call that two equal calls have in common.

    The digest is made before texts are redacted. The texts beside it may have placeholders,
    which differ between processes.
    """
    return facts.get("digest", facts) if isinstance(facts, dict) else facts


def _has_overlap(calls: list[CallState]) -> bool:
    """Tell whether a model call was started before the one before it had its reply."""
    models = [call for call in calls if call.call_kind == "model"]
    return any(
        later.prompt_message_count <= earlier.reply_index or earlier.is_open
        for earlier, later in pairwise(models)
    )
