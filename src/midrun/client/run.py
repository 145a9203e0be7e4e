"""`RemoteRun`: the handle of one run that a server has. What it promises, `Run` says."""

from collections.abc import AsyncGenerator, Mapping
from datetime import timedelta
from typing import Final, Unpack, get_args

import anyio
import msgspec
from msgspec.structs import replace

from midrun.agents.checkpoint import Checkpoint
from midrun.agents.outcome import Cancelled, Completed, Outcome, outcome_of
from midrun.client.decode import read
from midrun.client.sse import follow
from midrun.client.transport import Link
from midrun.codec.strict_json import checked
from midrun.core.ids import SECOND, RunId
from midrun.core.stops import CAPS
from midrun.core.values import RESTS, TERMINAL, Json, Phase, UndoSet, Urgency, When
from midrun.errors import CheckpointRefused, ControlRefused, Misconfigured, RunOver
from midrun.runs import validation
from midrun.runs.validation import Asking, Moment, Who, one_of, phase_of
from midrun.runs.values import FeedItem, Receipt, RunView
from midrun.text.report import Report

WAIT_S: Final = 25
"""How long one look at a run may take that waits for something."""

EARLY_S: Final = 0.2
"""A server that is going away answers at once; it is not asked again at once."""

_COUNTED: Final = frozenset(CAPS) - {"cost", "time"}


