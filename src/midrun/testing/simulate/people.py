"""People: clients that press every button, repeat what got no reply, and read the feed.

A person looks at the run as it is shown to them, which may be old by the time their wish
arrives. One request has one id, however often it is sent.
"""

from collections.abc import Callable
from typing import Final

from midrun.core.controls import (
    AcceptResidue,
    Answer,
    Approve,
    Cancel,
    Control,
    Decline,
    DropFrame,
    ForcePause,
    HandBack,
    Halt,
    Lift,
    Pause,
    RaiseCap,
    Redirect,
    Resume,
    ResumeFrame,
    RetryUndo,
    Say,
    TakeOver,
    UseTool,
    Withdraw,
    Write,
)
from midrun.core.evidence import AskMoot
from midrun.core.ids import AskId, FrameId, Micros, Seq, child_id
from midrun.core.state import Ask, State
from midrun.core.stops import caps
from midrun.core.values import Actor, Phase
from midrun.core.verdicts import Accepted
from midrun.testing.simulate.desk import Batch
from midrun.testing.simulate.programs import soon, use_of
from midrun.testing.simulate.scene import Scene, Told
from midrun.testing.simulate.schedule import Process, Steps

OLGA: Final = Actor(name="olga", role="operator")
ANN: Final = Actor(name="ann", role="user")
SCOPES: Final = {"halt": "run:run_1", "halt_agent": "agent:clerk", "halt_all": "all"}


class Person:
    """Somebody who presses buttons, one after the other."""

    def __init__(self, scene: Scene, name: str, process: Process) -> None:
        self.scene = scene
        self.desk = scene.desk
        self.process = process
        self.name = name
        self.pressed = 0
        self.last = Seq(0)  # of what was last accepted, to withdraw it

    def steps(self, ops: tuple[str, ...]) -> Steps:
        """Press these, each at its moment."""
        for op in ops:
            yield from self.scene.placed()
            yield from self.does(op)

    def does(self, op: str) -> Steps:
        """Press one button; send it again if the reply is lost."""
        if op in SCOPES or op == "lift":
            self._latch(op)
        if op == "answer_on_child":
            yield from self._answer_on_child()
            return
        if op == "lift" and self.desk.latches:
            return
        control = MAKE[op](self, self.desk.state)
        yield from self.press(control)
        if control.request and self.scene.chance(self.scene.setup.lost_replies):
            if self.scene.chance(0.5):
                self.scene.spawn(self.press(control), self.process)
            yield from self.press(control)

    def press(self, control: Control) -> Steps:
        """Decide the control on what was read; read and decide again when it is too late."""
        while True:
            state = self.desk.state
            yield None
            batch = self.desk.batch(state if self.scene.chance(0.5) else None)
            verdict = batch.add(control)
            first = _place(control, batch)
            if batch.entries and not self.desk.commit(batch):
                continue
            self.scene.told.append(
                Told(
                    control=control,
                    verdict=verdict,
                    phase=batch.base.phase,
                    seq=Seq(batch.base.seq),
                    first=first,
                )
            )
            if isinstance(verdict, Accepted):
                self.last = first
            return

    def _latch(self, op: str) -> None:
        """Set or take away the operator's latches in the store."""
        if op in SCOPES:
            self.desk.halt(SCOPES[op], self.name)
            return
        for scope in SCOPES.values():
            self.desk.lift(scope)

    def _answer_on_child(self) -> Steps:
        """Answer a child's question where it was asked; the parent hears of it."""
        asks = [a for a in open_asks(self.desk.state) if a.ask_kind == "child"]
        if not asks:
            return
        number = child_id(self.desk.run, asks[0].call)
        self.scene.world.children[number].answered = True
        while True:
            state = self.desk.state
            yield None
            batch = self.desk.batch(state)
            batch.add(AskMoot(ask=asks[0].id))
            if not batch.entries or self.desk.commit(batch):
                return

    def wish(self, *, operator: bool = False) -> dict[str, object]:
        """Return who asks, under which request id; sometimes there is none."""
        self.pressed += 1
        request = f"{self.process.name}-{self.pressed}" if self.scene.chance(0.85) else ""
        return {"by": OLGA if operator else Actor(name=self.name), "request": request}

    def pick_ask(self, *kinds: str) -> AskId:
        """Return an open ask, of these kinds if there is one."""
        asks = open_asks(self.desk.state)
        fitting = [a for a in asks if a.ask_kind in kinds] or asks
        return self.scene.rng.choice(fitting).id if fitting else AskId("a1")

    def truth(self, ask: AskId) -> object:
        """Return the answer to a question; about an unsure call, what the world says."""
        found = self.desk.state.ask(ask)
        if found is None or found.ask_kind != "unsure":
            return "the blue one"
        if self.scene.chance(0.1):
            return "unknown"
        return "yes" if self.scene.world.happened(self.scene.key(found.call)) else "no"

    def due(self, milliseconds: int) -> Micros:
        """Return a moment a little later."""
        return soon(self.scene.now, milliseconds)


