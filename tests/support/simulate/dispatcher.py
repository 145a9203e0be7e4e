"""The door: gate, journal *started*, do it, journal *ended*; under one lease, in one process.

Every yield is a place where the process may crash, freeze, or lose its lease. What a call does
between two yields is what a real one does between two awaits.
"""

from typing import Final

from midrun.core.controls import Halt
from midrun.core.driver_inputs import (
    AskPerson,
    CloseCall,
    CloseUndo,
    CrossBoundary,
    ReportLateResult,
    SaveProgress,
    SetPlan,
    SettleCall,
    StartCall,
)
from midrun.core.effects import Advance, CallModel, CallTool
from midrun.core.entries import (
    CallAborted,
    CallDone,
    CallFailed,
    CallStarted,
    CallUnknown,
    LateResult,
    UndoDone,
    UndoFailed,
    UndoStarted,
)
from midrun.core.ids import CallId, Seq, make_undo_key
from midrun.core.scheduler import plan_effects
from midrun.core.state import Call, State
from midrun.core.transitions import Accepted, Verdict
from midrun.core.values import Actor, Effect, Reply, Spend
from midrun.errors import HaltInForce, KindRefused, StaleEpoch
from midrun.ports.store import Lease
from tests.support.simulate.checks import Violation
from tests.support.simulate.environment import Acted, Killed, Scene
from tests.support.simulate.journal import Batch
from tests.support.simulate.programs import TOOLS, plan_items, reply_to, soon
from tests.support.simulate.scheduler import Process, Steps
from tests.support.simulate.world import Child

PARTS: Final = 2
PROMPT: Final = Spend(tokens=10, cost=1000)

Outcome = CallDone | CallFailed | CallAborted | CallUnknown


class Task:
    """A call in flight, as the process that makes it knows it. `stop` says why it must end."""

    __slots__ = ("attempt", "call", "key", "stop", "view")

    def __init__(self, call: Call, key: str, view: State) -> None:
        self.call = call
        self.attempt = call.attempt
        self.key = key
        self.view = view
        self.stop = ""


