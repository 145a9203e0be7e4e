"""Child runs: a call that is a run of its own, with its own journal.

A child run is driven like every other run, by any worker. The parent's call is in flight while
the child works. All that happens here is to start the child, to send it controls, and to wait
until it rests. The id of the child follows from the id of the call, so that every attempt, in
every process, finds the same child.

- **Questions.** An ask of the child is opened on the parent as well (`AskPerson(child=True)`),
  and the parent's call waits for it. It can be answered on either run. An answer on the parent
  starts the call again, which passes the answer on to the child. An answer on the child makes
  the parent's ask moot (`update_parent`).
- **A child that does not go on by itself** (paused at a cap or by a person, taken over, halted)
  is shown on the parent as a question, too.
- **Pause, cancel and halt** of the parent are passed on (`send_control`). The parent's call
  ends when the child rests. So a parent is paused only when its children are, and a child has
  undone its work before its parent begins to undo.
- **Undo.** To undo or release a child call is to cancel the child (`end_child`).

Every control that is passed on may be sent more than once: after a crash, or by two tasks. It
is harmless, as `decide` answers *already so*, or because it has a request id.
"""

from collections.abc import Collection, Iterable
from typing import Final

import anyio

from midrun.agents.agent import Agent
from midrun.agents.tool import Delegate
from midrun.core import controls as c
from midrun.core.child_runs import find_child_ask, read_child_caps
from midrun.core.driver_inputs import AskMoot, AskPerson, Close, TakeBack
from midrun.core.entries import CallAborted, CallDone, CallFailed, RunStarted
from midrun.core.evolve import apply
from midrun.core.ids import AskId, RunId, child_id
from midrun.core.placeholders import check_hidden
from midrun.core.run_head import head_of
from midrun.core.state import Ask, Call, Hold, State
from midrun.core.values import RESTS, TERMINAL, Actor, Decision, Json, Origin, Phase, UndoSet
from midrun.driver.context import Means
from midrun.driver.in_flight_call import Flight
from midrun.driver.journal_writer import Given, bring, load
from midrun.errors import (
    RunExists,
    RunNotFound,
    StoreBusy,
    StoreError,
    StoreFull,
    StoreUnreachable,
)
from midrun.ports.store import Halt

AGAIN_S: Final = 0.25
"""Seconds between two attempts to reach a store that cannot write at present."""

HELD: Final = frozenset({Phase.PAUSING, Phase.PAUSED, Phase.HALTED})
"""Phases of a parent in which its children are not driven."""

TROUBLE: Final = (StoreBusy, StoreFull, StoreUnreachable)
"""Temporary errors of a store. They say nothing about the child, so they are waited out."""


async def attend(means: Means, agent: Agent, flight: Flight, state: State) -> Close | AskPerson:
    """Start the child run of a call, and wait for its end or its question."""
    call, epoch = flight.call, state.epoch
    tool = agent.tools.get(call.use.tool)
    if tool is None or tool.agent is None:
        problem = f"agent {agent.name} has no agent {call.use.tool} any more"
        return Close(epoch=epoch, outcome=CallFailed(call=call.id, error=problem))
    child = child_id(state.run, call.id)
    if flight.stop:
        return Close(epoch=epoch, outcome=CallAborted(call=call.id))
    with flight.scope:
        while True:
            try:
                return await _attended(means, tool.agent, flight, state, child)
            except TROUBLE:
                await anyio.sleep(AGAIN_S)
    # The scope was cancelled: this worker gives the run back. The child is not stopped; the
    # next worker makes the call again and finds the same child.
    return Close(epoch=epoch, outcome=CallAborted(call=call.id))


