"""Requests of AG-UI clients. Unknown fields are ignored, as the protocol allows."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Annotated, Final, Literal

from msgspec import Meta, Struct, field

from midrun.agents.agent import Agent
from midrun.agents.builtin_tools import check_client_tools, make_client_tool
from midrun.agents.file import File
from midrun.agents.outcome import AskView
from midrun.core.ids import Seq
from midrun.core.state import State
from midrun.core.values import TERMINAL_PHASES, ClientTool, Json
from midrun.driver.journal_writer import load_run_state
from midrun.errors import Misconfigured
from midrun.runs.control_bodies import ID_MAX_CHARS
from midrun.runs.run import Run
from midrun.runs.validation import ControlOptions
from midrun.server.chat_threads import (
    FIRST_SEQ,
    ONLY_FILES_TEXT,
    SUB_REQUEST_SEPARATOR,
    ChatMessage,
    SentMessage,
    decide_approval,
    find_ask,
    find_newest_run,
    read_file_part,
    send_message,
    send_to_run,
)
from midrun.server.problem_details import HttpProblem
from midrun.server.request_context import RequestContext

CONTEXT_SEPARATOR: Final = "\n\nContext from the client:\n"
"""The separator between the user's text and the context that the client adds."""

Id = Annotated[str, Meta(max_length=ID_MAX_CHARS)]


class AguiInput(Struct, frozen=True, kw_only=True, rename="camel"):
    """Base of all inputs; unknown fields are allowed."""


class ClientMessage(AguiInput, frozen=True, kw_only=True):
    """One message of the client's history."""

    id: str = ""
    role: str = ""
    content: Json = None
    tool_call_id: str = ""  # of the result of a frontend tool

    @property
    def text(self) -> str:
        """The text of the message; `read_files` returns its other parts."""
        if isinstance(self.content, str):
            return self.content
        return "\n".join(str(part["text"]) for part in self._parts if "text" in part)

    @property
    def task_text(self) -> str:
        """The text for the agent; a message that has only files has one, too."""
        has_files = any(part.get("type") != "text" for part in self._parts)
        return self.text.strip() or (ONLY_FILES_TEXT if has_files else "")

    @property
    def _parts(self) -> list[dict[str, Json]]:
        parts = self.content if isinstance(self.content, list) else []
        return [part for part in parts if isinstance(part, dict)]

    def read_files(self) -> tuple[File, ...]:
        """Return the images, recordings and documents of the message.

        Raises:
            HttpProblem: 422, a file is not in the message itself, but behind an address.
        """
        parts = [part for part in self._parts if part.get("type") != "text"]
        return tuple(self._read_file(number, part) for number, part in enumerate(parts, 1))

    def _read_file(self, number: int, part: dict[str, Json]) -> File:
        # Since 1.0 a part has a `source` with the data or an address. Before, a part of the
        # type `binary` has them itself.
        kind, source, metadata = str(part.get("type")), part.get("source"), part.get("metadata")
        held = source if isinstance(source, dict) else part
        about = metadata if isinstance(metadata, dict) else part
        name = str(about.get("filename") or f"{kind}-{number}")
        media_type = str(held.get("mimeType") or "")
        data = held.get("value") if held.get("type") == "data" else held.get("data")
        url = f"data:{media_type};base64,{data}" if data else str(held.get("url") or "")
        return read_file_part(self.id, name, media_type, url)


class ContextItem(AguiInput, frozen=True, kw_only=True):
    """A fact that the client's application gives to the agent."""

    description: str = ""
    value: Json = None

    @property
    def line(self) -> str:
        """The fact as one line of the agent's input."""
        return f"- {self.description}: {self.value}"


class FrontendTool(AguiInput, frozen=True, kw_only=True):
    """A tool that runs in the client, which makes the call in place of a person.

    A run that is started gets the tool, and a call of it asks; the result is the answer. If the
    agent has a tool of the same name that asks (`pause_here`), that one is used. The event
    `midrun.unused` has the names of the tools that the run does not have.
    """

    name: str = ""
    description: str = ""
    parameters: Json = None

    @property
    def declared(self) -> ClientTool:
        """The tool as the run declares it."""
        return ClientTool(name=self.name, text=self.description, schema=self.parameters)


class Resumption(AguiInput, frozen=True, kw_only=True):
    """The client's decision about an interrupt."""

    interrupt_id: str
    status: Literal["resolved", "cancelled"] = "resolved"
    payload: Json = None


