"""Turns and plan rows: the messages of a run with their calls, grouped by plan item.

A turn is one message with the calls that it asked for. A row is one item of the agent's plan.
The journal does not store which plan item a message belongs to. It is derived: replaying the
calls of the plan tool in order gives the plan at each message, and the message belongs to the
item that was current then.
"""

from collections.abc import Iterator
from itertools import islice
from typing import Final

import msgspec

from midrun.agents.builtin_tools import PLAN_TOOL, apply_plan_call
from midrun.agents.signature import BadArguments
from midrun.core.ids import CallId, Micros, make_child_id
from midrun.core.journaled_text import find_current_item
from midrun.core.state import Call, CallStage, State
from midrun.core.values import CallKind, Json, Message, Phase, PlanItem, Value
from midrun.runs.values import Row, StepLook

SHOWN_MAX_CHARS: Final = 4000
"""Characters of arguments or of a result that are shown; the journal has the whole value."""


class CallLine(Value, kw_only=True):
    """One call of a turn. Arguments and result are JSON as text, cut if they are long."""

    id: CallId
    kind: CallKind
    tool: str
    args: str = ""
    why: str = ""  # the agent's reason for the call
    look: StepLook
    result: str = ""
    error: str = ""
    attempts: int = 0
    started_at: Micros | None = None
    by_hand: bool = False  # requested by a person who had taken over
    child: str = ""  # the id of the child run, if the call started one


class TurnView(Value, kw_only=True):
    """One message of the run, with the calls it asked for.

    `item` is the number of the plan item that it belongs to, from 1; 0 for none. `earlier` is
    True for a message that the run inherited from its thread or from the run it was forked
    from.
    """

    number: int
    role: str
    kind: str = ""
    by: str = ""
    text: str = ""
    thinking: str = ""
    interrupted: bool = False
    earlier: bool = False
    item: int = 0
    look: StepLook
    calls: tuple[CallLine, ...] = ()


def make_plan_rows(state: State) -> tuple[Row, ...]:
    """Return the agent's plan as a task list; empty without a plan."""
    if not state.plan:
        return ()
    current_item = find_current_item(state.plan)
    # By the text of the item: an item keeps its text, but not its number, in a revised plan.
    calls_by_item: dict[str, list[Call]] = {}
    for message, item_text in _pair_messages_with_items(state):
        calls_by_item.setdefault(item_text, []).extend(_find_calls(state, message))
    plan_rows: list[Row] = []
    for item in state.plan:
        calls = [
            call
            for call in calls_by_item.get(item.text, ())
            if call.use.tool != PLAN_TOOL.name and call.attempt
        ]
        tool = calls[-1].use.tool if calls else ""
        look = _choose_item_look(state, item, calls, is_current=item is current_item)
        plan_rows.append(Row(text=item.text, look=look, tool=tool))
    return tuple(plan_rows)


def _choose_item_look(
    state: State, item: PlanItem, calls: list[Call], *, is_current: bool
) -> StepLook:
    # First, because the plan still marks an item as done after its calls were undone.
    if any(call.undo.stage == "done" for call in calls):
        return "undone"
    if item.state in {"done", "failed"}:
        return "done" if item.state == "done" else "failed"
    if item.state == "dropped":
        return "dropped"
    over = state.phase in {Phase.CANCELLED, Phase.COMPLETED, Phase.CANCELLING}
    if not is_current or (item.state == "queued" and over):
        return "not_started" if over else "queued"
    looks: dict[Phase, StepLook] = {
        Phase.QUEUED: "queued",
        Phase.RUNNING: "running",
        Phase.PAUSING: "running",
        Phase.WAITING: "needs_you",
        Phase.CANCELLING: "running" if state.in_flight else "stopped",
        Phase.CANCELLED: "stopped",
        Phase.COMPLETED: "left_open",
        Phase.FAILED: "failed",
    }
    return looks.get(state.phase, "held" if item.state == "running" else "queued")


def list_turns(state: State, after: int, limit: int) -> tuple[TurnView, ...]:
    """Return the turns with numbers above `after`, at most `limit` of them."""
    inherited = len(state.run_started.history)
    numbers = {item.text: number for number, item in enumerate(state.plan, 1)}
    page: list[TurnView] = []
    for number, message, item in _number_messages(state, after, after + limit):
        if after < number:
            calls = tuple(_make_call_line(state, call) for call in _find_calls(state, message))
            page.append(
                TurnView(
                    number=number,
                    role=message.role,
                    kind=message.kind,
                    by=message.by,
                    text=message.text,
                    thinking=message.thinking,
                    interrupted=message.interrupted,
                    earlier=number <= inherited,
                    item=numbers.get(item, 0),
                    look=_choose_turn_look(message, calls),
                    calls=calls,
                )
            )
    return tuple(page)


