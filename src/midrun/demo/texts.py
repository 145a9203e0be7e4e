"""The wording of the demo, from `texts.toml`: remarks, questions and the briefing."""

from importlib.resources import files
from typing import Final

import msgspec
from msgspec import Struct


class Section(Struct, frozen=True):
    """A section of the briefing, and the words before it."""

    heading: str
    words: str
    text: str


class DemoTexts(Struct, frozen=True):
    """All texts. Notes are named with the remark on each."""

    task: str
    hello: str
    invitation: str
    opening_thought: str
    analysis_remark: str
    analysis_again_remark: str
    notice: str
    notice_before: str
    notice_after: str
    notice_remark: str
    question: str
    nothing_read: str
    stop_plan_item: str
    plan: tuple[str, ...]
    claims: tuple[str, ...]
    summary_notes: tuple[str, ...]
    instructions: str
    fact_checker_instructions: str
    emphasis_options: dict[str, str]
    top_section_by_emphasis: dict[str, str]
    first_notes: dict[str, str]
    sections: tuple[Section, ...]
    corrections: tuple[Section, ...]

    @property
    def headings(self) -> list[str]:
        """The headings of the briefing, with the section on top."""
        return ["In short", *(section.heading for section in self.sections)]


TEXTS: Final = msgspec.toml.decode(
    files("midrun.demo").joinpath("texts.toml").read_bytes(), type=DemoTexts
)
