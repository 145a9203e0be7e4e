"""Turns and rows: what the agent said and did, and the plan items that this was for."""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final

import msgspec

from midrun.agents.signature import BadArguments
from midrun.agents.todo_tool import PLAN, planned
from midrun.core.ids import CallId, Micros, child_id
from midrun.core.journaled_text import current
from midrun.core.state import Call, Stage, State
from midrun.core.values import CallKind, Item, Json, Message, Phase, Value
from midrun.runs.values import Row, StepLook

CUT: Final = 4000
"""How many characters of arguments or of a result are shown; the journal has all."""


class CallLine(Value, kw_only=True):
    """One call of a turn. Arguments and result are JSON as text, cut if they are long."""

    id: CallId
    kind: CallKind
    tool: str
    args: str = ""
    why: str = ""  # the agent made it
    look: StepLook
    result: str = ""
    error: str = ""
    attempts: int = 0
    started_at: Micros | None = None
    by_hand: bool = False  # wanted by a person at the wheel
    child: str = ""  # the run that it is, if it is one


class TurnView(Value, kw_only=True):
    """One message of the run, with the calls it asked for.

    `item` is the number of the plan item it was for, from 1; 0 for none. `earlier` is one that
    this run was given from another.
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


def rows(state: State) -> tuple[Row, ...]:
    """Return the agent's plan as the task list; without a plan there are no rows."""
    if not state.plan:
        return ()
    now = current(state.plan)
    used: dict[str, list[Call]] = {}
    for message, what_for in _attributed(state):
        used.setdefault(what_for, []).extend(_calls(state, message))
    made: list[Row] = []
    for item in state.plan:
        calls = [c for c in used.get(item.text, ()) if c.use.tool != PLAN.name and c.attempt]
        tool = calls[-1].use.tool if calls else ""
        look = _item_look(state, item, calls, at_work=item is now)
        made.append(Row(text=item.text, look=look, tool=tool))
    return tuple(made)


def _item_look(state: State, item: Item, calls: list[Call], *, at_work: bool) -> StepLook:
    """Return where a plan item stands. What was undone is not called done."""
    if any(call.undo.stage == "done" for call in calls):
        return "undone"
    if item.mark in {"done", "failed"}:
        return "done" if item.mark == "done" else "failed"
    if item.mark == "dropped":
        return "dropped"
    over = state.phase in {Phase.CANCELLED, Phase.COMPLETED, Phase.CANCELLING}
    if not at_work or (item.mark == "queued" and over):
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
    return looks.get(state.phase, "held" if item.mark == "running" else "queued")


def turns(state: State, after: int, limit: int) -> tuple[TurnView, ...]:
    """Return the turns that follow the first `after`, at most `limit` of them."""
    given = len(state.started.history)
    numbers = {item.text: number for number, item in enumerate(state.plan, 1)}
    made: list[TurnView] = []
    for number, message, item in _page(state, after, after + limit):
        if after < number:
            calls = tuple(_line(state, call) for call in _calls(state, message))
            made.append(
                TurnView(
                    number=number,
                    role=message.role,
                    kind=message.kind,
                    by=message.by,
                    text=message.text,
                    thinking=message.thinking,
                    interrupted=message.interrupted,
                    earlier=number <= given,
                    item=numbers.get(item, 0),
                    look=_turn_look(message, calls),
                    calls=calls,
                )
            )
    return tuple(made)


def _page(state: State, after: int, upto: int) -> Iterator[tuple[int, Message, str]]:
    """Yield messages by number. Where there is a plan, what each was for follows from all."""
    if state.plan or state.started.hosted:
        for number, (message, item) in enumerate(islice(_attributed(state), upto), 1):
            yield number, message, item
        return
    for number in range(after + 1, min(upto, len(state.messages)) + 1):
        yield number, state.messages[number - 1], ""


def count(state: State) -> int:
    """Return how many turns there are."""
    if state.started.hosted:
        return sum(1 for _ in _attributed(state))
    return len(state.messages)


def _attributed(state: State) -> Iterator[tuple[Message, str]]:
    """Yield each message with the text of the plan item that was at work then."""
    plan = state.started.plan
    for message in _said(state):
        for call in _calls(state, message):
            if call.use.tool == PLAN.name and call.stage is Stage.DONE:
                plan = _revised(plan, call.use.args)
        item = current(plan)
        yield message, "" if item is None else item.text


def _said(state: State) -> Iterable[Message]:
    """Return the messages; a hosted agent asks for its calls without saying anything."""
    if not state.started.hosted:
        return state.messages
    calls = (call for call in state.calls if call.call_kind != "model" and not call.by_hand)
    asked = (Message(role="assistant", text="", calls=(call.id,)) for call in calls)
    task, *others = state.messages
    return (task, *asked, *others)


def _calls(state: State, message: Message) -> list[Call]:
    found = (state.call(name) for name in message.calls if message.kind != "outcome")
    return [call for call in found if call is not None]


def _revised(plan: tuple[Item, ...], args: Json) -> tuple[Item, ...]:
    try:
        return planned(plan, PLAN.parse(args))
    except (BadArguments, ValueError):
        return plan  # its call was refused, or is of another version


def _line(state: State, call: Call) -> CallLine:
    return CallLine(
        id=call.id,
        kind=call.call_kind,
        tool=call.use.tool,
        args=text_of(call.use.args),
        why=call.use.why,
        look=_call_look(state, call),
        result=text_of(call.result) if call.stage is Stage.DONE else "",
        error=call.undo.error or call.error,
        attempts=call.attempt,
        started_at=call.started_at or None,
        by_hand=call.by_hand,
        child=child_id(state.run, call.id) if call.call_kind == "child" else "",
    )


def _call_look(state: State, call: Call) -> StepLook:
    if call.undo.stage == "done":
        return "undone"
    if state.waits(call):
        return "needs_you"
    over = state.phase in {Phase.CANCELLED, Phase.COMPLETED, Phase.CANCELLING}
    again: StepLook = "held" if state.phase is Phase.PAUSED else "queued"
    looks: dict[Stage, StepLook] = {
        Stage.PROPOSED: "not_started" if over else "queued",
        Stage.STARTED: "running",
        Stage.DONE: "done",
        Stage.FAILED: "failed",
        Stage.ABORTED: again if call.again and not over else "stopped",
        Stage.UNKNOWN: again if call.again and not over else "stopped",
        Stage.SEALED: "not_started",
    }
    return looks.get(call.stage, "stopped")


_WORST: Final[tuple[StepLook, ...]] = (
    "running",
    "needs_you",
    "undone",
    "failed",
    "stopped",
    "held",
    "queued",
    "not_started",
)


def _turn_look(message: Message, calls: tuple[CallLine, ...]) -> StepLook:
    if message.interrupted:
        return "stopped"
    found = {call.look for call in calls}
    return next((look for look in _WORST if look in found), "done")


def text_of(value: Json) -> str:
    """Return JSON as the text that people are shown, cut if it is long."""
    if value is None:
        return ""
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return text if len(text) <= CUT else f"{text[:CUT]}… ({len(text)} characters)"
