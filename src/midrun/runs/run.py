"""`Run`: the handle of one run, usable from every process that has the store open.

A control method checks its arguments, builds the control and submits it to the `RunService`.
The other methods read the journal. The handle itself holds nothing but the id of the run.
"""

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
    """The fields that all controls share: the actor, the reason and the request."""

    by: Actor
    reason: str
    request: str
    seen: Seq | None


def wish(options: Asking) -> Wish:
    """Convert the keyword arguments that all control methods share to fields of a control.

    Raises:
        Misconfigured: One of them has the wrong type.
        TypeError: There is an unknown keyword argument.
    """
    # At run time `**options` takes any keyword; `Unpack` is a rule for type checkers only.
    if unknown := options.keys() - Asking.__annotations__.keys():
        raise TypeError(f"unexpected keyword argument {min(unknown)!r}")
    return Wish(
        by=actor_of(options.get("actor")),
        reason=validation.text("reason", options.get("reason") or ""),
        request=validation.text("request_id", options.get("request_id") or ""),
        seen=None if (seen := options.get("seen")) is None else Seq(seen),
    )


class Run:
    """The handle of one run: control it, wait for it, look at it.

    Get one from `Midrun.start`, `Midrun.get` or `Midrun.resume`.

        receipt = await run.pause(actor="ada")   # the request is in the journal
        await run.until("paused")                # now nothing runs and nothing is billed

    A control method returns a `Receipt` when the request is stored in the journal. The worker
    acts on it later, so wait with `until` before you rely on the effect. All control methods
    accept these keyword arguments:

    - `actor`: the person who asks: "ada", "operator:olga" or an `Actor`. Default: "user".
    - `reason`: a text for the journal.
    - `request_id`: the control is applied once, even if it is sent again with the same id,
      from any process. The receipt of a repeat has the `seq` of the first one.
    - `seen`: the `control_rev` of the view that the decision is based on. If another control
      or a change of phase came later, the control is refused as `stale_revision`. A pause or a
      cancel is never refused for this.

    A control that the run cannot take in its phase raises `ControlRefused` and changes
    nothing. The error has the reason, the actor whose control came first, and the controls
    that are allowed now. A control that asks for a state that the run is already in is not an
    error: `receipt.already` names the state.

    Attributes:
        id: The id of the run.
        repeated: True if `start`, `fork` or `resume` returned an existing run because its
            `request_id` was used before.
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
        **options: Unpack[Asking],
    ) -> Receipt:
        """Pause the run at the next step boundary, or at once with `now`.

        A model reply in progress is cut off, and its text so far is kept. A tool call finishes
        first, unless it has saved its progress with `call.save`; with `now`, tool calls are
        aborted. Calls that have ended are not made again on resume. `receipt.applied` is False
        while a call is still in flight.

        Args:
            now: Abort tool calls in flight. They have the agent's `grace` to stop.
            hold: Resume automatically after this time.
        """
        until = None
        if hold is not None:
            until = later(self._desk.now(), validation.span("hold", hold))
        return await self._ask(c.Pause(now=now, until=until, **wish(options)))

    async def resume(
        self,
        instruction: str | None = None,
        *,
        caps: dict[str, float] | None = None,
        **options: Unpack[Asking],
    ) -> Receipt:
        """Continue a paused or failed run, with an instruction for the agent if given.

        A failed run continues from its last boundary. A pause that is not applied yet is
        withdrawn. A second resume changes nothing; with an instruction it is refused as
        `not_paused`, so that the instruction is not lost.

        Args:
            instruction: Text that the agent reads before its next step.
            caps: New caps by name, as in `raise_cap`. A run that paused at a cap cannot
                continue before that cap is raised.
        """
        instruction = validation.text("instruction", instruction or "")
        return await self._ask(
            c.Resume(instruction=instruction, caps=counted(caps or {}), **wish(options))
        )

    async def redirect(
        self, text: str, *, when: When = "next_step", **options: Unpack[Asking]
    ) -> Receipt:
        """Give the agent a new instruction; keep the work that is finished.

        A model reply in progress is cut off. Proposed calls that have not started are dropped,
        and their asks are closed. A paused or waiting run continues with the new instruction.
        Until it is applied it can be taken back with `withdraw(receipt.seq)`.

        Args:
            text: The new instruction.
            when: "next_step" lets tool calls in flight finish; "now" aborts them.
        """
        one_of("when", when, get_args(When))
        text = validation.text("redirect", text)
        return await self._ask(c.Redirect(text=text, when=when, **wish(options)))

    async def say(
        self,
        text: str,
        *,
        urgency: Urgency = "next",
        at: Moment | None = None,
        **options: Unpack[Asking],
    ) -> Receipt:
        """Send a message to the run; the agent answers it and returns to its task.

        `receipt.said` is an immediate acknowledgement from the runtime, not from the model.

        Args:
            text: The message.
            urgency: "now" cuts off the model reply in progress, "next" waits for the next step
                boundary, "later" waits until the agent has finished its task.
            at: Deliver it not before this time: an aware `datetime`, or a `timedelta` from
                now. A run at rest wakes up for it.
        """
        one_of("urgency", urgency, get_args(Urgency))
        due = None if at is None else validation.moment("at", at, self._desk.now())
        text = validation.text("say", text)
        return await self._ask(c.Say(text=text, urgency=urgency, due=due, **wish(options)))

    async def answer(
        self, value: Json, *, ask: str | None = None, **options: Unpack[Asking]
    ) -> Receipt:
        """Answer a question of the run; `value` becomes the result of the call that asked.

        The first answer counts; a later one is refused with the name of the first actor.

        Args:
            value: JSON data. For an unsure call: "yes" (it happened), "no" or "unknown".
            ask: The id of the ask. May be left out if exactly one ask is open.
        """
        which = await self._which(ask, "answer", options.get("request_id"))
        return await self._ask(c.Answer(ask=which, value=checked(value), **wish(options)))

    async def approve(
        self, *, ask: str | None = None, args: Json = None, **options: Unpack[Asking]
    ) -> Receipt:
        """Approve a proposed call: it is made once, with exactly the arguments shown.

        A redirect that arrives before the call starts cancels the approval.

        Args:
            ask: The id of the ask. May be left out if exactly one ask is open.
            args: Arguments that replace those the agent proposed.
        """
        which = await self._which(ask, "approve", options.get("request_id"))
        return await self._ask(c.Approve(ask=which, args=checked(args), **wish(options)))

    async def decline(
        self,
        reason: str = "",
        *,
        ask: str | None = None,
        actor: Who = None,
        request_id: str | None = None,
        seen: int | None = None,
    ) -> Receipt:
        """Decline a proposed call; the agent reads `reason` in place of a result.

        `ask` may be left out if exactly one ask is open.
        """
        which = await self._which(ask, "decline", request_id)
        options = Asking(actor=actor, reason=reason, request_id=request_id, seen=seen)
        return await self._ask(c.Decline(ask=which, **wish(options)))

    async def cancel(
        self, *, undo: UndoSet = "in_flight", **options: Unpack[Asking]
    ) -> Receipt:
        """Cancel the run: abort its calls, undo effects, release resources.

        When this returns, no new call of the run can start in any process. Calls in flight are
        aborted within their grace. Then undo and release hooks run, for the newest call first;
        after a crash the next worker continues with them. `until("cancelled")` waits for the
        end, and `report` lists the effects that remain.

        Args:
            undo: "in_flight" undoes only the calls that were in flight; "all" undoes every
                call that has an undo hook.
        """
        one_of("undo", undo, get_args(UndoSet))
        return await self._ask(c.Cancel(undo=undo, **wish(options)))

    async def raise_cap(
        self,
        *,
        actor: Who = None,
        reason: str | None = None,
        request_id: str | None = None,
        seen: int | None = None,
        **caps: float,
    ) -> Receipt:
        """Raise caps by name: steps, tokens, cost (dollars), time (seconds), tool_calls.

        A run that paused at one of them stays paused; `resume` continues it.

            await run.raise_cap(cost=5.0, actor="ada")
        """
        options = Asking(actor=actor, reason=reason, request_id=request_id, seen=seen)
        return await self._ask(c.RaiseCap(caps=counted(caps), **wish(options)))

    async def withdraw(self, seq: int, **options: Unpack[Asking]) -> Receipt:
        """Withdraw the pause, redirect or message at `seq`, if it is not applied yet.

        `seq` is the one of its receipt.
        """
        return await self._ask(c.Withdraw(seq=Seq(seq), **wish(options)))

    async def force_pause(self, **options: Unpack[Asking]) -> Receipt:
        """Finish a pause without the calls that do not respond.

        The outcome of these calls becomes unknown. Allowed while the run is *pausing*.
        """
        return await self._ask(c.ForcePause(**wish(options)))

    async def retry_undo(self, **options: Unpack[Asking]) -> Receipt:
        """Run the undo hooks again for effects that could not be undone."""
        return await self._ask(c.RetryUndo(**wish(options)))

    async def accept_residue(self, **options: Unpack[Asking]) -> Receipt:
        """Accept the effects that could not be undone; they stay in the report."""
        return await self._ask(c.AcceptResidue(**wish(options)))

    async def resume_frame(self, frame: str, **options: Unpack[Asking]) -> Receipt:
        """Return to the topic that was suspended last.

        A frame holds a topic that the agent left in order to answer a message. `frame` is its
        id in `view.frames`; only the newest frame can be resumed or dropped.
        """
        return await self._ask(c.ResumeFrame(frame=FrameId(frame), **wish(options)))

    async def drop_frame(self, frame: str, **options: Unpack[Asking]) -> Receipt:
        """Drop the topic that was suspended last; the agent does not return to it."""
        return await self._ask(c.DropFrame(frame=FrameId(frame), **wish(options)))

    async def take_over(self, **options: Unpack[Asking]) -> Receipt:
        """Take the agent's place as soon as no call is in flight.

        Then `write` and `use_tool` act as the assistant, until `hand_back`.
        """
        return await self._ask(c.TakeOver(**wish(options)))

    async def write(self, text: str, **options: Unpack[Asking]) -> Receipt:
        """Write a message as the assistant; allowed after `take_over`."""
        return await self._ask(c.Write(text=validation.text("write", text), **wish(options)))

    async def use_tool(self, tool: str, args: Json, **options: Unpack[Asking]) -> Receipt:
        """Call one of the agent's tools; allowed after `take_over`.

        The call is journaled, approved and undone like one of the agent.

        Raises:
            ControlRefused: `bad_arguments`: there is no such tool, or `args` do not match its
                schema. `unknown_agent`: this process does not have the agent of the run.
        """
        use = self._desk.offered(await self._state(), Use(tool=tool, args=checked(args)))
        return await self._ask(c.UseTool(use=use, **wish(options)))

    async def hand_back(
        self, instruction: str | None = None, **options: Unpack[Asking]
    ) -> Receipt:
        """Return the run to its agent after `take_over`, with an instruction if given."""
        instruction = validation.text("instruction", instruction or "")
        return await self._ask(c.HandBack(instruction=instruction, **wish(options)))

    async def fork(
        self,
        seq: int | None = None,
        *,
        instruction: str | None = None,
        actor: Who = None,
        request_id: str | None = None,
    ) -> "Run":
        """Start a new run that continues from a step boundary of this one.

        The new run has its own journal. It inherits the messages and the plan; the effects
        stay with this run, which alone can undo them. A repeat with the same `request_id`
        returns the first fork.

        Args:
            seq: The position of a boundary in the journal. Default: the newest one.
            instruction: Text that the agent of the new run reads first.
            actor: The person who asks.
            request_id: Makes a repeat safe.

        Raises:
            ControlRefused: `not_a_boundary`: a call was in flight at `seq`, or the journal has
                no such entry.
        """
        instruction, by = validation.text("instruction", instruction or ""), actor_of(actor)
        request = validation.text("request_id", request_id or "")
        boundary = None if seq is None else validation.whole("seq", seq)
        run, created = await self._desk.fork(
            self.id, boundary, instruction=instruction, by=by, request=request
        )
        return Run(run, self._desk, repeated=not created)

    # ── reading ───────────────────────────────────────────────────────────────────────────

    async def view(self) -> RunView:
        """Return the current state of the run, with the effect that each control would have."""
        return await self._seen(await self._state())

    async def until(self, *phases: str) -> RunView:
        """Wait until the run is in one of `phases`, and return its view.

        "terminal" means completed or cancelled.

            await run.until("paused", "waiting", "terminal")

        Raises:
            RunOver: The run ended in another phase and can never reach one of `phases`.
            Misconfigured: A phase has an unknown name, or no phase is given.
        """
        if not phases:
            problem = 'Cannot wait: no phase was given. Name one: until("paused").'
            raise Misconfigured("until", problem)
        wanted = {phase_of(p) for p in phases if p != "terminal"}
        wanted |= TERMINAL if "terminal" in phases else set()
        # Also wake up at the end of the run, or a phase that can never come would be awaited
        # for ever.
        state = await self._desk.reached(self.id, wanted | TERMINAL)
        if state.phase not in wanted:
            raise RunOver(self.id, state.phase, tuple(sorted(wanted)))
        return await self._seen(state)

    async def result(self) -> Outcome:
        """Wait until the run has ended or cannot continue by itself; return the outcome.

        The outcome is `Completed`, `Cancelled`, `Failed` or `Paused`. The last two have a
        checkpoint, and the run can continue.
        """
        while True:
            state = await self._desk.reached(self.id, RESTS)
            try:
                return outcome_of(state, await self._checkpoint(state))
            except CheckpointRefused:
                # The run rests, but a control has just continued one of its children, so no
                # checkpoint of the family exists now. Wait for that child and look again.
                child = await at_work(self._desk.store, state)
            if child is not None:
                await self._desk.reached(child, RESTS)

    async def report(self) -> Report:
        """Return the outcome of every call that had an effect: kept, undone, unknown.

        Of a run that has not ended, it is the report so far.
        """
        return report(await self._state())

    async def checkpoint(self, *, expires: timedelta | None = None) -> Checkpoint:
        """Return the run and its child runs as portable JSON.

            text = (await run.checkpoint()).to_json()

        Args:
            expires: The checkpoint cannot be resumed after this time.

        Raises:
            CheckpointRefused: The run, or one of its children, is being driven; or it ended.
        """
        until = None
        if expires is not None:
            until = later(self._desk.now(), validation.span("expires", expires))
        return await self._desk.checkpoint_of(await self._state(), expires=until)

    async def export(self) -> tuple[bytes, ...]:
        """Return the journal as stored: one line of JSON per entry, byte for byte."""
        return tuple(stored for stored, _ in await self._desk.store.lines(self.id))

    def feed(self, after: int = 0) -> AsyncGenerator[FeedItem, None]:
        """Follow the run: yield its entries after seq `after`, and live deltas in between.

        The feed ends when the run has ended. To continue an interrupted feed, pass the `seq`
        of the last entry received: no entry is missed and none comes twice. Deltas (tokens and
        notes) are not stored and cannot be replayed.

            async for item in run.feed():
                print(item)
        """
        return feed(self._desk, self.id, Seq(after))

    # ── internals ─────────────────────────────────────────────────────────────────────────

    async def _ask(self, control: c.Control) -> Receipt:
        return await self._desk.ask(self.id, control)

    async def _state(self) -> State:
        return await self._desk.state_of(self.id)

    async def _seen(self, state: State) -> RunView:
        # The row is read after the state, so it is at least as new; see `mark_lost_worker`.
        store = self._desk.store
        row = await store.row(self.id)
        silent = self._desk.live.silent_calls(self.id)
        view = view_of(state, started_at=row.started_at, silent=silent)
        return await heard(store, row, view)

    async def _checkpoint(self, state: State) -> Checkpoint | None:
        return None if state.phase in TERMINAL else await self._desk.checkpoint_of(state)

    async def _which(self, ask: str | None, control: str, request: str | None) -> AskId:
        """Return the id of `ask`, or of the only open ask if `ask` is None.

        Raises:
            ControlRefused: No ask is open, or several are.
        """
        if ask is not None:
            return AskId(validation.text("ask", ask))
        state = await self._state()
        # A repeated request may come when its ask is closed and the next one is open. It means
        # the ask that the first request closed, not the one that is open now.
        if (recorded := state.heard.get(request or "")) is not None:
            for decided in state.asks:
                if decided.closed_seq == recorded.seq:
                    return decided.id
        if len(state.open_asks) == 1:
            return state.asks[state.open_asks[0] - 1].id
        reason = "no_such_ask" if not state.open_asks else "several_asks_open"
        raise ControlRefused(self.id, control, reason, state.phase, possible(state))
