"""`RemoteRun`: the handle of one run of a server, over HTTP. `Run` documents the methods.

A control method checks its arguments, makes the body, and sends it as the control's spec says.
"""

from collections.abc import AsyncGenerator, Mapping, Sequence
from datetime import timedelta
from typing import Final, Unpack, get_args

import anyio
import msgspec
from msgspec.structs import asdict, replace

from midrun.agents.checkpoint import Checkpoint
from midrun.agents.file import File, check_files
from midrun.agents.outcome import Cancelled, Completed, Outcome, make_outcome
from midrun.client.decode import decode_value
from midrun.client.transport import HttpTransport, follow_feed
from midrun.codec.strict_json import normalize_json
from midrun.core.files import FILE_HASH_PATTERN
from midrun.core.ids import MICROS_PER_SECOND, RunId, micros_to_datetime
from midrun.core.stops import CAP_TYPES
from midrun.core.values import (
    RESTING_PHASES,
    Json,
    Phase,
    RedirectTiming,
    UndoSet,
    Urgency,
)
from midrun.errors import CheckpointRefused, ControlRefused, FileMissing, RunOver
from midrun.events import RunEvent
from midrun.runs import control_specs as specs
from midrun.runs import validation
from midrun.runs.control_bodies import (
    CancelBody,
    Caps,
    ChangeBody,
    ControlBody,
    DecisionBody,
    HandBackBody,
    MessageBody,
    PauseBody,
    RedirectBody,
    ResumeBody,
    UseToolBody,
    WriteBody,
    make_file_bodies,
)
from midrun.runs.control_specs import ControlSpec
from midrun.runs.event_stream import stream_events
from midrun.runs.validation import (
    REASON_MAX_CHARS,
    WAIT_ENDING_PHASES,
    ActorLike,
    ControlOptions,
    TimeLike,
    check_choice,
    parse_awaited_phases,
)
from midrun.runs.values import ArtifactView, Erasure, FeedItem, Receipt, RunView
from midrun.runs.wire import ArtifactPage, CommandReceipt
from midrun.text.report import Report

LONG_POLL_S: Final = 25
"""Seconds that the server may hold one request of `until` before it answers."""

EARLY_REPLY_DELAY_S: Final = 0.2
"""Seconds to wait after a long poll that was answered early. A server that is shutting down
answers all polls at once; without the delay they would be repeated in a tight loop."""

_INTEGER_CAPS: Final = frozenset(CAP_TYPES) - {"cost", "time"}