class Door:
    """One epoch of one process: the right to make calls of the run, while it lasts."""

    def __init__(self, scene: Scene, process: Process, lease: Lease) -> None:
        self.scene = scene
        self.desk = scene.desk
        self.process = process
        self.lease = lease
        self.tasks: dict[CallId, Task] = {}
        self.checking: set[CallId] = set()
        self.dropped = False

    # ── the right to act ──────────────────────────────────────────────────────────────────

    def may_act(self) -> bool:
        """Take the last look before something leaves."""
        return self.holds()

    def holds(self) -> bool:
        """Tell whether this epoch is still the one that counts."""
        state = self.desk.state
        current = state.is_leased and state.epoch == self.lease.epoch
        return current and not (self.dropped or self.process.lapsed)

    def drop(self) -> None:
        """Give up the whole epoch: whatever is under way here has lost its right to act."""
        self.dropped = True

    def commit(self, batch: Batch) -> bool:
        """Append what was decided; let out what it starts. False: read and decide again."""
        if not batch.entries:
            return False
        try:
            if not self.desk.commit(batch, self.lease):
                return False
        except StaleEpoch:
            self.drop()
            return False
        except HaltInForce as halt:
            self.meet(halt.scope, halt.by)
            return False
        except KindRefused as error:
            raise Violation("KIND", str(error)) from error
        if self.scene.chance(self.scene.setup.cuts):
            self.drop()  # nobody told this process that it was appended: it starts anew
            return False
        self.leave(batch)
        return True

    def meet(self, scope: str, by: str) -> None:
        """Journal that a latch holds the run."""
        batch = self.desk.batch()
        batch.add(Halt(by=Actor(name=by, role="operator"), scope=scope))
        if batch.entries:
            self.commit(batch)

    def leave(self, batch: Batch) -> None:
        """Make what has just been journaled as started."""
        for entry in batch.entries:
            if isinstance(entry, CallStarted):
                self._make(entry.call, batch.state)
            elif isinstance(entry, UndoStarted):
                self.scene.spawn(self._clean(entry), self.process)

    def _make(self, number: CallId, state: State) -> None:
        call = state.find_call(number)
        assert call is not None
        task = Task(call, self.scene.key(number), state)
        self.tasks[number] = task
        if call.call_kind == "model":
            steps = self._model(task)
        else:
            habit = TOOLS[call.use.tool].habit
            steps = {
                "plain": self._plain,
                "asks": self._asks,
                "long": self._long,
                "hangs": self._hangs,
                "fails": self._fails,
                "plans": self._plans,
                "child": self._child,
            }[habit](task)
        doubt = self.close(task, CallUnknown(call=number))
        steps = swallowed(self.scene, self.process, task, steps, doubt)
        self.scene.spawn(self._tracked(task, steps), self.process)

    def _tracked(self, task: Task, steps: Steps) -> Steps:
        yield None  # the intent is journaled, nothing has left yet
        if not self.may_act():
            return
        if task.stop:
            yield from self.close(task, CallAborted(call=task.call.id))
        else:
            yield from steps
        if self.tasks.get(task.call.id) is task:
            del self.tasks[task.call.id]

    # ── beginning and ending ──────────────────────────────────────────────────────────────

    def start(self, batch: Batch, order: CallModel | CallTool, seen: int) -> Verdict:
        """Ask the gate whether the ordered call may leave, from what was `seen`."""
        call = batch.state.find_call(order.call)
        reserve = TOOLS[call.use.tool].reserve if call and call.use.tool else PROMPT
        given = StartCall(
            epoch=self.lease.epoch, call=order.call, seen_seq=Seq(seen), reserved=reserve
        )
        return self.desk.bring(batch, given)

    def close(self, task: Task, outcome: Outcome) -> Steps:
        """Journal how a call ended, with the next start if there is one; or bring it late."""
        given = CloseCall(epoch=self.lease.epoch, outcome=outcome)
        scene = self.scene
        if self.holds() and scene.chance(scene.setup.batches) and self._go_on(given):
            return
        if not self._journal(given, None if scene.chance(0.7) else task.view):
            yield from self._late(task, outcome)

    def _journal(self, given: CloseCall | CloseUndo | SaveProgress, view: State | None) -> bool:
        """Append evidence that is true whatever else has happened; False if fenced."""
        batch = self.desk.batch(view)
        if self.dropped or not isinstance(self.desk.bring(batch, given), Accepted):
            return False
        try:
            self.desk.commit_blindly(batch, self.lease)
        except StaleEpoch:
            self.drop()
            return False
        return True

    def _go_on(self, given: CloseCall) -> bool:
        """Append the end of one call and the start of the next in one go."""
        batch = self.desk.batch()
        if not isinstance(self.desk.bring(batch, given), Accepted):
            return False
        ends = len(batch.entries)
        for _ in range(4):
            orders = plan_effects(batch.state)
            if Advance() in orders:
                batch.add(CrossBoundary(epoch=self.lease.epoch))
                continue
            starts = [o for o in orders if isinstance(o, CallModel | CallTool)]
            for order in starts[:1]:
                if getattr(order, "not_before", None) is None:
                    self.start(batch, order, batch.state.seq)
            break
        return len(batch.entries) > ends and self.commit(batch)

    def _late(self, task: Task, outcome: Outcome) -> Steps:
        """Bring what a fenced process still knows: the only thing it may append."""
        self.drop()
        if not isinstance(outcome, CallDone) or task.call.call_kind == "model":
            return
        if self.scene.chance(0.5):
            yield None
        result = LateResult(
            call=task.call.id,
            attempt=task.attempt,
            epoch=self.lease.epoch,
            result=outcome.result,
        )
        batch = self.desk.batch()
        if isinstance(batch.add(ReportLateResult(result=result)), Accepted):
            self.desk.commit(batch)

    def act(self, task: Task, part: str = "", *, holds: bool = False) -> bool:
        """Let the call take effect. Only here does anything reach the world."""
        scene = self.scene
        scene.acted.append(
            Acted(
                call=task.call.id,
                attempt=task.attempt,
                seq=Seq(self.desk.state.seq),
                args=task.call.use.args,
            )
        )
        effect = Effect.IDEMPOTENT if part else task.call.traits.effect
        return scene.world.act(task.key + part, effect, holds=holds)

    # ── what calls do ─────────────────────────────────────────────────────────────────────

    def _model(self, task: Task) -> Steps:
        scene, call = self.scene, task.call
        if scene.model_failures and scene.chance(0.3):
            scene.model_failures -= 1
            retry = soon(scene.now, 5) if scene.chance(0.5) else None
            failed = CallFailed(
                call=call.id, error="overloaded", transient=scene.chance(0.6), retry_at=retry
            )
            yield from self.close(task, failed)
            return
        left_behind(scene, task.view)
        yield None  # the stream is open
        if task.stop:
            spent = Spend(tokens=4, cost=400) if scene.chance(0.5) else None
            yield from self.close(task, CallAborted(call=call.id, text="par", spent=spent))
            return
        reply = reply_to(scene.program, task.view)
        if call.purpose == "condense":
            reply = Reply(text="" if scene.chance(0.1) else "in short")
        tokens = scene.rng.randint(4, 12)
        spent = Spend(tokens=tokens, cost=tokens * 100)
        yield from self.close(task, CallDone(call=call.id, reply=reply, spent=spent))

    def _plain(self, task: Task) -> Steps:
        if self.scene.gap:
            yield None
        done = self.act(task, holds=task.call.traits.release)
        yield None  # it took effect, and nobody knows yet
        yield from self.close(task, self._ended(task, done=done))

    def _ended(self, task: Task, *, done: bool) -> Outcome:
        if not done:
            return CallFailed(call=task.call.id, error="refused by the far end")
        if task.stop and self.scene.chance(0.5):
            return CallAborted(call=task.call.id)
        return CallDone(call=task.call.id, result={"ok": True})

    def _asks(self, task: Task) -> Steps:
        scene = self.scene
        if task.call.traits.release:
            self.act(task, holds=True)
            yield None
        expires = soon(scene.now, 60) if scene.chance(0.3) else None
        given = AskPerson(
            epoch=self.lease.epoch, call=task.call.id, question="Which?", expires=expires
        )
        while self.holds() and not task.stop:
            batch = self.desk.batch()
            if not isinstance(self.desk.bring(batch, given), Accepted):
                break
            yield None
            if self.commit(batch):
                return
        yield from self.close(task, CallAborted(call=task.call.id))

    def _long(self, task: Task) -> Steps:
        progress = task.call.progress
        for part in range(progress if isinstance(progress, int) else 0, PARTS):
            self.act(task, part=f"/{part}")
            yield None
            saved = SaveProgress(epoch=self.lease.epoch, call=task.call.id, progress=part + 1)
            if not self._journal(saved, None):
                return
            yield None
            if task.stop:
                yield from self.close(task, CallAborted(call=task.call.id))
                return
            if not self.holds():
                return
        done = self.act(task)  # what it saved no more: from here it cannot be stopped
        yield None
        task.stop = ""
        yield from self.close(task, self._ended(task, done=done))

    def _hangs(self, task: Task) -> Steps:
        done = self.act(task)
        patient = self.scene.chance(0.3)
        yield (
            lambda: self.scene.draining or not self.holds() or (bool(task.stop) and not patient)
        )
        outcome = self._ended(task, done=done)
        if task.stop and self.scene.chance(0.5):
            outcome = CallUnknown(call=task.call.id, why="not_responding")
        yield from self.close(task, outcome)

    def _fails(self, task: Task) -> Steps:
        if self.scene.chance(0.5):
            yield from self._plain(task)
            return
        yield None
        yield from self.close(task, CallFailed(call=task.call.id, error="no luck"))

    def _plans(self, task: Task) -> Steps:
        batch = self.desk.batch()
        items = plan_items(self.desk.state.meter.steps)
        self.desk.bring(batch, SetPlan(epoch=self.lease.epoch, items=items))
        self.commit(batch)
        yield None
        yield from self._plain(task)

    def _child(self, task: Task) -> Steps:
        """Have a child run work, and wait for what becomes of it."""
        child = born(self.scene, task.key)
        child.given = max(child.given, decided(task.view, task.call.id))
        while child.left and not child.ended:
            yield None
            if task.stop or not self.holds():
                break
            child.left -= 1
            child.did += 1
        if task.stop in {"cancelled", "redirected"}:
            child.ended = child.ended or "cancelled"
        if task.stop:
            yield from self.close(task, CallAborted(call=task.call.id))
        elif child.ended == "cancelled" or child.fails:
            yield from self.close(task, CallFailed(call=task.call.id, error="it has failed"))
        elif child.given < child.asks:
            given = AskPerson(epoch=self.lease.epoch, call=task.call.id, child=True)
            batch = self.desk.batch()
            self.desk.bring(batch, given)
            if not self.commit(batch) and self.holds():
                yield from self.close(task, CallAborted(call=task.call.id))
        else:
            child.ended = "completed"
            yield from self.close(task, CallDone(call=task.call.id, result="child is done"))

    # ── undo, release, check ──────────────────────────────────────────────────────────────

    def _clean(self, started: UndoStarted) -> Steps:
        scene = self.scene
        yield None
        if not self.may_act():
            return
        key = make_undo_key(self.desk.run, started.call, started.action)
        world, call = scene.world, self.desk.state.find_call(started.call)
        assert call is not None
        if call.call_kind == "child":
            cancel = self.desk.state.cancel_request
            undo_all = cancel is not None and cancel.undo == "all"
            done = world.end_child(scene.key(started.call), undo_all=undo_all)
        else:
            clean = world.undo if started.action == "undo" else world.release
            done = clean(scene.key(started.call), key)
        yield None
        retry = soon(scene.now, 5) if scene.chance(0.5) else None
        outcome = (
            UndoDone(call=started.call, action=started.action)
            if done
            else UndoFailed(
                call=started.call, action=started.action, error="no", retry_at=retry
            )
        )
        self._journal(CloseUndo(epoch=self.lease.epoch, outcome=outcome), None)

    def check(self, call: CallId) -> Steps:
        """Ask the tool itself whether an unknown call happened."""
        yield None
        happened = self.scene.world.happened(self.scene.key(call))
        yield None
        self.checking.discard(call)
        batch = self.desk.batch()
        given = SettleCall(
            epoch=self.lease.epoch, call=call, happened=happened, result={"found": True}
        )
        if self.holds() and isinstance(self.desk.bring(batch, given), Accepted):
            self.commit(batch)


