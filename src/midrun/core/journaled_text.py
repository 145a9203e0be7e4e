"""What the runtime says in its own words, so that every surface says the same.

No model speaks here: an acknowledgement must come at once and must be true.
"""

from collections.abc import Callable

from midrun.core.entries import CallSealed
from midrun.core.state import Call, Frame, Stage, State
from midrun.core.values import Item, Phase

LINE = 80

UNMADE_NAMED_MAX = 10
"""How many of the calls that wait to be made are named in one sentence."""


def line(text: str) -> str:
    """Return `text` as one line that fits a list."""
    flat = " ".join(text.split())
    return flat if len(flat) <= LINE else flat[: LINE - 1].rstrip() + "…"


def who(actor: str) -> str:
    """Return an actor as people read it: a run that acts on another one is its parent."""
    return "its parent" if actor.startswith("run:") else actor


def goal(state: State) -> str:
    """Return what the run is at, as one line."""
    return line(state.goal)


def place(items: tuple[Item, ...], steps: int) -> str:
    """Return where the work stands: "step 4 of 7" with a plan, else "step 4"."""
    behind, total = progress(items)
    return _step(behind, total) if total else _step(steps, 0)


def progress(items: tuple[Item, ...]) -> tuple[int, int]:
    """Return how many items of the plan lie behind the one at hand, and how many there are.

    One that failed lies behind, as one that is done does; one that was dropped is none.
    """
    counted = tuple(item for item in items if item.mark != "dropped")
    at_hand = current(counted)
    return len(counted) if at_hand is None else counted.index(at_hand), len(counted)


def current(items: tuple[Item, ...]) -> Item | None:
    """Return the item that is worked at, or would be next; None without one."""
    for mark in ("running", "queued"):
        for item in items:
            if item.mark == mark:
                return item
    return None


def own_plan(state: State) -> tuple[Item, ...]:
    """Return the plan of the chain that the run is at.

    A side question that made none of its own is at no item of the one that is held.
    """
    return () if state.frames and state.plan == state.frames[-1].plan else state.plan


def upcoming(state: State, plan: tuple[Item, ...]) -> str:
    """Return what would come next by `plan`: the left side of a one-line difference."""
    if (item := current(plan)) is not None:
        return line(item.text)
    for number in state.open:
        use = state.calls[number - 1].use
        if use.tool:
            return line(use.tool)
    return "the next step as planned"


def acknowledgement(
    state: State, text: str, urgency: str, *, scheduled: bool, queued: bool
) -> str:
    """Return what somebody who speaks to the run is told at once."""
    if scheduled:
        return "Noted — it waits for its time"
    if queued:
        return (
            f"Noted — {len(state.frames)} thoughts are held already; this one is next in line"
        )
    if urgency == "later":
        return f"Noted — after *{goal(state)}*"
    if state.phase in {Phase.PAUSING, Phase.PAUSED}:
        return "Noted — for when the run is resumed"
    if urgency == "now" or state.phase is Phase.WAITING:
        return f"Switching: *{line(text)}*{_once(state)}"
    plan = own_plan(state)
    return f"Hold on — finishing *{upcoming(state, plan) if plan else goal(state)}* first"


def _once(state: State) -> str:
    """Return what comes first even so: a tool at work finishes."""
    calls = (state.calls[number - 1] for number in state.in_flight)
    tools = [call.use.tool for call in calls if call.use.tool]
    if len(tools) > 1:
        return f" — once {len(tools)} calls are done"
    return f" — once *{tools[0]}* is done" if tools else ""


def back_to(frame: Frame) -> str:
    """Return how the run says that it goes on where it was."""
    return f"Back to *{frame.goal}* — {place_of(frame)}"


def reconstruction(frame: Frame) -> str:
    """Return how the run admits that it held a thought for too long."""
    return (
        f"Back to *{frame.goal}* — {place_of(frame)}. "
        "This was held for too long: what follows is a reconstruction, not a continuation"
    )


def dropped(frame: Frame) -> str:
    """Return how the run says that it gave a thought up."""
    return f"Dropped *{frame.goal}* at {place_of(frame)}"


def place_of(frame: Frame) -> str:
    """Return where a held thought stands, in the words of `place`."""
    return _step(frame.done, frame.total)


def _step(behind: int, total: int) -> str:
    """Return the step after those of a plan that lie behind; without a plan, how many were."""
    if total:
        return f"step {min(behind + 1, total)} of {total}"
    return f"step {behind}" if behind else "the beginning"


def describe_unmade(state: State, name: Callable[[Call], str]) -> str:
    """Return how many calls of the reply wait to be made, and their names; "" without any."""
    calls = [state.calls[number - 1] for number in state.open]
    unmade = [call for call in calls if call.stage is Stage.PROPOSED and not call.attempt]
    if not unmade:
        return ""
    count = "1 call is" if len(unmade) == 1 else f"{len(unmade)} calls are"
    names = ", ".join(name(call) for call in unmade[:UNMADE_NAMED_MAX])
    more = len(unmade) - UNMADE_NAMED_MAX
    return f"{count} not made yet: {names}{f' and {more} more' if more > 0 else ''}"


def seal(call: Call, why: str) -> CallSealed:
    """Return that `call` will not be made, or not again, in words that are true of it."""
    return CallSealed(call=call.id, why=f"{fate(call)}: {why}")


def fate(call: Call) -> str:
    """Return what may be said of a call that somebody cut short."""
    if call.maybe or call.stage is Stage.UNKNOWN:
        return "outcome unknown, and not made again"
    if call.entered or call.stage is Stage.ABORTED:
        return "stopped midway"
    return "failed" if call.stage is Stage.FAILED else "not executed"
