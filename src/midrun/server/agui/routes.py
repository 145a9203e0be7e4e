"""Handlers for AG-UI and CopilotKit: run a segment, replay a thread, stop its run.

`SegmentStream` is the life of one segment: the start event, an optional replay, the translated
feed until the run rests, snapshots, and the end event.
"""

from collections.abc import Iterable
from contextlib import aclosing
from typing import Final

import msgspec
from starlette.responses import Response

from midrun.core.state import State
from midrun.core.values import Json
from midrun.server.agui.inputs import (
    ClientMessage,
    ConnectInput,
    JoinedRun,
    RunAgentInput,
    StopInput,
    join_run,
)
from midrun.server.agui.translate import (
    AguiEvent,
    AguiSegment,
    iter_final_events,
    list_capabilities,
    list_messages,
)
from midrun.server.chat_threads import ChatStream, ReplyEnd, find_newest_run, stop_thread
from midrun.server.feed_routes import SseWriter
from midrun.server.request_checks import mount_path
from midrun.server.request_context import RequestContext, json_response
from midrun.server.schemas import to_wire

PROTOCOL_VERSION: Final = "1.0"

UNLISTED_ROLES: Final = frozenset({"reasoning", "activity"})
"""Roles of messages that a client keeps beside the conversation."""


async def run_agent(context: RequestContext) -> Response:
    """Start, resume or answer a run, and stream it until it rests."""
    agui_input = await context.decode_body(RunAgentInput)
    context.check_stream()
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
    context.check_stream()
    run = await context.server.mid.get(row.run)
    state = await context.server.views.read_state(run.id)
    return SegmentStream(context, agui_input, JoinedRun(run=run, state=state), replay=True)


async def stop_run(context: RequestContext) -> Response:
    """Pause or cancel the thread's run, as `Bridges.stop` sets."""
    await context.decode_body(StopInput)
    stopped = await stop_thread(context, context.path["agent"], context.path["thread"])
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
        self._messages = ClientMessages(agui_input.messages)
        self._joined = joined
        self._replay = replay

    async def _write_segment(self, writer: SseWriter) -> None:
        agui_input, run, state = self._input, self._joined.run, self._joined.state
        segment = AguiSegment(
            state,
            is_current_version=agui_input.is_current_version,
            own_calls=frozenset(result.tool_call_id for result in agui_input.tool_results),
        )
        own = {"threadId": agui_input.thread_id, "runId": agui_input.run_id}
        await self._write(
            writer, [{"type": "RUN_STARTED", **own, "protocolVersion": PROTOCOL_VERSION}]
        )
        if self._joined.unused:
            value = self._joined.unused
            await self._write(
                writer, [{"type": "CUSTOM", "name": "midrun.unused", "value": value}]
            )
        if self._replay:
            await self._write(writer, await self._make_snapshots(segment))
        else:
            await self._write(writer, self._make_first_snapshots(state))
        end = await ReplyEnd.read(self._context, run)
        if not end.is_reached(state):
            async with aclosing(run.feed(state.seq)) as feed:
                async for item in feed:
                    await self._write(writer, segment.translate(item))
                    if end.is_reached(segment.state):
                        break
        await self._write(writer, segment.close_all())
        await self._write(writer, await self._make_snapshots(segment))
        await self._write(
            writer, iter_final_events(segment, agui_input, pause_as=self._pause_as)
        )
        self.is_finished = True

    async def _write(self, writer: SseWriter, events: Iterable[AguiEvent]) -> None:
        lines = []
        for event in events:
            self._messages.apply_event(event)
            lines.append(b"data: %b\n\n" % msgspec.json.encode(event))
        await writer.write(b"".join(lines))

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
        messages = self._list_messages(segment.state)
        snapshots = self._messages.make_snapshots(messages)
        return [_make_view_event(self._input.state, view), *snapshots]

    def _make_first_snapshots(self, state: State) -> list[AguiEvent]:
        """Return the messages so far, if the client does not have all of them.

        It may be another client than the one that began the thread, or have been reloaded.
        """
        messages = self._list_messages(state)
        if self._messages.has_all(messages):
            return []
        newest = self._input.newest_message
        if newest is not None and newest.id not in {message["id"] for message in messages}:
            messages.append({"id": newest.id, "role": "user", "content": newest.content})
        return self._messages.make_snapshots(messages)

    def _list_messages(self, state: State) -> list[AguiEvent]:
        root = f"{mount_path(self._context.request.scope)}/v1/runs/{state.run}/files"
        return list_messages(state, self._messages.own_messages, root)


def _make_view_event(state: Json, view: AguiEvent) -> AguiEvent:
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


class ClientMessages:
    """The messages of a client in its order, as far as they are sent by a segment.

    A client applies a snapshot by the ids: it keeps its own order for the messages that it has,
    removes those that the snapshot does not have, and appends the others. If the journal has
    another order (another client sent a message meanwhile), one snapshot is not enough. Then a
    first one removes everything behind the part that both have in common.
    """

    def __init__(self, messages: Iterable[ClientMessage]) -> None:
        known = [message for message in messages if message.role not in UNLISTED_ROLES]
        self._ids = [message.id for message in known]
        # The client's own messages by text: it recognises them by their ids.
        self.own_messages = {each.task_text: each for each in known if each.id}

    def has_all(self, messages: Iterable[AguiEvent]) -> bool:
        """Return whether the client has these messages."""
        return {message["id"] for message in messages} <= set(self._ids)

    def apply_event(self, event: AguiEvent) -> None:
        """Record the message that an event adds to the client's messages."""
        own = None
        if event["type"] in {"TEXT_MESSAGE_START", "TOOL_CALL_RESULT"}:
            own = str(event["messageId"])
        elif event["type"] == "TOOL_CALL_START":
            own = str(event.get("parentMessageId") or event["toolCallId"])
        if own is not None and own not in self._ids:
            self._ids.append(own)

    def make_snapshots(self, messages: list[AguiEvent]) -> list[AguiEvent]:
        """Return the snapshots after which the client has these messages, in their order."""
        ids = [str(message["id"]) for message in messages]
        kept = [own for own in self._ids if own in ids]
        common = 0
        while common < min(len(kept), len(ids)) and kept[common] == ids[common]:
            common += 1
        snapshots: list[AguiEvent] = [{"type": "MESSAGES_SNAPSHOT", "messages": messages}]
        if common < len(kept):
            cut: AguiEvent = {"type": "MESSAGES_SNAPSHOT", "messages": messages[:common]}
            snapshots.insert(0, cut)
        self._ids = ids
        return snapshots
