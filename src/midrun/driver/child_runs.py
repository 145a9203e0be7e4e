"""Child runs: a call that is a run of its own, with its own journal.

A child run is driven like every other run, by any worker. The parent's call is in flight while
the child works. All that happens here is to start the child, to send it controls, and to wait
until it rests. The id of the child follows from the id of the call, so that every attempt, in
every process, finds the same child.

- **Questions.** An ask of the child is opened on the parent as well (`AskPerson(child=True)`),
  and the parent's call waits for it. It can be answered on either run. An answer on the parent
  starts the call again, which passes the answer on to the child. An answer on the child makes
  the parent's ask moot (`update_parent`).
- **A child that does not continue by itself** (paused at a cap or by a person, taken over, or
  halted) is shown on the parent as a question, too.
- **Pause, cancel and halt** of the parent are passed on (`send_control`). The parent's call
  ends when the child rests. So a parent is paused only when its children are, and a child has
  undone its work before its parent begins to undo.
- **Undo.** To undo or release a child call is to cancel the child (`end_child`).

A control may be passed on more than once: after a crash, or by two tasks. That is harmless: the
repeat is a no-op (`NoChange`), or has the same request id.
"""

import logging
from collections.abc import Collection, Iterable
from contextlib import suppress
from typing import Final

import anyio

from midrun.agents.agent import Agent
from midrun.agents.tool import ChildAgent
from midrun.core import controls as c
from midrun.core.driver_inputs import AskPerson, CloseCall, CloseChildAsk, TakeBack
from midrun.core.entries import CallAborted, CallDone, CallFailed, RunStarted
from midrun.core.evolve import apply_entries
from midrun.core.ids import AskId, RunId, make_child_id
from midrun.core.placeholders import check_hidden
from midrun.core.run_head import build_head
from midrun.core.state import (
    Ask,
    CallState,
    PauseState,
    State,
    find_asked_use,
    get_child_ask_id,
    read_child_caps,
)
from midrun.core.undo import is_child_ended
from midrun.core.values import (
    RESTING_PHASES,
    TERMINAL_PHASES,
    Actor,
    Decision,
    Json,
    Origin,
    Phase,
    UndoSet,
)
from midrun.driver.context import DriverContext
from midrun.driver.journal_writer import UnleasedInput, append_input, load_run_state
from midrun.driver.user_code import InFlightCall
from midrun.errors import (
    JournalUnreadable,
    RunExists,
    RunNotFound,
    StoreBusy,
    StoreError,
    StoreFull,
    StoreUnreachable,
)
from midrun.ports.store import HaltRecord
from midrun.text.phrases import format_condition
from midrun.text.status import CAP_NOUNS

log = logging.getLogger("midrun")

STORE_RETRY_S: Final = 0.25
"""Seconds between two attempts to reach a store that cannot write at present."""

HELD_PARENT_PHASES: Final = frozenset({Phase.PAUSING, Phase.PAUSED, Phase.HALTED})
"""Phases of a parent in which its children are not driven."""

TEMPORARY_STORE_ERRORS: Final = (StoreBusy, StoreFull, StoreUnreachable)
"""Temporary errors of a store. They say nothing about the child, so they are waited out."""


async def run_child(
    context: DriverContext, agent: Agent, in_flight: InFlightCall, state: State
) -> CloseCall | AskPerson:
    """Start the child run of a call, and wait for its end or its question."""
    call, epoch = in_flight.call, state.epoch
    tool = agent.find_tool(call.use.tool)
    if tool is None or tool.agent is None:
        problem = f"agent {agent.name} has no agent {call.use.tool} any more"
        return CloseCall(epoch=epoch, outcome=CallFailed(call=call.id, error=problem))
    child = make_child_id(state.run, call.id)
    if in_flight.is_stopping:
        return CloseCall(epoch=epoch, outcome=CallAborted(call=call.id))
    with in_flight.scope:
        while True:
            try:
                return await _wait_for_child(context, tool.agent, in_flight, state, child)
            except TEMPORARY_STORE_ERRORS:
                await anyio.sleep(STORE_RETRY_S)
    # The scope was cancelled: this worker gives the run back. The child is not stopped; the
    # next worker makes the call again and finds the same child.
    return CloseCall(epoch=epoch, outcome=CallAborted(call=call.id))