class RunAgentInput(AguiInput, frozen=True, kw_only=True):
    """A request for one segment."""

    thread_id: Id
    run_id: Id
    protocol_version: str = ""
    messages: tuple[ClientMessage, ...] = ()
    resume: tuple[Resumption, ...] = field(default=())
    context: tuple[ContextItem, ...] = ()
    tools: tuple[FrontendTool, ...] = ()
    state: Json = None

    @property
    def is_current_version(self) -> bool:
        """Whether the client speaks 1.0 or later; older clients send no version."""
        return self.protocol_version.partition(".")[0] not in {"", "0"}

    @property
    def newest_message(self) -> ClientMessage | None:
        """The user's newest message; None if the agent has answered it already."""
        for message in reversed(self.messages):
            if message.role in {"assistant", "tool"}:
                return None
            if message.role == "user":
                return message
        return None

    @property
    def user_text(self) -> str:
        """The text of the user's newest message; "" if there is no new one."""
        return self.newest_message.task_text if self.newest_message is not None else ""

    def read_files(self) -> tuple[File, ...]:
        """Return the files of the user's newest message.

        Raises:
            HttpProblem: 422, a file cannot be read.
        """
        return self.newest_message.read_files() if self.newest_message is not None else ()

    @property
    def tool_results(self) -> tuple[ClientMessage, ...]:
        """The results of frontend tools at the end of the messages."""
        found: list[ClientMessage] = []
        for message in reversed(self.messages):
            if message.role != "tool":
                break
            found.insert(0, message)
        return tuple(found)

    def has_tool_of(self, ask: AskView) -> bool:
        """Return whether the client makes the call that an ask is about."""
        return ask.kind == "question" and ask.tool in {tool.name for tool in self.tools}

    def select_new_tools(self, agent: Agent | None) -> tuple[ClientTool, ...]:
        """Return the client's tools that a run of the agent can be given.

        An agent of another framework can be given none. A tool that a model cannot be offered
        is left out, and all of them if they are too many.
        """
        if agent is None or agent.framework:
            return ()
        declared: dict[str, ClientTool] = {}
        for tool in self.tools:
            if tool.name not in agent.tools:
                with suppress(Misconfigured):
                    make_client_tool(tool.declared)
                    declared[tool.name] = tool.declared
        with suppress(Misconfigured):
            return check_client_tools(tuple(declared.values()))
        return ()

    def list_new_context(self, known_texts: Iterable[str] = ()) -> tuple[ContextItem, ...]:
        """Return the context that none of the `known` texts contains."""
        texts = tuple(known_texts)
        return tuple(c for c in self.context if not any(c.line in text for text in texts))

    def join_text_and_context(self, known_texts: Iterable[str] = ()) -> str:
        """Return the user's text, followed by the context that is new to the agent."""
        lines = "\n".join(item.line for item in self.list_new_context(known_texts))
        return (
            f"{self.user_text}{CONTEXT_SEPARATOR}{lines}"
            if self.user_text and lines
            else self.user_text
        )


class ConnectInput(AguiInput, frozen=True, kw_only=True):
    """A request to replay a thread and follow its run."""

    thread_id: Id
    run_id: Id = ""
    protocol_version: str = ""
    state: Json = None


class StopInput(AguiInput, frozen=True, kw_only=True):
    """A request to stop; the segment that it names is not used."""

    run_id: str = ""


# Turn an AG-UI request into a control of the thread's run, or start a run.
#
# AG-UI has one request for everything: see `chat_threads`. A `resume` list decides interrupts.

PAUSE_ID_PREFIX: Final = "pause_"
"""The prefix of an interrupt id that stands for a pause and not for an ask."""

DECLINED_ANSWER: Final = "The user did not want to answer."


class JoinedRun(Struct, frozen=True, kw_only=True):
    """A run, with the state up to which the client has seen it.

    `unused` names the parts of the request that the run was not given.
    """

    run: Run
    state: State
    unused: dict[str, list[str]] = {}


async def join_run(context: RequestContext, agent: str, agui_input: RunAgentInput) -> JoinedRun:
    """Send the request's control to the thread's open run, or start a run.

    Raises:
        HttpProblem: 404, no such agent; 422, there is no new message, or a bad file.
        ControlRefused: the control does not fit the phase of the run.
    """
    files = agui_input.read_files()
    mid, row = context.server.mid, await find_newest_run(context, agent, agui_input.thread_id)
    known_agent, known_texts = mid.agents.get(agent), list[str]()
    request = context.make_request_id(f"agui:{agui_input.thread_id}:{agui_input.run_id}")
    if row is not None and row.head.phase not in TERMINAL_PHASES:
        run = await mid.get(row.run)
        # Read before the control is sent: the stream begins after this state, and so includes
        # the entries of the control itself.
        state = await context.server.views.read_state(run.id)
        options = ControlOptions(actor=context.actor, request_id=request)
        if await _send_decisions(context, run, state, agui_input, options):
            tools = state.run_started.client_tools
            unused = _list_unused_tools(known_agent, agui_input, tools)
            return JoinedRun(run=run, state=state, unused=unused)
        known_texts = [message.text for message in state.messages]
    new_tools = agui_input.select_new_tools(known_agent)
    message = ChatMessage(
        agent=agent,
        thread=agui_input.thread_id,
        # With interrupts of a run that has ended, the newest message was sent before.
        text="" if agui_input.resume else agui_input.join_text_and_context(known_texts),
        request_id=request,
        files=files,
        client_tools=new_tools,
    )
    # A request with nothing new is no error: it ends with the interrupt of a run that waits.
    sent = await send_message(context, row, message, must_send=bool(message.text))
    state = await _load_state_before(context, sent)
    tools = state.run_started.client_tools if state.seq else new_tools
    unused = _list_unused_tools(known_agent, agui_input, tools)
    left = agui_input.list_new_context(known_texts)
    if left and not (sent.is_taken and message.text):
        unused["context"] = [item.description for item in left]
    return JoinedRun(run=sent.run, state=state, unused=unused)