class RemoteRun:
    """One run of a server, with the methods of `Run`: the same values, the same refusals.

    Every control is sent under a request id and repeated if its reply is lost; it is applied
    once. Who asks is whoever the token belongs to.
    """

    def __init__(self, run_id: RunId, link: Link) -> None:
        self.id = run_id
        self._link = link
        self._path = f"/v1/runs/{run_id}"

    def __repr__(self) -> str:
        return f"RemoteRun({self.id!r}, {self._link.url!r})"

    # ── controls ──────────────────────────────────────────────────────────────────────────

    async def pause(
        self,
        *,
        now: bool = False,
        hold: timedelta | None = None,
        **asking: Unpack[Asking],
    ) -> Receipt:
        """Stop at the next boundary, or `now`; with `hold`, go on by itself after that."""
        body: dict[str, object] = {"mode": "now" if now else "boundary"}
        if hold is not None:
            body["hold_s"] = validation.span("hold", hold) / SECOND
        return await self._ask("pause", body, asking)

    async def resume(
        self,
        instruction: str | None = None,
        *,
        caps: dict[str, float] | None = None,
        **asking: Unpack[Asking],
    ) -> Receipt:
        """Go on, with an instruction and raised caps if given; withdraws a pause that pends."""
        words = validation.text("instruction", instruction or "")
        raised = await self._caps("resume", caps or {})
        return await self._ask("resume", {"instruction": words, "caps": raised}, asking)

    async def redirect(
        self, text: str, *, when: When = "next_step", **asking: Unpack[Asking]
    ) -> Receipt:
        """Change course at the next step, or now; finished work stays."""
        one_of("when", when, get_args(When))
        body = {"instruction": validation.text("redirect", text), "when": when}
        return await self._ask("redirect", body, asking)

    async def say(
        self,
        text: str,
        *,
        urgency: Urgency = "next",
        at: Moment | None = None,
        **asking: Unpack[Asking],
    ) -> Receipt:
        """Speak to the run while it works; with `at`, not before that time."""
        one_of("urgency", urgency, get_args(Urgency))
        body = {"text": validation.text("say", text), "urgency": urgency}
        if at is not None:
            body["at"] = validation.said(validation.moment("at", at, self._link.now()))
        return await self._ask("messages", body, asking)

    async def answer(
        self, value: Json, *, ask: str | None = None, **asking: Unpack[Asking]
    ) -> Receipt:
        """Answer a question: the answer is the result of the tool that asked."""
        body = {"decision": "answer", "value": checked(value)}
        return await self._decide("answer", ask, body, asking)

    async def approve(
        self, *, ask: str | None = None, args: Json = None, **asking: Unpack[Asking]
    ) -> Receipt:
        """Let a call be made, once, with these arguments and no others."""
        body: dict[str, object] = {"decision": "approve"}
        if args is not None:
            body = {"decision": "edit", "args": checked(args)}
        return await self._decide("approve", ask, body, asking)

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
        asking = Asking(actor=actor, reason=reason, request_id=request_id, seen=seen)
        return await self._decide("decline", ask, {"decision": "decline"}, asking)

    async def cancel(self, *, undo: UndoSet = "in_flight", **asking: Unpack[Asking]) -> Receipt:
        """Stop everything, undo what was in flight or all that can be, and report."""
        one_of("undo", undo, get_args(UndoSet))
        return await self._ask("cancel", {"undo": undo}, asking)

    async def raise_cap(
        self,
        *,
        actor: Who = None,
        reason: str | None = None,
        request_id: str | None = None,
        seen: int | None = None,
        **caps: float,
    ) -> Receipt:
        """Raise bounds by name: steps, tokens, cost (dollars), time (seconds), tool_calls."""
        asking = Asking(actor=actor, reason=reason, request_id=request_id, seen=seen)
        body = {"caps": await self._caps("raise_cap", caps)}
        return await self._ask("", body, asking, method="PATCH")

    async def withdraw(self, seq: int, **asking: Unpack[Asking]) -> Receipt:
        """Take back the pause, redirect or message at `seq` if it has not been applied."""
        return await self._ask(f"commands/cmd_{seq}", None, asking, method="DELETE")

    async def force_pause(self, **asking: Unpack[Asking]) -> Receipt:
        """Stop waiting for calls that do not respond; their outcome becomes unknown."""
        return await self._ask("force_pause", {}, asking)

    async def retry_undo(self, **asking: Unpack[Asking]) -> Receipt:
        """Try again to undo what could not be undone."""
        return await self._ask("retry_undo", {}, asking)

    async def accept_residue(self, **asking: Unpack[Asking]) -> Receipt:
        """Take what could not be undone as it is."""
        return await self._ask("accept_residue", {}, asking)

    async def resume_frame(self, frame: str, **asking: Unpack[Asking]) -> Receipt:
        """Go back to the held thought on top."""
        return await self._ask(f"frames/{frame}/resume", {}, asking)

    async def drop_frame(self, frame: str, **asking: Unpack[Asking]) -> Receipt:
        """Give up the held thought on top, by name."""
        return await self._ask(f"frames/{frame}", None, asking, method="DELETE")

    async def take_over(self, **asking: Unpack[Asking]) -> Receipt:
        """Become the assistant once nothing is in flight."""
        return await self._ask("take_over", {}, asking)

    async def write(self, text: str, **asking: Unpack[Asking]) -> Receipt:
        """Say something as the assistant, after taking over."""
        return await self._ask("write", {"text": validation.text("write", text)}, asking)

    async def use_tool(self, tool: str, args: Json, **asking: Unpack[Asking]) -> Receipt:
        """Make one call of the agent's tools by the same door, after taking over."""
        return await self._ask("use_tool", {"tool": tool, "args": checked(args)}, asking)

    async def hand_back(
        self, instruction: str | None = None, **asking: Unpack[Asking]
    ) -> Receipt:
        """Return the run to its agent."""
        words = validation.text("instruction", instruction or "")
        return await self._ask("hand_back", {"instruction": words}, asking)

    async def fork(
        self,
        seq: int | None = None,
        *,
        instruction: str | None = None,
        actor: Who = None,
        request_id: str | None = None,
    ) -> "RemoteRun":
        """Start a new run that continues from a boundary of this one, with its own journal."""
        self._link.check_actor(actor)
        body = {"seq": seq, "instruction": validation.text("instruction", instruction or "")}
        reply = await self._link.change(
            "POST", f"{self._path}/fork", body, request_id=request_id
        )
        return RemoteRun(read(RunView, reply.json()).run_id, self._link)

    # ── looking ───────────────────────────────────────────────────────────────────────────

    async def view(self) -> RunView:
        """Return where the run stands."""
        return read(RunView, (await self._link.get(self._path)).json())

    async def until(self, *phases: str) -> RunView:
        """Wait for one of `phases`; "terminal" stands for completed and cancelled.

        Raises:
            RunOver: the run has ended in another phase, so that it will never be in these.
        """
        if not phases:
            raise Misconfigured("until", 'name what to wait for: until("paused")')
        wanted = {phase_of(p) for p in phases if p != "terminal"}
        wanted |= TERMINAL if "terminal" in phases else set()
        while True:
            asked_at = anyio.current_time()
            reply = await self._link.get(
                self._path, params={"until": ",".join(sorted(wanted))}, wait=WAIT_S
            )
            view = read(RunView, reply.json())
            if view.phase in wanted:
                return view
            if view.phase in TERMINAL:
                raise RunOver(self.id, view.phase, tuple(sorted(wanted)))
            if anyio.current_time() - asked_at < WAIT_S / 2:
                await anyio.sleep(EARLY_S)

    async def result(self) -> Outcome:
        """Wait until the run rests or has ended, and return how."""
        while True:
            view = await self.until(*RESTS)
            if view.phase is Phase.COMPLETED:
                return Completed(run_id=self.id, output=view.output)
            if view.phase is Phase.CANCELLED:
                return Cancelled(run_id=self.id, report=await self.report())
            try:
                checkpoint = await self.checkpoint()
            except CheckpointRefused:  # it has gone on meanwhile, or a child of it has
                await anyio.sleep(EARLY_S)
                continue
            return outcome_of(checkpoint.state(), checkpoint)

    async def report(self) -> Report:
        """Return what became of everything the run did, so far or in the end."""
        return read(Report, (await self._link.get(f"{self._path}/report")).json())

    async def checkpoint(self, *, expires: timedelta | None = None) -> Checkpoint:
        """Return the run as portable JSON; it must be at rest.

        It is as the server gave it: where it was signed, whoever resumes it has the key.
        """
        params = {}
        if expires is not None:
            params["expires_s"] = str(
                max(1, round(validation.span("expires", expires) / SECOND))
            )
        reply = await self._link.get(f"{self._path}/checkpoint", params=params)
        return msgspec.json.decode(reply.body, type=Checkpoint)

    async def export(self) -> tuple[bytes, ...]:
        """Return the journal as it is stored, line by line, byte for byte."""
        reply = await self._link.get(f"{self._path}/export")
        return tuple(reply.body.split(b"\n")[:-1])

    def feed(self, after: int = 0) -> AsyncGenerator[FeedItem, None]:
        """Give what happens: entries after `after`, each with its seq, and unstored deltas.

        It outlives its connections: after a break it goes on where it was.
        """
        return follow(self._link, self.id, after)

    # ── inside ────────────────────────────────────────────────────────────────────────────

    async def _ask(
        self,
        name: str,
        body: Mapping[str, object] | None,
        asking: Asking,
        *,
        method: str = "POST",
    ) -> Receipt:
        reason = self._reason(asking)
        return await self._sent(
            method,
            f"{self._path}/{name}".rstrip("/"),
            None if body is None else {**body, "reason": reason},
            asking,
            params={"reason": reason} if body is None else None,
        )

    async def _decide(
        self, control: str, ask: str | None, body: Mapping[str, object], asking: Asking
    ) -> Receipt:
        path = f"/v1/asks/{self.id}-{await self._which(ask, control)}"
        said = {**body, "comment": self._reason(asking)}
        return await self._sent("POST", path, said, asking)

    def _reason(self, asking: Asking) -> str:
        """Return why it is asked, once it is clear that it can be."""
        if unknown := asking.keys() - Asking.__annotations__.keys():
            raise TypeError(f"unexpected keyword argument {min(unknown)!r}")
        self._link.check_actor(asking.get("actor"))
        return validation.text("reason", asking.get("reason") or "")

    async def _sent(
        self,
        method: str,
        path: str,
        body: Mapping[str, object] | None,
        asking: Asking,
        params: Mapping[str, str] | None = None,
    ) -> Receipt:
        """Send a control, and return its receipt, that of the first attempt if one got lost."""
        seen = asking.get("seen")
        match = f'"{seen}"' if seen is not None else "*" if method == "PATCH" else ""
        reply = await self._link.change(
            method, path, body, request_id=asking.get("request_id"), seen=match, params=params
        )
        data = reply.json()
        noted = data.get("command", data)
        receipt = read(Receipt, noted["receipt"] if isinstance(noted, dict) else None)
        return replace(receipt, already=None) if reply.lost and reply.replayed else receipt

    async def _caps(self, control: str, caps: Mapping[str, float]) -> dict[str, float]:
        """Return caps as the wire has them.

        Raises:
            ControlRefused: `no_such_cap`.
        """
        validation.counted(dict(caps))
        if caps.keys() - CAPS.keys():
            view = await self.view()
            raise ControlRefused(self.id, control, "no_such_cap", view.phase, view.allowed)
        return {n: round(cap) if n in _COUNTED else cap for n, cap in caps.items()}

    async def _which(self, ask: str | None, control: str) -> str:
        """Return the ask that is meant: the only one that is open, unless it is named."""
        if ask is not None:
            return ask
        view = await self.view()
        if len(view.asks) == 1:
            return view.asks[0].id
        reason = "no_such_ask" if not view.asks else "several_asks_open"
        raise ControlRefused(self.id, control, reason, view.phase, view.allowed)
