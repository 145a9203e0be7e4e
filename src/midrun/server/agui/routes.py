"""Handlers for AG-UI and CopilotKit: run a segment, replay a thread, stop its run.

`SegmentStream` is the life of one segment: the start event, an optional replay, the translated
feed until the run rests, snapshots, and the end event. If the client drops the stream before
the end, the run is stopped after a grace, unless another client watches it.
"""

from collections.abc import Iterable
from contextlib import aclosing
from typing import Final

import anyio
import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from midrun.core.values import TERMINAL, Json
from midrun.errors import ControlRefused, StoreError
from midrun.runs.run import Run
from midrun.server.agui.inputs import ConnectInput, RunAgentInput, StopInput
from midrun.server.agui.intents import Joined, joined, newest
from midrun.server.agui.translate import (
    RESTING,
    Event,
    Segment,
    capabilities,
    finished,
    messages,
)
from midrun.server.mounting import root_of
from midrun.server.request_context import Visit, answer
from midrun.server.schemas import plain
from midrun.server.sse import Stream, Writer

VERSION: Final = "1.0"


async def run_agent(context: Visit) -> Response:
    """Start, resume or answer a run, and stream it until it rests."""
    agui_input = await context.body(RunAgentInput)
    return SegmentStream(
        context, agui_input, await joined(context, context.path["agent"], agui_input)
    )


async def connect(context: Visit) -> Response:
    """Replay a thread, and follow its run if it is at work."""
    asked = await context.body(ConnectInput)
    agui_input = RunAgentInput(
        thread_id=asked.thread_id,
        run_id=asked.run_id or asked.thread_id,
        protocol_version=asked.protocol_version,
        state=asked.state,
    )
    row = await newest(context, context.path["agent"], agui_input.thread_id)
    if row is None:
        return Response(b"", media_type="text/event-stream")
    run = await context.lobby.mid.get(row.run)
    state = await context.lobby.views.state(run.id)
    return SegmentStream(context, agui_input, Joined(run=run, state=state), replay=True)


async def stop(context: Visit) -> Response:
    """Pause or cancel the thread's run, as `Bridges.stop` sets."""
    await context.body(StopInput)
    row = await newest(context, context.path["agent"], context.path["thread"])
    stopped = row is not None and row.head.phase not in TERMINAL
    if row is not None and stopped:
        run = await context.lobby.mid.get(row.run)
        await _stop(run, context, context.lobby.bridges.stop, "stopped by the user")
    interrupt = {"type": "RUN_ERROR", "message": "Run stopped by user", "code": "STOPPED"}
    return answer({"stopped": stopped, "interrupt": interrupt})


async def info(context: Visit) -> Response:
    """Describe the agents to CopilotKit, which asks before it connects."""
    agents = {
        name: {
            "name": name,
            "description": agent.instructions.partition("\n")[0][:200],
            "className": "MidrunAgent",
            "capabilities": capabilities(agent),
        }
        for name, agent in context.lobby.mid.agents.items()
    }
    ends = ("list", "inspect", "mutations", "realtimeMetadata")
    return answer(
        {
            "version": "1.75.0",  # of the CopilotKit runtime that these routes imitate
            "agents": agents,
            "mode": "sse",
            "threadEndpoints": dict.fromkeys(ends, False),
            "audioFileTranscriptionEnabled": False,
            "suggestions": False,
            "a2uiEnabled": False,
            "openGenerativeUIEnabled": False,
            "telemetryDisabled": True,
        }
    )