def swallowed(scene: Scene, process: Process, task: Task, steps: Steps, doubt: Steps) -> Steps:
    """Make a call as it is made, unless the script says that it is a pill.

    Before it has done anything its process ends, or it cannot say whether it has: `doubt`.
    """
    name = task.call.use.tool or "model"
    if name == scene.program.pill and scene.poison:
        scene.killed.append(Killed(call=task.call.id, seq=Seq(scene.desk.state.seq)))
        fall(scene, process)
    elif name == scene.program.doubted and scene.doubts:
        scene.doubts -= 1
        yield from doubt
    else:
        yield from steps


def checked(scene: Scene, process: Process, tool: str, steps: Steps) -> Steps:
    """Ask a check as it is asked; that of a pill may end the process, too."""
    yield None
    if tool == scene.program.pill and scene.poison and scene.chance(0.3):
        fall(scene, process)
        return
    yield from steps


def fall(scene: Scene, process: Process) -> None:
    """End the process, with everything that it has under way."""
    scene.poison -= 1
    scene.scheduler.end(process)
    scene.fallen.append(process)


def born(scene: Scene, key: str) -> Child:
    """Return the child of the call with this key; a second attempt finds the first one's."""
    rng = scene.rng
    new = Child(
        asks=rng.choice((0, 0, 1, 1, 2)), left=rng.randint(0, 2), fails=rng.random() < 0.1
    )
    return scene.world.children.setdefault(key, new)


def decided(view: State, call: CallId) -> int:
    """Return how much of what the child of `call` asked was decided, here or on the child."""
    asks = (ask for ask in view.asks if ask.call == call)
    return sum(ask.close_reason in {"answered", "elsewhere"} for ask in asks)


def left_behind(scene: Scene, view: State) -> None:
    """Check that no child works on for a call that its parent has given up.

    Raises:
        Violation: the parent goes on with its next step, or waits, and there is one.
    """
    for call in view.calls:
        child = scene.world.children.get(scene.key(call.id))
        if child is None or child.ended or child.fails or call.is_open:
            continue
        parked = any(call.number in frame.parked_calls for frame in view.frames)
        if not parked and call.release.attempts < view.run_started.undo_attempts:
            raise Violation("LEFT", f"the child of {call.id} was left to itself")
