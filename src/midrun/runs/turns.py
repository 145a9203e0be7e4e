"""Turns and plan rows: the messages of a run with their calls, grouped by plan item.

A turn is one message with the calls that it asked for. A row is one item of the agent's plan.
The journal does not store which plan item a message belongs to. It is derived: replaying the
calls of the plan tool in order gives the plan at each message, and the message belongs to the
item that was current then.
"""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

import msgspec

from midrun.agents.builtin_tools import PLAN_TOOL, apply_plan_call
from midrun.agents.signature import BadArguments
from midrun.core.ids import CallId, Micros, make_child_id
from midrun.core.journaled_text import find_current_item, format_position, get_topic_plan
from midrun.core.state import CallStage, CallState, State
from midrun.core.transcript import HELD_PREFIX, HELD_SUFFIX
from midrun.core.values import (
    TERMINAL_PHASES,
    CallKind,
    FileRef,
    Json,
    Message,
    Phase,
    PlanItem,
    Value,
)
from midrun.runs.values import PlanRow, StepStyle
from midrun.text.titles import format_title

SHOWN_MAX_CHARS: Final = 4000
"""Characters of arguments or of a result that are shown; the journal has the whole value."""


_CLOSED_STAGES: Final = frozenset({CallStage.DONE, CallStage.FAILED, CallStage.SEALED})
"""The stages of calls whose style does not depend on the phase of the run."""


class CallLine(Value, kw_only=True):
    """One call of a turn. Arguments and result are JSON as text, cut if they are long."""

    id: CallId
    kind: CallKind
    tool: str
    args: str = ""
    why: str = ""  # the agent's reason for the call
    style: StepStyle
    result: str = ""
    error: str = ""
    attempts: int = 0
    started_at: Micros | None = None
    by_person: bool = False  # requested by a person who had taken over
    child: str = ""  # the id of the child run, if the call started one
    title: str = ""  # one line that tells people about the call
    files: tuple[FileRef, ...] = ()  # files that the call returned


class TurnView(Value, kw_only=True):
    """One message of the run, with the calls it asked for.

    `item` is the number of the plan item that it belongs to, from 1; 0 for none. `inherited` is
    True for a message that the run inherited from its thread or from the run it was forked
    from. `agent` is the author of a reply, in a run with handoffs.
    """

    number: int
    role: str
    kind: str = ""
    by: str = ""
    agent: str = ""
    text: str = ""
    thinking: str = ""
    interrupted: bool = False
    inherited: bool = False
    item: int = 0
    style: StepStyle
    calls: tuple[CallLine, ...] = ()
    files: tuple[FileRef, ...] = ()


def make_plan_rows(state: State) -> tuple[PlanRow, ...]:
    """Return the agent's plan as a task list; empty without a plan."""
    if not state.plan:
        return ()
    current_item = find_current_item(state.plan)
    # By the text of the item: an item keeps its text, but not its number, in a revised plan.
    calls_by_item: dict[str, list[CallState]] = {}
    for message, item_text in _pair_messages_with_items(state):
        calls_by_item.setdefault(item_text, []).extend(_find_calls(state, message))
    plan_rows: list[PlanRow] = []
    for item in state.plan:
        calls = [
            call
            for call in calls_by_item.get(item.text, ())
            if call.use.tool != PLAN_TOOL.name and call.attempt
        ]
        tool = calls[-1].use.tool if calls else ""
        style = _choose_item_style(state, item, calls, is_current=item is current_item)
        plan_rows.append(PlanRow(text=item.text, style=style, tool=tool))
    return tuple(plan_rows)


def format_progress(state: State) -> str:
    """Return the progress of a run for people.

    With a plan, the text has the current item ("plan 4/7"); while a side question is answered,
    that item is held ("held at plan 4/7"). A run that is paused, completed or cancelled counts
    the items that are done ("plan 3/7 done"). Without a plan, turns are counted ("turn 4", at
    the end "4 turns"); before the first turn the text is empty.
    """
    position, steps = format_position(state.plan, state.meter.steps), state.meter.steps
    counted = [item.state for item in state.plan if item.state != "dropped"]
    if not counted:
        if state.phase in TERMINAL_PHASES and steps:
            return f"{steps} turn{'' if steps == 1 else 's'}"
        return position if steps else ""
    if state.phase in TERMINAL_PHASES or state.phase is Phase.PAUSED:
        done = counted.count("done")
        # Only the rows tell which items were undone. They are slow to make for a long run.
        if any(call.undo.stage == "done" for call in state.calls):
            done = sum(row.style == "done" for row in make_plan_rows(state))
        return f"plan {done}/{len(counted)} done"
    return f"held at {position}" if _is_plan_held(state) else position


def _is_plan_held(state: State) -> bool:
    """Whether the plan belongs to a held topic, because the current side question has none."""
    return get_topic_plan(state) != state.plan


def _choose_item_style(
    state: State, item: PlanItem, calls: list[CallState], *, is_current: bool
) -> StepStyle:
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
    if not over and _is_plan_held(state):
        return "held"
    styles: dict[Phase, StepStyle] = {
        Phase.QUEUED: "queued",
        Phase.RUNNING: "running",
        Phase.PAUSING: "running",
        Phase.WAITING: "needs_you",
        Phase.CANCELLING: "running" if state.in_flight else "stopped",
        Phase.CANCELLED: "stopped",
        Phase.COMPLETED: "left_open",
        Phase.FAILED: "failed",
    }
    return styles.get(state.phase, "held" if item.state == "running" else "queued")


def list_turns(state: State, after: int, limit: int) -> tuple[TurnView, ...]:
    """Return the turns with numbers above `after`, at most `limit` of them."""
    last = min(after + limit, count_turns(state))
    return tuple(_make_turns(state, range(after + 1, last + 1)))


