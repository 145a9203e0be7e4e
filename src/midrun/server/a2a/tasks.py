"""Convert the state of a run to an A2A task: status, artifacts, history, metadata."""

from collections.abc import Iterator
from hashlib import sha256
from importlib.metadata import version
from typing import Final

import msgspec
from a2a.server.request_handlers.response_helpers import agent_card_to_dict
from a2a.types.a2a_pb2 import (
    AgentCapabilities,
    AgentCard,
    AgentExtension,
    AgentInterface,
    AgentSkill,
    Artifact,
    HTTPAuthSecurityScheme,
    Message,
    Part,
    Role,
    SecurityRequirement,
    SecurityScheme,
    StringList,
    Task,
    TaskState,
    TaskStatus,
)
from google.protobuf.json_format import Parse
from google.protobuf.struct_pb2 import Struct, Value
from google.protobuf.timestamp_pb2 import Timestamp
from starlette.requests import Request

from midrun.agents.agent import Agent
from midrun.core.ids import RunId
from midrun.core.state import Artifact as ShownArtifact
from midrun.core.state import State
from midrun.core.transcript import Transcript
from midrun.core.values import Decision, Phase
from midrun.ports.environment import ID_BYTES
from midrun.server.a2a import A2A_PATH_PREFIX, PAUSE_METHOD
from midrun.server.request_checks import make_base_url
from midrun.server.rest_text import describe_asks, format_arguments
from midrun.text.report import build_report
from midrun.text.status import describe_hold

# Agent cards: the description of an agent that A2A clients read before they call.

PAUSE_EXTENSION_URI = "urn:midrun:a2a:pause:v1"


INPUT_MODES: Final = (
    "text/plain",
    "application/json",
    "application/pdf",
    "image/png",
    "image/jpeg",
    "image/webp",
    "audio/mpeg",
    "audio/wav",
    "video/mp4",
)
"""The common media types that an agent is given; others of these kinds are taken, too."""

OUTPUT_MODES: Final = ("text/plain", "text/markdown", "application/json")


def card_to_json(request: Request, agent: Agent, *, has_push: bool) -> dict[str, object]:
    """Return the public card as JSON, with the fields of version 0.3 added."""
    return agent_card_to_dict(make_card(request, agent, has_push=has_push))


def make_card(
    request: Request, agent: Agent, *, has_push: bool, is_extended: bool = False
) -> AgentCard:
    """Return the card of an agent, with the address that `request` was sent to.

    `has_push` tells whether push notifications may be sent to any address. The card is public.
    Only the extended card, for callers with a token, quotes the first line
    of the agent's instructions.
    """
    base = f"{make_base_url(request)}{A2A_PATH_PREFIX}{agent.name}"
    about = f"The agent {agent.name}."
    if is_extended:
        about = agent.summary or about
    pause = AgentExtension(
        uri=PAUSE_EXTENSION_URI,
        description=f"{PAUSE_METHOD} {{id}}: pause when no call is in flight.",
    )
    skill = AgentSkill(id=agent.name, name=agent.name, description=about, tags=["midrun"])
    return AgentCard(
        name=agent.name,
        description=about,
        version=version("midrun"),
        supported_interfaces=[
            AgentInterface(url=base, protocol_binding=binding, protocol_version="1.0")
            for binding in ("JSONRPC", "HTTP+JSON")
        ],
        capabilities=AgentCapabilities(
            streaming=True,
            push_notifications=has_push,
            extensions=[pause],
            extended_agent_card=True,
        ),
        security_schemes={
            "bearer": SecurityScheme(
                http_auth_security_scheme=HTTPAuthSecurityScheme(
                    scheme="Bearer", description="A token of this Midrun server."
                )
            )
        },
        security_requirements=[SecurityRequirement(schemes={"bearer": StringList()})],
        default_input_modes=INPUT_MODES,
        default_output_modes=OUTPUT_MODES,
        skills=[skill],
    )


PHASE_METADATA_KEY: Final = "midrun.dev/state"
"""The metadata key for the phase; A2A has no state for pausing, paused, halted and others."""

TASK_STATES: Final[dict[Phase, TaskState]] = {
    Phase.QUEUED: TaskState.TASK_STATE_SUBMITTED,
    Phase.RUNNING: TaskState.TASK_STATE_WORKING,
    Phase.PAUSING: TaskState.TASK_STATE_WORKING,
    Phase.PAUSED: TaskState.TASK_STATE_INPUT_REQUIRED,
    Phase.WAITING: TaskState.TASK_STATE_INPUT_REQUIRED,
    Phase.CANCELLING: TaskState.TASK_STATE_WORKING,
    Phase.CANCELLED: TaskState.TASK_STATE_CANCELED,
    Phase.COMPLETED: TaskState.TASK_STATE_COMPLETED,
    Phase.FAILED: TaskState.TASK_STATE_FAILED,
    Phase.HALTED: TaskState.TASK_STATE_INPUT_REQUIRED,
}


def get_context_id(state: State) -> str:
    """Return the context id of a run: its thread, else its own id."""
    return state.run_started.thread or state.run


def make_context_id(request_id: str) -> str:
    """Return a new context id for a task whose message names none.

    It is derived from the request id, so a repeated request gets the same context.
    """
    return f"ctx_{_digest(request_id)}"


