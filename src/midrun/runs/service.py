"""`RunService`: submit controls, read states and wait for changes of the runs of one store.

All handles of one `Midrun` share one service. A control goes through `submit`: load the state,
redact secrets, decide and append with a retry on conflict (`driver/journal_writer.py`), tell
the local worker, return the receipt. A waiter subscribes to changes of its run first and reads
the journal afterwards, so that no change falls between the two.
"""

from collections.abc import Collection, Mapping, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Final
from weakref import WeakValueDictionary

import anyio
import anyio.to_thread
from msgspec.structs import replace

from midrun.agents.agent import Agent
from midrun.agents.checkpoint import Checkpoint
from midrun.agents.file import File, list_refs, map_bodies
from midrun.core import controls as c
from midrun.core.controls import Approve, Control, Lift, UseTool
from midrun.core.entries import Record, RunStarted
from midrun.core.evolve import apply_entries, fold
from midrun.core.files import (
    find_file_problem,
    find_file_ref,
    find_run_file_problem,
    get_file_limits,
)
from midrun.core.history import is_at_boundary, iter_history, limit_history, make_fork_entry
from midrun.core.ids import AskId, Micros, RunId
from midrun.core.placeholders import check_hidden
from midrun.core.run_head import build_head
from midrun.core.session import Batch
from midrun.core.state import State
from midrun.core.transitions import NoChange, Refused, get_input_name, list_possible_controls
from midrun.core.values import Actor, Message, Phase, RequestedCall
from midrun.driver.journal_writer import (
    InputResult,
    append_input,
    append_inputs,
    decide_inputs,
    load_run_state,
    refresh_state,
)
from midrun.driver.live import LiveOutput
from midrun.driver.notifications import ChangeNotifier, Wakeup
from midrun.driver.redaction import (
    SecretRegistry,
    add_title,
    redact_control,
    redact_file,
    redact_struct,
)
from midrun.errors import (
    ControlRefused,
    FileMissing,
    FileRefused,
    JournalCorrupt,
    JournalTooNew,
    JournalUnreadable,
    Misconfigured,
    RunExists,
    RunNotFound,
    StoreClosed,
)
from midrun.ports.environment import ID_BYTES, Environment
from midrun.ports.store import RunQuery, RunQuota, Store
from midrun.refusal_texts import LOST_ASK_REASONS
from midrun.runs.checkpoints import load_checkpoint_files, load_child_journals
from midrun.runs.values import Receipt
from midrun.stores.encryption import read_unkeyed_lines
from midrun.text.entries import describe_ask_closure

if TYPE_CHECKING:  # half of the package: only a process that drives runs imports it
    from midrun.driver.context import Quotas
    from midrun.workers.local import LocalWorker

# Receipts: the answer to a control.


def make_receipt(control: c.Control, result: InputResult) -> Receipt:
    """Return the receipt for `control`.

    Raises:
        ControlRefused: The control was refused; the journal is unchanged.
    """
    verdict, after = result.verdict, result.after
    if isinstance(verdict, Refused):
        raise ControlRefused(
            after.run,
            get_input_name(type(control)),
            verdict.reason,
            after.phase,
            list_possible_controls(after),
            verdict.by,
            verdict.seq,
            _describe_refusal(control, result),
        )
    awaits_effect = isinstance(control, c.Pause | c.TakeOver) and after.phase is Phase.PAUSING
    if isinstance(control, c.Cancel) and after.phase is Phase.HALTED:
        awaits_effect = True  # it is journaled now, and carried out when the halt is lifted
    # `after.pending` holds redirects and messages that wait for a step boundary. A no-op
    # (`NoChange`) refers to the entry of the earlier control; an accepted one may have appended
    # several entries, from `result.seq` on.
    if isinstance(verdict, NoChange):
        waits = awaits_effect or any(p.seq == verdict.seq for p in after.pending)
        return Receipt(
            seq=verdict.seq,
            phase=after.phase,
            applied=not waits,
            already=verdict.name,
            by=verdict.by,
        )
    waits = awaits_effect or any(p.seq >= result.seq for p in after.pending)
    acknowledgement = next(
        (ack for entry in result.entries if (ack := getattr(entry, "ack", ""))), ""
    )
    return Receipt(
        seq=result.seq,
        phase=after.phase,
        applied=not waits,
        by=control.by.name,
        acknowledgement=acknowledgement,
    )