async def _attended(
    means: Means, agent: Delegate, flight: Flight, state: State, child: RunId
) -> Close | AskPerson:
    await _begin(means, agent, flight, state, child)
    await pass_on(means, state.run, flight)  # a control that came before the child existed
    await _pass_decisions(means, state, flight.call.id, child)
    await _resume(means, state.run, child)
    # Subscribe before the first look: a change between the look and the wait sets the wakeup.
    with means.news.of(child) as wakeup:
        while True:
            row = await means.store.row(child)
            if row.head.phase is Phase.PAUSED and not flight.stop:
                # The parent's pause was withdrawn, but had reached the child before.
                await _resume(means, state.run, child)
            if row.head.phase in RESTS:
                child_state = await load(means.store, child)
                ending = _end(flight, state, child_state)
                if ending is None and await _rests_alone(means, state, child_state):
                    ending = _stands(child_state, flight, state)
                if ending is not None:
                    return ending
            await wakeup.wait()


def _end(flight: Flight, state: State, child: State) -> Close | AskPerson | None:
    """Return the end of the call for a child that rests; None: keep waiting."""
    call, epoch = flight.call.id, state.epoch
    match child.phase:
        # A child that has completed counts, even if its parent is stopping: its work is done.
        case Phase.COMPLETED:
            steered = tuple(name for name in child.steered_by if name not in state.steered_by)
            done = CallDone(call=call, result=child.output, steered_by=steered)
            return Close(epoch=epoch, outcome=done)
        case Phase.FAILED if not flight.stop:
            error = child.error.error if child.error else "it failed"
            return Close(epoch=epoch, outcome=CallFailed(call=call, error=error))
        case Phase.CANCELLED if not flight.stop:
            error = f"run {child.run} was cancelled"
            return Close(epoch=epoch, outcome=CallFailed(call=call, error=error))
        case Phase.WAITING if not flight.stop and child.open_asks:
            return _asked(child, flight, state)
        # The parent is being stopped, and the child rests: the control has arrived.
        case _ if flight.stop:
            return Close(epoch=epoch, outcome=CallAborted(call=call))
        case _:
            return None


async def _rests_alone(means: Means, parent: State, child: State) -> bool:
    """Tell whether the child rests for a reason of its own, and not with its parent."""
    if child.phase is Phase.PAUSED:
        return child.hold is None or child.hold.by != _parent(parent.run).name
    if child.phase is not Phase.HALTED:
        return False
    # A halt that covers both is the parent's reason as well: they continue together.
    halts = await means.store.halts()
    return _covered(child, halts) and not _covered(parent, halts)


def _covered(state: State, halts: Iterable[Halt]) -> bool:
    started = state.started
    return any(halt.covers(state.run, started.agent, started.labels) for halt in halts)


def _stands(child: State, flight: Flight, state: State) -> AskPerson:
    """Return a question on the parent that says why its child does not go on."""
    hold = child.hold or Hold()
    reason, remedy = f"is paused by {hold.by or 'somebody'}", "answer anything to let it go on"
    if child.phase is Phase.HALTED:
        reason, remedy = "is halted", "it goes on when the latch is lifted"
    elif child.wheel:
        reason, remedy = f"was taken over by {child.wheel}", "it goes on when it is handed back"
    elif hold.why == "cap" and hold.cap:
        reason = f"is paused at its {hold.cap.removesuffix('s').replace('_', ' ')} cap"
        remedy = f'raise it there, or answer with the new bound: {{"{hold.cap}": …}}'
    data: Json = {
        "run": child.run,
        "ask": "",
        "kind": "question",
        "tool": "",
        "why": "",
        "data": {"phase": child.phase, "reason": hold.why, "cap": hold.cap},
    }
    return AskPerson(
        epoch=state.epoch,
        call=flight.call.id,
        question=f"Child {child.run} {reason}: {remedy}.",
        data=data,
        child=True,
        of="question",
        audience="operator" if hold.cap else "",  # only operators may raise caps over HTTP
    )


def _asked(child: State, flight: Flight, state: State) -> AskPerson:
    """Return the first open ask of the child as an ask of its parent."""
    ask = child.asks[child.open_asks[0] - 1]
    call = child.call(ask.call)
    data: Json = {
        "run": child.run,
        "ask": ask.id,
        "kind": ask.kind,
        "tool": call.use.tool if call else "",
        "why": call.use.why if call else "",
        "data": ask.data,
        **_hidden(ask, call),
    }
    return AskPerson(
        epoch=state.epoch,
        call=flight.call.id,
        question=ask.question,
        data=data,
        child=True,
        of=ask.kind,
        audience=ask.audience,
        four_eyes=ask.four_eyes,
        excluded=ask.excluded,
        expires=ask.expires,
        continuation=None if ask.continuation is None else {},  # with one it can be declined
    )


