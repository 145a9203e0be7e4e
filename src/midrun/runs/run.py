"""`Run`: the handle of one run. Every method works from any process that has the store."""

from collections.abc import AsyncGenerator
from datetime import timedelta
from typing import TypedDict, Unpack, get_args

from midrun.agents.checkpoint import Checkpoint
from midrun.agents.outcome import Outcome, outcome_of
from midrun.codec.strict_json import checked
from midrun.core import controls as c
from midrun.core.ids import AskId, FrameId, RunId, Seq, later
from midrun.core.state import State
from midrun.core.transitions import possible
from midrun.core.values import RESTS, TERMINAL, Actor, Json, UndoSet, Urgency, Use, When
from midrun.errors import CheckpointRefused, ControlRefused, Misconfigured, RunOver
from midrun.runs import validation
from midrun.runs.checkpoints import at_work
from midrun.runs.feed import feed
from midrun.runs.service import Desk
from midrun.runs.validation import Asking, Moment, Who, actor_of, counted, one_of, phase_of
from midrun.runs.values import FeedItem, Receipt, RunView
from midrun.runs.views import heard, view_of
from midrun.text.report import Report, report


class Wish(TypedDict):
    """Who asks and why, as controls have it."""

    by: Actor
    reason: str
    request: str
    seen: Seq | None


def wish(asking: Asking) -> Wish:
    """Return what every control says of who asks."""
    if unknown := asking.keys() - Asking.__annotations__.keys():
        raise TypeError(f"unexpected keyword argument {min(unknown)!r}")
    return Wish(
        by=actor_of(asking.get("actor")),
        reason=validation.text("reason", asking.get("reason") or ""),
        request=validation.text("request_id", asking.get("request_id") or ""),
        seen=None if (seen := asking.get("seen")) is None else Seq(seen),
    )


