"""`Run`: the handle of one run. Every method works from any process that has the store."""

from collections.abc import AsyncGenerator
from datetime import timedelta
from typing import TypedDict, Unpack, get_args

from midrun.agents.checkpoint import Checkpoint
from midrun.agents.outcome import Outcome, outcome_of
from midrun.codec.strict import checked
from midrun.core import controls as c
from midrun.core.ids import SECOND, AskId, FrameId, Micros, RunId, Seq, later
from midrun.core.report import Report, report
from midrun.core.state import State
from midrun.core.table import enabled
from midrun.core.values import TERMINAL, Actor, Json, Phase, UndoSet, Urgency, Use, When
from midrun.embed.actors import Who, actor_of
from midrun.embed.desk import Desk
from midrun.embed.feed import Item, feed
from midrun.embed.receipt import Receipt
from midrun.embed.resuming import counted
from midrun.embed.view import RunView, view_of
from midrun.errors import ControlRefused, Misconfigured, RunOver

SETTLED = frozenset(Phase) - {
    Phase.QUEUED,
    Phase.RUNNING,
    Phase.PAUSING,
    Phase.CANCELLING,
}


class Asking(TypedDict, total=False):
    """Who asks, why, and under which request id: a repeat of it is applied only once."""

    actor: Who
    reason: str | None
    request_id: str | None


class Wish(TypedDict):
    """The same, as controls have it."""

    by: Actor
    reason: str
    request: str


def wish(asking: Asking) -> Wish:
    """Return what every control says of who asks."""
    if unknown := asking.keys() - Asking.__annotations__.keys():
        raise TypeError(f"unexpected keyword argument {min(unknown)!r}")
    return Wish(
        by=actor_of(asking.get("actor")),
        reason=asking.get("reason") or "",
        request=asking.get("request_id") or "",
    )


def phase_of(word: str) -> Phase:
    """Return the phase of that name.

    Raises:
        Misconfigured: there is none; the text has all ten.
    """
    if word in set(Phase):
        return Phase(word)
    raise Misconfigured(f"phase {word!r}", f"the phases are {', '.join(Phase)}")


def one_of(name: str, word: str, words: tuple[str, ...]) -> None:
    """Refuse a word that means nothing.

    Raises:
        Misconfigured: it is none of `words`.
    """
    if word not in words:
        raise Misconfigured(f"{name} {word!r}", f"say {' or '.join(words)}")