def _number_messages(
    state: State, after: int, up_to: int
) -> Iterator[tuple[int, Message, str]]:
    """Yield number, message and text of the plan item, up to the number `up_to`."""
    # With a plan, the item of a message depends on all messages before it, so start at 1 and
    # let the caller skip. Without one, jump to the page.
    if state.plan:
        for number, (message, item) in enumerate(
            islice(_pair_messages_with_items(state), up_to), 1
        ):
            yield number, message, item
        return
    for number in range(after + 1, min(up_to, len(state.messages)) + 1):
        yield number, state.messages[number - 1], ""


def count_turns(state: State) -> int:
    """Return the number of turns."""
    return len(state.messages)


def _pair_messages_with_items(state: State) -> Iterator[tuple[Message, str]]:
    """Yield each message with the text of the plan item that was current then, or ""."""
    plan = state.run_started.plan  # of a fork, the plan that it inherited
    for message in state.messages:
        # The plan tool is one of the calls of its message, so that message already belongs to
        # the new plan.
        for call in _find_calls(state, message):
            if call.use.tool == PLAN_TOOL.name and call.stage is CallStage.DONE:
                plan = _apply_plan_args(plan, call.use.args)
        item = find_current_item(plan)
        yield message, "" if item is None else item.text


def _find_calls(state: State, message: Message) -> list[Call]:
    # A message of kind "outcome" reports on calls; it did not ask for them.
    calls = (state.find_call(id_) for id_ in message.calls if message.kind != "outcome")
    return [call for call in calls if call is not None]


def _apply_plan_args(plan: tuple[PlanItem, ...], args: Json) -> tuple[PlanItem, ...]:
    try:
        return apply_plan_call(plan, PLAN_TOOL.parse(args))
    except (BadArguments, ValueError):
        return plan  # the call was refused, or its arguments are of another version


def _make_call_line(state: State, call: Call) -> CallLine:
    return CallLine(
        id=call.id,
        kind=call.call_kind,
        tool=call.use.tool,
        args=format_json(call.use.args),
        why=call.use.why,
        look=_choose_call_look(state, call),
        result=format_json(call.result) if call.stage is CallStage.DONE else "",
        error=call.undo.error or call.error,
        attempts=call.attempt,
        started_at=call.started_at or None,
        by_hand=call.requested_by_operator,
        child=make_child_id(state.run, call.id) if call.call_kind == "child" else "",
    )


def _choose_call_look(state: State, call: Call) -> StepLook:
    if call.undo.stage == "done":
        return "undone"
    if state.is_waiting_for_person(call):
        return "needs_you"
    # A call that was aborted, or is unknown, shows as held or queued if it will be retried. In
    # a run that is ending it will not.
    over = state.phase in {Phase.CANCELLED, Phase.COMPLETED, Phase.CANCELLING}
    again: StepLook = "held" if state.phase is Phase.PAUSED else "queued"
    looks: dict[CallStage, StepLook] = {
        CallStage.PROPOSED: "not_started" if over else "queued",
        CallStage.STARTED: "running",
        CallStage.DONE: "done",
        CallStage.FAILED: "failed",
        CallStage.ABORTED: again if call.must_retry and not over else "stopped",
        CallStage.UNKNOWN: again if call.must_retry and not over else "stopped",
        CallStage.SEALED: "not_started",
    }
    return looks.get(call.stage, "stopped")


# A turn shows the first of these that one of its calls has.
_LOOK_PRECEDENCE: Final[tuple[StepLook, ...]] = (
    "running",
    "needs_you",
    "undone",
    "failed",
    "stopped",
    "held",
    "queued",
    "not_started",
)


def _choose_turn_look(message: Message, calls: tuple[CallLine, ...]) -> StepLook:
    if message.interrupted:
        return "stopped"
    looks = {call.look for call in calls}
    return next((look for look in _LOOK_PRECEDENCE if look in looks), "done")


def format_json(value: Json) -> str:
    """Return a JSON value as text for display, cut if it is long; "" for None."""
    if value is None:
        return ""
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return (
        text
        if len(text) <= SHOWN_MAX_CHARS
        else f"{text[:SHOWN_MAX_CHARS]}… ({len(text)} characters)"
    )
