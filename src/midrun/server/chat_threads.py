"""Requests and streams of chat protocols, whose clients know threads but not runs.

A chat client (AG-UI, CopilotKit, the Vercel AI SDK) sends a message to a thread. The meaning of
the message follows from the phase of the newest run of that thread: without an open run it
starts one; paused or failed, the run resumes with it; waiting with one open question, it is the
answer; otherwise it redirects the run. The adapters translate; this module has the rules.
"""

from collections.abc import Mapping

import anyio
from starlette.types import Receive, Scope, Send

from midrun.core.state import Ask, State
from midrun.core.values import Json, Phase
from midrun.errors import ControlRefused, StoreError
from midrun.ports.store import RunQuery, RunRow
from midrun.runs.run import Run
from midrun.runs.validation import ControlOptions, check_name
from midrun.runs.values import Receipt
from midrun.server.feed_routes import SseResponse, StreamSource
from midrun.server.problem_details import HttpProblem
from midrun.server.request_context import RequestContext


async def find_newest_run(context: RequestContext, agent: str, thread: str) -> RunRow | None:
    """Return the newest run of a thread that the caller may see, or None.

    Raises:
        Misconfigured: `thread` is not a valid name.
    """
    thread = check_name("thread", thread)
    query = RunQuery(thread=thread, agent=agent, owner=context.owner_filter, limit=1)
    return next(iter((await context.server.store.list_runs(query)).items), None)


async def start_run(
    context: RequestContext, agent: str, text: str, *, thread: str, request_id: str
) -> Run:
    """Start a run in a thread that has no open one.

    Raises:
        HttpProblem: 404, no such agent; 422, there is no text; 429, a quota is used up.
    """
    mid = context.server.mid
    if agent not in mid.agents:
        known_agents = ", ".join(mid.agents) or "none"
        problem = f"Cannot find agent {agent}. Known agents: {known_agents}."
        raise HttpProblem("agent_not_found", 404, problem)
    if not text:
        problem = "Cannot start a run: there is no new user message. Send one."
        raise HttpProblem("invalid_body", 422, problem)
    await context.check_quota(request_id)
    return await mid.start(
        agent,
        text,
        thread=thread,
        request_id=request_id,
        actor=context.actor,
        own_thread=bool(context.owner_filter),
    )


async def send_text(
    context: RequestContext, run: Run, state: State, text: str, asking: ControlOptions
) -> Receipt | None:
    """Send a user's text to an open run as the control that fits its phase.

    None if nothing was sent: there is no text, or the run is cancelling or halted. Then the
    client only follows the run.
    """
    match state.phase:
        case Phase.PAUSED | Phase.FAILED:
            return await run.resume(text or None, **asking)
        case Phase.WAITING if text and _has_one_open_question(state):
            return await run.answer(text, **asking)
        case Phase.WAITING | Phase.RUNNING | Phase.QUEUED | Phase.PAUSING if text:
            return await context.redirect(run, text, asking)
        case _:
            return None


def _has_one_open_question(state: State) -> bool:
    """Return whether exactly one ask is open and it is a question.

    Only then is a plain message the answer: an approval must not be given by chance.
    """
    if len(state.open_asks) != 1:
        return False
    ask = state.asks[state.open_asks[0] - 1]
    return ask.effective_kind == "question"


def find_ask(run: Run, state: State, public_id: str) -> Ask:
    """Return the ask with the id that clients see: the run and the ask.

    Raises:
        HttpProblem: 404, the run has no such ask.
    """
    own = public_id.removeprefix(f"{run.id}-")
    ask = next((each for each in state.asks if each.id == own), None)
    if ask is None:
        problem = f"Cannot find ask {own}: run {run.id} has no such ask."
        raise HttpProblem("ask_not_found", 404, problem)
    return ask


async def decide_approval(
    run: Run, ask: Ask, asking: ControlOptions, *, approved: bool, details: Mapping[str, Json]
) -> None:
    """Approve or decline; `details` may have the reason and the edited arguments."""
    if approved:
        await run.approve(ask=ask.id, args=details.get("editedArgs"), **asking)
        return
    reason = str(details.get("reason") or "")
    actor, request = asking.get("actor"), asking.get("request_id")
    await run.decline(reason, ask=ask.id, actor=actor, request_id=request)


class ChatStream(SseResponse):
    """The stream of a chat client; if the client drops it early, the run is stopped.

    Set `is_finished` when the end of the stream has been written.
    """

    def __init__(self, context: RequestContext, run: Run, source: StreamSource) -> None:
        super().__init__(context, source)
        self.is_finished = False
        self._run = run

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Write the stream; if the client left early, stop the run after the grace."""
        server, run = self._context.server, self._run
        with server.chat_streams.count_stream(run.id):
            await super().__call__(scope, receive, send)
        if (
            self.is_finished
            or self._context.is_server_stopping
            or server.bridges.on_disconnect == "continue"
        ):
            return
        # The client may come back (a reload), or another one may watch. If the server stops
        # during the grace, the clients did not leave by choice, and the run is left alone.
        with anyio.move_on_after(server.bridges.grace_s):
            await self._context.wait_until_stopping()
            return
        if server.chat_streams.has_stream(run.id) or server.channels.is_watched(run.id):
            return
        await stop_quietly(
            run, self._context, server.bridges.on_disconnect, "its window was closed"
        )


async def stop_quietly(run: Run, context: RequestContext, control: str, reason: str) -> None:
    """Pause or cancel a run, unless it rests or has ended."""
    try:
        if control == "cancel":
            await run.cancel(actor=context.actor, reason=reason)
        else:
            await run.pause(now=True, actor=context.actor, reason=reason)
    except (ControlRefused, StoreError):
        # A refusal means that the run rests already or has ended, which is the aim. A store
        # error is dropped: after a disconnect no client is left to report it to.
        return