async def _wait_for_child(
    context: DriverContext,
    agent: ChildAgent,
    in_flight: InFlightCall,
    state: State,
    child: RunId,
) -> CloseCall | AskPerson:
    await _create_child(context, agent, in_flight, state, child)
    # A control that came before the child existed.
    await send_control(context, state.run, in_flight)
    await _send_answers(context, state, in_flight.call.id, child)
    await _resume_child(context, state.run, child)
    # Subscribe before the first look: a change between the look and the wait sets the wakeup.
    with context.change_notifier.subscribe(child) as wakeup:
        while True:
            row = await context.store.get_row(child)
            if row.head.phase is Phase.PAUSED and not in_flight.is_stopping:
                # The parent's pause was withdrawn, but had reached the child before.
                await _resume_child(context, state.run, child)
            if row.head.phase in RESTING_PHASES:
                child_state = await load_run_state(context.store, child)
                ending = _make_ending(in_flight, state, child_state)
                if ending is None and await _is_resting_by_itself(context, state, child_state):
                    ending = _ask_about_child(child_state, in_flight, state)
                if ending is not None:
                    return ending
            await wakeup.wait()


def _make_ending(
    in_flight: InFlightCall, state: State, child: State
) -> CloseCall | AskPerson | None:
    """Return the end of the call for a child that rests; None: keep waiting."""
    call, epoch = in_flight.call.id, state.epoch
    match child.phase:
        # A child that has completed counts, even if its parent is stopping: its work is done.
        case Phase.COMPLETED:
            steered = tuple(name for name in child.steered_by if name not in state.steered_by)
            result = child.output if child.value is None else child.value
            done = CallDone(call=call, result=result, steered_by=steered)
            return CloseCall(epoch=epoch, outcome=done)
        case Phase.FAILED if not in_flight.is_stopping:
            error = child.error.error if child.error else "it failed"
            return CloseCall(epoch=epoch, outcome=CallFailed(call=call, error=error))
        case Phase.CANCELLED if not in_flight.is_stopping:
            error = f"run {child.run} was cancelled"
            return CloseCall(epoch=epoch, outcome=CallFailed(call=call, error=error))
        case Phase.WAITING if not in_flight.is_stopping and child.open_asks:
            return _mirror_ask(child, in_flight, state)
        # The parent is being stopped, and the child rests: the control has arrived.
        case _ if in_flight.is_stopping:
            return CloseCall(epoch=epoch, outcome=CallAborted(call=call))
        case _:
            return None


async def _is_resting_by_itself(context: DriverContext, parent: State, child: State) -> bool:
    """Tell whether the child rests by itself, and not because its parent was paused."""
    if child.phase is Phase.PAUSED:
        pause = child.pause or PauseState()
        # At a cap it stays, although the parent may have asked for a pause meanwhile.
        return pause.reason == "cap" or pause.by != _make_parent_actor(parent.run).name
    if child.phase is not Phase.HALTED:
        return False
    # A halt that covers both is the parent's reason as well: they continue together.
    halts = await context.store.list_halts()
    return _is_halted(child, halts) and not _is_halted(parent, halts)


def _is_halted(state: State, halts: Iterable[HaltRecord]) -> bool:
    started = state.run_started
    return any(halt.covers(state.run, started) for halt in halts)


def _ask_about_child(child: State, in_flight: InFlightCall, state: State) -> AskPerson:
    """Return a question on the parent that says why its child does not continue."""
    pause = child.pause or PauseState()
    reason, remedy = f"is paused by {pause.by or 'a person'}", "answer anything to let it go on"
    if child.phase is Phase.HALTED:
        reason, remedy = "is halted", "it goes on when the halt is lifted"
    elif child.taken_over_by:
        reason, remedy = (
            f"was taken over by {child.taken_over_by}",
            "it goes on when it is handed back",
        )
    elif pause.reason == "cap" and pause.cap_name:
        reason = f"is paused at its {CAP_NOUNS[pause.cap_name]} cap"
        remedy = f'raise it there, or answer with the new bound: {{"{pause.cap_name}": …}}'
    elif pause.reason == "cap" and pause.condition:
        reason = f"is paused ({format_condition(pause.condition)})"
    data: Json = {
        "run": child.run,
        "ask": "",
        "kind": "question",
        "tool": "",
        "why": "",
        "data": {"phase": child.phase, "reason": pause.reason, "cap": pause.cap_name},
    }
    return AskPerson(
        epoch=state.epoch,
        call=in_flight.call.id,
        question=f"Child {child.run} {reason}: {remedy}.",
        data=data,
        child=True,
        child_ask_kind="question",
        # Over HTTP only operators may raise caps.
        audience="operator" if pause.cap_name else "",
    )


