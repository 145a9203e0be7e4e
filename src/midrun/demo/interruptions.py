"""Reactions of the scripted model to instructions and side questions.

Regular expressions recognise a few intentions. Any other text is taken for a topic and looked
up in the library. So every instruction changes something, and every question gets an answer
from the notes, or the statement that they have none.
"""

import re
from typing import Final

from midrun.core.values import Json
from midrun.demo import texts
from midrun.demo.main_script import (
    ADDRESS,
    CHECK,
    MAIL,
    THEMES,
    Briefing,
    Wishes,
    Work,
    section,
)
from midrun.demo.notes import answer, best_sentences, library
from midrun.demo.script import Course, Line, Script
from midrun.models.scripted import Use


def _any(*patterns: str) -> re.Pattern[str]:
    return re.compile("|".join(patterns), re.IGNORECASE)


ENOUGH: Final = _any(
    r"\bsummar", r"\bsum (it |this )?up", r"\bwrap (it |this )?up", r"\bconclude", r"\btl;?dr",
    r"\b(and|then|please) stop\b", r"^stop\b(?! (read|search))", r"\bstop (here|now)\b",
    r"\bfinish (now|here|up)", r"\bthat'?s enough\b", r"^enough\b(?! (read|search))",
)  # fmt: skip
HURRY: Final = _any(
    r"\b(stop|no more|enough) (read|search|research)", r"\bskip the (read|search|rest)",
    r"\b(start|begin) writing", r"\bwrite (it |the briefing )?(now|already)", r"\bhurry\b",
)  # fmt: skip
NO_MAIL: Final = _any(r"\b(no|not|don'?t|never|skip|without)\b[^.]*\b(e-?mail|mail|send)")
NO_THEMES: Final = _any(r"\b(no|not|don'?t|never|skip|without|stop)\b[^.]*\b(analy|themes?\b)")
NO_CHECK: Final = _any(r"\b(no|not|don'?t|never|skip|without)\b[^.]*\b(check|fact)")
EMPHASES: Final = {
    "cost": _any(r"\bcosts?\b", r"\bcheap", r"\bbudget", r"\bmoney\b", r"\bprices?\b"),
    "shade": _any(r"\bshade", r"\bheat\b", r"\bhot", r"\bcool"),
    "upkeep": _any(r"\bupkeep", r"\bmaint", r"\bvolunteer", r"\bwater"),
}
MORE: Final = _any(
    r"\b(add|also|include|mention|compare|look into)\b", r"\b(section|paragraph)\b"
)
CLAUSE: Final = _any(  # separates two requests in one text
    r"(?<=[.;!])\s+", r"(?:,|,? and|,? then)\s+(?=(?:also|add|include|mention|compare)\b)"
)
ASKING: Final = re.compile(  # introductory words before the topic
    r"^(?:(?:please|also|and|then|now|can you|could you)\s+)*"
    r"(?:(?:add|include|write|mention|compare|look into|tell|say)\s+)?"
    r"(?:(?:a|an|one|some|something|another|short|brief|little|more|me|us|them|it|this)\s+)*"
    r"(?:(?:paragraph|section|sentence|line|word|words|bit|part|note)\s+)?"
    r"(?:(?:on|about|with|to|of|for|covering)\s+)?(?:the\s+)?",
    re.IGNORECASE,
)
BESIDES: Final = re.compile(r"(?:\s*,?\s+(?:please|too|as well|also))+$", re.IGNORECASE)
GO_ON: Final = _any(
    r"^(go on|continue|carry on|resume|proceed|ok(ay)?|yes|good|fine|thanks?)\b"
)
PROGRESS: Final = _any(
    r"\bhow far\b", r"\bprogress\b", r"\bstatus\b", r"\bwhere are you\b", r"\bhow long\b",
    r"\bwhat are you (doing|up to|at)\b", r"\bhow('s| is) it going\b",
)  # fmt: skip
POLITE: Final = _any(r"^(hi|hello|hey|good (morning|evening)|thanks?|thank you|well done)\b")

