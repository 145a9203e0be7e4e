"""Texts of the runtime that are stored in journal entries.

Acknowledgements, the announcement of a resumed topic and the reasons of sealed calls are part
of the journal, so that every surface shows the same text and a replay gives the same state.
No model writes them: an acknowledgement must come at once and must be true.

A change to a string here changes new journals and makes the stored ones in `tests/journals`
differ. Texts that are only displayed belong to `midrun.text`.
"""

from collections.abc import Callable
from functools import lru_cache

import msgspec

from midrun.core.entries import CallSealed
from midrun.core.state import CallStage, CallState, Frame, State
from midrun.core.values import Json, Phase, PlanItem

LINE_MAX_CHARS = 80

LINE_SCAN_CHARS = 1000
"""The number of characters of a text that usually contain a whole line of it."""

UNMADE_NAMED_MAX = 10
"""Maximum number of calls that `describe_unmade` names."""

WITHHELD_PREFIX = "withheld: "
"""Begins `CallDone.encoding_error` if a hook of the agent keeps the result from the model."""

QUOTA_PREFIX = "the quota of "
"""Begins `CapReached.stop` if a quota is used up, and no condition of the run was met."""

_INNER_MARKS = str.maketrans("“”", "‘’")  # noqa: RUF001 - quotation marks inside a quotation


@lru_cache(maxsize=64)  # every append shortens the task of its run
def shorten_to_line(text: str) -> str:
    """Return `text` as one line, cut to `LINE_MAX_CHARS`."""
    # A task may have megabytes. The first characters are enough, unless nearly all of them are
    # white space.
    flat = " ".join(text[:LINE_SCAN_CHARS].split())
    if len(flat) <= LINE_MAX_CHARS and len(text) > LINE_SCAN_CHARS:
        flat = " ".join(text.split())
    return flat if len(flat) <= LINE_MAX_CHARS else flat[: LINE_MAX_CHARS - 1].rstrip() + "…"


def quote_title(title: str) -> str:
    """Return the title of a call in quotation marks; marks inside it become single ones.

    So the words of a title cannot be read as part of the sentence around it.
    """
    return f"“{' '.join(title.split()).translate(_INNER_MARKS)}”"


def format_actor_name(actor: str) -> str:
    """Return an actor's name for display; an actor that is a run is "its parent"."""
    return "its parent" if actor.startswith("run:") else actor


def format_goal(state: State) -> str:
    """Return the current goal of the run as one line."""
    return shorten_to_line(state.goal)


def format_position(items: tuple[PlanItem, ...], steps: int) -> str:
    """Return the position in the work: "plan 4/7", or "turn 4" without a plan."""
    behind, total = count_plan_items(items)
    return _format_place(behind, total) if total else _format_place(steps, 0)


def count_plan_items(items: tuple[PlanItem, ...]) -> tuple[int, int]:
    """Return the number of plan items before the current one, and of all items.

    A failed item counts like a finished one. A dropped item does not count at all.
    """
    counted = tuple(item for item in items if item.state != "dropped")
    at_hand = find_current_item(counted)
    return len(counted) if at_hand is None else counted.index(at_hand), len(counted)


def find_current_item(items: tuple[PlanItem, ...]) -> PlanItem | None:
    """Return the running plan item, else the first queued one, else None."""
    for mark in ("running", "queued"):
        for item in items:
            if item.state == mark:
                return item
    return None


def get_topic_plan(state: State) -> tuple[PlanItem, ...]:
    """Return the plan of the current topic.

    After a topic is held, the state still has the plan of the held topic until the agent
    sets another one. That plan says nothing about the message being answered.
    """
    return () if state.frames and state.plan == state.frames[-1].plan else state.plan


def format_upcoming(state: State, plan: tuple[PlanItem, ...]) -> str:
    """Return the next plan item or open call: the "minus" side of a redirect."""
    if (item := find_current_item(plan)) is not None:
        return shorten_to_line(item.text)
    for number in state.open_calls:
        use = state.calls[number - 1].use
        if use.tool:
            return shorten_to_line(use.label)
    return "the work as planned"