def _digest(request_id: str) -> str:
    return sha256(request_id.encode()).hexdigest()[: 2 * ID_BYTES]


def make_rejected_task(request_id: str, context: str, reason_text: str) -> Task:
    """Return a rejected task; no run was started and nothing is stored."""
    name = f"rejected_{_digest(request_id)}"
    reason = Message(
        message_id=f"{name}-why",
        context_id=context,
        task_id=name,
        role=Role.ROLE_AGENT,
        parts=[Part(text=reason_text)],
    )
    status = TaskStatus(state=TaskState.TASK_STATE_REJECTED, message=reason)
    return Task(id=name, context_id=context, status=status)


def to_task(
    state: State, base_url: str, *, history: int | None = None, artifacts: bool = True
) -> Task:
    """Return the run in `state` as a task, with the last `history` messages (None: all)."""
    messages = list(_make_history(state))
    if history is not None:
        messages = messages[-history:] if history else []  # -0 would be all of them
    return Task(
        id=state.run,
        context_id=get_context_id(state),
        status=to_status(state),
        artifacts=list_artifacts(state, base_url) if artifacts else [],
        history=messages,
        metadata=make_metadata(state),
    )


def to_status(state: State) -> TaskStatus:
    """Return the status of a task, with a message for the user."""
    # The id of the message has the seq: two states with the same text are two messages, and a
    # repeated read of one state returns the same message.
    text = _format_status_text(state)
    about = make_message(state, text, f"status-{state.seq}") if text else None
    at = Timestamp(seconds=state.at // 1_000_000, nanos=state.at % 1_000_000 * 1000)
    return TaskStatus(state=TASK_STATES[state.phase], message=about, timestamp=at)


def make_metadata(state: State) -> Struct:
    """Return the metadata of a task: the run's phase."""
    metadata = Struct()
    metadata.update({PHASE_METADATA_KEY: state.phase.value})
    return metadata


def list_artifacts(state: State, base_url: str) -> list[Artifact]:
    """Return the newest version of each artifact, then the output or the report."""
    shown = {
        each.name: make_shown_artifact(state.run, each, base_url) for each in state.artifacts
    }
    return [*shown.values(), *iter_final_artifacts(state)]


def make_shown_artifact(run: RunId, shown: ShownArtifact, base_url: str) -> Artifact:
    """Return an artifact that a tool showed: the address of its file, for the same token."""
    file = shown.file
    url = f"{base_url}/v1/runs/{run}/files/{file.hash}"
    part = Part(url=url, filename=file.name, media_type=file.media_type)
    return Artifact(
        artifact_id=f"shown:{shown.name}",
        name=shown.name,
        description=f"version {shown.version}",
        parts=[part],
    )


def iter_final_artifacts(state: State) -> Iterator[Artifact]:
    """Yield the output of a completed run, or the report of a cancelled one."""
    if state.phase is Phase.COMPLETED:
        parts = [Part(text=state.output)]
        if state.value is not None:  # the same, of an agent with an output type
            parts.append(Part(data=Parse(msgspec.json.encode(state.value), Value())))
        yield Artifact(artifact_id="output", name="output", parts=parts)
    elif state.phase is Phase.CANCELLED:
        parts = [Part(text=str(build_report(state)), media_type="text/markdown")]
        yield Artifact(artifact_id="report", name="report", parts=parts)


def make_message(state: State, text: str, name: str, role: Role = Role.ROLE_AGENT) -> Message:
    """Return a message of the task; `name` makes its id unique within the run."""
    return Message(
        message_id=f"{state.run}-{name}",
        context_id=get_context_id(state),
        task_id=state.run,
        role=role,
        parts=[Part(text=text)],
    )


def _format_status_text(state: State) -> str:
    match state.phase:
        case Phase.PAUSED:
            return f"{describe_hold(state)} Send any message to resume."
        case Phase.WAITING:
            return describe_asks(state)
        case Phase.FAILED:
            return state.error.error if state.error is not None else "failed"
        case Phase.HALTED:
            return describe_hold(state)
        case Phase.COMPLETED:
            return state.output
        case _:
            return ""


def _make_history(state: State) -> Iterator[Message]:
    """Yield the messages of the user and of the agent, with the asks and their decisions."""
    earlier = len(state.run_started.history)
    # Numbers are indexes in the whole history; the transcript begins after the condensed part.
    first = state.condensed_count - bool(state.summary)
    for number, turn in enumerate(Transcript(state), first):
        if turn.text:
            role = Role.ROLE_USER if turn.role == "user" else Role.ROLE_AGENT
            yield make_message(state, turn.text, f"m{number}", role)
        # Calls of earlier runs of the thread have the same numbers as calls of this run.
        calls = {use.call for use in turn.uses} if number >= earlier else set()
        for ask in state.asks:
            if ask.call in calls and ask.decision is not None:
                yield make_message(state, ask.question, ask.id)
                decided = _describe_decision(ask.decision)
                yield make_message(state, decided, f"{ask.id}-decision", Role.ROLE_USER)


def _describe_decision(decision: Decision) -> str:
    """Return a decision in the words with which a client gives it."""
    if decision.choice != "answer":
        return " ".join(filter(None, (decision.choice, decision.reason)))
    value = decision.value
    return value if isinstance(value, str) else format_arguments(value)
