"""The main script of the demo: the briefing, from the first search to the mail.

The requests of users are kept in `UserRequests`. `interruptions` fills it in, and the script
reads it before each step. So an instruction changes the next steps without restarting the
script.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from midrun.core.transcript import Made
from midrun.core.values import Json, Mark
from midrun.demo import texts
from midrun.demo.script import NOT_EXECUTED, STOPPED, Line, Script
from midrun.models.scripted import Use

# The state of the work: the users' requests, and the progress.
#
# The plan that users see is computed from these two and always sent as a whole. So it is right
# after every detour: the next call of `plan` makes up for one that was not made.

ITEMS: Final = range(1, len(texts.PLAN) + 1)
SEARCH, READ, THEMES, ASK, WRITE, CHECK, MAIL = ITEMS

_HEADING: Final = re.compile(r"^## (.+)$", re.MULTILINE)


@dataclass
class Wishes:
    """The requests of users so far."""

    emphasis: str = ""
    said: str = ""  # a free-text answer to the question about the emphasis
    to: str = "clerk@larkhaven.example"
    hurry: bool = False  # no more searching and reading
    themes: bool = True
    mail: bool = True
    check: bool = True

    def leave_out(self, item: int) -> bool:
        """Tell whether a plan item is to be skipped."""
        return {
            THEMES: self.hurry or not self.themes,
            ASK: self.hurry or bool(self.emphasis),
            CHECK: not self.check,
            MAIL: not self.mail,
        }.get(item, False)


@dataclass
class Work:
    """The progress, as far as the script needs it."""

    item: int = 0  # number of the current plan item; 0 before there is a plan
    marks: dict[int, Mark] = field(default_factory=lambda: dict.fromkeys(ITEMS, "queued"))
    read: dict[str, str] = field(default_factory=dict)  # name of a note → its summary
    writing: bool = False  # writing has begun, so the emphasis is fixed
    sections: list[str] = field(default_factory=list)  # headings in the draft
    file: str = "the draft"
    checked: str = "nobody has checked the figures"
    mailed: str = ""  # the recipient, once the mail is sent
    leaving: bool = False  # only the farewell is left

    def begin(self, item: int) -> None:
        """Begin an item; earlier items that were never begun are dropped."""
        for earlier in range(1, item):
            if self.marks[earlier] == "queued":
                self.marks[earlier] = "dropped"
        self.item, self.marks[item] = item, "running"

    def end(self, item: int, *, done: bool) -> None:
        """End an item, as done or as dropped."""
        self.marks[item] = "done" if done else "dropped"

    def marked(self, wishes: Wishes) -> dict[str, Json]:
        """Return the marks of all items by number; items to be skipped are dropped."""
        return {
            str(item): "dropped" if mark == "queued" and wishes.leave_out(item) else mark
            for item, mark in self.marks.items()
        }

    def ending_with(self, last: str, mark: Mark) -> Use:
        """Return a plan that drops all unfinished items and adds a last one."""
        items: list[Json] = [
            {"text": text, "mark": "done" if self.marks[item] == "done" else "dropped"}
            for item, text in zip(ITEMS, texts.PLAN, strict=True)
        ]
        return Use("plan", items=[*items, {"text": last, "mark": mark}])

    def wrote(self, result: Json) -> None:
        """Record the headings that `write_section` reports."""
        match result:
            case {"file": str(file), "sections": [*sections]}:
                self.file, self.sections = file, [str(heading) for heading in sections]
            case _:
                return

    def found(self, draft: str) -> None:
        """Record the headings of a draft that was read."""
        self.sections = _HEADING.findall(draft)


ADDRESS = re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+")


class Briefing:
    """The script, step by step. `rounds` is the number of rounds of the analysis."""

    def __init__(self, wishes: Wishes, work: Work, *, rounds: int) -> None:
        self.wishes = wishes
        self.work = work
        self._rounds = rounds
        self._carried = ""  # a remark on the last result, said before the next line

    def script(self) -> Script:
        """Run all steps."""
        yield from self._open()
        yield from self._notes(texts.FIRST, READ)
        self.work.end(READ, done=bool(self.work.read))
        yield from self._themes()
        yield from self._question()
        yield from self._notes(texts.SECOND, WRITE)
        yield from self._again()
        yield from self._sections()
        self.work.end(WRITE, done=True)
        yield from self._facts()
        yield from self._mail()
        self.work.leaving = True
        yield Line(self._farewell())
        return ""

    # ── reading ───────────────────────────────────────────────────────────────────────────

    def _open(self) -> Script:
        self.work.begin(SEARCH)
        marks = self.work.marked(self.wishes)
        yield Line(texts.HELLO, (Use("plan", items=list[Json](texts.PLAN), marks=marks),))
        look = Use("search_library", query="Quay Street trees heat")
        lock = Use("lock_briefing")
        made = yield Line(texts.INVITATION, (look, lock), texts.OPENING_THOUGHT)
        if made[1].problem:
            self._carried = (
                f"The lock is taken: {made[1].problem}. I write to a draft of my own, so that "
                "nobody gets in anybody's way. "
            )
        count = len(made[0].result) if isinstance(made[0].result, list) else 0
        self._carried += f"{count} notes come up. I begin with the inventory."
        self.work.end(SEARCH, done=not made[0].problem)
        return ""

    def _notes(self, names: Sequence[str], item: int) -> Script:
        for name in names:
            if self.wishes.hurry:
                break
            marks = self._at(item) if self.work.item < item else ()
            made = yield self._line("", Use("read_note", name=name), *marks)
            if isinstance(made[0].result, str):
                self.work.read[name] = _gist(made[0].result)
                self._carried = texts.REMARKS[name]
            else:
                self._carried = f"That note could not be read ({made[0].problem}). I go on."
        return ""

    def _again(self) -> Script:
        for number, (words, what) in enumerate(texts.AGAIN):
            if self.wishes.hurry:
                break
            thought = texts.AGAIN_THOUGHT if number == len(texts.AGAIN) - 1 else ""
            again = Use("read_note", name=what) if what in texts.REMARKS else None
            use = again or Use("search_library", query=what)
            yield self._line(words, use, thinking=thought)
        self._carried = self._carried or "Nothing new. I have what I need."
        return ""

    def _themes(self) -> Script:
        """Run the analysis; start it again if a redirect stopped it."""
        words = texts.ANALYSIS
        use = Use("find_themes", groups=5, rounds=self._rounds)
        while not self.wishes.leave_out(THEMES):
            made = yield self._line(words, use, *self._at(THEMES))
            if not made[0].problem.startswith(STOPPED):
                self.work.end(THEMES, done=not made[0].problem)
                self._carried = _themes(made[0])
                return ""
            words = texts.ANALYSIS_AGAIN
        if self.work.item == THEMES:
            self.work.end(THEMES, done=False)
            self._carried = "The analysis was stopped midway, and I go on without it."
        return ""

    def _question(self) -> Script:
        if self.wishes.leave_out(ASK):
            return ""
        options = list[Json](texts.EMPHASES.values())
        use = Use("ask_human", question=texts.QUESTION, options=options)
        made = yield self._line("Now I need you for a moment.", use, *self._at(ASK))
        words = self._answered(made[0])
        self.work.end(ASK, done=bool(self.wishes.emphasis or self.wishes.said))
        rest = "" if self.wishes.hurry else "Then the rest of the notes."
        self._carried = f"{words} {rest}".strip()
        return ""

    def _answered(self, made: Made) -> str:
        if made.problem or not made.result:
            if self.wishes.emphasis:
                return ""
            return "You did not say, so I give all three the same weight."
        text = str(made.result)
        for name, option in texts.EMPHASES.items():
            if text == option or name in text.lower():
                self.wishes.emphasis = name
                return f"{option}: that goes to the top."
        self.wishes.said = text
        return f"“{text}”: that goes to the top, in your words."

    # ── writing ───────────────────────────────────────────────────────────────────────────

    def _sections(self) -> Script:
        self.work.writing = True
        top = texts.STRESSED[self.wishes.emphasis]
        if self.wishes.said:
            top = f"Asked for: {self.wishes.said}.\n\n{top}"
        sections = (
            (top, "I write now. First the paragraph on top."),
            (texts.STREET, "Then why it is needed."),
            (texts.GROUND, "Now what the trees stand in."),
            (texts.TREES, "And the trees themselves."),
            (texts.WRONG_COST, "The sum."),
            (texts.WRONG_ADVICE, "So what should be done?"),
        )
        for heading, (text, words) in zip(texts.HEADINGS, sections, strict=True):
            yield from self._section(heading, text, words)
        return ""

    def _section(self, heading: str, text: str, words: str) -> Script:
        marks = self._at(WRITE) if self.work.item < WRITE else ()
        line = self._line(f"{words}\n\n{heading}. {text}")
        return (yield from section(self.work, line.text, heading, text, *marks))

    def _facts(self) -> Script:
        claims = "\n".join(f"- {claim}" for claim in texts.CLAIMS)
        use = Use("check_facts", task=f"Check these claims against the library:\n{claims}")
        words = "A colleague checks the figures before anybody else reads them."
        while not self.wishes.leave_out(CHECK):
            made = yield self._line(words, use, *self._at(CHECK))
            if not made[0].problem.startswith(STOPPED):
                yield from self._judged(made[0])
                self.work.end(CHECK, done=not made[0].problem)
                return ""
            words = "The check was stopped midway. I have it made again, from the first claim."
        self.work.end(CHECK, done=False)
        return ""

    def _judged(self, made: Made) -> Script:
        if made.problem:
            self._carried = (
                f"The check did not come to an end ({made.problem}). I will say so in the "
                "mail instead of pretending."
            )
        elif "1,150" in str(made.result):
            yield from self._correct()
        else:
            self.work.checked = "the figures have been checked"
        return ""

    def _correct(self) -> Script:
        *_, cost, advice = texts.HEADINGS
        words = (
            "One figure was wrong, and it matters: a trench is 1,150 crowns for each tree "
            "and not 1,510. I had turned two digits round. I write the sum again."
        )
        yield from self._section(cost, texts.COST, words)
        words = "So it fits what was set aside, and there is no need to wait for 2027."
        yield from self._section(advice, texts.ADVICE, words)
        self.work.checked = "five figures have been checked, and one was corrected"
        return ""

    # ── sending ───────────────────────────────────────────────────────────────────────────

    def _mail(self) -> Script:
        """Propose the mail until it is sent or declined."""
        words, left = "It is ready to go. A mail cannot be taken back, so you decide.", ""
        while not (self.wishes.leave_out(MAIL) or self.work.mailed or left):
            mail = self._letter()
            made = yield self._line(words, mail, *self._at(MAIL), again=False)
            problem = made[0].problem
            elsewhere = ADDRESS.search(problem)
            if not problem:
                self.work.mailed, left = _sent(made[0], mail)
            elif elsewhere and elsewhere[0] != self.wishes.to:
                self.wishes.to = elsewhere[0]
                words = f"Understood, not to them. To {elsewhere[0]} instead?"
            elif problem.startswith(NOT_EXECUTED):
                words = "And the mail, shall it go now?"
            else:
                left = f"The mail was not sent: {problem}."
        self.work.end(MAIL, done=bool(self.work.mailed))
        yield self._line(left or "I mail nothing, as you wanted.", self._plan())
        return ""

    def _letter(self) -> Use:
        return Use(
            "send_mail",
            to=self.wishes.to,
            subject="Trees for Quay Street: a briefing",
            note="For the next meeting of the council. The sources are the town's own notes; "
            f"{self.work.checked}.",
        )

    def _farewell(self) -> str:
        count = len(self.work.sections)
        sent = f"is on its way to {self.work.mailed}" if self.work.mailed else "was not mailed"
        return (
            f"That is it. The briefing {sent}. It has {count} sections and is in "
            f"{self.work.file}; {self.work.checked}. The lock is released as I leave. "
            "Thank you for watching."
        )

    # ── lines ─────────────────────────────────────────────────────────────────────────────

    def _line(self, words: str, *uses: Use, thinking: str = "", again: bool = True) -> Line:
        carried, self._carried = self._carried, ""
        return Line(f"{carried} {words}".strip(), uses, thinking, again)

    def _at(self, item: int) -> tuple[Use, ...]:
        """Begin a plan item, and return the call that shows it."""
        self.work.begin(item)
        return (self._plan(),)

    def _plan(self) -> Use:
        return Use("plan", marks=self.work.marked(self.wishes))


def section(work: Work, words: str, heading: str, text: str, *uses: Use) -> Script:
    """Say words and write a section; if the call did not end normally, read the draft."""
    use = Use("write_section", heading=heading, text=text)
    made = yield Line(words, (use, *uses))
    if made[0].problem:
        words = f"Writing that was cut short ({made[0].problem}). I look at what is there."
        found = yield Line(words, (Use("read_draft"),))
        work.found(str(found[0].result or ""))
        if heading not in work.sections:
            made = yield Line("It is not there, so I write it again.", (use,))
    work.wrote(made[0].result)
    return ""


def _gist(note: str) -> str:
    """Return the first sentence of a note that was read."""
    body = note.split("\n\n")[1]
    return re.split(r"(?<=[.!?])\s", " ".join(body.split()), maxsplit=1)[0]


def _themes(made: Made) -> str:
    """Return a remark on the result of the analysis."""
    if not isinstance(made.result, list):
        return f"The analysis gave nothing ({made.problem}). I go by what I have read."
    themes = [theme for theme in made.result if isinstance(theme, dict)]
    said = " Next comes ".join(map(_theme, themes[:2]))
    return f"{len(themes)} groups. The surest is {said} That is as good an outline as any."


def _theme(theme: dict[str, Json]) -> str:
    names = ", ".join(_listed(theme["notes"]))
    words = " and ".join(f"“{word}”" for word in _listed(theme["words"])[:2])
    sure = float(str(theme["sure"]))
    return f"{names}: together in {sure:.0%} of the tries, by words such as {words}."


def _listed(values: Json) -> list[str]:
    return [str(value) for value in values] if isinstance(values, list) else []


def _sent(made: Made, asked: Use) -> tuple[str, str]:
    """Return the recipient of the mail, and a remark that names edited arguments."""
    given = made.args if isinstance(made.args, dict) else {}
    changed = [name for name, value in asked.args.items() if given.get(name) != value]
    words = "Sent" if not changed else f"Sent, with your {' and '.join(changed)}"
    to = str(given.get("to"))
    return to, f"{words}. It went to {to}."