def format_acknowledgement(
    state: State, text: str, urgency: str, *, scheduled: bool, queued: bool
) -> str:
    """Return the immediate reply to a message that was sent to the run."""
    if scheduled:
        return "Noted — it waits for its time"
    if queued:
        return f"Noted — {len(state.frames)} topics are held already; this one is next in line"
    if urgency == "later":
        return f"Noted — after *{format_goal(state)}*"
    if state.phase in {Phase.PAUSING, Phase.PAUSED}:
        return "Noted — for when the run is resumed"
    # A waiting run has no step to finish, so it takes up any message at once.
    if urgency == "now" or state.phase is Phase.WAITING:
        return f"Switching: *{shorten_to_line(text)}*{_format_tools_in_flight(state)}"
    plan = get_topic_plan(state)
    return (
        "Hold on — finishing "
        f"*{format_upcoming(state, plan) if plan else format_goal(state)}* first"
    )


def _format_tools_in_flight(state: State) -> str:
    """Return the tools in flight that finish before the switch, as a suffix."""
    calls = (state.calls[number - 1] for number in state.in_flight)
    tools = [call.use.label for call in calls if call.use.tool]
    if len(tools) > 1:
        return f" — once {len(tools)} calls are done"
    return f" — once *{tools[0]}* is done" if tools else ""


def format_resumed_topic(frame: Frame) -> str:
    """Return the announcement of a resumed topic."""
    return f"Back to *{frame.goal}* — {format_frame_position(frame)}"


def format_reconstructed_topic(frame: Frame) -> str:
    """Return the announcement of a topic that was held for too long."""
    return (
        f"Back to *{frame.goal}* — {format_frame_position(frame)}. "
        "This was held for too long: what follows is a reconstruction, not a continuation"
    )


def format_dropped_topic(frame: Frame) -> str:
    """Return the announcement of a dropped topic."""
    return f"Dropped *{frame.goal}* at {format_frame_position(frame)}"


def format_frame_position(frame: Frame) -> str:
    """Return the position of a held topic, in the format of `format_position`."""
    return _format_place(frame.done_steps, frame.total_steps)


def _format_place(done: int, total: int) -> str:
    """Return the current item of a plan; without a plan, the number of turns made."""
    if total:
        return f"plan {min(done + 1, total)}/{total}"
    return f"turn {done}" if done else "the beginning"


def describe_unmade(state: State, format_name: Callable[[CallState], str]) -> str:
    """Return the number and names of proposed calls that were not made, or ""."""
    calls = [state.calls[number - 1] for number in state.open_calls]
    unmade = [call for call in calls if call.stage is CallStage.PROPOSED and not call.attempt]
    if not unmade:
        return ""
    count = "1 call is" if len(unmade) == 1 else f"{len(unmade)} calls are"
    names = ", ".join(format_name(call) for call in unmade[:UNMADE_NAMED_MAX])
    more = len(unmade) - UNMADE_NAMED_MAX
    return f"{count} not made yet: {names}{f' and {more} more' if more > 0 else ''}"


def seal_call(call: CallState, reason: str) -> CallSealed:
    """Build the entry that closes `call`, with its outcome so far and the reason."""
    return CallSealed(call=call.id, why=f"{format_outcome_phrase(call)}: {reason}")


def format_outcome_phrase(call: CallState) -> str:
    """Return the outcome of a call that was cut short.

    The strongest doubt comes first: an unknown outcome, then a partial effect.
    """
    # `text.call_entries` matches these phrases as prefixes of `CallSealed.why`.
    if call.may_have_happened or call.stage is CallStage.UNKNOWN:
        return "outcome unknown, and not made again"
    if call.asked_from_inside or call.stage is CallStage.ABORTED:
        return "stopped midway"
    return "failed" if call.stage is CallStage.FAILED else "not executed"


def format_output(value: Json) -> str:
    """Return the text of an output: itself if it is a text, else JSON."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