def _mirror_ask(child: State, in_flight: InFlightCall, state: State) -> AskPerson:
    """Return the first open ask of the child as an ask of its parent."""
    # One at a time: the parent's call can wait for one answer. When it is settled, the call is
    # made again and shows the next open ask of the child.
    ask = child.asks[child.open_asks[0] - 1]
    call = child.find_call(ask.call)
    assert call is not None, "every ask belongs to a call"
    # The child's ask may itself show an ask of a grandchild: pass on the call that is meant.
    # The data of an approval, and of an ask about an outcome, are the arguments of that call.
    use, shown = find_asked_use(ask, call), ask.data
    if ask.ask_kind == "child" and get_child_ask_id(ask) and isinstance(ask.data, dict):
        shown = ask.data.get("data")
    data: Json = {
        "run": child.run,
        "ask": ask.id,
        "kind": ask.effective_kind,
        "tool": use.tool,
        "why": use.why,
        **({"title": use.title} if use.title else {}),
        "data": shown,
        **_describe_hidden(ask, call),
    }
    return AskPerson(
        epoch=state.epoch,
        call=in_flight.call.id,
        question=ask.question,
        data=data,
        child=True,
        child_ask_kind=ask.effective_kind,
        audience=ask.audience,
        four_eyes=ask.four_eyes,
        excluded=ask.excluded,
        expires=ask.expires,
        continuation=None if ask.continuation is None else {},  # with one it can be declined
        files=ask.files,  # their bytes are in the store of both runs
    )


def _describe_hidden(ask: Ask, call: CallState) -> dict[str, Json]:
    """Return the data about hidden arguments in a child's ask, for the parent's ask."""
    words, approvable = check_hidden(ask, call.use)
    inner = ask.data if ask.ask_kind == "child" and isinstance(ask.data, dict) else {}
    secret = inner.get("secret") or list(call.use.traits.secret)
    facts = {"hidden": words, "unapprovable": not approvable, "secret": secret}
    return {name: value for name, value in facts.items() if value}


async def _create_child(
    context: DriverContext,
    agent: ChildAgent,
    in_flight: InFlightCall,
    state: State,
    child: RunId,
) -> None:
    """Create the child run, unless an earlier attempt has created it."""
    args = in_flight.call.use.args
    # It has one argument. Midrun names it `task`; an agent of another framework may not.
    task = next(iter(args.values()), "") if isinstance(args, dict) else ""
    started = RunStarted(
        task=str(task),
        **agent.spec(),
        labels=state.run_started.labels,
        parent=Origin(run=state.run, call=in_flight.call.id),
        steered_by=tuple(
            name for name in in_flight.call.steered_by if name != state.run_started.by
        ),
        by=state.run_started.by,
        role=state.run_started.role,
        tenant=state.run_started.tenant,
        team=state.run_started.team,
    )
    empty = State(run=child)
    head = build_head(apply_entries(empty, [started], context.clock()))
    try:
        appended = await context.store.create(child, [started], head=head)
    except RunExists:
        return  # created by an earlier attempt, perhaps in another process
    context.on_appended(child, apply_entries(empty, [started], appended.at))


async def _send_answers(context: DriverContext, state: State, call: str, child: RunId) -> None:
    """Send the child the answers that were given on its parent."""
    # All answers ever given for this call, also those that were sent before: the child may have
    # missed one in a crash. An ask that is closed on the child is skipped.
    for ask in state.asks:
        if ask.call != call or ask.close_reason != "answered" or ask.decision is None:
            continue
        if not (child_ask_id := get_child_ask_id(ask)):
            await _append_to_child(
                context, child, _make_resume(state.run, ask, ask.decision.value)
            )
            continue
        child_state = await load_run_state(context.store, child)
        child_ask = child_state.find_ask(child_ask_id)
        if child_ask is not None and not child_ask.close_reason:
            result = await append_input(
                context.store, child_state, _make_decision(ask, child_ask.id), context.clock
            )
            context.on_appended(child, result.after)