def _hidden(ask: Ask, about: Call | None) -> dict[str, Json]:
    """Return the data about hidden arguments in a child's ask, for the parent's ask."""
    if about is None:
        return {}
    words, approvable = check_hidden(ask, about.use)
    inner = ask.data if ask.ask_kind == "child" and isinstance(ask.data, dict) else {}
    secret = inner.get("secret") or list(about.use.traits.secret)
    facts = {"hidden": words, "unapprovable": not approvable, "secret": secret}
    return {name: value for name, value in facts.items() if value}


async def _begin(
    means: Means, agent: Delegate, flight: Flight, state: State, child: RunId
) -> None:
    """Create the child run, unless an earlier attempt has created it."""
    args = flight.call.use.args
    task = args.get("task", "") if isinstance(args, dict) else ""
    started = RunStarted(
        task=str(task),
        **agent.spec(),
        labels=state.started.labels,
        parent=Origin(run=state.run, call=flight.call.id),
        steered_by=tuple(name for name in flight.call.steered_by if name != state.started.by),
        by=state.started.by,
        role=state.started.role,
    )
    empty = State(run=child)
    head = head_of(apply(empty, [started], means.clock()))
    try:
        appended = await means.store.create(child, [started], head=head)
    except RunExists:
        return  # created by an earlier attempt, perhaps in another process
    means.hear(child, apply(empty, [started], appended.at))


async def _pass_decisions(means: Means, state: State, call: str, child: RunId) -> None:
    """Send the child the answers that were given on its parent."""
    # All answers ever given for this call, also those that were sent before: the child may have
    # missed one in a crash. An ask that is closed on the child is skipped.
    for ask in state.asks:
        if ask.call != call or ask.closed != "answered" or ask.decision is None:
            continue
        if not (child_ask_id := find_child_ask(ask)):
            await _bring(means, child, _let_go(state.run, ask, ask.decision.value))
            continue
        child_state = await load(means.store, child)
        child_ask = child_state.ask(child_ask_id)
        if child_ask is not None and not child_ask.closed:
            result = await bring(
                means.store, child_state, _decided(ask, child_ask.id), means.clock
            )
            means.hear(child, result.after)


def _let_go(parent: RunId, ask: Ask, answer: Json) -> c.Resume:
    """Return the control for an answer about a child that rests: resume it.

    The answer may hold new caps. The control has a request id that follows from the ask, so
    that it is applied once, however often it is sent.
    """
    # `decide` refuses caps from a user. An older version may have recorded such an answer.
    caps = read_child_caps(ask, answer) if ask.role == "operator" else {}
    by = Actor(name=ask.by, role=ask.role)
    return c.Resume(caps=caps, by=by, request=f"{parent}/{ask.id}")


def _decided(ask: Ask, meant: AskId) -> c.Control:
    decision = ask.decision or Decision(choice="decline")
    by = Actor(name=ask.by, role=ask.role)
    match decision.choice:
        case "answer":
            return c.Answer(ask=meant, value=decision.value, by=by)
        case "approve":
            return c.Approve(ask=meant, args=decision.value, by=by)
        case _:
            return c.Decline(ask=meant, reason=decision.reason, by=by)


async def _resume(means: Means, parent: RunId, child: RunId) -> None:
    """Resume a child that its parent has paused; leave every other pause alone."""
    child_state = await load(means.store, child)
    hold = child_state.hold
    if (
        child_state.phase is Phase.PAUSED
        and hold is not None
        and hold.by == _parent(parent).name
    ):
        result = await bring(
            means.store, child_state, c.Resume(by=_parent(parent)), means.clock
        )
        means.hear(child, result.after)