class Run:
    """One run. A control returns once it is in the journal; await `until` for the fact.

    Every control takes, besides its own: `actor`, who asks ("ada", "operator:olga", or an
    `Actor`); `reason`, for the journal; `request_id`, under which it is applied once, however
    often and from wherever it is repeated; and `seen`, the `control_rev` of the view that it is
    about: if anybody asked something since, it is refused as `stale_revision`, unless it is a
    pause or a cancel.

    What does not fit where the run stands raises `ControlRefused`, which says why, who came
    first, and what is possible instead; nothing was applied. What is so already is no error:
    the receipt's `already` names it.

    `repeated` says that the request which this handle was returned for had been made before.
    """

    def __init__(self, run_id: RunId, desk: Desk, *, repeated: bool = False) -> None:
        self.id = run_id
        self.repeated = repeated
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
        """Stop at the next boundary, or `now`; with `hold`, go on by itself after that.

        A model's stream is closed at once, and what it said is kept. A tool finishes, unless it
        has saved its progress, or `now` is said. Nothing that has ended is made again. The
        receipt says *pausing* for as long as something is in flight.
        """
        until = None
        if hold is not None:
            until = later(self._desk.now(), validation.span("hold", hold))
        return await self._ask(c.Pause(now=now, until=until, **wish(asking)))

    async def resume(
        self,
        instruction: str | None = None,
        *,
        caps: dict[str, float] | None = None,
        **asking: Unpack[Asking],
    ) -> Receipt:
        """Go on, with an instruction and raised caps if given; withdraws a pause that pends.

        Also after a failure, from the last boundary. A run that paused at a cap goes on only
        once that is raised, in `caps` say. A second resume changes nothing; one that has words
        to bring is refused as `not_paused`, so that they are not lost.
        """
        words = validation.text("instruction", instruction or "")
        return await self._ask(
            c.Resume(instruction=words, caps=counted(caps or {}), **wish(asking))
        )

    async def redirect(
        self, text: str, *, when: When = "next_step", **asking: Unpack[Asking]
    ) -> Receipt:
        """Change course at the next step, or now; finished work stays.

        A model's stream is closed at once; with "now" tools in flight are stopped as well.
        Calls that had not started are not made, and what was asked for them is closed. A run
        that rests goes on with the text. It can be withdrawn until it is applied.
        """
        one_of("when", when, get_args(When))
        text = validation.text("redirect", text)
        return await self._ask(c.Redirect(text=text, when=when, **wish(asking)))

    async def say(
        self,
        text: str,
        *,
        urgency: Urgency = "next",
        at: Moment | None = None,
        **asking: Unpack[Asking],
    ) -> Receipt:
        """Speak to the run while it works: it answers, and goes back to where it was.

        "now" cuts the model short for it, "next" waits for the boundary, "later" until the task
        is answered. `receipt.said` is what the runtime says to it at once. With `at`, not
        before that time: a datetime with its time zone, or a timedelta from now; a run that
        rests is woken by it.
        """
        one_of("urgency", urgency, get_args(Urgency))
        due = None if at is None else validation.moment("at", at, self._desk.now())
        text = validation.text("say", text)
        return await self._ask(c.Say(text=text, urgency=urgency, due=due, **wish(asking)))

    async def answer(
        self, value: Json, *, ask: str | None = None, **asking: Unpack[Asking]
    ) -> Receipt:
        """Answer a question: the answer is the result of the tool that asked.

        `ask` may be left out where exactly one is open. Of an unsure call, "yes", "no" or
        "unknown". The first answer counts; the second is refused, and told who was first.
        """
        which = await self._which(ask, "answer", asking.get("request_id"))
        return await self._ask(c.Answer(ask=which, value=checked(value), **wish(asking)))

    async def approve(
        self, *, ask: str | None = None, args: Json = None, **asking: Unpack[Asking]
    ) -> Receipt:
        """Let a call be made, once, with these arguments and no others.

        `args`, if given, take the place of those that the agent wanted. A redirect that comes
        before the call is made takes the yes back.
        """
        which = await self._which(ask, "approve", asking.get("request_id"))
        return await self._ask(c.Approve(ask=which, args=checked(args), **wish(asking)))

    async def decline(
        self,
        reason: str = "",
        *,
        ask: str | None = None,
        actor: Who = None,
        request_id: str | None = None,
        seen: int | None = None,
    ) -> Receipt:
        """Do not let a call be made; the agent is told why."""
        which = await self._which(ask, "decline", request_id)
        asking = Asking(actor=actor, reason=reason, request_id=request_id, seen=seen)
        return await self._ask(c.Decline(ask=which, **wish(asking)))

    async def cancel(self, *, undo: UndoSet = "in_flight", **asking: Unpack[Asking]) -> Receipt:
        """Stop everything, undo what was in flight or all that can be, and report.

        When this returns, no call of the run starts any more, in any process. What is in flight
        is stopped within its grace; then effects are undone and what is held is released, the
        newest first, also after a crash. `report` says what is left.
        """
        one_of("undo", undo, get_args(UndoSet))
        return await self._ask(c.Cancel(undo=undo, **wish(asking)))

    async def raise_cap(
        self,
        *,
        actor: Who = None,
        reason: str | None = None,
        request_id: str | None = None,
        seen: int | None = None,
        **caps: float,
    ) -> Receipt:
        """Raise bounds by name: steps, tokens, cost (dollars), time (seconds), tool_calls.

        A run that paused at one of them stays paused: `resume` lets it go on.
        """
        asking = Asking(actor=actor, reason=reason, request_id=request_id, seen=seen)
        return await self._ask(c.RaiseCap(caps=counted(caps), **wish(asking)))

    async def withdraw(self, seq: int, **asking: Unpack[Asking]) -> Receipt:
        """Take back the pause, redirect or message at `seq` if it has not been applied."""
        return await self._ask(c.Withdraw(seq=Seq(seq), **wish(asking)))

    async def force_pause(self, **asking: Unpack[Asking]) -> Receipt:
        """Stop waiting for calls that do not respond; their outcome becomes unknown.

        For a run that is pausing and does not come to its end.
        """
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
        return await self._ask(c.Write(text=validation.text("write", text), **wish(asking)))

    async def use_tool(self, tool: str, args: Json, **asking: Unpack[Asking]) -> Receipt:
        """Make one call of the agent's tools by the same door, after taking over."""
        use = self._desk.offered(await self._state(), Use(tool=tool, args=checked(args)))
        return await self._ask(c.UseTool(use=use, **wish(asking)))

    async def hand_back(
        self, instruction: str | None = None, **asking: Unpack[Asking]
    ) -> Receipt:
        """Return the run to its agent."""
        words = validation.text("instruction", instruction or "")
        return await self._ask(c.HandBack(instruction=words, **wish(asking)))

    async def fork(
        self,
        seq: int | None = None,
        *,
        instruction: str | None = None,
        actor: Who = None,
        request_id: str | None = None,
    ) -> "Run":
        """Start a new run that continues from a boundary of this one, with its own journal.

        It inherits what was said and planned; what was done stays this run's. Without `seq`,
        the newest boundary is meant. A repeat with the same `request_id` returns the first.

        Raises:
            ControlRefused: `not_a_boundary`, something was under way at `seq`.
        """
        words, by = validation.text("instruction", instruction or ""), actor_of(actor)
        request = validation.text("request_id", request_id or "")
        where = None if seq is None else validation.whole("seq", seq)
        run, began = await self._desk.fork(
            self.id, where, instruction=words, by=by, request=request
        )
        return Run(run, self._desk, repeated=not began)

    # ── looking ───────────────────────────────────────────────────────────────────────────

    async def view(self) -> RunView:
        """Return where the run stands now, in one piece, with what each button would do."""
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
        """Wait until the run rests or has ended, its children with it, and return how."""
        while True:
            state = await self._desk.reached(self.id, RESTS)
            try:
                return outcome_of(state, await self._checkpoint(state))
            except CheckpointRefused:  # somebody has just let a child go on
                child = await at_work(self._desk.store, state)
            if child is not None:
                await self._desk.reached(child, RESTS)

    async def report(self) -> Report:
        """Return what became of everything the run did, so far or in the end."""
        return report(await self._state())

    async def checkpoint(self, *, expires: timedelta | None = None) -> Checkpoint:
        """Return the run as portable JSON, with its children; all must be at rest.

        With `expires`, it cannot be resumed once that time has passed.

        Raises:
            CheckpointRefused: it is being driven, or has ended.
        """
        until = None
        if expires is not None:
            until = later(self._desk.now(), validation.span("expires", expires))
        return await self._desk.checkpoint_of(await self._state(), expires=until)

    async def export(self) -> tuple[bytes, ...]:
        """Return the journal as it is stored, line by line, byte for byte."""
        return tuple(stored for stored, _ in await self._desk.store.lines(self.id))

    def feed(self, after: int = 0) -> AsyncGenerator[FeedItem, None]:
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
        store = self._desk.store
        row = await store.row(self.id)
        silent = self._desk.live.silent_calls(self.id)
        view = view_of(state, started_at=row.started_at, silent=silent)
        return await heard(store, row, view)

    async def _checkpoint(self, state: State) -> Checkpoint | None:
        return None if state.phase in TERMINAL else await self._desk.checkpoint_of(state)

    async def _which(self, ask: str | None, control: str, request: str | None) -> AskId:
        """Return the ask that is meant: the only one that is open, unless it is named.

        A request that is repeated means the one that it decided.
        """
        if ask is not None:
            return AskId(validation.text("ask", ask))
        state = await self._state()
        if (heard := state.heard.get(request or "")) is not None:
            for decided in state.asks:
                if decided.closed_seq == heard.seq:
                    return decided.id
        if len(state.open_asks) == 1:
            return state.asks[state.open_asks[0] - 1].id
        reason = "no_such_ask" if not state.open_asks else "several_asks_open"
        raise ControlRefused(self.id, control, reason, state.phase, possible(state))