def _make_resume(parent: RunId, ask: Ask, answer: Json) -> c.Resume:
    """Return the control for an answer about a child that rests: resume it.

    The answer may hold new caps. The control has a request id that follows from the ask, so
    that it is applied once, however often it is sent.
    """
    # `decide` refuses caps from a user. An older version may have recorded such an answer.
    caps = read_child_caps(ask, answer) if ask.decider_role == "operator" else {}
    by = Actor(name=ask.decided_by, role=ask.decider_role)
    return c.Resume(caps=caps, by=by, request_id=f"{parent}/{ask.id}")


def _make_decision(ask: Ask, child_ask_id: AskId) -> c.Control:
    decision = ask.decision or Decision(choice="decline")
    by = Actor(name=ask.decided_by, role=ask.decider_role)
    match decision.choice:
        case "answer":
            return c.Answer(
                ask=child_ask_id, value=decision.value, files=ask.answer_files, by=by
            )
        case "approve":
            return c.Approve(ask=child_ask_id, args=decision.value, by=by)
        case _:
            return c.Decline(ask=child_ask_id, reason=decision.reason, by=by)


async def _resume_child(context: DriverContext, parent: RunId, child: RunId) -> None:
    """Resume a child that its parent has paused; leave every other pause alone."""
    child_state = await load_run_state(context.store, child)
    pause = child_state.pause
    if (
        child_state.phase is Phase.PAUSED
        and pause is not None
        and pause.by == _make_parent_actor(parent).name
    ):
        result = await append_input(
            context.store, child_state, c.Resume(by=_make_parent_actor(parent)), context.clock
        )
        context.on_appended(child, result.after)


async def _wait_for_phase(
    context: DriverContext, child: RunId, phases: Collection[Phase]
) -> State:
    """Wait until the child is in one of `phases`."""
    with context.change_notifier.subscribe(child) as wakeup:
        while True:
            row = await context.store.get_row(child)
            if row.head.phase in phases:
                return await load_run_state(context.store, child)
            await wakeup.wait()


async def send_control(context: DriverContext, parent: RunId, in_flight: InFlightCall) -> None:
    """Send the child of a call in flight the control that its parent got; retry on errors."""
    effect, by = in_flight.sent_control, _make_parent_actor(parent)
    if effect is None:
        return
    control: c.Control = c.Halt(by=by)
    if effect.control == "pause":
        control = c.Pause(now=effect.now, by=by)
    elif effect.control == "cancel":
        control = c.Cancel(undo=effect.undo, by=by)
    while not in_flight.finished:
        try:
            await _append_to_child(context, effect.child, control)
        except RunNotFound:
            return  # `_wait_for_child` sends it when it has created the child
        except StoreError:
            await anyio.sleep(STORE_RETRY_S)
        except JournalUnreadable as error:
            # This is a task of the worker's group: raised here, the error would end all runs of
            # the process. The child may be driven by a newer midrun, so a pause or a halt waits
            # for it. A cancel ends the call; its cleanup fails, too, and the report says so.
            log.error("Cannot %s run %s: %s", effect.control, effect.child, error)  # noqa: TRY400 - a traceback adds nothing
            if effect.control == "cancel":
                in_flight.scope.cancel()
            return
        else:
            # The child may rest already, so that the control changes nothing and no change is
            # announced. Wake the waiter: with `sent_control` set, it ends the call now.
            context.change_notifier.notify(effect.child)
            return


async def end_child(context: DriverContext, parent: State, child: RunId) -> str:
    """Cancel a child run and wait until it has undone its work; retry on store errors.

    Returns a text that says how many calls it could not undo or release, "" if none.
    """
    while True:
        try:
            count = len((await _cancel_and_wait(context, parent, child)).residue)
        except RunNotFound:
            return ""  # it was never created
        except TEMPORARY_STORE_ERRORS:
            await anyio.sleep(STORE_RETRY_S)
        else:
            return (
                f"run {child} could not undo or release {count} of its calls" if count else ""
            )


