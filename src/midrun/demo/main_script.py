"""The main script of the demo: the briefing, from the first search to the mail.

The requests of users are kept in `UserRequests`. `interruptions` fills it in, and the script
reads it before each step. So an instruction changes the next steps without restarting the
script.
"""

import re
from collections.abc import Generator, Iterable
from dataclasses import dataclass, field
from typing import Final

from midrun.core.transcript import CallResult
from midrun.core.values import Json, PlanItemState
from midrun.demo.script import NOT_EXECUTED_PREFIX, STOPPED_PREFIX, ScriptLine, Steps
from midrun.demo.texts import TEXTS, Section
from midrun.models.scripted import Use

# The state of the work: the users' requests, and the progress.
#
# The plan that users see is computed from these two and always sent as a whole. So it is right
# after every detour: the next call of `plan` makes up for one that was not made.

PLAN_ITEMS: Final = range(1, len(TEXTS.plan) + 1)
SEARCH_ITEM, READ_ITEM, THEMES_ITEM, ASK_ITEM, WRITE_ITEM, CHECK_ITEM, MAIL_ITEM = PLAN_ITEMS
NOTICE_SOURCE: Final = "quay-street-today"  # the note that contradicts the public notice
MAIL_ADDRESS_PATTERN: Final = re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+")


@dataclass
class UserRequests:
    """The requests of users so far."""

    emphasis: str = ""
    free_answer: str = ""  # a free-text answer to the question about the emphasis
    mail_to: str = "clerk@larkhaven.example"
    skip_reading: bool = False  # no more searching and reading
    skipped_items: set[int] = field(default_factory=set)  # analysis, fact check, mail

    def must_skip(self, item: int) -> bool:
        """Tell whether a plan item is to be skipped."""
        if item == ASK_ITEM:
            return self.skip_reading or bool(self.emphasis)
        return item in self.skipped_items or (item == THEMES_ITEM and self.skip_reading)


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
    texts: dict[str, str] = field(default_factory=dict)  # heading → text, as written
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

    def format_briefing(self) -> str:
        """Return the mail: a note, and the whole briefing, so that its approver can read it."""
        note = f"For the next meeting of the council; {self.fact_check_remark}."
        sections = (f"## {h}\n\n{self.texts[h]}" for h in self.sections if h in self.texts)
        return "\n\n".join([note, *sections])

    def plan_with_last_item(self, last: str, mark: PlanItemState) -> Use:
        """Return a plan that drops all unfinished items and adds a last one."""
        items: list[Json] = [
            {"text": text, "state": "done" if self.marks[item] == "done" else "dropped"}
            for item, text in zip(PLAN_ITEMS, TEXTS.plan, strict=True)
        ]
        return Use("plan", items=[*items, {"text": last, "state": mark}])


