"""The main script of the demo: the briefing, from the first search to the mail.

The requests of users are kept in `UserRequests`. `interruptions` fills it in, and the script
reads it before each step. So an instruction changes the next steps without restarting the
script.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from midrun.core.transcript import CallResult
from midrun.core.values import Json, PlanItemState
from midrun.demo import texts
from midrun.demo.script import NOT_EXECUTED_PREFIX, STOPPED_PREFIX, Script, ScriptLine
from midrun.models.scripted import Use

# The state of the work: the users' requests, and the progress.
#
# The plan that users see is computed from these two and always sent as a whole. So it is right
# after every detour: the next call of `plan` makes up for one that was not made.

PLAN_ITEMS: Final = range(1, len(texts.PLAN) + 1)
SEARCH_ITEM, READ_ITEM, THEMES_ITEM, ASK_ITEM, WRITE_ITEM, CHECK_ITEM, MAIL_ITEM = PLAN_ITEMS

_HEADING_PATTERN: Final = re.compile(r"^## (.+)$", re.MULTILINE)


@dataclass
class UserRequests:
    """The requests of users so far."""

    emphasis: str = ""
    free_answer: str = ""  # a free-text answer to the question about the emphasis
    mail_to: str = "clerk@larkhaven.example"
    skip_reading: bool = False  # no more searching and reading
    with_analysis: bool = True
    with_mail: bool = True
    with_fact_check: bool = True

    def must_skip(self, item: int) -> bool:
        """Tell whether a plan item is to be skipped."""
        return {
            THEMES_ITEM: self.skip_reading or not self.with_analysis,
            ASK_ITEM: self.skip_reading or bool(self.emphasis),
            CHECK_ITEM: not self.with_fact_check,
            MAIL_ITEM: not self.with_mail,
        }.get(item, False)


@dataclass
class BriefingProgress:
    """The progress, as far as the script needs it."""

    item: int = 0  # number of the current plan item; 0 before there is a plan
    marks: dict[int, PlanItemState] = field(
        default_factory=lambda: dict.fromkeys(PLAN_ITEMS, "queued")
    )
    notes_read: dict[str, str] = field(default_factory=dict)  # name of a note → its summary
    has_begun_writing: bool = False  # writing has begun, so the emphasis is fixed
    sections: list[str] = field(default_factory=list)  # headings in the draft
    file: str = "the draft"
    fact_check_remark: str = "the figures are not checked"
    mailed_to: str = ""  # the recipient, once the mail is sent
    only_farewell_left: bool = False  # only the farewell is left

    def begin_item(self, item: int) -> None:
        """Begin an item; earlier items that were never begun are dropped."""
        for earlier in range(1, item):
            if self.marks[earlier] == "queued":
                self.marks[earlier] = "dropped"
        self.item, self.marks[item] = item, "running"

    def end_item(self, item: int, *, done: bool) -> None:
        """End an item, as done or as dropped."""
        self.marks[item] = "done" if done else "dropped"

    def list_marks(self, requests: UserRequests) -> dict[str, Json]:
        """Return the marks of all items by number; items to be skipped are dropped."""
        return {
            str(item): "dropped" if mark == "queued" and requests.must_skip(item) else mark
            for item, mark in self.marks.items()
        }

    def plan_with_last_item(self, last: str, mark: PlanItemState) -> Use:
        """Return a plan that drops all unfinished items and adds a last one."""
        items: list[Json] = [
            {"text": text, "state": "done" if self.marks[item] == "done" else "dropped"}
            for item, text in zip(PLAN_ITEMS, texts.PLAN, strict=True)
        ]
        return Use("plan", items=[*items, {"text": last, "state": mark}])

    def record_written(self, result: Json) -> None:
        """Record the headings that `write_section` reports."""
        match result:
            case {"file": str(file), "sections": [*sections]}:
                self.file, self.sections = file, [str(heading) for heading in sections]
            case _:
                return

    def record_draft(self, draft: str) -> None:
        """Record the headings of a draft that was read."""
        self.sections = _HEADING_PATTERN.findall(draft)


MAIL_ADDRESS_PATTERN = re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+")


class BriefingScript:
    """The script, step by step. `rounds` is the number of rounds of the analysis."""

    def __init__(
        self, requests: UserRequests, progress: BriefingProgress, *, rounds: int
    ) -> None:
        self.requests = requests
        self.progress = progress
        self._rounds = rounds
        self._remark = ""  # a remark on the last result, said before the next line

    def run_steps(self) -> Script:
        """Run all steps."""
        yield from self._open_briefing()
        yield from self._read_notes(texts.FIRST_NOTES, READ_ITEM)
        self.progress.end_item(READ_ITEM, done=bool(self.progress.notes_read))
        yield from self._run_analysis()
        yield from self._ask_emphasis()
        yield from self._read_notes(texts.SECOND_NOTES, WRITE_ITEM)
        yield from self._search_again()
        yield from self._write_sections()
        self.progress.end_item(WRITE_ITEM, done=True)
        yield from self._check_facts()
        yield from self._propose_mail()
        self.progress.only_farewell_left = True
        yield ScriptLine(self._build_farewell())
        return ""

    # ── reading ───────────────────────────────────────────────────────────────────────────

    def _open_briefing(self) -> Script:
        self.progress.begin_item(SEARCH_ITEM)
        marks = self.progress.list_marks(self.requests)
        yield ScriptLine(texts.HELLO, (Use("plan", items=list[Json](texts.PLAN), marks=marks),))
        look = Use("search_library", query="Quay Street trees heat")
        lock = Use("lock_briefing")
        made = yield ScriptLine(texts.INVITATION, (look, lock), texts.OPENING_THOUGHT)
        if made[1].problem:
            self._remark = (
                f"The lock is taken: {made[1].problem}. I write to a draft of my own, so that "
                "nobody gets in anybody's way. "
            )
        count = len(made[0].result) if isinstance(made[0].result, list) else 0
        self._remark += f"{count} notes come up. I begin with the inventory."
        self.progress.end_item(SEARCH_ITEM, done=not made[0].problem)
        return ""

    def _read_notes(self, names: Sequence[str], item: int) -> Script:
        for name in names:
            if self.requests.skip_reading:
                break
            marks = self._begin_plan_item(item) if self.progress.item < item else ()
            made = yield self._build_line("", Use("read_note", name=name), *marks)
            if isinstance(made[0].result, str):
                self.progress.notes_read[name] = _first_sentence(made[0].result)
                self._remark = texts.NOTE_REMARKS[name]
            else:
                self._remark = f"That note could not be read ({made[0].problem}). I go on."
        return ""

    def _search_again(self) -> Script:
        for number, (words, what) in enumerate(texts.SECOND_LOOKS):
            if self.requests.skip_reading:
                break
            thought = texts.SECOND_LOOK_THOUGHT if number == len(texts.SECOND_LOOKS) - 1 else ""
            again = Use("read_note", name=what) if what in texts.NOTE_REMARKS else None
            use = again or Use("search_library", query=what)
            yield self._build_line(words, use, thinking=thought)
        self._remark = self._remark or "Nothing new. I have what I need."
        return ""

    def _run_analysis(self) -> Script:
        """Run the analysis; start it again if a redirect stopped it."""
        words = texts.ANALYSIS_REMARK
        use = Use("find_themes", groups=5, rounds=self._rounds)
        while not self.requests.must_skip(THEMES_ITEM):
            made = yield self._build_line(words, use, *self._begin_plan_item(THEMES_ITEM))
            if not made[0].problem.startswith(STOPPED_PREFIX):
                self.progress.end_item(THEMES_ITEM, done=not made[0].problem)
                self._remark = _describe_analysis(made[0])
                return ""
            words = texts.ANALYSIS_AGAIN_REMARK
        if self.progress.item == THEMES_ITEM:
            self.progress.end_item(THEMES_ITEM, done=False)
            self._remark = "The analysis was stopped midway, and I go on without it."
        return ""

    def _ask_emphasis(self) -> Script:
        if self.requests.must_skip(ASK_ITEM):
            return ""
        options = list[Json](texts.EMPHASIS_OPTIONS.values())
        use = Use("ask_human", question=texts.QUESTION, options=options)
        made = yield self._build_line(
            "Now I need you for a moment.", use, *self._begin_plan_item(ASK_ITEM)
        )
        words = self._apply_answer(made[0])
        self.progress.end_item(
            ASK_ITEM, done=bool(self.requests.emphasis or self.requests.free_answer)
        )
        rest = "" if self.requests.skip_reading else "Then the rest of the notes."
        self._remark = f"{words} {rest}".strip()
        return ""

    def _apply_answer(self, made: CallResult) -> str:
        if made.problem or not made.result:
            if self.requests.emphasis:
                return ""
            return "You did not say, so I give all three the same weight."
        text = str(made.result)
        for name, option in texts.EMPHASIS_OPTIONS.items():
            if text == option or name in text.lower():
                self.requests.emphasis = name
                return f"{option}: that goes to the top."
        self.requests.free_answer = text
        return f"“{text}”: that goes to the top, in your words."

    # ── writing ───────────────────────────────────────────────────────────────────────────

    def _write_sections(self) -> Script:
        self.progress.has_begun_writing = True
        top = texts.TOP_SECTION_BY_EMPHASIS[self.requests.emphasis]
        if self.requests.free_answer:
            top = f"Asked for: {self.requests.free_answer}.\n\n{top}"
        sections = (
            (top, "I write now. First the paragraph on top."),
            (texts.STREET_SECTION, "Then why it is needed."),
            (texts.GROUND_SECTION, "Now what the trees stand in."),
            (texts.TREES_SECTION, "And the trees themselves."),
            (texts.WRONG_COST_SECTION, "The sum."),
            (texts.WRONG_ADVICE_SECTION, "So what should be done?"),
        )
        for heading, (text, words) in zip(texts.HEADINGS, sections, strict=True):
            yield from self._write_section(heading, text, words)
        return ""

    def _write_section(self, heading: str, text: str, words: str) -> Script:
        marks = self._begin_plan_item(WRITE_ITEM) if self.progress.item < WRITE_ITEM else ()
        line = self._build_line(f"{words}\n\n{heading}. {text}")
        return (yield from write_section(self.progress, line.text, heading, text, *marks))

    def _check_facts(self) -> Script:
        claims = "\n".join(f"- {claim}" for claim in texts.CLAIMS)
        use = Use("check_facts", task=f"Check these claims against the library:\n{claims}")
        words = "A colleague checks the figures before anybody else reads them."
        while not self.requests.must_skip(CHECK_ITEM):
            made = yield self._build_line(words, use, *self._begin_plan_item(CHECK_ITEM))
            if not made[0].problem.startswith(STOPPED_PREFIX):
                yield from self._apply_fact_check(made[0])
                self.progress.end_item(CHECK_ITEM, done=not made[0].problem)
                return ""
            words = "The check was stopped midway. I have it made again, from the first claim."
        self.progress.end_item(CHECK_ITEM, done=False)
        return ""

    def _apply_fact_check(self, made: CallResult) -> Script:
        if made.problem:
            self._remark = (
                f"The check did not come to an end ({made.problem}). I will say so in the "
                "mail instead of pretending."
            )
        elif "1,150" in str(made.result):
            yield from self._correct_figure()
        else:
            self.progress.fact_check_remark = "the figures have been checked"
        return ""

    def _correct_figure(self) -> Script:
        *_, cost, advice = texts.HEADINGS
        words = (
            "One figure was wrong, and it matters: a trench is 1,150 crowns for each tree "
            "and not 1,510. I had turned two digits round. I write the sum again."
        )
        yield from self._write_section(cost, texts.COST_SECTION, words)
        words = "So it fits what was set aside, and there is no need to wait for 2027."
        yield from self._write_section(advice, texts.ADVICE_SECTION, words)
        self.progress.fact_check_remark = (
            "five figures have been checked, and one was corrected"
        )
        return ""

    # ── sending ───────────────────────────────────────────────────────────────────────────

    def _propose_mail(self) -> Script:
        """Propose the mail until it is sent or declined."""
        words, left = "It is ready to go. A mail cannot be taken back, so you decide.", ""
        while not (self.requests.must_skip(MAIL_ITEM) or self.progress.mailed_to or left):
            mail = self._build_mail()
            made = yield self._build_line(
                words, mail, *self._begin_plan_item(MAIL_ITEM), again=False
            )
            problem = made[0].problem
            elsewhere = MAIL_ADDRESS_PATTERN.search(problem)
            if not problem:
                self.progress.mailed_to, left = _describe_mail(made[0], mail)
            elif elsewhere and elsewhere[0] != self.requests.mail_to:
                self.requests.mail_to = elsewhere[0]
                words = f"Understood, not to them. To {elsewhere[0]} instead?"
            elif problem.startswith(NOT_EXECUTED_PREFIX):
                words = "And the mail, shall it go now?"
            else:
                left = f"The mail was not sent: {problem}."
        self.progress.end_item(MAIL_ITEM, done=bool(self.progress.mailed_to))
        yield self._build_line(
            left or "I mail nothing, as you wanted.", self._build_plan_call()
        )
        return ""

    def _build_mail(self) -> Use:
        return Use(
            "send_mail",
            to=self.requests.mail_to,
            subject="Trees for Quay Street: a briefing",
            note="For the next meeting of the council. The sources are the town's own notes; "
            f"{self.progress.fact_check_remark}.",
        )

    def _build_farewell(self) -> str:
        count = len(self.progress.sections)
        sent = (
            f"is on its way to {self.progress.mailed_to}"
            if self.progress.mailed_to
            else "was not mailed"
        )
        return (
            f"That is it. The briefing {sent}. It has {count} sections and is in "
            f"{self.progress.file}; {self.progress.fact_check_remark}. The lock is "
            "released as I leave. "
            "Thank you for watching."
        )

    # ── lines ─────────────────────────────────────────────────────────────────────────────

    def _build_line(
        self, words: str, *uses: Use, thinking: str = "", again: bool = True
    ) -> ScriptLine:
        carried, self._remark = self._remark, ""
        return ScriptLine(f"{carried} {words}".strip(), uses, thinking, again)

    def _begin_plan_item(self, item: int) -> tuple[Use, ...]:
        """Begin a plan item, and return the call that shows it."""
        self.progress.begin_item(item)
        return (self._build_plan_call(),)

    def _build_plan_call(self) -> Use:
        return Use("plan", marks=self.progress.list_marks(self.requests))


def write_section(
    progress: BriefingProgress, words: str, heading: str, text: str, *uses: Use
) -> Script:
    """Say words and write a section; if the call did not end normally, read the draft."""
    use = Use("write_section", heading=heading, text=text)
    made = yield ScriptLine(words, (use, *uses))
    if made[0].problem:
        words = f"Writing that was cut short ({made[0].problem}). I look at what is there."
        found = yield ScriptLine(words, (Use("read_draft"),))
        progress.record_draft(str(found[0].result or ""))
        if heading not in progress.sections:
            made = yield ScriptLine("It is not there, so I write it again.", (use,))
    progress.record_written(made[0].result)
    return ""


def _first_sentence(note: str) -> str:
    """Return the first sentence of a note that was read."""
    body = note.split("\n\n")[1]
    return re.split(r"(?<=[.!?])\s", " ".join(body.split()), maxsplit=1)[0]


def _describe_analysis(made: CallResult) -> str:
    """Return a remark on the result of the analysis."""
    if not isinstance(made.result, list):
        return f"The analysis gave nothing ({made.problem}). I go by what I have read."
    themes = [theme for theme in made.result if isinstance(theme, dict)]
    said = " Next comes ".join(map(_describe_theme, themes[:2]))
    return f"{len(themes)} groups. The surest is {said} That is as good an outline as any."


def _describe_theme(theme: dict[str, Json]) -> str:
    names = ", ".join(_to_texts(theme["notes"]))
    words = " and ".join(f"“{word}”" for word in _to_texts(theme["words"])[:2])
    sure = float(str(theme["sure"]))
    return f"{names}: together in {sure:.0%} of the tries, by words such as {words}."


def _to_texts(values: Json) -> list[str]:
    return [str(value) for value in values] if isinstance(values, list) else []


def _describe_mail(made: CallResult, asked: Use) -> tuple[str, str]:
    """Return the recipient of the mail, and a remark that names edited arguments."""
    given = made.args if isinstance(made.args, dict) else {}
    changed = [name for name, value in asked.args.items() if given.get(name) != value]
    words = "Sent" if not changed else f"Sent, with your {' and '.join(changed)}"
    to = str(given.get("to"))
    return to, f"{words}. It went to {to}."
