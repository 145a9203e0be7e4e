"""People: clients that press every button, repeat what got no reply, and read the feed.

A person looks at the run as it is shown to them, which may be old by the time their wish
arrives. One request has one id, however often it is sent.
"""

from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

from midrun.core.controls import (
    AcceptResidue,
    Answer,
    Approve,
    Cancel,
    Control,
    Decline,
    DropFrame,
    ForcePause,
    Halt,
    HandBack,
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
from midrun.core.driver_inputs import CloseChildAsk
from midrun.core.ids import AskId, FrameId, Micros, Seq
from midrun.core.state import Ask, State
from midrun.core.stops import measure_caps
from midrun.core.transitions import Accepted
from midrun.core.values import Actor, Phase
from tests.support.simulate.environment import Scene, Told
from tests.support.simulate.journal import Batch
from tests.support.simulate.programs import soon, use_of
from tests.support.simulate.scheduler import Process, Steps

OLGA: Final = Actor(name="olga", role="operator")
PAT: Final = Actor(name="pat", role="operator")
"""Decides in the end, and says nothing else: four eyes never exclude this one."""
DECIDING: Final = {"approve", "approve_other", "decline"}
OPERATED: Final = {
    *DECIDING,
    "halt",
    "halt_agent",
    "halt_label",
    "halt_all",
    "lift",
    "retry_undo",
    "accept_residue",
}
BY_HAND: Final = ("file", "send", "pay", "ask", "child", "mail", "seal")
SCOPES: Final = {
    "halt": "run:run_1",
    "halt_agent": "agent:clerk",
    "halt_label": "label:red",
    "halt_all": "all",
}


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
            yield from self.scene.placed(op)
            yield from self.does(op)

    def does(self, op: str) -> Steps:
        """Press one button; send it again if the reply is lost."""
        if op in SCOPES or op == "lift":
            self._latch(op)
        if op in {"answer_on_child", "cancel_child"}:
            yield from self._at_the_child(cancels=op == "cancel_child")
            return
        if op == "lift" and self.desk.latches:
            return
        control = self.wish(op)
        yield from self.press(control)
        if control.request and self.scene.chance(0.03):
            yield from self.press(replace(control, reason="something else"))
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

    def _at_the_child(self, *, cancels: bool) -> Steps:
        """Decide what a child asks where it asks it, or cancel it; the parent hears of that."""
        asks = [a for a in open_asks(self.desk.state) if a.ask_kind == "child"]
        if not asks:
            return
        child = self.scene.world.children[self.scene.key(asks[0].call)]
        if cancels:
            child.ended = child.ended or "cancelled"
        else:
            child.given += 1
        while True:
            state = self.desk.state
            yield None
            batch = self.desk.batch(state)
            batch.add(CloseChildAsk(ask=asks[0].id))
            if not batch.entries or self.desk.commit(batch):
                return

    def wish(self, op: str) -> Control:
        """Return what a button means now, who pressed it, and under which request id."""
        self.pressed += 1
        request = f"{self.process.name}-{self.pressed}" if self.scene.chance(0.85) else ""
        by = OLGA if op in self._operated() else Actor(name=self.name)
        if op in DECIDING and self.scene.draining:
            by = PAT
        elif op in DECIDING and self.scene.chance(0.4):
            # Also a person who steered the run, which four eyes must not let through.
            names = (self.name, self.scene.rng.choice(self.desk.state.steered_by))
            by = Actor(name=self.scene.rng.choice(names))
        control = PLAIN[op] if op in PLAIN else MADE[op](self)
        return replace(control, by=by, request=request)

    def _operated(self) -> set[str]:
        """Return what is pressed with an operator's rights; in the end that is every answer."""
        return OPERATED | {"answer"} if self.scene.draining else OPERATED

    def pick_ask(self, *kinds: str) -> AskId:
        """Return an open ask, of these kinds if there is one."""
        asks = open_asks(self.desk.state)
        fitting = [a for a in asks if a.ask_kind in kinds] or asks
        return self.scene.rng.choice(fitting).id if fitting else AskId("a1")

    def answer(self) -> Answer:
        """Return the answer to an open question, or about an unsure call."""
        ask = self.pick_ask("question", "unsure", "child")
        return Answer(ask=ask, value=self.truth(ask))

    def pick_frame(self) -> FrameId:
        """Return a held thought, most often the one on top; or one that is not there."""
        frames = self.desk.state.frames
        if not frames:
            return FrameId("f1")
        return frames[-1].id if self.scene.chance(0.7) else frames[0].id

    def truth(self, ask: AskId) -> object:
        """Return the answer to a question; about an unsure call, what the world says."""
        found = self.desk.state.find_ask(ask)
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
        for name, (used, bound) in measure_caps(state.stop, state.meter).items()
    } or {"steps": 9}


PLAIN: Final[dict[str, Control]] = {
    "pause": Pause(),
    "pause_now": Pause(now=True),
    "resume": Resume(),
    "resume_with": Resume(instruction="Be brief"),
    "redirect": Redirect(text="Use the new figures"),
    "redirect_now": Redirect(text="Stop that", when="now"),
    "say": Say(text="What about Tuesday?"),
    "say_now": Say(text="Wait, who?", urgency="now"),
    "say_later": Say(text="And thanks", urgency="later"),
    "cancel": Cancel(),
    "cancel_all": Cancel(undo="all"),
    "halt": Halt(scope=SCOPES["halt"]),
    "halt_agent": Halt(scope=SCOPES["halt_agent"]),
    "halt_label": Halt(scope=SCOPES["halt_label"]),
    "halt_all": Halt(scope=SCOPES["halt_all"]),
    "lift": Lift(),
    "force_pause": ForcePause(),
    "retry_undo": RetryUndo(),
    "accept_residue": AcceptResidue(),
    "take_over": TakeOver(),
    "write": Write(text="I will do it"),
}
"""Buttons that always mean the same."""

MADE: Final[dict[str, Callable[[Person], Control]]] = {
    "pause_until": lambda p: Pause(until=p.due(30)),
    "resume_caps": lambda p: Resume(caps=higher(p.desk.state)),
    "raise_cap": lambda p: RaiseCap(caps=higher(p.desk.state)),
    "say_at": lambda p: Say(text="It is time", due=p.due(p.scene.rng.choice((20, 9000)))),
    "answer": lambda p: p.answer(),
    "approve": lambda p: Approve(ask=p.pick_ask("approval")),
    "approve_other": lambda p: Approve(ask=p.pick_ask("approval"), args={"of": "less"}),
    "decline": lambda p: Decline(ask=p.pick_ask("approval")),
    "withdraw": lambda p: Withdraw(seq=p.last),
    "resume_frame": lambda p: ResumeFrame(frame=p.pick_frame()),
    "drop_frame": lambda p: DropFrame(frame=p.pick_frame()),
    "drop_at_rest": lambda p: DropFrame(frame=p.pick_frame()),
    "use_tool": lambda p: UseTool(use=use_of(p.scene.rng.choice(BY_HAND))),
    "hand_back": lambda p: HandBack(instruction="Go on" if p.scene.chance(0.5) else ""),
}
"""Buttons whose meaning depends on what is shown when they are pressed."""


def _place(control: Control, batch: Batch) -> Seq:
    """Return where the entry stands that records the control itself; 0 if there is none."""
    for seq, entry in enumerate(batch.entries, batch.base.seq + 1):
        if not control.request or getattr(entry, "request", "") == control.request:
            return Seq(seq)
    return Seq(0)


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