class BriefingScript:
    """The script, step by step. `rounds` is the number of rounds of the analysis."""

    def __init__(
        self, requests: UserRequests, progress: BriefingProgress, *, rounds: int
    ) -> None:
        self.requests = requests
        self.progress = progress
        self._rounds = rounds
        self._remark = ""  # a remark on the last result, said before the next line

    def run_steps(self) -> Steps:
        """Run all steps."""
        yield from self._open_briefing()
        yield from self._read_notes()
        self.progress.end_item(READ_ITEM, done=bool(self.progress.notes_read))
        yield from self._run_analysis()
        if not self.requests.must_skip(ASK_ITEM):
            yield from self._ask_emphasis()
        yield from self._write_sections()
        self.progress.end_item(WRITE_ITEM, done=True)
        yield from self._check_facts()
        yield from self._propose_mail()
        self.progress.only_farewell_left = True
        yield ScriptLine(self._build_farewell())

    # ── reading ───────────────────────────────────────────────────────────────────────────

    def _open_briefing(self) -> Steps:
        self.progress.begin_item(SEARCH_ITEM)
        marks = self.progress.list_marks(self.requests)
        yield ScriptLine(TEXTS.hello, (Use("plan", items=list[Json](TEXTS.plan), marks=marks),))
        look = Use("search_library", query="Quay Street trees heat")
        uses = (look, Use("lock_briefing"), Use("read_notice"))
        found, lock, _ = yield ScriptLine(TEXTS.invitation, uses, TEXTS.opening_thought)
        if lock.problem:
            self._remark = (
                f"The lock is taken: {lock.problem}. I write to a draft of my own, so that "
                "nobody gets in anybody's way. "
            )
        if not self.requests.skip_reading:
            count = len(found.result) if isinstance(found.result, list) else 0
            self._remark += f"{count} notes come up. I begin with the inventory."
        self.progress.end_item(SEARCH_ITEM, done=not found.problem)

    def _read_notes(self) -> Steps:
        for name, remark in TEXTS.first_notes.items():
            if self.requests.skip_reading:
                break
            marks = self._begin_plan_item(READ_ITEM) if self.progress.item < READ_ITEM else ()
            (note, *_) = yield self._build_line("", Use("read_note", name=name), *marks)
            if isinstance(note.result, str):
                self.progress.notes_read[name] = _first_sentence(note.result)
                self._remark = remark
                if name == NOTICE_SOURCE:
                    yield self._propose_correction()
            elif not self.requests.skip_reading:
                self._remark = f"That note could not be read ({note.problem}). I continue."

    def _propose_correction(self) -> ScriptLine:
        """Propose the correction of the notice, and go on without waiting for the decision."""
        correction = Use(
            "correct_notice", old_text=TEXTS.notice_before, new_text=TEXTS.notice_after
        )
        return self._build_line(TEXTS.notice_remark, correction, again=False)

    def _run_analysis(self) -> Steps:
        use = Use("find_themes", groups=5, rounds=self._rounds)
        words = TEXTS.analysis_remark, TEXTS.analysis_again_remark
        made = yield from self._make_item_call(THEMES_ITEM, use, *words)
        if made is not None:
            self.progress.end_item(THEMES_ITEM, done=not made.problem)
            self._remark = _describe_analysis(made)
        elif self.progress.item == THEMES_ITEM:
            self.progress.end_item(THEMES_ITEM, done=False)
            self._remark = "The analysis was stopped midway, and I continue without it."

    def _ask_emphasis(self) -> Steps:
        options = list[Json](TEXTS.emphasis_options.values())
        use = Use("ask_human", question=TEXTS.question, options=options)
        plan = self._begin_plan_item(ASK_ITEM)
        (answer, *_) = yield self._build_line("Now I need you for a moment.", use, *plan)
        self._remark, wanted = self._apply_answer(answer), self.requests
        self.progress.end_item(ASK_ITEM, done=bool(wanted.emphasis or wanted.free_answer))

    def _apply_answer(self, made: CallResult) -> str:
        if made.problem or not made.result:
            if self.requests.emphasis:
                return ""
            return "You did not say, so I give all three the same weight."
        text = str(made.result)
        for name, option in TEXTS.emphasis_options.items():
            if text == option or name in text.lower():
                self.requests.emphasis = name
                return f"{option}: that goes to the top."
        self.requests.free_answer = text
        return f"“{text}”: that goes to the top, in your words."

    # ── writing ───────────────────────────────────────────────────────────────────────────

    def _write_sections(self) -> Steps:
        self.progress.has_begun_writing = True
        top = TEXTS.top_section_by_emphasis[self.requests.emphasis]
        if self.requests.free_answer:
            top = f"Asked for: {self.requests.free_answer}.\n\n{top}"
        words = "I write now. First the paragraph on top."
        yield from self._write([Section(TEXTS.headings[0], words, top), *TEXTS.sections])

    def _write(self, sections: Iterable[Section]) -> Steps:
        for section in sections:
            marks = self._begin_plan_item(WRITE_ITEM) if self.progress.item < WRITE_ITEM else ()
            said = f"{section.words}\n\n**{section.heading}**\n\n{section.text}"
            line = self._build_line(said)
            yield from write_section(
                self.progress, line.text, section.heading, section.text, *marks
            )

    def _check_facts(self) -> Steps:
        claims = "\n".join(f"- {claim}" for claim in TEXTS.claims)
        use = Use("check_facts", task=f"Check these claims against the library:\n{claims}")
        words = "A colleague checks the figures before anybody else reads them."
        again = "The check was stopped midway. I have it made again, from the first claim."
        made = yield from self._make_item_call(CHECK_ITEM, use, words, again)
        if made is not None and made.problem:
            self._remark = (
                f"The check did not come to an end ({made.problem}). I will say so in the "
                "mail instead of pretending."
            )
        elif made is not None and "1,150" in str(made.result):
            yield from self._write(TEXTS.corrections)
            remark = "five figures have been checked, and one was corrected"
            self.progress.fact_check_remark = remark
        elif made is not None:
            self.progress.fact_check_remark = "the figures have been checked"
        self.progress.end_item(CHECK_ITEM, done=made is not None and not made.problem)

    # ── sending ───────────────────────────────────────────────────────────────────────────

    def _propose_mail(self) -> Steps:
        """Propose the mail until it is sent or declined."""
        words, left = "It is ready to go. A mail cannot be taken back, so you decide.", ""
        while not (self.requests.must_skip(MAIL_ITEM) or self.progress.mailed_to or left):
            mail = Use(
                "send_mail",
                to=self.requests.mail_to,
                subject="Trees for Quay Street: a briefing",
                body=self.progress.format_briefing(),
            )
            plan = self._begin_plan_item(MAIL_ITEM)
            (made, *_) = yield self._build_line(words, mail, *plan, again=False)
            elsewhere = MAIL_ADDRESS_PATTERN.search(made.problem)
            if not made.problem:
                self.progress.mailed_to, left = _describe_mail(made, mail)
            elif elsewhere and elsewhere[0] != self.requests.mail_to:
                self.requests.mail_to = elsewhere[0]
                words = f"Understood, not to them. To {elsewhere[0]} instead?"
            elif made.problem.startswith(NOT_EXECUTED_PREFIX):
                words = "And the mail, shall it go now?"
            else:
                left = f"The mail was not sent: {made.problem}."
        self.progress.end_item(MAIL_ITEM, done=bool(self.progress.mailed_to))
        left = left or "I mail nothing, as you wanted."
        yield self._build_line(left, self._build_plan_call())

    def _build_farewell(self) -> str:
        done = self.progress
        sent = f"is on its way to {done.mailed_to}" if done.mailed_to else "was not mailed"
        return (
            f"That is it. The briefing {sent}. It has {len(done.sections)} sections; "
            f"{done.fact_check_remark}. The lock is released as I leave. "
            "Thank you for watching."
        )

    # ── lines ─────────────────────────────────────────────────────────────────────────────

    def _make_item_call(
        self, item: int, use: Use, words: str, again: str
    ) -> Generator[ScriptLine, tuple[CallResult, ...], CallResult | None]:
        """Make the call of a plan item, once more if a redirect stopped it; None if skipped."""
        while not self.requests.must_skip(item):
            made = yield self._build_line(words, use, *self._begin_plan_item(item))
            if not made[0].problem.startswith(STOPPED_PREFIX):
                return made[0]
            words = again
        return None

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
) -> Steps:
    """Say words and write a section; if the call did not end normally, read the draft."""
    use = Use("write_section", heading=heading, text=text)
    (made, *_) = yield ScriptLine(words, (use, *uses))
    if made.problem:
        words = f"Writing that was cut short ({made.problem}). I look at what is there."
        (draft,) = yield ScriptLine(words, (Use("read_draft"),))
        progress.sections = re.findall(r"^## (.+)$", str(draft.result or ""), re.MULTILINE)
        if heading not in progress.sections:
            (made,) = yield ScriptLine("It is not there, so I write it again.", (use,))
    match made.result:
        case {"sections": [*sections]}:
            progress.sections = [str(one) for one in sections]
            progress.texts[heading] = text
        case _:
            return


def _first_sentence(note: str) -> str:
    """Return the first sentence of a note that was read."""
    body = note.split("\n\n")[1]
    return re.split(r"(?<=[.!?])\s", " ".join(body.split()), maxsplit=1)[0]


def _describe_analysis(made: CallResult) -> str:
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
    return str(given.get("to")), f"{words}. It went to {given.get('to')}."
