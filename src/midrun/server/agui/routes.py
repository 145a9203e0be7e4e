"""Handlers for AG-UI and CopilotKit: run a segment, replay a thread, stop its run.

`SegmentStream` is the life of one segment: the start event, an optional replay, the translated
feed until the run rests, snapshots, and the end event.
"""

from collections.abc import Iterable
from contextlib import aclosing
from typing import Final

import msgspec
from starlette.responses import Response

from midrun.core.values import TERMINAL_PHASES, Json
from midrun.server.agui.inputs import (
    ConnectInput,
    JoinedRun,
    RunAgentInput,
    StopInput,
    join_run,
)
from midrun.server.agui.translate import (
    RESTING_PHASES,
    AguiEvent,
    AguiSegment,
    final_events,
    list_capabilities,
    list_messages,
)
from midrun.server.chat_threads import ChatStream, find_newest_run, stop_quietly
from midrun.server.feed_routes import SseWriter
from midrun.server.request_checks import mount_path
from midrun.server.request_context import RequestContext, json_response
from midrun.server.schemas import to_wire

PROTOCOL_VERSION: Final = "1.0"


async def run_agent(context: RequestContext) -> Response:
    """Start, resume or answer a run, and stream it until it rests."""
    agui_input = await context.decode_body(RunAgentInput)
    return SegmentStream(
        context, agui_input, await join_run(context, context.path["agent"], agui_input)
    )


async def connect(context: RequestContext) -> Response:
    """Replay a thread, and follow its run if it is at work."""
    asked = await context.decode_body(ConnectInput)
    agui_input = RunAgentInput(
        thread_id=asked.thread_id,
        run_id=asked.run_id or asked.thread_id,
        protocol_version=asked.protocol_version,
        state=asked.state,
    )
    row = await find_newest_run(context, context.path["agent"], agui_input.thread_id)
    if row is None:
        return Response(b"", media_type="text/event-stream")
    run = await context.server.mid.get(row.run)
    state = await context.server.views.read_state(run.id)
    return SegmentStream(context, agui_input, JoinedRun(run=run, state=state), replay=True)


async def stop_run(context: RequestContext) -> Response:
    """Pause or cancel the thread's run, as `Bridges.stop` sets."""
    await context.decode_body(StopInput)
    row = await find_newest_run(context, context.path["agent"], context.path["thread"])
    stopped = row is not None and row.head.phase not in TERMINAL_PHASES
    if row is not None and stopped:
        run = await context.server.mid.get(row.run)
        await stop_quietly(run, context, context.server.bridges.stop, "stopped by the user")
    interrupt = {"type": "RUN_ERROR", "message": "Run stopped by user", "code": "STOPPED"}
    return json_response({"stopped": stopped, "interrupt": interrupt})


async def show_info(context: RequestContext) -> Response:
    """Describe the agents to CopilotKit, which asks before it connects."""
    agents = {
        name: {
            "name": name,
            "description": agent.summary[:200],
            "className": "MidrunAgent",
            "capabilities": list_capabilities(agent),
        }
        for name, agent in context.server.mid.agents.items()
    }
    ends = ("list", "inspect", "mutations", "realtimeMetadata")
    return json_response(
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


class SegmentStream(ChatStream):
    """The stream of one segment."""

    def __init__(
        self,
        context: RequestContext,
        agui_input: RunAgentInput,
        joined: JoinedRun,
        *,
        replay: bool = False,
    ) -> None:
        super().__init__(context, joined.run, self._write_segment)
        self._input = agui_input
        self._joined = joined
        self._replay = replay
        self.is_finished = replay  # leaving a replay does not stop the run

    async def _write_segment(self, writer: SseWriter) -> None:
        agui_input, run, state = self._input, self._joined.run, self._joined.state
        segment = AguiSegment(state, is_current_version=agui_input.is_current_version)
        own = {"threadId": agui_input.thread_id, "runId": agui_input.run_id}
        await _write_events(
            writer, [{"type": "RUN_STARTED", **own, "protocolVersion": PROTOCOL_VERSION}]
        )
        if self._joined.unused:
            value = self._joined.unused
            await _write_events(
                writer, [{"type": "CUSTOM", "name": "midrun.unused", "value": value}]
            )
        if self._replay:
            await _write_events(writer, await self._make_snapshots(segment))
        # The request may have changed nothing, or left the run at rest, as an answer to one
        # of two questions does. Then no later entry ends the segment: it ends with the entry
        # that is the newest now. So the feed is followed at least up to `now.seq`, and from
        # there until the run rests.
        now = await self._context.server.views.read_state(run.id)
        if now.seq > state.seq or now.phase not in RESTING_PHASES:
            async with aclosing(run.feed(state.seq)) as feed:
                async for item in feed:
                    await _write_events(writer, segment.translate(item))
                    if item.seq is not None and item.seq >= now.seq and segment.is_at_rest:
                        break
        await _write_events(writer, segment.close_all())
        await _write_events(writer, await self._make_snapshots(segment))
        await _write_events(writer, final_events(segment, agui_input, pause_as=self._pause_as))
        self.is_finished = True

    @property
    def _pause_as(self) -> str:
        chosen = self._context.server.bridges.pause_as
        if chosen == "auto":
            return "interrupt" if self._input.is_current_version else "success"
        return chosen

    async def _make_snapshots(self, segment: AguiSegment) -> list[AguiEvent]:
        """Return the whole view and all messages, for a client that missed any."""
        shown = await self._context.server.views.show_run(self._joined.run.id)
        root = mount_path(self._context.request.scope)
        view = {"run": to_wire(shown), "control_url": f"{root}/v1/runs/{shown.run_id}"}
        # The client's own ids of its messages, by text: it recognises its messages by them.
        ids = {message.text: message.id for message in self._input.messages if message.id}
        return [
            _view_event(self._input.state, view),
            {"type": "MESSAGES_SNAPSHOT", "messages": list_messages(segment.state, ids)},
        ]


def _view_event(state: Json, view: AguiEvent) -> AguiEvent:
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


async def _write_events(writer: SseWriter, events: Iterable[AguiEvent]) -> None:
    lines = [b"data: %b\n\n" % msgspec.json.encode(event) for event in events]
    await writer.write(b"".join(lines))