async def _rested(means: Means, child: RunId, phases: Collection[Phase]) -> State:
    """Wait until the child is in one of `phases`."""
    with means.news.of(child) as wakeup:
        while True:
            row = await means.store.row(child)
            if row.head.phase in phases:
                return await load(means.store, child)
            await wakeup.wait()


async def pass_on(means: Means, parent: RunId, flight: Flight) -> None:
    """Send the child of a call in flight the control that its parent got; retry on errors."""
    effect, by = flight.passed_on, _parent(parent)
    if effect is None:
        return
    control: c.Control = c.Halt(by=by)
    if effect.control == "pause":
        control = c.Pause(now=effect.now, by=by)
    elif effect.control == "cancel":
        control = c.Cancel(undo=effect.undo, by=by)
    while not flight.over:
        try:
            await _bring(means, effect.child, control)
        except RunNotFound:
            return  # `_wait_for_child` sends it when it has created the child
        except StoreError:
            await anyio.sleep(AGAIN_S)
        else:
            # The child may rest already, so that the control changes nothing and no change is
            # announced. Wake the waiter: with `stop_reason` set, it ends the call now.
            means.news.tell(effect.child)
            return


async def end(means: Means, parent: State, child: RunId) -> str:
    """Cancel a child run and wait until it has undone its work; retry on store errors.

    Returns a text that says how many calls it could not undo or release, "" if none.
    """
    while True:
        try:
            count = len((await _ended(means, parent, child)).residue)
        except RunNotFound:
            return ""  # it was never created
        except TROUBLE:
            await anyio.sleep(AGAIN_S)
        else:
            return (
                f"run {child} could not undo or release {count} of its calls" if count else ""
            )


async def _ended(means: Means, parent: State, child: RunId) -> State:
    # Without a cancel of the parent, the child was left behind, by a redirect for example.
    undo: UndoSet = parent.cancel.undo if parent.cancel else "in_flight"
    by = _parent(parent.run)
    await _bring(means, child, c.Cancel(undo=undo, by=by))
    child_state = await _rested(means, child, TERMINAL)
    if undo == "all":
        # The child may have completed before the cancel came. Then it undoes all its work now.
        await _bring(means, child, TakeBack(parent=parent.run))
        child_state = await _rested(means, child, TERMINAL)
    if child_state.residue and parent.retried:
        # Once for each retry of the parent's undo: the request id makes a repetition by another
        # worker harmless.
        request = f"{parent.run}/undo/{parent.retried}"
        await _bring(means, child, c.RetryUndo(by=by, request=request))
        child_state = await _rested(means, child, TERMINAL)
    return child_state


async def _bring(means: Means, child: RunId, given: Given) -> None:
    result = await bring(means.store, await load(means.store, child), given, means.clock)
    if result.entries:
        means.hear(child, result.after)


async def tell_parent(means: Means, child: State) -> bool:
    """Close asks on the parent that were settled on `child`; False: do not drive the child.

    While its parent is paused or halted, a child is not driven: it is paused here instead.
    """
    origin = child.started.parent
    if origin is None:
        return True
    try:
        parent = await load(means.store, origin.run)
    except RunNotFound:
        return True  # it was exported without its parent
    for number in parent.open_asks:
        ask = parent.asks[number - 1]
        if ask.ask_kind == "child" and ask.call == origin.call and _moot(ask, child):
            result = await bring(means.store, parent, AskMoot(ask=ask.id), means.clock)
            means.hear(origin.run, result.after)
    if parent.phase in HELD and child.phase in {Phase.QUEUED, Phase.RUNNING}:
        await _bring(means, child.run, c.Pause(by=_parent(origin.run)))
        return False
    return True


def _moot(ask: Ask, child: State) -> bool:
    if not (child_ask_id := find_child_ask(ask)):
        return child.phase not in {Phase.PAUSED, Phase.HALTED} and not child.wheel
    child_ask = child.ask(child_ask_id)
    return child_ask is None or bool(child_ask.closed)


def _parent(run: RunId) -> Actor:
    return Actor(name=f"run:{run}", role="system")