class Run:
    """One run. A control returns once it is in the journal; await `until` for the fact.

    What does not fit where the run stands raises `ControlRefused`, which says why, who came
    first, and what is possible instead.
    """

    def __init__(self, run_id: RunId, desk: Desk) -> None:
        self.id = run_id
        self._desk = desk

    def __repr__(self) -> str:
        return f"Run({self.id!r})"

    # ── controls ──────────────────────────────────────────────────────────────────────────

    async def pause(
        self,
        *,
        now: bool = False,
        hold: timedelta | None = None,
        **asking: Unpack[Asking],
    ) -> Receipt:
        """Stop at the next boundary, or `now`; with `hold`, go on by itself after that."""
        until = None
        if hold is not None:
            if hold <= timedelta(0):
                raise Misconfigured("hold", "it is a time to wait: timedelta(minutes=1)")
            until = later(self._desk.now(), hold.total_seconds() * SECOND)
        return await self._ask(c.Pause(now=now, until=until, **wish(asking)))

    async def resume(
        self,
        instruction: str | None = None,
        *,
        caps: dict[str, float] | None = None,
        **asking: Unpack[Asking],
    ) -> Receipt:
        """Go on, with an instruction and raised caps if given; withdraws a pause that pends."""
        return await self._ask(
            c.Resume(instruction=instruction or "", caps=counted(caps or {}), **wish(asking))
        )

    async def redirect(
        self, text: str, *, when: When = "next_step", **asking: Unpack[Asking]
    ) -> Receipt:
        """Change course at the next step, or now; finished work stays."""
        one_of("when", when, get_args(When))
        return await self._ask(c.Redirect(text=text, when=when, **wish(asking)))

    async def say(
        self,
        text: str,
        *,
        urgency: Urgency = "next",
        at: Micros | None = None,
        **asking: Unpack[Asking],
    ) -> Receipt:
        """Speak to the run while it works; with `at`, not before that time."""
        one_of("urgency", urgency, get_args(Urgency))
        return await self._ask(c.Say(text=text, urgency=urgency, due=at, **wish(asking)))

    async def answer(
        self, value: Json, *, ask: str | None = None, **asking: Unpack[Asking]
    ) -> Receipt:
        """Answer a question: the answer is the result of the tool that asked."""
        which = await self._which(ask, "answer")
        return await self._ask(c.Answer(ask=which, value=checked(value), **wish(asking)))

    async def approve(
        self, *, ask: str | None = None, args: Json = None, **asking: Unpack[Asking]
    ) -> Receipt:
        """Let a call be made, once, with these arguments and no others."""
        which = await self._which(ask, "approve")
        return await self._ask(c.Approve(ask=which, args=checked(args), **wish(asking)))

    async def decline(
        self,
        reason: str = "",
        *,
        ask: str | None = None,
        actor: Who = None,
        request_id: str | None = None,
    ) -> Receipt:
        """Do not let a call be made; the agent is told why."""
        which = await self._which(ask, "decline")
        asking = Asking(actor=actor, reason=reason, request_id=request_id)
        return await self._ask(c.Decline(ask=which, **wish(asking)))

    async def cancel(self, *, undo: UndoSet = "in_flight", **asking: Unpack[Asking]) -> Receipt:
        """Stop everything, undo what was in flight or all that can be, and report."""
        one_of("undo", undo, get_args(UndoSet))
        return await self._ask(c.Cancel(undo=undo, **wish(asking)))

    async def raise_cap(
        self,
        *,
        actor: Who = None,
        reason: str | None = None,
        request_id: str | None = None,
        **caps: float,
    ) -> Receipt:
        """Raise bounds by name: steps, tokens, cost (dollars), time (seconds), tool_calls."""
        asking = Asking(actor=actor, reason=reason, request_id=request_id)
        return await self._ask(c.RaiseCap(caps=counted(caps), **wish(asking)))

    async def withdraw(self, seq: int, **asking: Unpack[Asking]) -> Receipt:
        """Take back the pause, redirect or message at `seq` if it has not been applied."""
        return await self._ask(c.Withdraw(seq=Seq(seq), **wish(asking)))

    async def force_pause(self, **asking: Unpack[Asking]) -> Receipt:
        """Stop waiting for calls that do not respond; their outcome becomes unknown."""
        return await self._ask(c.ForcePause(**wish(asking)))

    async def retry_undo(self, **asking: Unpack[Asking]) -> Receipt:
        """Try again to undo what could not be undone."""
        return await self._ask(c.RetryUndo(**wish(asking)))

    async def accept_residue(self, **asking: Unpack[Asking]) -> Receipt:
        """Take what could not be undone as it is."""
        return await self._ask(c.AcceptResidue(**wish(asking)))

    async def resume_frame(self, frame: str, **asking: Unpack[Asking]) -> Receipt:
        """Go back to the held thought on top."""
        return await self._ask(c.ResumeFrame(frame=FrameId(frame), **wish(asking)))

    async def drop_frame(self, frame: str, **asking: Unpack[Asking]) -> Receipt:
        """Give up the held thought on top, by name."""
        return await self._ask(c.DropFrame(frame=FrameId(frame), **wish(asking)))

    async def take_over(self, **asking: Unpack[Asking]) -> Receipt:
        """Become the assistant once nothing is in flight."""
        return await self._ask(c.TakeOver(**wish(asking)))

    async def write(self, text: str, **asking: Unpack[Asking]) -> Receipt:
        """Say something as the assistant, after taking over."""
        return await self._ask(c.Write(text=text, **wish(asking)))

    async def use_tool(self, tool: str, args: Json, **asking: Unpack[Asking]) -> Receipt:
        """Make one call of the agent's tools by the same door, after taking over."""
        use = self._desk.offered(await self._state(), Use(tool=tool, args=checked(args)))
        return await self._ask(c.UseTool(use=use, **wish(asking)))

    async def hand_back(
        self, instruction: str | None = None, **asking: Unpack[Asking]
    ) -> Receipt:
        """Return the run to its agent."""
        return await self._ask(c.HandBack(instruction=instruction or "", **wish(asking)))

    async def fork(
        self, seq: int | None = None, *, instruction: str | None = None, actor: Who = None
    ) -> "Run":
        """Start a new run that continues from a boundary of this one, with its own journal.

        It inherits what was said and planned; what was done stays this run's. Without `seq`,
        the newest boundary is meant.

        Raises:
            ControlRefused: `not_a_boundary`, something was under way at `seq`.
        """
        by = actor_of(actor)
        run = await self._desk.fork(self.id, seq, instruction=instruction or "", by=by)
        return Run(run, self._desk)

    # ── looking ───────────────────────────────────────────────────────────────────────────

    async def view(self) -> RunView:
        """Return where the run stands."""
        return await self._seen(await self._state())

    async def until(self, *phases: str) -> RunView:
        """Wait for one of `phases`; "terminal" stands for completed and cancelled.

        Raises:
            RunOver: the run has ended in another phase, so that it will never be in these.
        """
        if not phases:
            raise Misconfigured("until", 'name what to wait for: until("paused")')
        wanted = {phase_of(p) for p in phases if p != "terminal"}
        wanted |= TERMINAL if "terminal" in phases else set()
        state = await self._desk.reached(self.id, wanted | TERMINAL)
        if state.phase not in wanted:
            raise RunOver(self.id, state.phase, tuple(sorted(wanted)))
        return await self._seen(state)

    async def result(self) -> Outcome:
        """Wait until the run rests or has ended, and return how."""
        state = await self._desk.reached(self.id, SETTLED)
        return outcome_of(state, await self._checkpoint(state))

    async def report(self) -> Report:
        """Return what became of everything the run did, so far or in the end."""
        return report(await self._state())

    async def checkpoint(self, *, expires: timedelta | None = None) -> Checkpoint:
        """Return the run as portable JSON; it must be at rest.

        With `expires`, it cannot be resumed once that time has passed.

        Raises:
            CheckpointRefused: it is being driven, or has ended.
        """
        until = None
        if expires is not None:
            until = later(self._desk.now(), expires.total_seconds() * SECOND)
        return await self._desk.checkpoint_of(await self._state(), expires=until)

    def feed(self, after: int = 0) -> AsyncGenerator[Item, None]:
        """Give what happens: entries after `after`, each with its seq, and unstored deltas.

        Ends when the run has ended. A consumer that comes back with the last seq it has seen
        misses no entry and sees none twice.
        """
        return feed(self._desk, self.id, Seq(after))

    # ── inside ────────────────────────────────────────────────────────────────────────────

    async def _ask(self, control: c.Control) -> Receipt:
        return await self._desk.ask(self.id, control)

    async def _state(self) -> State:
        return await self._desk.state_of(self.id)

    async def _seen(self, state: State) -> RunView:
        row = await self._desk.store.row(self.id)
        return view_of(state, started_at=row.started_at)

    async def _checkpoint(self, state: State) -> Checkpoint | None:
        return None if state.phase in TERMINAL else await self._desk.checkpoint_of(state)

    async def _which(self, ask: str | None, control: str) -> AskId:
        """Return the ask that is meant: the only one that is open, unless it is named."""
        if ask is not None:
            return AskId(ask)
        state = await self._state()
        if len(state.open_asks) == 1:
            return state.asks[state.open_asks[0] - 1].id
        reason = "no_such_ask" if not state.open_asks else "several_asks_open"
        raise ControlRefused(self.id, control, reason, state.phase, enabled(state.phase))