def _describe_refusal(control: c.Control, result: InputResult) -> str:
    """Return the details of a refusal: a closed ask, hidden arguments, or a file."""
    if isinstance(result.verdict, Refused) and result.verdict.reason == "files_refused":
        return find_run_file_problem(result.after, getattr(control, "files", ()))
    verdict, ask = result.verdict, result.after.find_ask(getattr(control, "ask", ""))
    if isinstance(control, c.Approve) and getattr(verdict, "reason", "") == "hidden_argument":
        call = None if ask is None else result.after.find_call(ask.call)
        return (
            "" if ask is None or call is None else check_hidden(ask, call.use, control.args)[0]
        )
    lost = isinstance(verdict, Refused) and verdict.reason in LOST_ASK_REASONS
    return describe_ask_closure(ask) if lost and ask is not None else ""


class RunService:
    """Reads and controls the runs of one store, for all handles of a `Midrun`.

    `worker` drives runs in this process; it is None until `Midrun` has started it, and in a
    process that drives none. The service asks it first for the state of a run, and tells it of
    every append at once. Without that, the worker would wait for the store's notification.
    """

    def __init__(
        self,
        store: Store,
        agents: Mapping[str, Agent],
        *,
        change_notifier: ChangeNotifier,
        live: LiveOutput,
        environment: Environment,
        secrets: SecretRegistry,
        key: bytes | None = None,
        quotas: "Quotas | None" = None,
    ) -> None:
        self.store = store
        self.agents = agents
        self.change_notifier = change_notifier
        self.live = live
        self.now = environment.clock
        self.new_id = environment.make_id
        self.worker: LocalWorker | None = None
        self._secrets = secrets
        self._key = key
        self._quotas = quotas
        # One lock per run, for as long as a control of the run holds or awaits it.
        self._control_locks: WeakValueDictionary[RunId, anyio.Lock] = WeakValueDictionary()

    def find_live_state(self, run: RunId) -> State | None:
        """Return the state of a run that is driven in this process; else None."""
        return None if self.worker is None else self.worker.find_live_state(run)

    def wake_worker(self, run: RunId, state: State) -> None:
        """Tell the worker of this process that the journal of `run` has grown."""
        if self.worker is not None:
            self.worker.handle_append(run, state)

    async def submit(self, run: RunId, control: Control, files: Sequence[File] = ()) -> Receipt:
        """Append `control` to the journal of `run`, and wake its worker if it is local.

        `files` are stored with it.

        Raises:
            ControlRefused: The run cannot take it in its phase.
            FileRefused: A quota leaves no room for the files.
            RunNotFound: There is no such run.
        """
        self.change_notifier.check_loop()
        # Controls of one run from this process take turns. Without the lock, n concurrent ones
        # would decide on the same seq, all but one would conflict, and each round would cost
        # n - 1 wasted appends. The lock is not needed for correctness: the store compares the
        # seq, and controls from other processes do not hold it.
        async with self._control_locks.setdefault(run, anyio.Lock()):
            # The worker of this process has the state at hand. It may be a moment old;
            # `append_input` reads on if that matters.
            state = self.find_live_state(run) or await load_run_state(self.store, run)
            if isinstance(control, Approve) and control.args is not None:
                await self._check_edited_args(state, control)
            control = await redact_control(self._secrets, state, control)
            control = self._add_call_title(state, control)
            bodies = None
            if files and isinstance(control, c.Resume | c.Redirect | c.Say | c.Answer):
                files = [await redact_file(self._secrets, run, file) for file in files]
                await self._check_storage(state, control.request_id, files)
                refs = await anyio.to_thread.run_sync(list_refs, files)  # hashes all bytes
                control, bodies = replace(control, files=refs), map_bodies(files)
            result = await append_input(self.store, state, control, self.now, bodies)
            # If another process drives the run, the store notifies its worker.
            if result.entries:
                self.wake_worker(run, result.after)
        return make_receipt(control, result)

    def check_controls(self, state: State, controls: Sequence[Control]) -> None:
        """Check that a run in `state` would accept `controls`, in this order.

        Raises:
            ControlRefused: The first control that it would refuse.
        """
        # Deciding stops at the first refusal, so there may be fewer results than controls.
        for control, result in zip(
            controls, decide_inputs(Batch(state, self.now()), controls), strict=False
        ):
            make_receipt(control, result)

    async def _check_storage(
        self, state: State, request_id: str, files: Sequence[File]
    ) -> None:
        """Check that the quotas leave room for the files of a control.

        A repeat of a control that was applied stores nothing, and gets the first receipt.

        Raises:
            FileRefused: A quota leaves no room for them.
        """
        if self._quotas is None:
            return
        if request_id and request_id in (await refresh_state(self.store, state)).requests:
            return
        if problem := await self._quotas.find_storage_problem(state.run_started, files):
            raise FileRefused(problem)

    async def _check_storage_of_task(
        self, run: RunId, started: RunStarted, files: Sequence[File]
    ) -> None:
        """Check that the quotas leave room for the files of a task, unless the run exists.

        Raises:
            FileRefused: A quota leaves no room for them.
        """
        if self._quotas is None:
            return
        try:
            await self.store.get_row(run)
        except RunNotFound:
            if problem := await self._quotas.find_storage_problem(started, files):
                raise FileRefused(problem) from None

    async def submit_all(self, run: RunId, controls: Sequence[Control]) -> None:
        """Append all of `controls` to the journal in one transaction, or none of them.

        Raises:
            ControlRefused: The run cannot take one of them.
        """
        self.change_notifier.check_loop()
        state = self.find_live_state(run) or await load_run_state(self.store, run)
        controls = [
            self._add_call_title(state, await redact_control(self._secrets, state, one))
            for one in controls
        ]
        every = await append_inputs(self.store, state, controls, self.now)
        for control, result in zip(controls, every, strict=False):
            make_receipt(control, result)
        self.wake_worker(run, every[-1].after)

    def _add_call_title(self, state: State, control: Control) -> Control:
        """Add the title to a redacted control that sets the arguments of a call.

        Without the agent in this process, the call gets the default title.
        """
        if isinstance(control, UseTool):
            agent = self._find_agent(state, state.speaker_name)
            if agent is None:
                return control
            use = add_title(self._secrets, state.run, agent, control.use)
            return replace(control, use=use)
        if isinstance(control, Approve) and control.args is not None:
            ask = state.find_ask(control.ask)
            call = state.find_call(ask.call) if ask is not None else None
            agent = None if call is None else self._find_agent(state, call.agent)
            if call is not None and agent is not None and call.call_kind == "tool":
                use = replace(call.use, args=control.args)
                use = add_title(self._secrets, state.run, agent, use)
                return replace(control, title=use.title)
        return control

    def _find_agent(self, state: State, name: str) -> Agent | None:
        """Return the agent of a run, or one of its handoffs; None if it is not known here."""
        agent = self.agents.get(state.run_started.agent)
        return agent if agent is None or not name else agent.family.get(name)

    async def _check_edited_args(self, state: State, control: Approve) -> None:
        """Check edited arguments against the tool's schema, while the ask is still open.

        This process may not have the agent. Then the arguments are not checked here, and the
        call fails in the worker if they do not match.

        Raises:
            ControlRefused: `bad_arguments`; the ask stays open, so the person can correct them.
        """
        ask = state.find_ask(control.ask)
        if ask is not None and ask.ask_kind == "child" and isinstance(ask.data, dict):
            # The ask belongs to a child run and is only shown on this one: check it there.
            child = await load_run_state(self.store, RunId(str(ask.data.get("run"))))
            child_ask = AskId(str(ask.data.get("ask")))
            await self._check_edited_args(child, replace(control, ask=child_ask))
            return
        call = state.find_call(ask.call) if ask is not None else None
        agent = None if call is None else self._find_agent(state, call.agent)
        if agent is None or call is None:
            return
        edited = agent.complete_use(RequestedCall(tool=call.use.tool, args=control.args))
        if edited.refused:
            phase, detail = state.phase, edited.refused
            raise ControlRefused(
                state.run,
                "approve",
                "bad_arguments",
                phase,
                list_possible_controls(state),
                detail=detail,
            )

    async def load_state(self, run: RunId) -> State:
        """Return the state of `run` as of its newest entry.

        Raises:
            RunNotFound: There is no such run.
        """
        state = self.find_live_state(run)
        if state is None:
            return await load_run_state(self.store, run)
        # The worker's state may be older than the newest entry; fold the rest.
        return await refresh_state(self.store, state)

    async def create_run(
        self,
        run: RunId,
        started: RunStarted,
        files: Sequence[File] = (),
        quotas: Sequence[RunQuota] = (),
    ) -> bool:
        """Create the journal of `run`; return False if an equal request created it before.

        If several processes race with the same request id, exactly one returns True. `files`
        belong to the task, and are stored with it.

        Raises:
            FileRefused: A file is beyond a limit, or a quota.
            ControlRefused: `request_id_reused`: the run exists, with other arguments.
            Misconfigured: The model settings of the run have a secret.
            QuotaReached: The run would exceed one of `quotas`.
        """
        self.change_notifier.check_loop()
        empty, settings = State(run=run), started.model_settings
        started = await redact_struct(self._secrets, run, started)
        if started.model_settings != settings:
            # A placeholder would be sent to the provider in place of the secret.
            problem = (
                "Cannot use a secret in the settings of a run: they are journaled. Set it in "
                "Agent(model_settings=…), which is not."
            )
            raise Misconfigured("model_settings", problem)
        if files:
            files = [await redact_file(self._secrets, run, file) for file in files]
            refs = await anyio.to_thread.run_sync(list_refs, files)  # hashes all bytes
            started = replace(started, files=refs)
            if problem := find_file_problem(started.files, get_file_limits(started)):
                raise FileRefused(problem)
            await self._check_storage_of_task(run, started, files)
        head = build_head(apply_entries(empty, [started], self.now()))
        try:
            appended = await self.store.create(
                run, [started], head=head, files=map_bodies(files), quotas=quotas
            )
        except RunExists:
            state = await load_run_state(self.store, run)
            if _get_request_identity(state.run_started) != _get_request_identity(started):
                detail = "this run has the same request id, and was started otherwise"
                control = "start" if started.forked is None else "fork"
                raise ControlRefused(
                    run, control, "request_id_reused", state.phase, (control,), detail=detail
                ) from None
            return False
        self.wake_worker(run, apply_entries(empty, [started], appended.at))
        return True

    def choose_run_id(self, request_id: str) -> RunId:
        """Return the id for a new run, derived from the request id if there is one."""
        return make_run_id(request_id) if request_id else RunId(f"run_{self.new_id()}")

    async def fork_run(
        self,
        run: RunId,
        seq: int | None,
        *,
        instruction: str,
        files: Sequence[File],
        by: Actor,
        request: str,
        quotas: Sequence[RunQuota] = (),
    ) -> tuple[RunId, bool]:
        """Start a run that continues `run` from its boundary at `seq`, or the newest one.

        Return its id, and False if an earlier request with the same id created it. `files`
        belong to the instruction.

        Raises:
            ControlRefused: `not_a_boundary`: a call was in flight at `seq`, or the journal has
                no such entry.
        """
        if seq is not None and seq < 1:
            raise await self._make_boundary_error(run, f"there is no entry {seq}")
        records = await self.store.read(run, limit=seq)
        # Folding a long journal takes long enough to delay the event loop.
        state, found = await anyio.to_thread.run_sync(_find_boundary, run, records, seq)
        if state.run_started.hosted:
            # The new run would begin its program anew, and make every call once more.
            detail = "the run has a hosted program, which would repeat its calls"
            raise await self._make_boundary_error(run, detail)
        forked = (
            None if found is None else make_fork_entry(found, by=by, instruction=instruction)
        )
        if forked is None or isinstance(forked, Refused):
            ends = f"the journal ends at {state.seq}"
            amid = f"a call was in flight at {seq}"
            detail = ends if seq is not None and seq > state.seq else amid
            raise await self._make_boundary_error(run, detail)
        new = self.choose_run_id(request)
        forked = replace(forked, request_id=request)
        return new, await self.create_run(new, forked, files, quotas)

    async def _make_boundary_error(self, run: RunId, detail: str) -> ControlRefused:
        state = await self.load_state(run)
        allowed = list_possible_controls(state)
        return ControlRefused(
            run, "fork", "not_a_boundary", state.phase, allowed, detail=detail
        )

    async def wait_for_phase(self, run: RunId, phases: Collection[Phase]) -> State:
        """Wait until the run is in one of `phases`, and return its state at that moment."""

        # A run in progress appends many entries per second. If the local worker drives it, its
        # state in memory is enough to see that the phase is still another one; the filter then
        # saves waking the waiter and reading the store. If another process drives it, every
        # change has to be looked at.
        def may_have_reached() -> bool:
            live_state = self.find_live_state(run)
            return live_state is None or live_state.phase in phases

        # Subscribe before the first read: a change between the two sets the wakeup.
        with self.change_notifier.subscribe(run, may_have_reached) as wakeup:
            while True:
                if may_have_reached():
                    state = await self.load_state(run)
                    if state.phase in phases:
                        return state
                await self.wait_for_change(wakeup)

    async def wait_for_change(self, wakeup: Wakeup) -> None:
        """Wait until the subscribed run has changed.

        Raises:
            StoreClosed: The `Midrun` was left; there will be no further notifications.
        """
        # Checked twice: the notifier may have ended before this wait, and its end is also
        # signalled by waking all waiters.
        if not self.change_notifier.is_closed:
            await wakeup.wait()
        if self.change_notifier.is_closed:
            raise StoreClosed("midrun")

    async def read_file(self, state: State, file_hash: str) -> File:
        """Return a file that an entry of the run names.

        Raises:
            FileMissing: No entry names it.
        """
        ref = find_file_ref(state, file_hash)
        if ref is None:
            raise FileMissing(state.run, file_hash)
        data = await self.store.read_file(state.run, file_hash)
        return File(ref.name, ref.media_type, data)

    async def make_checkpoint(
        self, state: State, *, expires: Micros | None = None
    ) -> Checkpoint:
        """Return a checkpoint of a parked run, signed if there is a key.

        Raises:
            CheckpointRefused: The run, or one of its children, is not at rest.
        """
        # The journal may have grown since `state` was read: cut it there.
        pairs = await read_unkeyed_lines(self.store, state.run, limit=state.seq)
        children = await load_child_journals(self.store, state)
        return Checkpoint.of(
            state.run,
            pairs,
            agent=state.run_started.agent,
            agent_fingerprint=state.agent_fingerprint,
            phase=state.phase,
            now=self.now(),
            expires=expires,
            key=self._key,
            children=children,
            files=await load_checkpoint_files(self.store, [(state.run, pairs), *children]),
        )

    def complete_use(self, state: State, use: RequestedCall) -> RequestedCall:
        """Complete a person's tool use with the traits that the agent's tool declares.

        Raises:
            ControlRefused: `unknown_agent`: this process does not have the agent, so it cannot
                find out whether the call needs an approval. `bad_arguments`: there is no such
                tool, or the arguments do not match its schema.
        """
        agent, phase = self._find_agent(state, state.speaker_name), state.phase
        reason = "unknown_agent"
        detail = f"this process does not have agent {state.speaker_name}"
        if agent is not None:
            use = agent.complete_use(use)
            reason, detail = "bad_arguments", use.refused
        if detail:
            raise ControlRefused(
                state.run,
                "use_tool",
                reason,
                phase,
                list_possible_controls(state),
                detail=detail,
            )
        return use


