"""The built-in plan: a list of the agent's own, which people see as the task's steps."""

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from midrun.agents.tool import Tool, tool
from midrun.core.journaled_text import place
from midrun.core.values import Item, Mark

# The agent's own plan: how it is set, marked and revised.


def revised(
    plan: Sequence[Item], items: Sequence[Item] | None, marks: Mapping[int, Mark]
) -> tuple[Item, ...]:
    """Return the plan with `items` in its place, if given, and then `marks` by number, from 1.

    An item that stands in the new plan as it stood in the old one keeps its mark.

    Raises:
        ValueError: there is no item of that number.
    """
    made = list(plan)
    if items is not None:
        before = {item.text: item.mark for item in plan}
        made = [
            replace(item, mark=before.get(item.text, "queued"))
            if item.mark == "queued"
            else item
            for item in items
        ]
    for number, mark in marks.items():
        if not 0 < number <= len(made):
            raise ValueError(f"the plan has {len(made)} items, and no item {number}")
        made[number - 1] = replace(made[number - 1], mark=mark)
    return tuple(made)


def planned(plan: tuple[Item, ...], arguments: dict[str, object]) -> tuple[Item, ...]:
    """Return the plan that a call of the tool with these arguments makes of `plan`.

    Raises:
        ValueError: there is no item of that number; the text is for the model.
    """
    items, marks = arguments.get("items"), arguments.get("marks") or {}
    assert isinstance(items, list | None)  # as the schema says
    assert isinstance(marks, dict)
    made = None if items is None else [_item(given) for given in items]
    return revised(plan, made, {_number(key): mark for key, mark in marks.items()})


def noted(plan: tuple[Item, ...]) -> str:
    """Return what the model is told once its plan is on record."""
    lines = [f"{number}. [{item.mark}] {item.text}" for number, item in enumerate(plan, 1)]
    return "\n".join([f"You are at {place(plan, 0)}.", *lines])


def _item(given: str | Item) -> Item:
    return Item(text=given) if isinstance(given, str) else given


def _number(key: str) -> int:
    if not key.isdecimal():
        raise ValueError(f"items are marked by number, from 1; {key!r} is none")
    return int(key)


@tool(name="plan", read_only=True)
async def _plan(
    items: list[str | Item] | None = None, marks: dict[str, Mark] | None = None
) -> str:
    """Keep a plan of the task that people can follow. Set it first, then mark what is done.

    Args:
        items: The whole plan, in order; replaces the one before. Leave out to only mark.
        marks: New marks by number, from 1: {"1": "done", "2": "running"}.
    """
    raise NotImplementedError(f"the driver keeps the plan: {items}, {marks}")


PLAN: Tool = _plan
"""The tool. The driver does not run it: the plan is in the journal, and nowhere else."""