async def _load_state_before(context: RequestContext, sent: SentMessage) -> State:
    """Return a state before the entries of the request."""
    if sent.state.seq < sent.begins_at:
        return sent.state
    # The request was sent before, and its reply was lost: the client gets the reply again.
    if sent.begins_at == FIRST_SEQ:
        return State(run=sent.run.id)
    until = Seq(sent.begins_at - 1)
    return await load_run_state(context.server.store, sent.run.id, until=until)


def _list_unused_tools(
    agent: Agent | None, agui_input: RunAgentInput, declared: Sequence[ClientTool]
) -> dict[str, list[str]]:
    """Return the names of the client's tools that neither the agent nor the run has."""
    names = set(agent.tools) if agent is not None else set()
    names.update(tool.name for tool in declared)
    unused = [tool.name for tool in agui_input.tools if tool.name not in names]
    return {"tools": unused} if unused else {}


async def _send_tool_results(
    run: Run, state: State, agui_input: RunAgentInput, options: ControlOptions
) -> bool:
    """Answer the asks of calls that the client has made; return whether there were any.

    The client sends all its messages each time, so results that were taken are among them.
    """
    asks = [state.asks[number - 1] for number in state.open_asks]
    questions = {f"{run.id}-{a.call}": a for a in asks if a.effective_kind == "question"}
    sent = False
    for number, result in enumerate(agui_input.tool_results):
        if (ask := questions.get(result.tool_call_id)) is not None:
            own_options = _number_request(options, f"tool {number}")
            await run.answer(result.text, ask=ask.id, **own_options)
            sent = True
    return sent


async def _send_decisions(
    context: RequestContext,
    run: Run,
    state: State,
    agui_input: RunAgentInput,
    options: ControlOptions,
) -> bool:
    """Send the decisions about interrupts or the results of tools; return whether any."""
    if not agui_input.resume:
        return await _send_tool_results(run, state, agui_input, options)
    for number, resumption in enumerate(agui_input.resume):
        own_options = _number_request(options, f"{number}")
        if resumption.interrupt_id.startswith(PAUSE_ID_PREFIX):
            await _end_pause(context, run, state, resumption, own_options)
        else:
            await _decide_ask(run, state, resumption, own_options)
    return True


def _number_request(options: ControlOptions, part: str) -> ControlOptions:
    """Return the options for one of several controls of a request: each needs its own id."""
    request_id = f"{options.get('request_id')}{SUB_REQUEST_SEPARATOR}{part}"
    return ControlOptions(actor=options.get("actor"), request_id=request_id)


async def _end_pause(
    context: RequestContext,
    run: Run,
    state: State,
    resumption: Resumption,
    options: ControlOptions,
) -> None:
    """Cancel or resume a paused run; an instruction is a message to the run."""
    if resumption.status == "cancelled":
        await run.cancel(**options)
        return
    payload = resumption.payload if isinstance(resumption.payload, dict) else {}
    started, request_id = state.run_started, options.get("request_id")
    message = ChatMessage(
        agent=started.agent,
        thread=started.thread,
        text=str(payload.get("instruction") or ""),
        request_id=request_id,
    )
    if await send_to_run(context, run, message, must_send=bool(message.text)) is None:
        problem = f"Cannot resume run {run.id}: it has ended. Send a new message."
        raise HttpProblem("wrong_phase", 409, problem)


async def _decide_ask(
    run: Run, state: State, resumption: Resumption, options: ControlOptions
) -> None:
    payload = resumption.payload if isinstance(resumption.payload, dict) else {}
    ask = find_ask(run, state, resumption.interrupt_id)
    own = ask.id
    if ask.effective_kind == "approval":
        # Everything but an explicit `"approved": true` declines.
        approved = resumption.status == "resolved" and payload.get("approved") is True
        await decide_approval(run, ask, options, approved=approved, details=payload)
        return
    if ask.continuation is not None and resumption.status != "resolved":
        actor, request = options.get("actor"), options.get("request_id")
        await run.decline("", ask=own, actor=actor, request_id=request)
        return
    value: Json = payload.get("answer", resumption.payload)
    await run.answer(
        value if resumption.status == "resolved" else DECLINED_ANSWER, ask=own, **options
    )