def list_changed_turns(before: State, state: State) -> tuple[TurnView, ...]:
    """Return the turns of `state` that are new or differ from those of the state `before`."""
    numbers = _find_changed_numbers(before, state)
    known = {turn.number: turn for turn in _make_turns(before, numbers)}
    return tuple(t for t in _make_turns(state, numbers) if known.get(t.number) != t)


def _find_changed_numbers(before: State, state: State) -> Sequence[int]:
    """Return the numbers of turns that may have changed, without comparing all turns.

    Entries are folded into new objects, and an unchanged message or call is the same object in
    both states. Apart from those, a turn depends on the plan (it has the number of its item)
    and, through its open calls, on the phase.
    """
    has_other_plan = [i.text for i in before.plan] != [i.text for i in state.plan]
    if has_other_plan or state.run_started.hosted:  # a hosted run numbers its turns anew
        return range(1, count_turns(state) + 1)
    old_calls, old_messages = before.calls, before.messages
    changed = {
        call.id
        for at, call in enumerate(state.calls)
        if at >= len(old_calls) or old_calls[at] is not call or call.stage not in _CLOSED_STAGES
    }
    return [
        at + 1
        for at, message in enumerate(state.messages)
        if at >= len(old_messages)
        or old_messages[at] is not message
        or not changed.isdisjoint(message.calls)
    ]


def _make_turns(state: State, numbers: Sequence[int]) -> Iterator[TurnView]:
    """Yield the turns with these ascending numbers, as far as they exist."""
    if not numbers:
        return
    inherited = len(state.run_started.history)
    items = {item.text: number for number, item in enumerate(state.plan, 1)}
    wanted = frozenset(numbers) if isinstance(numbers, list) else numbers
    for number, message, item in _number_messages(state, numbers[0] - 1, numbers[-1]):
        if number in wanted:
            calls = tuple(_make_call_line(state, call) for call in _find_calls(state, message))
            yield TurnView(
                number=number,
                role=message.role,
                kind=message.kind,
                by=message.by,
                agent=_find_agent(state, message),
                text=_format_text(message),
                thinking=message.thinking,
                interrupted=message.interrupted,
                inherited=number <= inherited,
                item=items.get(item, 0),
                style=_choose_turn_style(message, calls),
                calls=calls,
                files=message.files,
            )


def _find_agent(state: State, message: Message) -> str:
    """Return the agent that wrote a reply; "" without handoffs, and for other messages."""
    is_reply = message.role == "assistant" and message.kind != "person"
    if not (is_reply and state.run_started.handoffs):
        return ""
    return message.agent or state.run_started.agent


def _format_text(message: Message) -> str:
    """Return the text of a message for people; the text of a held topic is for the model."""
    if message.kind != "held":
        return message.text
    goal = message.text.removeprefix(HELD_PREFIX).removesuffix(HELD_SUFFIX)
    return f"*{goal}* is put aside for this message:"


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


def _find_calls(state: State, message: Message) -> list[CallState]:
    # A message of kind "outcome" reports on calls; it did not ask for them.
    calls = (state.find_call(id_) for id_ in message.calls if message.kind != "outcome")
    return [call for call in calls if call is not None]


def _apply_plan_args(plan: tuple[PlanItem, ...], args: Json) -> tuple[PlanItem, ...]:
    try:
        return apply_plan_call(plan, PLAN_TOOL.parse(args))
    except (BadArguments, ValueError):
        return plan  # the call was refused, or its arguments are of another version


def _make_call_line(state: State, call: CallState) -> CallLine:
    return CallLine(
        id=call.id,
        kind=call.call_kind,
        tool=call.use.tool,
        args=format_json(call.use.args),
        why=call.use.why,
        style=_choose_call_style(state, call),
        result=format_json(call.result) if call.stage is CallStage.DONE else "",
        error=call.undo.error or call.error,
        attempts=call.attempt,
        started_at=call.started_at or None,
        by_person=call.requested_by_operator,
        child=make_child_id(state.run, call.id) if call.call_kind == "child" else "",
        title=format_title(call.use),
        files=call.files,
    )


def _choose_call_style(state: State, call: CallState) -> StepStyle:
    if call.undo.stage == "done":
        return "undone"
    if state.is_waiting_for_person(call):
        return "needs_you"
    # A call that was aborted, or is unknown, shows as held or queued if it will be retried. In
    # a run that is ending it will not.
    over = state.phase in {Phase.CANCELLED, Phase.COMPLETED, Phase.CANCELLING}
    again: StepStyle = "held" if state.phase is Phase.PAUSED else "queued"
    styles: dict[CallStage, StepStyle] = {
        CallStage.PROPOSED: "not_started" if over else "queued",
        CallStage.STARTED: "running",
        CallStage.DONE: "done",
        CallStage.FAILED: "failed",
        CallStage.ABORTED: again if call.must_retry and not over else "stopped",
        CallStage.UNKNOWN: again if call.must_retry and not over else "stopped",
        CallStage.SEALED: "not_started",
    }
    return styles.get(call.stage, "stopped")


# A turn shows the first of these that one of its calls has.
_STYLE_PRECEDENCE: Final[tuple[StepStyle, ...]] = (
    "running",
    "needs_you",
    "undone",
    "failed",
    "stopped",
    "held",
    "queued",
    "not_started",
)


def _choose_turn_style(message: Message, calls: tuple[CallLine, ...]) -> StepStyle:
    if message.interrupted:
        return "stopped"
    styles = {call.style for call in calls}
    return next((style for style in _STYLE_PRECEDENCE if style in styles), "done")


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