STOPPING: Final = (
    "They have seen enough. What I have is what they get, and I should start nothing new."
)
GO_ON_WORDS: Final = 4
HEADING_WORDS: Final = 8


class Researcher:
    """The script of the demo's agent."""

    def __init__(self, *, rounds: int) -> None:
        self._wishes, self._work = Wishes(), Work()
        self._rounds = rounds

    def begin(self, task: str) -> Script:
        """Write the briefing; for any other task, look it up in the library."""
        if _is_ours(task):
            return Briefing(self._wishes, self._work, rounds=self._rounds).script()
        return self._other(task)

    # ── instructions ──────────────────────────────────────────────────────────────────────

    def redirected(self, text: str) -> Course:
        """Stop, hurry, leave something out, weigh something more, or look into a topic."""
        if ENOUGH.search(text):
            return Course(instead=self._summary())
        understood, topics = [], []
        for clause in CLAUSE.split(text):
            said = self._understood(clause)
            understood += said
            topics += [clause] if MORE.search(clause) and not said else []
        if understood:
            words = " ".join(understood)
            return self._led(words, topics) if topics else Course(f"Changing course. {words}")
        if GO_ON.search(text) and len(text.split()) <= GO_ON_WORDS:
            return Course(words="Going on.")
        return self._led("", topics or [text])

    def _led(self, words: str, topics: list[str]) -> Course:
        """Insert the topics as a detour; if only the farewell is left, replace it."""
        if self._work.leaving:
            return Course(words, instead=self._late(topics))
        return Course(words, detour=self._topics(topics))

    def _understood(self, text: str) -> list[str]:
        """Record the requests in a text, and return sentences about the changes."""
        wishes, said = self._wishes, []
        if HURRY.search(text):
            wishes.hurry = True
            little = "" if self._work.read else ", which is not much yet"
            said.append(f"No more searching: I write with what I have{little}.")
        if NO_MAIL.search(text):
            wishes.mail = False
            said.append(self._unless_done(MAIL, "I will mail nothing."))
        elif address := ADDRESS.search(text):
            wishes.to, wishes.mail = address[0], True
            said.append(f"The mail is for {address[0]}.")
        if NO_CHECK.search(text):
            wishes.check = False
            words = "I leave out the fact check, and will say so."
            said.append(self._unless_done(CHECK, words))
        if NO_THEMES.search(text):
            wishes.themes = False
            said.append(self._unless_done(THEMES, "I leave out the analysis."))
        if not (self._work.writing or MORE.search(text)):
            said += self._weighed(text)
        return said

    def _unless_done(self, item: int, words: str) -> str:
        if self._work.marks[item] == "done":
            return f"“{texts.PLAN[item - 1]}” is done already; that stays."
        return words

    def _weighed(self, text: str) -> list[str]:
        for name, pattern in EMPHASES.items():
            if pattern.search(text):
                self._wishes.emphasis = name
                return [f"“{texts.EMPHASES[name]}” goes to the top."]
        return []

    def _summary(self) -> Script:
        """Summarise the notes that were read so far, and end."""
        work = self._work
        if not work.read:
            if work.item:
                yield Line("I stop here.", (work.ending_with("Stop, as asked", "done"),))
            kept = " What is written stays in the draft." if work.sections else ""
            return (yield from _ending(f"{texts.NOTHING_READ}{kept}"))
        count = "one note" if len(work.read) == 1 else f"{len(work.read)} notes"
        words = f"Changing course: no more searching. I sum up the {count} that I have read."
        yield Line(words, (work.ending_with(texts.STOP, "running"),), STOPPING)
        brief = len(work.read) > len(texts.SUMMED)
        gists = [t for n, t in work.read.items() if not brief or n in texts.SUMMED]
        points = "\n".join(f"- {gist}" for gist in gists)
        ended = work.ending_with(texts.STOP, "done")
        yield from section(work, f"Summary.\n\n{points}", "Summary", points, ended)
        mailed = f"The mail to {work.mailed} had left" if work.mailed else "Nothing was mailed"
        words = f"I stop here, as you asked. The summary of {count} is in the draft. {mailed}."
        return (yield from _ending(words))

    def _topics(self, wanted: list[str]) -> Script:
        closing = ""
        for text in wanted:
            closing = yield from self._topic(text)
        return closing

    def _late(self, wanted: list[str]) -> Script:
        yield from self._topics(wanted)
        work = self._work
        words = f"The briefing has {len(work.sections)} sections now and is in {work.file}."
        mailed = f" What went to {work.mailed} is without that." if work.mailed else ""
        return (yield from _ending(words + mailed))

    def _topic(self, text: str) -> Script:
        """Look a topic up, write a section about it, then continue."""
        use = Use("search_library", query=text)
        made = yield Line(
            f"Changing course: {text.rstrip('.')}. I look what the library has on that.", (use,)
        )
        name, heading = _best(made[0].result), _subject(text)
        if not name:
            words = "The library has nothing on it. I put that on record and make nothing up."
            asked = f"Asked for, and not in the library: {text}"
            yield from section(self._work, words, f"Open: {heading}", asked)
            return "Noted. Back to where I was."
        note = library()[name]
        yield Line(f"“{note.title}” is the closest.", (Use("read_note", name=name),))
        found = " ".join(best_sentences(note, text, 3))
        words = f"That deserves a section of its own.\n\n{heading}. {found}"
        yield from section(self._work, words, heading, found)
        return "That is in the draft. Back to where I was."

    def _other(self, task: str) -> Script:
        """Do a task other than the demo's, from the library."""
        yield from self._topic(task)
        return (yield from _ending("That is what the library has. It is in the draft."))

    # ── side questions ────────────────────────────────────────────────────────────────────

    def asked(self, text: str) -> Script:
        """Answer a side question, from the progress or from the library."""
        if PROGRESS.search(text):
            return _ending(self._progress())
        if POLITE.search(text) and "?" not in text:
            return _ending("You are welcome.")
        return _looked_up(text)

    def _progress(self) -> str:
        work = self._work
        now = texts.PLAN[max(work.item, 1) - 1]
        sections = len({*work.sections, *texts.HEADINGS})
        return (
            f"I am at “{now}”, item {max(work.item, 1)} of {len(texts.PLAN)}. So far I have "
            f"read {len(work.read)} of {len(library())} notes and written "
            f"{len(work.sections)} of {sections} sections."
        )


def _looked_up(question: str) -> Script:
    """Answer a question from the notes."""
    made = yield Line("Let me look.", (Use("search_library", query=question),))
    hits = made[0].result if isinstance(made[0].result, list) else []
    found = answer(question, [str(hit["name"]) for hit in hits if isinstance(hit, dict)])
    if found is None:
        return (
            yield from _ending("The library has nothing on that, and I had rather not guess.")
        )
    note, said = found
    return (yield from _ending(f"{said} That is from “{note.title}”."))


def _ending(words: str) -> Script:
    yield Line(words)
    return ""


def _best(hits: Json) -> str:
    """Return the name of the best hit, or ""."""
    match hits:
        case [{"name": str(name)}, *_]:
            return name
        case _:
            return ""


def _subject(text: str) -> str:
    """Return the topic of an instruction as a heading."""
    asked = BESIDES.sub("", text.strip(" .!?"))
    words = re.sub(r"[^\w\s'-]", "", ASKING.sub("", asked) or asked).split()[:HEADING_WORDS]
    heading = " ".join(words)
    return heading[:1].upper() + heading[1:]


def _is_ours(task: str) -> bool:
    return bool(re.search(r"\b(quay|tree|brief)", task, re.IGNORECASE))