class SegmentStream(Stream):
    """The stream of one segment; if the client drops it early, the run is stopped."""

    def __init__(
        self, context: Visit, given: RunAgentInput, at: Joined, *, replay: bool = False
    ) -> None:
        super().__init__(context, self._segment)
        self._given = given
        self._at = at
        self._replay = replay
        self._over = replay  # leaving a replay does not stop the run

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Stream the segment; if the client left early, stop the run after the grace."""
        server, run = self._visit.lobby, self._at.run
        with server.attending.of(run.id):
            await super().__call__(scope, receive, send)
        if self._over or self._visit.is_over or server.bridges.on_disconnect == "continue":
            return
        # The client may come back (a reload), or another one may watch. If the server stops
        # during the grace, the clients did not leave by choice, and the run is left alone.
        with anyio.move_on_after(server.bridges.grace_s):
            await self._visit.over()
            return
        if server.attending.anybody(run.id) or server.channels.watched(run.id):
            return
        await _stop(run, self._visit, server.bridges.on_disconnect, "its window was closed")

    async def _segment(self, writer: Writer) -> None:
        agui_input, run, state = self._given, self._at.run, self._at.state
        segment = Segment(state, current=agui_input.current)
        own = {"threadId": agui_input.thread_id, "runId": agui_input.run_id}
        await _write(writer, [{"type": "RUN_STARTED", **own, "protocolVersion": VERSION}])
        if self._at.unused:
            value = self._at.unused
            await _write(writer, [{"type": "CUSTOM", "name": "midrun.unused", "value": value}])
        if self._replay:
            await _write(writer, await self._snapshots(segment))
        # The request may have changed nothing, or left the run at rest, as an answer to one
        # of two questions does. Then no later entry ends the segment: it ends with the entry
        # that is the newest now. So the feed is followed at least up to `now.seq`, and from
        # there until the run rests.
        now = await self._visit.lobby.views.state(run.id)
        if now.seq > state.seq or now.phase not in RESTING:
            async with aclosing(run.feed(state.seq)) as feed:
                async for item in feed:
                    await _write(writer, segment.told(item))
                    if item.seq is not None and item.seq >= now.seq and segment.rests:
                        break
        await _write(writer, segment.ended())
        await _write(writer, await self._snapshots(segment))
        await _write(writer, finished(segment, agui_input, pause_as=self._pause_as))
        self._over = True

    @property
    def _pause_as(self) -> str:
        chosen = self._visit.lobby.bridges.pause_as
        if chosen == "auto":
            return "interrupt" if self._given.current else "success"
        return chosen

    async def _snapshots(self, segment: Segment) -> list[Event]:
        """Return the whole view and all messages, for a client that missed any."""
        shown = await self._visit.lobby.views.shown(self._at.run.id)
        root = root_of(self._visit.request.scope)
        view = {"run": plain(shown), "control_url": f"{root}/v1/runs/{shown.run_id}"}
        # The client's own ids of its messages, by text: it recognises its messages by them.
        ids = {message.text: message.id for message in self._given.messages if message.id}
        return [
            _show_view(self._given.state, view),
            {"type": "MESSAGES_SNAPSHOT", "messages": messages(segment.state, ids)},
        ]


def _show_view(state: Json, view: Event) -> Event:
    """Return the event that adds the run's view to the client's state.

    A snapshot would replace the whole state, which belongs to the client's application. So it
    is sent only to a client without a state. A state that is not an object cannot hold the
    view, which is then a custom event.
    """
    if state is None:
        return {"type": "STATE_SNAPSHOT", "snapshot": {"midrun": view}}
    if isinstance(state, dict):
        delta = [{"op": "add", "path": "/midrun", "value": view}]
        return {"type": "STATE_DELTA", "delta": delta}
    return {"type": "CUSTOM", "name": "midrun.state", "value": view}


async def _write(writer: Writer, events: Iterable[Event]) -> None:
    lines = [b"data: %b\n\n" % msgspec.json.encode(event) for event in events]
    await writer.write(b"".join(lines))


async def _stop(run: Run, context: Visit, how: str, reason: str) -> None:
    try:
        if how == "cancel":
            await run.cancel(actor=context.actor, reason=reason)
        else:
            await run.pause(now=True, actor=context.actor, reason=reason)
    except (ControlRefused, StoreError):
        # A refusal means that the run rests already or has ended, which is the aim. A store
        # error is dropped: after a disconnect no client is left to report it to.
        return