def _get_request_identity(started: RunStarted) -> tuple[object, ...]:
    """Return the fields in which a repeated request must be equal to the first one.

    Of a fork only the run counts, not the boundary: a repeat of a fork from the newest boundary
    may find a newer one.
    """
    origin = started.forked.run if started.forked is not None else ""
    return (
        started.agent,
        started.task,
        started.thread,
        started.labels,
        started.by,
        origin,
        started.files,
        started.tenant,
        started.team,
    )


def make_run_id(request_id: str) -> RunId:
    """Return the id of the run that a request with this id starts.

    The id is a hash of the request id. A repeat, from any process, computes the same run id and
    fails to create it, so no table of request ids is needed.
    """
    return RunId(f"run_{sha256(request_id.encode()).hexdigest()[: 2 * ID_BYTES]}")


def _find_boundary(
    run: RunId, records: Sequence[Record], seq: int | None
) -> tuple[State, State | None]:
    """Return the last state, and the state at the newest boundary, or at `seq` if given.

    The second one is None if there is no such boundary.
    """
    state, found = State(run=run), None
    for record in records:
        state = fold(run, [record], state)
        if (seq is None or record.seq == seq) and is_at_boundary(state):
            found = state
    return state, found


# Halts: the effect of lifting one on the runs that it covered.


