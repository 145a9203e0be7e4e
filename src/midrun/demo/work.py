"""The work as the played model knows it: what people asked for, and what has been done.

The plan that people see is made from these two and sent whole, so it is right after every
detour: a call of `plan` that was lost on the way is made good by the next.
"""

import re
from dataclasses import dataclass, field
from typing import Final

from midrun.core.values import Json, Mark
from midrun.demo import prose
from midrun.models.scripted import Use

ITEMS: Final = range(1, len(prose.PLAN) + 1)
SEARCH, READ, THEMES, ASK, WRITE, CHECK, MAIL = ITEMS

_HEADING: Final = re.compile(r"^## (.+)$", re.MULTILINE)


@dataclass
class Wishes:
    """What people have asked for so far."""

    emphasis: str = ""
    said: str = ""  # an answer in words of their own
    to: str = "clerk@larkhaven.example"
    hurry: bool = False  # no more searching and reading
    themes: bool = True
    mail: bool = True
    check: bool = True

    def leave_out(self, item: int) -> bool:
        """Tell whether an item of the plan is not to be begun."""
        return {
            THEMES: self.hurry or not self.themes,
            ASK: self.hurry or bool(self.emphasis),
            CHECK: not self.check,
            MAIL: not self.mail,
        }.get(item, False)


@dataclass
class Work:
    """What has been done so far, as far as the script needs to know."""

    item: int = 0  # of the plan, that it is at; 0 before there is a plan
    marks: dict[int, Mark] = field(default_factory=lambda: dict.fromkeys(ITEMS, "queued"))
    read: dict[str, str] = field(default_factory=dict)  # the gist of each note
    writing: bool = False  # what goes to the top of the briefing is settled
    sections: list[str] = field(default_factory=list)  # of the draft, whoever asked for them
    file: str = "the draft"
    checked: str = "nobody has checked the figures"
    mailed: str = ""  # whom to
    leaving: bool = False  # the last words are chosen

    def begin(self, item: int) -> None:
        """Be at an item; what came before it and was never begun is dropped."""
        for earlier in range(1, item):
            if self.marks[earlier] == "queued":
                self.marks[earlier] = "dropped"
        self.item, self.marks[item] = item, "running"

    def end(self, item: int, *, done: bool) -> None:
        """Be through with an item, whether or not anything came of it."""
        self.marks[item] = "done" if done else "dropped"

    def marked(self, wishes: Wishes) -> dict[str, Json]:
        """Return all marks by number, with what will be left out as dropped."""
        return {
            str(item): "dropped" if mark == "queued" and wishes.leave_out(item) else mark
            for item, mark in self.marks.items()
        }

    def ending_with(self, last: str, mark: Mark) -> Use:
        """Return a plan that drops all that is not done, and has one more item."""
        items: list[Json] = [
            {"text": text, "mark": "done" if self.marks[item] == "done" else "dropped"}
            for item, text in zip(ITEMS, prose.PLAN, strict=True)
        ]
        return Use("plan", items=[*items, {"text": last, "mark": mark}])

    def wrote(self, result: Json) -> None:
        """Take note of what `write_section` says is in the draft."""
        match result:
            case {"file": str(file), "sections": [*sections]}:
                self.file, self.sections = file, [str(heading) for heading in sections]
            case _:
                return

    def found(self, draft: str) -> None:
        """Take note of the draft as it was read."""
        self.sections = _HEADING.findall(draft)
