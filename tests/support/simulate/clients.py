"""Clients: they send all controls, repeat a request without a reply, and read the feed.

A client decides on the state that it has read, which may be outdated when its control arrives.
A repeated request keeps its id.
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
from midrun.core.session import Batch
from midrun.core.state import Ask, State
from midrun.core.stops import measure_caps
from midrun.core.transitions import Accepted
from midrun.core.values import Actor, Phase
from tests.support.simulate.environment import ControlReply, Environment
from tests.support.simulate.programs import add_milliseconds, make_use
from tests.support.simulate.scheduler import Process, Steps

OPERATOR: Final = Actor(name="olga", role="operator")
LAST_APPROVER: Final = Actor(name="pat", role="operator")
"""Sends nothing but decisions while the schedule drains, so four eyes never exclude it."""
APPROVAL_OPS: Final = {"approve", "approve_other", "decline"}
OPERATOR_OPS: Final = {
    *APPROVAL_OPS,
    "halt",
    "halt_agent",
    "halt_label",
    "halt_all",
    "lift",
    "retry_undo",
    "accept_residue",
}
TAKE_OVER_TOOLS: Final = ("file", "send", "pay", "ask", "child", "mail", "seal")
HALT_SCOPES: Final = {
    "halt": "run:run_1",
    "halt_agent": "agent:clerk",
    "halt_label": "label:red",
    "halt_all": "all",
}


class Client:
    """Sends controls, one after the other."""

    def __init__(self, env: Environment, name: str, process: Process) -> None:
        self.env = env
        self.journal = env.journal
        self.process = process
        self.name = name
        self.request_count = 0
        self.last_accepted_seq = Seq(0)  # the control that `withdraw` withdraws

    def steps(self, ops: tuple[str, ...]) -> Steps:
        """Send these controls, each at its moment."""
        for op in ops:
            yield from self.env.wait_for_moment(op)
            yield from self.perform(op)

    def perform(self, op: str) -> Steps:
        """Send one control; send it again if its reply is lost."""
        if op in HALT_SCOPES or op == "lift":
            self._change_halts(op)
            if op in HALT_SCOPES and self.env.chance(0.3):
                return  # the workers record it
        if op in {"answer_on_child", "cancel_child"}:
            yield from self._settle_on_child(cancels=op == "cancel_child")
            return
        if op == "lift" and self.journal.halt_scopes:
            return
        control = self.make_control(op)
        yield from self.send(control)
        if control.request_id and self.env.chance(0.03):
            yield from self.send(replace(control, reason="something else"))
        if control.request_id and self.env.chance(self.env.setup.lost_reply_share):
            if self.env.chance(0.5):
                self.env.spawn(self.send(control), self.process)
            yield from self.send(control)

    def send(self, control: Control) -> Steps:
        """Decide and append the control; on a conflict read and decide again."""
        while True:
            state = self.journal.state
            yield None
            batch = self.journal.make_batch(state if self.env.chance(0.5) else None)
            verdict = batch.add(control)
            first = _find_control_seq(control, batch)
            if batch.entries and not self.journal.commit(batch):
                continue
            self.env.replies.append(
                ControlReply(
                    control=control,
                    verdict=verdict,
                    phase=batch.base.phase,
                    seq=Seq(batch.base.seq),
                    entry_seq=first,
                )
            )
            if isinstance(verdict, Accepted):
                self.last_accepted_seq = first
            return

    def _change_halts(self, op: str) -> None:
        """Set or remove halts in the store."""
        if op in HALT_SCOPES:
            self.journal.set_halt(HALT_SCOPES[op], self.name)
            return
        for scope in HALT_SCOPES.values():
            self.journal.remove_halt(scope)

    def _settle_on_child(self, *, cancels: bool) -> Steps:
        """Settle the ask of a child on the child, or cancel the child; then tell the parent."""
        asks = [a for a in list_open_asks(self.journal.state) if a.ask_kind == "child"]
        if not asks:
            return
        child = self.env.world.children[self.env.make_key(asks[0].call)]
        if cancels:
            child.outcome = child.outcome or "cancelled"
        else:
            child.answer_count += 1
        while True:
            state = self.journal.state
            yield None
            batch = self.journal.make_batch(state)
            batch.add(CloseChildAsk(ask=asks[0].id))
            if not batch.entries or self.journal.commit(batch):
                return

    def make_control(self, op: str) -> Control:
        """Build the control of an op for the current state, with its actor and request id."""
        self.request_count += 1
        request = f"{self.process.name}-{self.request_count}" if self.env.chance(0.85) else ""
        by = OPERATOR if op in self._list_operator_ops() else Actor(name=self.name)
        if op in APPROVAL_OPS and self.env.is_draining:
            by = LAST_APPROVER
        elif op in APPROVAL_OPS and self.env.chance(0.4):
            # Possibly an actor who steered the run, whom four eyes must exclude.
            names = (self.name, self.env.rng.choice(self.journal.state.steered_by))
            by = Actor(name=self.env.rng.choice(names))
        control = FIXED_CONTROLS[op] if op in FIXED_CONTROLS else STATE_CONTROLS[op](self)
        return replace(control, by=by, request_id=request)

    def _list_operator_ops(self) -> set[str]:
        """Return the ops of operators; while the schedule drains also `answer`."""
        return OPERATOR_OPS | {"answer"} if self.env.is_draining else OPERATOR_OPS

    def pick_ask(self, *kinds: str) -> AskId:
        """Return an open ask, of these kinds if there is one."""
        asks = list_open_asks(self.journal.state)
        fitting = [a for a in asks if a.ask_kind in kinds] or asks
        return self.env.rng.choice(fitting).id if fitting else AskId("a1")

    def make_answer(self) -> Answer:
        """Build the answer to an open question or to an ask about an unsure call."""
        ask = self.pick_ask("question", "unsure", "child")
        return Answer(ask=ask, value=self.choose_answer(ask))

    def pick_frame(self) -> FrameId:
        """Return a held topic, mostly the newest; an unknown id if there is none."""
        frames = self.journal.state.frames
        if not frames:
            return FrameId("f1")
        return frames[-1].id if self.env.chance(0.7) else frames[0].id

    def choose_answer(self, ask: AskId) -> object:
        """Return the answer to an ask; about an unsure call, the truth from the world."""
        found = self.journal.state.find_ask(ask)
        if found is None or found.ask_kind != "unsure":
            return "the blue one"
        if self.env.chance(0.1):
            return "unknown"
        return "yes" if self.env.world.has_happened(self.env.make_key(found.call)) else "no"

    def make_due(self, milliseconds: int) -> Micros:
        """Return a time that is `milliseconds` from now."""
        return add_milliseconds(self.env.now, milliseconds)


def list_open_asks(state: State) -> list[Ask]:
    """Return the open asks of the run."""
    return [state.asks[n - 1] for n in state.open_asks]


def make_higher_caps(state: State) -> dict[str, int]:
    """Return caps well above those of the run; if it has none, a new one."""
    return {
        name: max(used, bound) * 2 + 100_000 * (name == "time") + 20
        for name, (used, bound) in measure_caps(state.stop, state.meter).items()
    } or {"steps": 9}


FIXED_CONTROLS: Final[dict[str, Control]] = {
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
    "halt": Halt(scope=HALT_SCOPES["halt"]),
    "halt_agent": Halt(scope=HALT_SCOPES["halt_agent"]),
    "halt_label": Halt(scope=HALT_SCOPES["halt_label"]),
    "halt_all": Halt(scope=HALT_SCOPES["halt_all"]),
    "lift": Lift(),
    "force_pause": ForcePause(),
    "retry_undo": RetryUndo(),
    "accept_residue": AcceptResidue(),
    "take_over": TakeOver(),
    "write": Write(text="I will do it"),
}
"""Controls that are the same in every state."""

STATE_CONTROLS: Final[dict[str, Callable[[Client], Control]]] = {
    "pause_until": lambda p: Pause(until=p.make_due(30)),
    "resume_caps": lambda p: Resume(caps=make_higher_caps(p.journal.state)),
    "raise_cap": lambda p: RaiseCap(caps=make_higher_caps(p.journal.state)),
    "say_at": lambda p: Say(text="It is time", due=p.make_due(p.env.rng.choice((20, 9000)))),
    "answer": lambda p: p.make_answer(),
    "approve": lambda p: Approve(ask=p.pick_ask("approval")),
    "approve_other": lambda p: Approve(ask=p.pick_ask("approval"), args={"of": "less"}),
    "decline": lambda p: Decline(ask=p.pick_ask("approval")),
    "withdraw": lambda p: Withdraw(seq=p.last_accepted_seq),
    "resume_frame": lambda p: ResumeFrame(frame=p.pick_frame()),
    "drop_frame": lambda p: DropFrame(frame=p.pick_frame()),
    "drop_at_rest": lambda p: DropFrame(frame=p.pick_frame()),
    "use_tool": lambda p: UseTool(use=make_use(p.env.rng.choice(TAKE_OVER_TOOLS))),
    "hand_back": lambda p: HandBack(instruction="Go on" if p.env.chance(0.5) else ""),
}
"""Controls that depend on the state of the run."""


def _find_control_seq(control: Control, batch: Batch) -> Seq:
    """Return the seq of the entry that records the control; 0 if there is none."""
    for seq, entry in enumerate(batch.entries, batch.base.seq + 1):
        if not control.request_id or getattr(entry, "request_id", "") == control.request_id:
            return Seq(seq)
    return Seq(0)


def follow_feed(env: Environment) -> Steps:
    """Follow the feed by seq, in small pages."""
    seen = 0
    while True:
        yield env.make_growth_condition(seen)
        env.feed_records += env.journal.read_records(after=seen, limit=env.rng.randint(1, 5))
        seen = env.feed_records[-1].seq


def is_ended(state: State) -> bool:
    """Return whether the run is completed or cancelled."""
    return state.phase in {Phase.COMPLETED, Phase.CANCELLED}
