"""The agent's own plan: how it is set, marked and revised."""

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from midrun.core.values import Item, Mark


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