async def lift_halted_runs(service: RunService, by: Actor) -> None:
    """Lift the halt from every halted run that no halt in the store covers any more.

    A run whose journal cannot be read stays halted.
    """
    store = service.store
    halts = tuple(await store.list_halts())
    cursor = ""
    while True:
        page = await store.list_runs(RunQuery(phases=(Phase.HALTED,), limit=200, cursor=cursor))
        for row in page.items:
            if any(h.covers(row.run, row.head) for h in halts):
                continue
            try:
                result = await append_input(
                    store, await load_run_state(store, row.run), Lift(by=by), service.now
                )
            except JournalUnreadable:
                continue
            if result.entries:
                service.wake_worker(row.run, result.after)
        cursor = page.cursor
        if not cursor:
            return


# Threads: conversations of several runs.

THREAD_MAX_RUNS: Final = 50
"""The default of `Midrun(thread_runs=…)`: how many runs of a thread its history covers."""


async def load_thread_history(
    store: Store,
    thread: str,
    *,
    tenant: str = "",
    owner: str = "",
    max_runs: int = THREAD_MAX_RUNS,
) -> tuple[tuple[Message, ...], tuple[str, ...]]:
    """Return the messages of the newest runs of a thread, and the people who steered them.

    The oldest messages come first. Each run contributes only its own messages, without the
    history that it started with. So a message is included even if an older run wrote it after
    a newer run of the thread had started. Each tenant has threads of its own. With an `owner`,
    only runs of this owner count: two owners may use the same thread name for different
    threads.
    """
    if not thread:
        return (), ()
    query = RunQuery(thread=thread, tenant=tenant, owner=owner, limit=max_runs)
    page = await store.list_runs(query)
    messages: list[Message] = []
    people: list[str] = []
    for row in reversed(page.items):  # the page has the newest run first
        try:
            state = await load_run_state(store, row.run)
        except (JournalCorrupt, JournalTooNew):
            unreadable = f"What was said in run {row.run} cannot be read any more."
            messages.append(Message(role="runtime", text=unreadable))
            continue
        messages += iter_history(state, inherited=len(state.run_started.history))
        people += state.steered_by
    shortened = limit_history(messages)
    if page.cursor:  # the thread has more runs than one page
        left_out = (
            f"Messages from before the newest {max_runs} runs of this thread are left out."
        )
        shortened = (Message(role="runtime", text=left_out), *shortened)
    return shortened, tuple(people)
