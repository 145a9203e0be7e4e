"""`Run`: the handle of one run, usable from every process that has the store open.

A control method checks its arguments, builds the control and submits it to the `RunService`.
The other methods read the journal. The handle itself holds nothing but the id of the run.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from datetime import timedelta
from html import escape
from typing import Final, TypedDict, Unpack, get_args

import anyio

from midrun.agents.checkpoint import Checkpoint
from midrun.agents.file import File, check_files
from midrun.agents.outcome import Outcome, make_outcome
from midrun.codec.strict_json import normalize_json
from midrun.core import controls as c
from midrun.core.ids import AskId, FrameId, RunId, Seq, add_micros
from midrun.core.state import State
from midrun.core.transitions import list_possible_controls
from midrun.core.values import (
    RESTING_PHASES,
    TERMINAL_PHASES,
    Actor,
    Json,
    RedirectTiming,
    RequestedCall,
    UndoSet,
    Urgency,
)
from midrun.driver.journal_writer import load_run_state
from midrun.errors import (
    CheckpointRefused,
    ControlRefused,
    MidrunError,
    Misconfigured,
    RunOver,
)
from midrun.events import RunEvent
from midrun.ports.store import RunQuota
from midrun.runs import validation
from midrun.runs.checkpoints import find_active_child
from midrun.runs.deletion import delete_one
from midrun.runs.event_stream import stream_events
from midrun.runs.feed import stream_feed
from midrun.runs.service import RunService
from midrun.runs.validation import (
    WAIT_ENDING_PHASES,
    ActorLike,
    ControlOptions,
    TimeLike,
    check_choice,
    convert_caps,
    parse_actor,
    parse_awaited_phases,
)
from midrun.runs.values import ArtifactView, Erasure, FeedItem, Receipt, RunView
from midrun.runs.views import list_artifacts, load_view
from midrun.stores.encryption import read_decrypted_lines
from midrun.text.report import Report, build_report
from midrun.text.status import format_status_html

DISPLAY_INTERVAL_S: Final = 0.2
"""Seconds between two updates of a run that is shown in a notebook."""

_DISPLAY_TASKS: Final[set[asyncio.Task[None]]] = set()


class ControlFields(TypedDict):
    """The fields that all controls share: the actor, the reason and the request."""

    by: Actor
    reason: str
    request_id: str
    seen: Seq | None


def make_control_fields(options: ControlOptions) -> ControlFields:
    """Convert the keyword arguments that all control methods share to fields of a control.

    Raises:
        Misconfigured: One of them has the wrong type.
        TypeError: There is an unknown keyword argument.
    """
    # At run time `**options` takes any keyword; `Unpack` is a rule for type checkers only.
    if unknown := options.keys() - ControlOptions.__annotations__.keys():
        raise TypeError(f"unexpected keyword argument {min(unknown)!r}")
    return ControlFields(
        by=parse_actor(options.get("actor")),
        reason=validation.check_text("reason", options.get("reason") or ""),
        request_id=validation.check_text("request_id", options.get("request_id") or ""),
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

    def __init__(self, run_id: RunId, service: RunService, *, repeated: bool = False) -> None:
        self.id = run_id
        self.repeated = repeated
        self._service = service

    def __repr__(self) -> str:
        return f"Run({self.id!r})"

    def _repr_html_(self) -> str:
        """Return the status of the run for a notebook, as this process knows it now."""
        return format_status_html(self.id, self._service.find_live_state(self.id))

    def _ipython_display_(self) -> None:
        """Show the status in a notebook, and update it in place until the run has ended.

        IPython calls this for the value of a cell, and in `display(run)`. Updates need the
        event loop in which the `Midrun` is open; a notebook runs all cells in one. Without it,
        as in a terminal, the status stays as it was.
        """
        from IPython.display import display  # noqa: PLC0415 - only IPython calls this method

        bundle = self._make_display(self._repr_html_())
        handle = display(bundle, raw=True, display_id=True)  # type: ignore[no-untyped-call]
        if handle is None:
            return
        try:
            self._service.change_notifier.check_loop()
            task = asyncio.get_running_loop().create_task(self._update_display(handle.update))
        except (RuntimeError, Misconfigured):
            return
        # An event loop has only weak references to its tasks. This one ends with the run, or
        # when the `Midrun` is closed.
        _DISPLAY_TASKS.add(task)
        task.add_done_callback(_DISPLAY_TASKS.discard)

    def _make_display(self, html: str) -> dict[str, str]:
        return {"text/html": html, "text/plain": repr(self)}

    async def _update_display(self, update: Callable[..., object]) -> None:  # type: ignore[explicit-any]  # of IPython
        """Show each new status of the run, at most a few times in a second."""
        html = ""
        try:
            with self._service.change_notifier.subscribe(self.id) as wakeup:
                while True:
                    state = await self._load_state()
                    if html != (html := format_status_html(self.id, state)):
                        update(self._make_display(html), raw=True)
                    if state.phase in TERMINAL_PHASES:
                        return
                    await self._service.wait_for_change(wakeup)
                    await anyio.sleep(DISPLAY_INTERVAL_S)
        except MidrunError as error:
            note = escape(f"Not updated any more: {error}")
            update(self._make_display(f"{html}<div><em>{note}</em></div>"), raw=True)

    # ── controls ──────────────────────────────────────────────────────────────────────────

    async def pause(
        self,
        *,
        now: bool = False,
        hold: timedelta | None = None,
        **options: Unpack[ControlOptions],
    ) -> Receipt:
        """Pause the run as soon as nothing is in flight; with `now`, abort calls.

        A model reply in progress is cut off, and its text so far is kept. A tool call finishes
        first, unless it has saved its progress with `call.save`; with `now`, tool calls are
        aborted. Calls that have ended are not made again on resume. `receipt.applied` is False
        while a call is still in flight.

        Args:
            now: Abort tool calls in flight. If a call does not stop within the agent's `grace`,
                the run stays *pausing* until the call ends or its own `timeout` is over, or
                until `force_pause` or `cancel` is called.
            hold: Resume automatically after this time.
        """
        until = None
        if hold is not None:
            until = add_micros(self._service.now(), validation.convert_to_micros("hold", hold))
        return await self._submit(c.Pause(now=now, until=until, **make_control_fields(options)))

    async def resume(
        self,
        instruction: str | None = None,
        *,
        caps: dict[str, float] | None = None,
        files: Sequence[File] | None = None,
        **options: Unpack[ControlOptions],
    ) -> Receipt:
        """Continue a paused or failed run, with an instruction for the agent if given.

        A failed run continues from its last boundary. A pause that is not applied yet is
        withdrawn. A second resume changes nothing; with an instruction it is refused as
        `not_paused`, so that the instruction is not lost.

        Args:
            instruction: Text that the agent reads before its next step.
            caps: New caps by name, as in `raise_cap`. A run that paused at a cap cannot
                continue before that cap is raised.
            files: Files that belong to the instruction.
        """
        instruction = validation.check_text("instruction", instruction or "")
        control = c.Resume(
            instruction=instruction,
            caps=convert_caps(caps or {}),
            **make_control_fields(options),
        )
        return await self._submit(control, validation.check_files_of(instruction, files))

    async def redirect(
        self,
        text: str,
        *,
        when: RedirectTiming = "next_step",
        files: Sequence[File] | None = None,
        **options: Unpack[ControlOptions],
    ) -> Receipt:
        """Give the agent a new instruction; keep the work that is finished.

        A model reply in progress is cut off. Proposed calls that have not started are dropped,
        and their asks are closed. A paused or waiting run continues with the new instruction.
        Until it is applied it can be taken back with `withdraw(receipt.seq)`.

        Args:
            text: The new instruction.
            when: "next_step" lets tool calls in flight finish; "now" aborts them.
            files: Files that belong to the instruction.
        """
        check_choice("when", when, get_args(RedirectTiming))
        text = validation.check_text("redirect", text)
        return await self._submit(
            c.Redirect(text=text, when=when, **make_control_fields(options)),
            check_files(files),
        )

    async def say(
        self,
        text: str,
        *,
        urgency: Urgency = "next",
        at: TimeLike | None = None,
        files: Sequence[File] | None = None,
        **options: Unpack[ControlOptions],
    ) -> Receipt:
        """Send a message to the run; the agent answers it and returns to its task.

        `receipt.acknowledgement` is the runtime's immediate answer, not the model's.

        Args:
            text: The message.
            urgency: "now" cuts off the model reply in progress, "next" waits for the next step
                boundary, "later" waits until the agent has finished its task.
            at: Deliver it not before this time: an aware `datetime`, or a `timedelta` from
                now. A run at rest wakes up for it.
            files: Files that belong to the message.
        """
        check_choice("urgency", urgency, get_args(Urgency))
        due = None if at is None else validation.convert_time("at", at, self._service.now())
        text = validation.check_text("say", text)
        return await self._submit(
            c.Say(text=text, urgency=urgency, due=due, **make_control_fields(options)),
            check_files(files),
        )

    async def answer(
        self,
        value: Json,
        *,
        ask: str | None = None,
        files: Sequence[File] | None = None,
        **options: Unpack[ControlOptions],
    ) -> Receipt:
        """Answer a question of the run; `value` becomes the result of the call that asked.

        The first answer counts; a later one is refused with the name of the first actor.

        Args:
            value: JSON data. For an unsure call: "yes" (it happened), "no" or "unknown".
            ask: The id of the ask. May be left out if exactly one ask is open.
            files: Files that belong to the answer; the model reads them with it. Only a
                question whose answer becomes a result takes them (`AskView.takes_files`).
        """
        which = await self._resolve_ask(ask, "answer", options.get("request_id"))
        return await self._submit(
            c.Answer(ask=which, value=normalize_json(value), **make_control_fields(options)),
            check_files(files),
        )

    async def approve(
        self, *, ask: str | None = None, args: Json = None, **options: Unpack[ControlOptions]
    ) -> Receipt:
        """Approve a proposed call: it is made once, with exactly the arguments shown.

        A redirect that arrives before the call starts cancels the approval.

        Args:
            ask: The id of the ask. May be left out if exactly one ask is open.
            args: Arguments that replace those the agent proposed.
        """
        which = await self._resolve_ask(ask, "approve", options.get("request_id"))
        return await self._submit(
            c.Approve(ask=which, args=normalize_json(args), **make_control_fields(options))
        )

    async def decline(
        self,
        reason: str = "",
        *,
        ask: str | None = None,
        actor: ActorLike = None,
        request_id: str | None = None,
        seen: int | None = None,
    ) -> Receipt:
        """Decline a proposed call; the agent reads `reason` in place of a result.

        `ask` may be left out if exactly one ask is open.
        """
        which = await self._resolve_ask(ask, "decline", request_id)
        options = ControlOptions(actor=actor, reason=reason, request_id=request_id, seen=seen)
        return await self._submit(c.Decline(ask=which, **make_control_fields(options)))

    async def cancel(
        self, *, undo: UndoSet = "in_flight", **options: Unpack[ControlOptions]
    ) -> Receipt:
        """Cancel the run: abort its calls, undo effects, release resources.

        When this returns, no new call of the run can start in any process. Calls in flight are
        aborted within their grace. Then undo and release hooks run, for the newest call first;
        after a crash the next worker continues with them. `until("cancelled")` waits for the
        end, and `report` lists the effects that remain.

        Args:
            undo: "in_flight" undoes the calls that were in flight, stopped midway or of
                unknown outcome when the cancel came; "all" also undoes every finished call
                that has an undo hook.
        """
        check_choice("undo", undo, get_args(UndoSet))
        return await self._submit(c.Cancel(undo=undo, **make_control_fields(options)))

    async def raise_cap(
        self,
        *,
        actor: ActorLike = None,
        reason: str | None = None,
        request_id: str | None = None,
        seen: int | None = None,
        **caps: float,
    ) -> Receipt:
        """Raise caps by name: steps, tokens, cost (dollars), time (seconds), tool_calls.

        A run that paused at one of them stays paused; `resume` continues it.

            await run.raise_cap(cost=5.0, actor="ada")
        """
        options = ControlOptions(actor=actor, reason=reason, request_id=request_id, seen=seen)
        return await self._submit(
            c.RaiseCap(caps=convert_caps(caps), **make_control_fields(options))
        )

    async def withdraw(self, seq: int, **options: Unpack[ControlOptions]) -> Receipt:
        """Withdraw the pause, redirect or message at `seq`, if it is not applied yet.

        `seq` is the one of its receipt.
        """
        return await self._submit(c.Withdraw(seq=Seq(seq), **make_control_fields(options)))

    async def force_pause(self, **options: Unpack[ControlOptions]) -> Receipt:
        """Finish a pause without the calls that do not respond.

        The outcome of these calls becomes unknown. Allowed while the run is *pausing*.
        """
        return await self._submit(c.ForcePause(**make_control_fields(options)))

    async def retry_undo(self, **options: Unpack[ControlOptions]) -> Receipt:
        """Run the undo hooks again for effects that could not be undone."""
        return await self._submit(c.RetryUndo(**make_control_fields(options)))

    async def accept_residue(self, **options: Unpack[ControlOptions]) -> Receipt:
        """Accept the effects that could not be undone; they stay in the report."""
        return await self._submit(c.AcceptResidue(**make_control_fields(options)))

    async def resume_frame(self, frame: str, **options: Unpack[ControlOptions]) -> Receipt:
        """Return to the topmost held topic.

        The agent left the topic in order to answer a message. `frame` is the id of the topic in
        `view.frames`; only the topmost one can be resumed or dropped.
        """
        return await self._submit(
            c.ResumeFrame(frame=FrameId(frame), **make_control_fields(options))
        )

    async def drop_frame(self, frame: str, **options: Unpack[ControlOptions]) -> Receipt:
        """Drop the topmost held topic; the agent does not return to it."""
        return await self._submit(
            c.DropFrame(frame=FrameId(frame), **make_control_fields(options))
        )

    async def take_over(self, **options: Unpack[ControlOptions]) -> Receipt:
        """Take the agent's place as soon as no call is in flight.

        Then `write` and `use_tool` act as the assistant, until `hand_back`.
        """
        return await self._submit(c.TakeOver(**make_control_fields(options)))

    async def write(self, text: str, **options: Unpack[ControlOptions]) -> Receipt:
        """Write a message as the assistant; allowed after `take_over`."""
        return await self._submit(
            c.Write(text=validation.check_text("write", text), **make_control_fields(options))
        )

    async def use_tool(
        self, tool: str, args: Json, **options: Unpack[ControlOptions]
    ) -> Receipt:
        """Call one of the agent's tools; allowed after `take_over`.

        The call is journaled, approved and undone like one of the agent.

        Raises:
            ControlRefused: `bad_arguments`: there is no such tool, or `args` do not match its
                schema. `unknown_agent`: this process does not have the agent of the run.
        """
        use = self._service.complete_use(
            await self._load_state(), RequestedCall(tool=tool, args=normalize_json(args))
        )
        return await self._submit(c.UseTool(use=use, **make_control_fields(options)))

    async def hand_back(
        self, instruction: str | None = None, **options: Unpack[ControlOptions]
    ) -> Receipt:
        """Return the run to its agent after `take_over`, with an instruction if given."""
        instruction = validation.check_text("instruction", instruction or "")
        return await self._submit(
            c.HandBack(instruction=instruction, **make_control_fields(options))
        )

    async def fork(
        self,
        seq: int | None = None,
        *,
        instruction: str | None = None,
        files: Sequence[File] | None = None,
        actor: ActorLike = None,
        request_id: str | None = None,
        quotas: Sequence[RunQuota] = (),
    ) -> "Run":
        """Start a new run that continues from a step boundary of this one.

        The new run has its own journal. It inherits the messages and the plan; the effects
        stay with this run, which alone can undo them. A repeat with the same `request_id`
        returns the first fork.

        Args:
            seq: The position of a boundary in the journal. Default: the newest one.
            instruction: Text that the agent of the new run reads first.
            files: Files that belong to the instruction.
            actor: The person who asks.
            request_id: Makes a repeat safe.
            quotas: Bounds on the runs of the tenant or of the owner, for a server.

        Raises:
            QuotaReached: The new run would exceed one of `quotas`.
            ControlRefused: `not_a_boundary`: a call was in flight at `seq`, or the journal has
                no such entry.
        """
        instruction, by = (
            validation.check_text("instruction", instruction or ""),
            parse_actor(actor),
        )
        request = validation.check_text("request_id", request_id or "")
        boundary = None if seq is None else validation.check_int("seq", seq)
        attached = validation.check_files_of(instruction, files)
        run, created = await self._service.fork_run(
            self.id,
            boundary,
            instruction=instruction,
            files=attached,
            by=by,
            request=request,
            quotas=quotas,
        )
        return Run(run, self._service, repeated=not created)

    # ── reading ───────────────────────────────────────────────────────────────────────────

    async def view(self) -> RunView:
        """Return the current state of the run, with the effect that each control would have."""
        return await self._make_view(await self._load_state())

    async def until(self, *phases: str) -> RunView:
        """Wait until the run is in one of `phases`, and return its view.

        "terminal" means completed or cancelled. A run that fails ends the wait, too: with
        `RunOver`, or with its view if "failed" is one of `phases`.

            await run.until("paused", "waiting", "terminal")

        Raises:
            RunOver: The run ended or failed, and that phase is not one of `phases`.
            Misconfigured: A phase has an unknown name, or no phase is given.
        """
        wanted = parse_awaited_phases(phases)
        # Also wake up when the run ends or fails, or a phase that does not come by itself would
        # be awaited for ever.
        state = await self._service.wait_for_phase(self.id, wanted | WAIT_ENDING_PHASES)
        if state.phase not in wanted:
            error = "" if state.error is None else state.error.error
            raise RunOver(self.id, state.phase, tuple(sorted(wanted)), error)
        return await self._make_view(state)

    async def result(self) -> Outcome:
        """Wait until the run has ended or cannot continue by itself; return the outcome.

        The outcome is `Completed`, `Cancelled`, `Failed` or `Paused`. The last two have a
        checkpoint, and the run can continue.
        """
        while True:
            state = await self._service.wait_for_phase(self.id, RESTING_PHASES)
            try:
                return make_outcome(state, await self._checkpoint_unless_ended(state))
            except CheckpointRefused:
                # The run rests, but a control has just continued one of its children, so no
                # checkpoint of the family exists now. Wait for that child and look again.
                child = await find_active_child(self._service.store, state)
            if child is not None:
                await self._service.wait_for_phase(child, RESTING_PHASES)

    async def report(self) -> Report:
        """Return the outcome of every call that had an effect: kept, undone, unknown.

        Of a run that has not ended, it is the report so far.
        """
        return build_report(await self._load_state())

    async def artifacts(self) -> tuple[ArtifactView, ...]:
        """Return all versions of the artifacts that tools have shown, oldest first.

        newest = {shown.name: shown for shown in await run.artifacts()}
        """
        return list_artifacts(await self._load_state())

    async def file(self, file_hash: str) -> File:
        """Return a file of the run: of a text, a tool result or an artifact.

        Raises:
            FileMissing: No entry of the run names a file of this hash.
        """
        return await self._service.read_file(await self._load_state(), file_hash)

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
            until = add_micros(
                self._service.now(), validation.convert_to_micros("expires", expires)
            )
        return await self._service.make_checkpoint(await self._load_state(), expires=until)

    async def delete(self, reason: str = "", *, actor: ActorLike = None) -> Erasure:
        """Delete the run and its child runs; only a tombstone is left.

        The run must have ended or failed. Its journal, its snapshot and its follower cursors
        are removed; a long journal is removed after this returns, by a worker. The tombstone
        has the id, the last hash, the actor, the time and the reason. Of a run that is deleted
        already, it is returned unchanged.

        Raises:
            DeleteRefused: The run, or a child run, has not ended: cancel it first. Or it is
                itself a child run: delete its parent.
            RunNotFound: There is no such run.
        """
        return await delete_one(self._service.store, self.id, parse_actor(actor), reason)

    async def export(self) -> tuple[bytes, ...]:
        """Return the journal as stored: one line of JSON per entry, byte for byte.

        Of an encrypted store, the lines are decrypted.
        """
        return tuple(
            line for line, _ in await read_decrypted_lines(self._service.store, self.id)
        )

    def feed(self, after: int = 0) -> AsyncGenerator[FeedItem, None]:
        """Follow the run: yield its entries after seq `after`, and live deltas in between.

        The feed ends when the run has ended. To continue an interrupted feed, pass the `seq`
        of the last entry received: no entry is missed and none comes twice. Deltas (tokens and
        notes) are not stored and cannot be replayed.

            async for item in run.feed():
                print(item)
        """
        return stream_feed(self._service, self.id, Seq(after))

    def events(self, after: int = 0) -> AsyncGenerator[RunEvent, None]:
        """Follow the run as typed events, each with a `seq` and a `sentence`.

        There is one event for each entry, and live output between them; see `midrun.events`.
        They end when the run has ended. To continue after an interruption, pass the `seq` of
        the last event.

            async for event in run.events():
                match event:
                    case TextDelta(text=text):
                        print(text, end="")
                    case ToolStarted(sentence=sentence):
                        print(sentence)
        """

        async def load_state(until: Seq) -> State:
            return await load_run_state(self._service.store, self.id, until=until)

        return stream_events(self.feed, self.id, after, load_state)

    # ── internals ─────────────────────────────────────────────────────────────────────────

    async def _submit(self, control: c.Control, files: Sequence[File] = ()) -> Receipt:
        return await self._service.submit(self.id, control, files)

    async def _load_state(self) -> State:
        return await self._service.load_state(self.id)

    async def _make_view(self, state: State) -> RunView:
        silent = self._service.live.find_unresponsive_calls(self.id)
        return await load_view(self._service.store, state, silent=silent)

    async def _checkpoint_unless_ended(self, state: State) -> Checkpoint | None:
        return (
            None
            if state.phase in TERMINAL_PHASES
            else await self._service.make_checkpoint(state)
        )

    async def _resolve_ask(self, ask: str | None, control: str, request: str | None) -> AskId:
        """Return the id of `ask`, or of the only open ask if `ask` is None.

        Raises:
            ControlRefused: No ask is open, or several are.
        """
        if ask is not None:
            return AskId(validation.check_text("ask", ask))
        state = await self._load_state()
        # A repeated request may come when its ask is closed and the next one is open. It means
        # the ask that the first request closed, not the one that is open now.
        if (recorded := state.requests.get(request or "")) is not None:
            for decided in state.asks:
                if decided.closed_seq == recorded.seq:
                    return decided.id
        if len(state.open_asks) == 1:
            return state.asks[state.open_asks[0] - 1].id
        reason = "no_such_ask" if not state.open_asks else "several_asks_open"
        raise ControlRefused(
            self.id, control, reason, state.phase, list_possible_controls(state)
        )
