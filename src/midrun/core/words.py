"""What the runtime says in its own words, so that every surface says the same.

No model speaks here: an acknowledgement must come at once and must be true.
"""

from midrun.core.entries import CallSealed
from midrun.core.state import Call, Frame, Stage, State
from midrun.core.values import Item

LINE = 80


def line(text: str) -> str:
    """Return `text` as one line that fits a list."""
    flat = " ".join(text.split())
    return flat if len(flat) <= LINE else flat[: LINE - 1].rstrip() + "…"


def goal(state: State) -> str:
    """Return what the run is at, as one line."""
    return line(state.goal)


def place(items: tuple[Item, ...], steps: int) -> str:
    """Return where the work stands: "step 4 of 7" with a plan, else "step 4"."""
    if not items:
        return f"step {steps}" if steps else "the beginning"
    done, total = progress(items)
    return f"step {min(done + 1, total)} of {total}"


def progress(items: tuple[Item, ...]) -> tuple[int, int]:
    """Return how many items of the plan are done, and how many there are."""
    counted = [item for item in items if item.mark != "dropped"]
    return sum(item.mark == "done" for item in counted), len(counted)


def current(items: tuple[Item, ...]) -> Item | None:
    """Return the item that is worked at, or would be next; None without one."""
    for mark in ("running", "queued"):
        for item in items:
            if item.mark == mark:
                return item
    return None


def upcoming(state: State) -> str:
    """Return what would come next as planned: the left side of a one-line difference."""
    for item in state.plan:
        if item.mark in {"running", "queued"}:
            return line(item.text)
    for number in state.open:
        use = state.calls[number - 1].use
        if use.tool:
            return line(use.tool)
    return "the next step as planned"


def acknowledgement(state: State, text: str, urgency: str, *, queued: bool) -> str:
    """Return what somebody who speaks to the run is told at once."""
    if queued:
        return (
            f"Noted — {len(state.frames)} thoughts are held already; this one is next in line"
        )
    if urgency == "later":
        return f"Noted — after *{goal(state)}*"
    if urgency == "now":
        return f"Switching: *{line(text)}*"
    return f"Hold on — finishing *{upcoming(state) if state.plan else goal(state)}* first"


def back_to(frame: Frame) -> str:
    """Return how the run says that it goes on where it was."""
    return f"Back to *{frame.goal}* — {_at(frame)}"


def reconstruction(frame: Frame) -> str:
    """Return how the run admits that it held a thought for too long."""
    return (
        f"Back to *{frame.goal}* — {_at(frame)}. "
        "This was held for too long: what follows is a reconstruction, not a continuation"
    )


def dropped(frame: Frame) -> str:
    """Return how the run says that it gave a thought up."""
    return f"Dropped *{frame.goal}* at {_at(frame)}"


def _at(frame: Frame) -> str:
    if frame.total:
        return f"step {min(frame.done + 1, frame.total)} of {frame.total}"
    return f"step {frame.done}" if frame.done else "the beginning"


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
