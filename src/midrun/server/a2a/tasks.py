"""Runs as A2A shows them: tasks, with their states, artifacts and history."""

from collections.abc import Iterator
from hashlib import sha256
from typing import Final

from a2a.types.a2a_pb2 import Artifact, Message, Part, Role, Task, TaskState, TaskStatus
from google.protobuf.struct_pb2 import Struct
from google.protobuf.timestamp_pb2 import Timestamp

from midrun.agents.outcome import ask_views
from midrun.core.state import State
from midrun.core.transcript import Transcript
from midrun.core.values import Phase
from midrun.ports.environment import ID_BYTES
from midrun.text.report import report

PHASE: Final = "midrun.dev/state"
"""The metadata that says what A2A has no word for: pausing, paused, cancelling, halted."""

STATES: Final[dict[Phase, TaskState]] = {
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


def context_of(state: State) -> str:
    """Return the conversation that a run belongs to: its thread, or one of its own."""
    return state.started.thread or state.run


def context_for(request: str) -> str:
    """Return the conversation of a task that was given none: one that others can follow it in.

    It follows from the request, so that whoever repeats that is given the same.
    """
    return f"ctx_{_digest(request)}"


def _digest(request: str) -> str:
    return sha256(request.encode()).hexdigest()[: 2 * ID_BYTES]


def rejected(request: str, context: str, why: str) -> Task:
    """Return a task that the agent would never do: nothing was begun, and nothing is kept."""
    name = f"rejected_{_digest(request)}"
    told = Message(
        message_id=f"{name}-why",
        context_id=context,
        task_id=name,
        role=Role.ROLE_AGENT,
        parts=[Part(text=why)],
    )
    status = TaskStatus(state=TaskState.TASK_STATE_REJECTED, message=told)
    return Task(id=name, context_id=context, status=status)


def task_of(state: State, *, history: int | None = None, artifacts: bool = True) -> Task:
    """Return the run in `state` as a task, with the last `history` messages; None is all."""
    said = list(_history(state))
    kept = said if history is None else said[len(said) - history :] if history else []
    return Task(
        id=state.run,
        context_id=context_of(state),
        status=status_of(state),
        artifacts=list(artifacts_of(state)) if artifacts else [],
        history=kept,
        metadata=metadata_of(state),
    )


def status_of(state: State) -> TaskStatus:
    """Return where the task stands, with what it needs in words."""
    words = _words(state)
    told = message(state, words, f"status-{state.seq}") if words else None
    at = Timestamp(seconds=state.at // 1_000_000, nanos=state.at % 1_000_000 * 1000)
    return TaskStatus(state=STATES[state.phase], message=told, timestamp=at)


def metadata_of(state: State) -> Struct:
    """Return the phase under our own name."""
    made = Struct()
    made.update({PHASE: state.phase.value})
    return made


def artifacts_of(state: State) -> Iterator[Artifact]:
    """Yield what the run leaves: its output, or the report of its cancel."""
    if state.phase is Phase.COMPLETED:
        yield Artifact(artifact_id="output", name="output", parts=[Part(text=state.output)])
    elif state.phase is Phase.CANCELLED:
        parts = [Part(text=str(report(state)), media_type="text/markdown")]
        yield Artifact(artifact_id="report", name="report", parts=parts)


def message(state: State, text: str, name: str, role: Role = Role.ROLE_AGENT) -> Message:
    """Return something said in the run."""
    return Message(
        message_id=f"{state.run}-{name}",
        context_id=context_of(state),
        task_id=state.run,
        role=role,
        parts=[Part(text=text)],
    )


def _words(state: State) -> str:
    match state.phase:
        case Phase.PAUSED:
            by = f" by {state.since_by}" if state.since_by else ""
            return f"Paused{by}. Send any message to resume."
        case Phase.WAITING:
            return "\n".join(str(ask) for ask in ask_views(state))
        case Phase.FAILED:
            return state.error.error if state.error is not None else "failed"
        case Phase.HALTED:
            return "Halted by an operator; it goes on once that is lifted."
        case Phase.COMPLETED:
            return state.output
        case _:
            return ""


def _history(state: State) -> Iterator[Message]:
    for number, turn in enumerate(Transcript(state)):
        if turn.text:
            role = Role.ROLE_USER if turn.role == "user" else Role.ROLE_AGENT
            yield message(state, turn.text, f"m{number}", role)