async def _cancel_and_wait(context: DriverContext, parent: State, child: RunId) -> State:
    # Without a cancel of the parent, the child was left behind, by a redirect for example.
    undo: UndoSet = parent.cancel_request.undo if parent.cancel_request else "in_flight"
    by = _make_parent_actor(parent.run)
    await _append_to_child(context, child, c.Cancel(undo=undo, by=by))
    # The wait has no limit of its own: the parent must not undo its effects before those of the
    # child. The undos of the child have their own limits.
    child_state = await _wait_for_phase(context, child, TERMINAL_PHASES)
    if undo == "all":
        # The child may have completed before the cancel came. Then it undoes all its work now.
        await _append_to_child(context, child, TakeBack(parent=parent.run))
        child_state = await _wait_for_phase(context, child, TERMINAL_PHASES)
    if child_state.residue and parent.undo_retried_seq:
        # Once for each retry of the parent's undo: the request id makes a repetition by another
        # worker harmless.
        request = f"{parent.run}/undo/{parent.undo_retried_seq}"
        await _append_to_child(context, child, c.RetryUndo(by=by, request_id=request))
        child_state = await _wait_for_phase(context, child, TERMINAL_PHASES)
    return child_state


async def _append_to_child(
    context: DriverContext, child: RunId, new_input: UnleasedInput
) -> None:
    result = await append_input(
        context.store, await load_run_state(context.store, child), new_input, context.clock
    )
    if result.entries:
        context.on_appended(child, result.after)


async def update_parent(context: DriverContext, child: State) -> bool:
    """Close asks on the parent that were settled on `child`; False: do not drive the child.

    While its parent is paused or halted, a child is not driven: it is paused here instead. A
    child that its parent has ended already is cancelled here. It can still appear: a worker
    that was frozen between `CallStarted` and the creation of the child creates it when it
    thaws, after another worker found no child to end. Every worker comes here before it drives
    a child, so such a child never works.
    """
    origin = child.run_started.parent
    if origin is None:
        return True
    try:
        parent = await load_run_state(context.store, origin.run)
    except RunNotFound:
        return True  # it was exported without its parent
    for number in parent.open_asks:
        ask = parent.asks[number - 1]
        if ask.ask_kind == "child" and ask.call == origin.call and _is_moot(ask, child):
            result = await append_input(
                context.store, parent, CloseChildAsk(ask=ask.id), context.clock
            )
            context.on_appended(origin.run, result.after)
    if child.phase not in {Phase.QUEUED, Phase.RUNNING}:
        return True
    by, call = _make_parent_actor(origin.run), parent.find_call(origin.call)
    if call is not None and is_child_ended(call):
        await _append_to_child(context, child.run, c.Cancel(by=by))
        return False
    if parent.phase in HELD_PARENT_PHASES:
        await _append_to_child(context, child.run, c.Pause(by=by))
        return False
    return True


async def close_moot_asks(context: DriverContext, parent: State) -> None:
    """Close the asks of `parent` that were settled on its children already.

    When a child comes to rest or continues, its worker calls `update_parent`, which closes the
    ask. Two races leave the ask open. The worker of the parent, which has seen an older state
    of the child, may open the ask after that. Or the worker of the child may die before the
    call.
    """
    asks = [parent.asks[number - 1] for number in parent.open_asks]
    for call in [ask.call for ask in asks if ask.ask_kind == "child"]:
        with suppress(RunNotFound):  # the parent was imported without its child
            child = await load_run_state(context.store, make_child_id(parent.run, call))
            await update_parent(context, child)


def _is_moot(ask: Ask, child: State) -> bool:
    if not (child_ask_id := get_child_ask_id(ask)):
        return child.phase not in {Phase.PAUSED, Phase.HALTED} and not child.taken_over_by
    child_ask = child.find_ask(child_ask_id)
    return child_ask is None or bool(child_ask.close_reason)


def _make_parent_actor(run: RunId) -> Actor:
    return Actor(name=f"run:{run}", role="system")