class RemoteRun:
    """The handle of one run of a server, with the methods of `Run`.

    The methods return the same values and raise the same errors. Each control is sent with a
    request id and repeated if its reply is lost; the server applies it once. The actor is the
    owner of the token. Every method may also raise `ServerUnreachable` and `ServerRefused`.
    """

    def __init__(self, run_id: RunId, transport: HttpTransport) -> None:
        self.id = run_id
        self._transport = transport
        self._path = f"/v1/runs/{run_id}"

    def __repr__(self) -> str:
        return f"RemoteRun({self.id!r}, {self._transport.url!r})"

    # ── controls ──────────────────────────────────────────────────────────────────────────

    async def pause(
        self,
        *,
        now: bool = False,
        hold: timedelta | None = None,
        **options: Unpack[ControlOptions],
    ) -> Receipt:
        """Pause the run as soon as nothing is in flight; with `now`, abort calls."""
        hold_s = None
        if hold is not None:
            hold_s = validation.convert_to_micros("hold", hold) / MICROS_PER_SECOND
        body = PauseBody(mode="now" if now else "boundary", hold_s=hold_s)
        return await self._send(specs.PAUSE, options, body)

    async def resume(
        self,
        instruction: str | None = None,
        *,
        caps: dict[str, float] | None = None,
        files: Sequence[File] | None = None,
        **options: Unpack[ControlOptions],
    ) -> Receipt:
        """Continue a paused or failed run, with an instruction for the agent if given."""
        text = validation.check_text("instruction", instruction or "")
        raised = await self._convert_caps("resume", caps or {})
        sent = make_file_bodies(validation.check_files_of(text, files))
        body = ResumeBody(instruction=text, caps=raised, files=sent)
        return await self._send(specs.RESUME, options, body)

    async def redirect(
        self,
        text: str,
        *,
        when: RedirectTiming = "next_step",
        files: Sequence[File] | None = None,
        **options: Unpack[ControlOptions],
    ) -> Receipt:
        """Give the agent a new instruction; keep the work that is finished."""
        check_choice("when", when, get_args(RedirectTiming))
        text = validation.check_text("redirect", text)
        sent = make_file_bodies(check_files(files))
        body = RedirectBody(instruction=text, when=when, files=sent)
        return await self._send(specs.REDIRECT, options, body)

    async def say(
        self,
        text: str,
        *,
        urgency: Urgency = "next",
        at: TimeLike | None = None,
        files: Sequence[File] | None = None,
        **options: Unpack[ControlOptions],
    ) -> Receipt:
        """Send a message to the run; the agent answers it and returns to its task."""
        check_choice("urgency", urgency, get_args(Urgency))
        text, due = validation.check_text("say", text), None
        if at is not None:
            due = micros_to_datetime(validation.convert_time("at", at, self._transport.now()))
        sent = make_file_bodies(check_files(files))
        body = MessageBody(text=text, urgency=urgency, at=due, files=sent)
        return await self._send(specs.SAY, options, body)

    async def answer(
        self,
        value: Json,
        *,
        ask: str | None = None,
        files: Sequence[File] | None = None,
        **options: Unpack[ControlOptions],
    ) -> Receipt:
        """Answer a question of the run; `value` becomes the result of the call that asked."""
        sent = make_file_bodies(check_files(files))
        body = DecisionBody(decision="answer", value=normalize_json(value), files=sent)
        return await self._send_decision(specs.ANSWER, options, body, ask)

    async def approve(
        self, *, ask: str | None = None, args: Json = None, **options: Unpack[ControlOptions]
    ) -> Receipt:
        """Approve a proposed call: it is made once, with exactly the arguments shown."""
        body = DecisionBody(
            decision="approve" if args is None else "edit", args=normalize_json(args)
        )
        return await self._send_decision(specs.APPROVE, options, body, ask)

    async def decline(
        self,
        reason: str = "",
        *,
        ask: str | None = None,
        actor: ActorLike = None,
        request_id: str | None = None,
        seen: int | None = None,
    ) -> Receipt:
        """Decline a proposed call; the agent reads `reason` in place of a result."""
        options = ControlOptions(actor=actor, reason=reason, request_id=request_id, seen=seen)
        body = DecisionBody(decision="decline")
        return await self._send_decision(specs.DECLINE, options, body, ask)

    async def cancel(
        self, *, undo: UndoSet = "in_flight", **options: Unpack[ControlOptions]
    ) -> Receipt:
        """Cancel the run: abort its calls, undo effects, release resources."""
        check_choice("undo", undo, get_args(UndoSet))
        return await self._send(specs.CANCEL, options, CancelBody(undo=undo))

    async def raise_cap(
        self,
        *,
        actor: ActorLike = None,
        reason: str | None = None,
        request_id: str | None = None,
        seen: int | None = None,
        **caps: float,
    ) -> Receipt:
        """Raise caps by name: steps, tokens, cost (dollars), time (seconds), tool_calls."""
        options = ControlOptions(actor=actor, reason=reason, request_id=request_id, seen=seen)
        raised = await self._convert_caps("raise_cap", caps)
        return await self._send(specs.RAISE_CAP, options, ChangeBody(caps=raised))

    async def withdraw(self, seq: int, **options: Unpack[ControlOptions]) -> Receipt:
        """Withdraw the pause, redirect or message at `seq`, if it is not applied yet."""
        return await self._send(specs.WITHDRAW, options, part=f"cmd_{seq}")

    async def force_pause(self, **options: Unpack[ControlOptions]) -> Receipt:
        """Finish a pause without the calls that do not respond."""
        return await self._send(specs.FORCE_PAUSE, options)

    async def retry_undo(self, **options: Unpack[ControlOptions]) -> Receipt:
        """Run the undo hooks again for effects that could not be undone."""
        return await self._send(specs.RETRY_UNDO, options)

    async def accept_residue(self, **options: Unpack[ControlOptions]) -> Receipt:
        """Accept the effects that could not be undone; they stay in the report."""
        return await self._send(specs.ACCEPT_RESIDUE, options)

    async def resume_frame(self, frame: str, **options: Unpack[ControlOptions]) -> Receipt:
        """Return to the topmost held topic."""
        return await self._send(specs.RESUME_FRAME, options, part=frame)

    async def drop_frame(self, frame: str, **options: Unpack[ControlOptions]) -> Receipt:
        """Drop the topmost held topic; the agent does not return to it."""
        return await self._send(specs.DROP_FRAME, options, part=frame)

    async def take_over(self, **options: Unpack[ControlOptions]) -> Receipt:
        """Take the agent's place as soon as no call is in flight."""
        return await self._send(specs.TAKE_OVER, options)

    async def write(self, text: str, **options: Unpack[ControlOptions]) -> Receipt:
        """Write a message as the assistant; allowed after `take_over`."""
        body = WriteBody(text=validation.check_text("write", text))
        return await self._send(specs.WRITE, options, body)

    async def use_tool(
        self, tool: str, args: Json, **options: Unpack[ControlOptions]
    ) -> Receipt:
        """Call one of the agent's tools; allowed after `take_over`."""
        body = UseToolBody(tool=tool, args=normalize_json(args))
        return await self._send(specs.USE_TOOL, options, body)

    async def hand_back(
        self, instruction: str | None = None, **options: Unpack[ControlOptions]
    ) -> Receipt:
        """Return the run to its agent after `take_over`, with an instruction if given."""
        text = validation.check_text("instruction", instruction or "")
        return await self._send(specs.HAND_BACK, options, HandBackBody(instruction=text))

    async def fork(
        self,
        seq: int | None = None,
        *,
        instruction: str | None = None,
        files: Sequence[File] | None = None,
        actor: ActorLike = None,
        request_id: str | None = None,
    ) -> "RemoteRun":
        """Start a new run that continues from a step boundary of this one."""
        self._transport.check_actor(actor)
        text = validation.check_text("instruction", instruction or "")
        attached = validation.check_files_of(text, files)
        body: dict[str, object] = {"seq": seq, "instruction": text}
        if attached:  # a server of an earlier version refuses a field that it does not know
            body["files"] = make_file_bodies(attached)
        reply = await self._transport.send_change(
            "POST", f"{self._path}/fork", body, request_id=request_id
        )
        return RemoteRun(decode_value(RunView, reply.json()).run_id, self._transport)

    # ── reading ───────────────────────────────────────────────────────────────────────────

    async def view(self) -> RunView:
        """Return the current state of the run, with the effect that each control would have."""
        return decode_value(RunView, (await self._transport.get(self._path)).json())

    async def until(self, *phases: str) -> RunView:
        """Wait until the run is in one of `phases`, and return its view.

        "terminal" means completed or cancelled.

        Raises:
            RunOver: The run ended or failed, and that phase is not one of `phases`.
            Misconfigured: A phase has an unknown name, or no phase is given.
        """
        # A long poll: the server answers when the run is in one of these phases, or when the
        # time is up. A phase that begins between two polls is seen by the next poll, unless it
        # has ended by then.
        wanted = parse_awaited_phases(phases)
        params = {"until": ",".join(sorted(wanted | WAIT_ENDING_PHASES))}
        while True:
            asked_at = anyio.current_time()
            reply = await self._transport.get(self._path, params=params, wait_s=LONG_POLL_S)
            view = decode_value(RunView, reply.json())
            if view.phase in wanted:
                return view
            if view.phase in WAIT_ENDING_PHASES:
                raise RunOver(self.id, view.phase, tuple(sorted(wanted)), view.error)
            # The poll ended without result. Normally it took its whole time; see the constant.
            if anyio.current_time() - asked_at < LONG_POLL_S / 2:
                await anyio.sleep(EARLY_REPLY_DELAY_S)

    async def result(self) -> Outcome:
        """Wait until the run has ended or cannot continue by itself; return the outcome."""
        while True:
            view = await self.until(*RESTING_PHASES)
            if view.phase is Phase.COMPLETED:
                return Completed(run_id=self.id, output=view.output, value=view.value)
            if view.phase is Phase.CANCELLED:
                return Cancelled(run_id=self.id, report=await self.report())
            try:
                checkpoint = await self.checkpoint()
            except CheckpointRefused:
                # Between the two requests the run was continued, or one of its children.
                await anyio.sleep(EARLY_REPLY_DELAY_S)
                continue
            return make_outcome(checkpoint.state(), checkpoint)

    async def report(self) -> Report:
        """Return the outcome of every call that had an effect: kept, undone, unknown."""
        return decode_value(Report, (await self._transport.get(f"{self._path}/report")).json())

    async def artifacts(self) -> tuple[ArtifactView, ...]:
        """Return all versions of the artifacts that tools have shown, oldest first."""
        reply = await self._transport.get(f"{self._path}/artifacts")
        return decode_value(ArtifactPage, reply.json()).items

    async def file(self, file_hash: str) -> File:
        """Return a file of the run: of a text, a tool result or an artifact.

        Raises:
            FileMissing: No entry of the run names a file of this hash.
        """
        if not FILE_HASH_PATTERN.fullmatch(file_hash):
            raise FileMissing(self.id, file_hash)
        reply = await self._transport.get(f"{self._path}/files/{file_hash}")
        # The server adds the charset to text that it lets browsers show.
        media_type = reply.media_type.removesuffix("; charset=utf-8")
        return File(reply.file_name, media_type, reply.body)

    async def checkpoint(self, *, expires: timedelta | None = None) -> Checkpoint:
        """Return the run and its child runs as portable JSON; all must be at rest.

        The signature is not checked here: this client does not have the server's key.

        Raises:
            CheckpointRefused: The run, or one of its children, is being driven; or it ended.
        """
        params = {}
        if expires is not None:
            params["expires_s"] = str(
                max(
                    1,
                    round(validation.convert_to_micros("expires", expires) / MICROS_PER_SECOND),
                )
            )
        reply = await self._transport.get(f"{self._path}/checkpoint", params=params)
        # Not `from_json`, which would refuse a signed checkpoint without the key.
        return msgspec.json.decode(reply.body, type=Checkpoint)

    async def delete(self, reason: str = "", *, actor: ActorLike = None) -> Erasure:
        """Delete the run and its child runs; only a tombstone is left. Needs an operator.

        Raises:
            DeleteRefused: The run, or a child run, has not ended: cancel it first. Or it is
                itself a child run: delete its parent.
        """
        self._transport.check_actor(actor)
        params = {"reason": validation.check_name("reason", reason, REASON_MAX_CHARS)}
        reply = await self._transport.send_change("DELETE", self._path, params=params)
        return decode_value(Erasure, reply.json())

    async def export(self) -> tuple[bytes, ...]:
        """Return the journal as stored: one line of JSON per entry, byte for byte."""
        reply = await self._transport.get(f"{self._path}/export")
        return tuple(reply.body.split(b"\n")[:-1])  # every line ends with a newline

    def feed(self, after: int = 0) -> AsyncGenerator[FeedItem, None]:
        """Follow the run: yield its entries after seq `after`, and live deltas in between.

        After a broken connection the feed reconnects and continues with the next entry.
        """
        return follow_feed(self._transport, self.id, after)

    def events(self, after: int = 0) -> AsyncGenerator[RunEvent, None]:
        """Follow the run as typed events, each with a `seq` and a `sentence`.

        The journal is read from its start, also with `after`: a sentence needs the entries
        before it.
        """
        return stream_events(self.feed, self.id, after)

    # ── internals ─────────────────────────────────────────────────────────────────────────

    async def _send(
        self,
        spec: ControlSpec,
        options: ControlOptions,
        body: ControlBody | None = None,
        *,
        part: str = "",
    ) -> Receipt:
        """Send the request of a control, and return the receipt; `part` is in the path."""
        if unknown := options.keys() - ControlOptions.__annotations__.keys():
            raise TypeError(f"unexpected keyword argument {min(unknown)!r}")
        self._transport.check_actor(options.get("actor"))
        reason = validation.check_text("reason", options.get("reason") or "")
        route, seen = spec.route, options.get("seen")
        # "*" matches every revision.
        every = "*" if route.if_match == "required" else ""
        # A DELETE request has no body; the reason then goes into the query.
        in_query = route.method == "DELETE"
        reply = await self._transport.send_change(
            route.method,
            route.format_path(self.id, part),
            None if in_query else _encode_body((body or spec.body()).with_reason(reason)),
            request_id=options.get("request_id"),
            if_match=every if seen is None else f'"{seen}"',
            params={"reason": reason} if in_query else None,
        )
        # Only the command is decoded: the run in the reply may be long, and is not needed.
        receipt = decode_value(CommandReceipt, reply.json().get("command")).receipt
        # If the reply to our own first attempt was lost, the server calls the repeat a no-op
        # (`already`). For the caller it was the first request, so remove that.
        return (
            replace(receipt, already=None)
            if reply.reply_was_lost and reply.was_replayed
            else receipt
        )

    async def _send_decision(
        self, spec: ControlSpec, options: ControlOptions, body: DecisionBody, ask: str | None
    ) -> Receipt:
        ask = await self._resolve_ask(ask, spec.name)
        return await self._send(spec, options, body, part=f"{self.id}-{ask}")

    async def _convert_caps(self, control: str, caps: Mapping[str, float]) -> Caps:
        """Check caps, and return them in the units of the HTTP interface.

        Raises:
            ControlRefused: `no_such_cap`: a name is not one of a cap.
        """
        validation.convert_caps(dict(caps))
        # The server would refuse an unknown field as a bad request. A local `Run` raises
        # ControlRefused, so do the same.
        if caps.keys() - CAP_TYPES.keys():
            view = await self.view()
            raise ControlRefused(self.id, control, "no_such_cap", view.phase, view.allowed)
        return Caps.from_amounts(
            {name: round(cap) if name in _INTEGER_CAPS else cap for name, cap in caps.items()}
        )

    async def _resolve_ask(self, ask: str | None, control: str) -> str:
        """Return `ask`, or the id of the only open ask if `ask` is None.

        Raises:
            ControlRefused: No ask is open, or several are.
        """
        if ask is not None:
            return ask
        view = await self.view()
        if len(view.asks) == 1:
            return view.asks[0].id
        reason = "no_such_ask" if not view.asks else "several_asks_open"
        raise ControlRefused(self.id, control, reason, view.phase, view.allowed)


def _encode_body(body: ControlBody) -> dict[str, object]:
    """Return the fields of a body; a field that is None is left out, which means the same."""
    return {name: value for name, value in asdict(body).items() if value is not None}