def open_asks(state: State) -> list[Ask]:
    """Return what a person could decide now."""
    return [state.asks[n - 1] for n in state.open_asks]


def higher(state: State) -> dict[str, int]:
    """Return caps well above those of the run, or one that it does not have."""
    return {
        name: max(used, bound) * 2 + 100_000 * (name == "time") + 20
        for name, (used, bound) in caps(state.stop, state.meter).items()
    } or {"steps": 9}


def top_frame(state: State) -> FrameId:
    """Return the frame on top of the stack, or one that is not there."""
    return state.frames[-1].id if state.frames else FrameId("f1")


Make = Callable[[Person, State], Control]

MAKE: Final[dict[str, Make]] = {
    "pause": lambda p, _: Pause(**p.wish()),
    "pause_now": lambda p, _: Pause(now=True, **p.wish()),
    "pause_until": lambda p, _: Pause(until=p.due(30), **p.wish()),
    "resume": lambda p, _: Resume(**p.wish()),
    "resume_with": lambda p, _: Resume(instruction="Be brief", **p.wish()),
    "resume_caps": lambda p, s: Resume(caps=higher(s), **p.wish()),
    "redirect": lambda p, _: Redirect(text="Use the new figures", **p.wish()),
    "redirect_now": lambda p, _: Redirect(text="Stop that", when="now", **p.wish()),
    "say": lambda p, _: Say(text="What about Tuesday?", **p.wish()),
    "say_now": lambda p, _: Say(text="Wait, who?", urgency="now", **p.wish()),
    "say_later": lambda p, _: Say(text="And thanks", urgency="later", **p.wish()),
    "say_at": lambda p, _: Say(text="It is time", due=p.due(20), **p.wish()),
    "answer": lambda p, _: _answer(p),
    "approve": lambda p, _: Approve(ask=p.pick_ask("approval"), **p.wish(operator=True)),
    "approve_other": lambda p, _: Approve(
        ask=p.pick_ask("approval"), args={"of": "less"}, **p.wish(operator=True)
    ),
    "decline": lambda p, _: Decline(ask=p.pick_ask("approval"), **p.wish(operator=True)),
    "cancel": lambda p, _: Cancel(**p.wish()),
    "cancel_all": lambda p, _: Cancel(undo="all", **p.wish()),
    "halt": lambda p, _: Halt(scope="run:run_1", **p.wish(operator=True)),
    "halt_agent": lambda p, _: Halt(scope="agent:clerk", **p.wish(operator=True)),
    "halt_all": lambda p, _: Halt(scope="all", **p.wish(operator=True)),
    "lift": lambda p, _: Lift(**p.wish(operator=True)),
    "raise_cap": lambda p, s: RaiseCap(caps=higher(s), **p.wish()),
    "withdraw": lambda p, _: Withdraw(seq=p.last, **p.wish()),
    "force_pause": lambda p, _: ForcePause(**p.wish()),
    "retry_undo": lambda p, _: RetryUndo(**p.wish(operator=True)),
    "accept_residue": lambda p, _: AcceptResidue(**p.wish(operator=True)),
    "resume_frame": lambda p, s: ResumeFrame(frame=top_frame(s), **p.wish()),
    "drop_frame": lambda p, s: DropFrame(frame=top_frame(s), **p.wish()),
    "take_over": lambda p, _: TakeOver(**p.wish()),
    "write": lambda p, _: Write(text="I will do it", **p.wish()),
    "use_tool": lambda p, _: UseTool(
        use=use_of(p.scene.rng.choice(("file", "send", "pay", "ask"))), **p.wish()
    ),
    "hand_back": lambda p, _: HandBack(
        instruction="Go on" if p.scene.chance(0.5) else "", **p.wish()
    ),
}
"""How each button becomes a control."""


def _place(control: Control, batch: Batch) -> Seq:
    """Return where the entry stands that records the control itself; 0 if there is none."""
    for seq, entry in enumerate(batch.entries, batch.base.seq + 1):
        if not control.request or getattr(entry, "request", "") == control.request:
            return Seq(seq)
    return Seq(0)


def _answer(person: Person) -> Answer:
    ask = person.pick_ask("question", "unsure", "child")
    return Answer(ask=ask, value=person.truth(ask), **person.wish())


def reader(scene: Scene) -> Steps:
    """Follow the feed by seq, in small pieces, over any number of connections."""
    seen = 0
    while True:
        yield scene.changed(seen)
        scene.fed += scene.desk.records(after=seen, limit=scene.rng.randint(1, 5))
        seen = scene.fed[-1].seq


def is_over(state: State) -> bool:
    """Tell whether nothing more will come of the run."""
    return state.phase in {Phase.COMPLETED, Phase.CANCELLED}
