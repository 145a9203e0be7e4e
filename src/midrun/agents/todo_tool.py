"""The built-in tool `plan`: the agent's own to-do list, which surfaces show as its progress.

The model calls the tool to set the plan or to mark items. The worker does not run a function
for it: it computes the new plan with `apply_plan_call` and journals it, so the plan is part of
the run's state.
"""

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from midrun.agents.tool import Tool, tool
from midrun.core.journaled_text import format_position
from midrun.core.values import Item, PlanItemState


def revise_plan(
    plan: Sequence[Item], items: Sequence[Item] | None, marks: Mapping[int, PlanItemState]
) -> tuple[Item, ...]:
    """Replace the items of `plan` if `items` is given, then set `marks` by number, from 1.

    Raises:
        ValueError: There is no item with that number. The text is for the model.
    """
    new_plan = list(plan)
    if items is not None:
        # A model that revises its plan often repeats finished items without their marks. An
        # item with the same text as before keeps its mark, unless a new one is given.
        old_marks = {item.text: item.mark for item in plan}
        new_plan = [
            replace(item, mark=old_marks.get(item.text, "queued"))
            if item.mark == "queued"
            else item
            for item in items
        ]
    for number, mark in marks.items():
        if not 0 < number <= len(new_plan):
            raise ValueError(f"the plan has {len(new_plan)} items, and no item {number}")
        new_plan[number - 1] = replace(new_plan[number - 1], mark=mark)
    return tuple(new_plan)


def apply_plan_call(plan: tuple[Item, ...], arguments: dict[str, object]) -> tuple[Item, ...]:
    """Return the plan after a call of the tool with these arguments.

    Raises:
        ValueError: There is no item with that number. The text is for the model.
    """
    items, marks = arguments.get("items"), arguments.get("marks") or {}
    assert isinstance(items, list | None)  # checked by the schema of the tool
    assert isinstance(marks, dict)
    new_items = None if items is None else [_make_item(item) for item in items]
    return revise_plan(
        plan, new_items, {_parse_number(key): mark for key, mark in marks.items()}
    )


def format_plan(plan: tuple[Item, ...]) -> str:
    """Return the plan as text: the result of the call, which the model reads."""
    lines = [f"{number}. [{item.mark}] {item.text}" for number, item in enumerate(plan, 1)]
    return "\n".join([f"You are at {format_position(plan, 0)}.", *lines])


def _make_item(item: str | Item) -> Item:
    return Item(text=item) if isinstance(item, str) else item


def _parse_number(key: str) -> int:
    if not key.isdecimal():
        raise ValueError(f"items are marked by number, from 1; {key!r} is none")
    return int(key)


@tool(name="plan", read_only=True)
async def _plan(
    items: list[str | Item] | None = None, marks: dict[str, PlanItemState] | None = None
) -> str:
    """Keep a plan of the task that people can follow. Set it first, then mark what is done.

    Args:
        items: The whole plan, in order; replaces the one before. Leave out to only mark.
        marks: New marks by number, from 1: {"1": "done", "2": "running"}.
    """
    raise NotImplementedError(f"the driver keeps the plan: {items}, {marks}")


PLAN_TOOL: Tool = _plan
"""The tool. The worker never calls its function; see the module's docstring."""
