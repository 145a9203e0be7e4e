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
    CHECK_ITEM,
    MAIL_ADDRESS_PATTERN,
    MAIL_ITEM,
    THEMES_ITEM,
    BriefingProgress,
    BriefingScript,
    UserRequests,
    write_section,
)
from midrun.demo.notes import best_sentences, find_answer, load_library
from midrun.demo.script import InstructionEffect, Script, ScriptLine
from midrun.models.scripted import Use


def _compile_any(*patterns: str) -> re.Pattern[str]:
    return re.compile("|".join(patterns), re.IGNORECASE)


STOP_PATTERN: Final = _compile_any(
    r"\bsummar", r"\bsum (it |this )?up", r"\bwrap (it |this )?up", r"\bconclude", r"\btl;?dr",
    r"\b(and|then|please) stop\b", r"^stop\b(?! (read|search))", r"\bstop (here|now)\b",
    r"\bfinish (now|here|up)", r"\bthat'?s enough\b", r"^enough\b(?! (read|search))",
)  # fmt: skip
HURRY_PATTERN: Final = _compile_any(
    r"\b(stop|no more|enough) (read|search|research)", r"\bskip the (read|search|rest)",
    r"\b(start|begin) writing", r"\bwrite (it |the briefing )?(now|already)", r"\bhurry\b",
)  # fmt: skip
NO_MAIL_PATTERN: Final = _compile_any(
    r"\b(no|not|don'?t|never|skip|without)\b[^.]*\b(e-?mail|mail|send)"
)
NO_ANALYSIS_PATTERN: Final = _compile_any(
    r"\b(no|not|don'?t|never|skip|without|stop)\b[^.]*\b(analy|themes?\b)"
)
NO_FACT_CHECK_PATTERN: Final = _compile_any(
    r"\b(no|not|don'?t|never|skip|without)\b[^.]*\b(check|fact)"
)
EMPHASIS_PATTERNS: Final = {
    "cost": _compile_any(r"\bcosts?\b", r"\bcheap", r"\bbudget", r"\bmoney\b", r"\bprices?\b"),
    "shade": _compile_any(r"\bshade", r"\bheat\b", r"\bhot", r"\bcool"),
    "upkeep": _compile_any(r"\bupkeep", r"\bmaint", r"\bvolunteer", r"\bwater"),
}
TOPIC_PATTERN: Final = _compile_any(
    r"\b(add|also|include|mention|compare|look into)\b", r"\b(section|paragraph)\b"
)
CLAUSE_SEPARATOR: Final = _compile_any(  # separates two requests in one text
    r"(?<=[.;!])\s+", r"(?:,|,? and|,? then)\s+(?=(?:also|add|include|mention|compare)\b)"
)
TOPIC_INTRODUCTION: Final = re.compile(  # introductory words before the topic
    r"^(?:(?:please|also|and|then|now|can you|could you)\s+)*"
    r"(?:(?:add|include|write|mention|compare|look into|tell|say)\s+)?"
    r"(?:(?:a|an|one|some|something|another|short|brief|little|more|me|us|them|it|this)\s+)*"
    r"(?:(?:paragraph|section|sentence|line|word|words|bit|part|note)\s+)?"
    r"(?:(?:on|about|with|to|of|for|covering)\s+)?(?:the\s+)?",
    re.IGNORECASE,
)
POLITE_ENDING: Final = re.compile(r"(?:\s*,?\s+(?:please|too|as well|also))+$", re.IGNORECASE)
CONTINUE_PATTERN: Final = _compile_any(
    r"^(go on|continue|carry on|resume|proceed|ok(ay)?|yes|good|fine|thanks?)\b"
)
PROGRESS_QUESTION: Final = _compile_any(
    r"\bhow far\b", r"\bprogress\b", r"\bstatus\b", r"\bwhere are you\b", r"\bhow long\b",
    r"\bwhat are you (doing|up to|at)\b", r"\bhow('s| is) it going\b",
)  # fmt: skip
GREETING_PATTERN: Final = _compile_any(
    r"^(hi|hello|hey|good (morning|evening)|thanks?|thank you|well done)\b"
)

STOPPING_THOUGHT: Final = (
    "They have seen enough. What I have is what they get, and I should start nothing new."
)
CONTINUE_MAX_WORDS: Final = 4
HEADING_MAX_WORDS: Final = 8


class ResearcherScript:
    """The script of the demo's agent."""

    def __init__(self, *, rounds: int) -> None:
        self._requests, self._work = UserRequests(), BriefingProgress()
        self._rounds = rounds

    def begin(self, task: str) -> Script:
        """Write the briefing; for any other task, look it up in the library."""
        if _is_briefing_task(task):
            return BriefingScript(self._requests, self._work, rounds=self._rounds).run_steps()
        return self._do_other_task(task)

    # ── instructions ──────────────────────────────────────────────────────────────────────

    def react_to_instruction(self, text: str) -> InstructionEffect:
        """Stop, hurry, leave something out, weigh something more, or look into a topic."""
        if STOP_PATTERN.search(text):
            return InstructionEffect(instead=self._write_summary())
        understood, topics = [], []
        for clause in CLAUSE_SEPARATOR.split(text):
            said = self._apply_requests(clause)
            understood += said
            topics += [clause] if TOPIC_PATTERN.search(clause) and not said else []
        if understood:
            words = " ".join(understood)
            return (
                self._visit_topics(words, topics)
                if topics
                else InstructionEffect(f"Changing course. {words}")
            )
        if CONTINUE_PATTERN.search(text) and len(text.split()) <= CONTINUE_MAX_WORDS:
            return InstructionEffect(words="Going on.")
        return self._visit_topics("", topics or [text])

    def _visit_topics(self, words: str, topics: list[str]) -> InstructionEffect:
        """Insert the topics as a detour; if only the farewell is left, replace it."""
        if self._work.only_farewell_left:
            return InstructionEffect(words, instead=self._write_late_topics(topics))
        return InstructionEffect(words, detour=self._write_topics(topics))

    def _apply_requests(self, text: str) -> list[str]:
        """Record the requests in a text, and return sentences about the changes."""
        wishes, said = self._requests, []
        if HURRY_PATTERN.search(text):
            wishes.skip_reading = True
            little = "" if self._work.notes_read else ", which is not much yet"
            said.append(f"No more searching: I write with what I have{little}.")
        if NO_MAIL_PATTERN.search(text):
            wishes.with_mail = False
            said.append(self._reply_unless_done(MAIL_ITEM, "I will mail nothing."))
        elif address := MAIL_ADDRESS_PATTERN.search(text):
            wishes.mail_to, wishes.with_mail = address[0], True
            said.append(f"The mail is for {address[0]}.")
        if NO_FACT_CHECK_PATTERN.search(text):
            wishes.with_fact_check = False
            words = "I leave out the fact check, and will say so."
            said.append(self._reply_unless_done(CHECK_ITEM, words))
        if NO_ANALYSIS_PATTERN.search(text):
            wishes.with_analysis = False
            said.append(self._reply_unless_done(THEMES_ITEM, "I leave out the analysis."))
        if not (self._work.has_begun_writing or TOPIC_PATTERN.search(text)):
            said += self._apply_emphasis(text)
        return said

    def _reply_unless_done(self, item: int, words: str) -> str:
        if self._work.marks[item] == "done":
            return f"“{texts.PLAN[item - 1]}” is done already; that stays."
        return words

    def _apply_emphasis(self, text: str) -> list[str]:
        for name, pattern in EMPHASIS_PATTERNS.items():
            if pattern.search(text):
                self._requests.emphasis = name
                return [f"“{texts.EMPHASIS_OPTIONS[name]}” goes to the top."]
        return []

    def _write_summary(self) -> Script:
        """Summarise the notes that were read so far, and end."""
        work = self._work
        if not work.notes_read:
            if work.item:
                yield ScriptLine(
                    "I stop here.", (work.plan_with_last_item("Stop, as asked", "done"),)
                )
            kept = " What is written stays in the draft." if work.sections else ""
            return (yield from _say_and_end(f"{texts.NOTHING_READ}{kept}"))
        count = "one note" if len(work.notes_read) == 1 else f"{len(work.notes_read)} notes"
        words = f"Changing course: no more searching. I sum up the {count} that I have read."
        yield ScriptLine(
            words,
            (work.plan_with_last_item(texts.STOP_PLAN_ITEM, "running"),),
            STOPPING_THOUGHT,
        )
        brief = len(work.notes_read) > len(texts.SUMMARY_NOTES)
        gists = [t for n, t in work.notes_read.items() if not brief or n in texts.SUMMARY_NOTES]
        points = "\n".join(f"- {gist}" for gist in gists)
        ended = work.plan_with_last_item(texts.STOP_PLAN_ITEM, "done")
        yield from write_section(work, f"Summary.\n\n{points}", "Summary", points, ended)
        mailed = (
            f"The mail to {work.mailed_to} had left" if work.mailed_to else "Nothing was mailed"
        )
        words = f"I stop here, as you asked. The summary of {count} is in the draft. {mailed}."
        return (yield from _say_and_end(words))

    def _write_topics(self, wanted: list[str]) -> Script:
        closing = ""
        for text in wanted:
            closing = yield from self._write_topic(text)
        return closing

    def _write_late_topics(self, wanted: list[str]) -> Script:
        yield from self._write_topics(wanted)
        work = self._work
        words = f"The briefing has {len(work.sections)} sections now and is in {work.file}."
        mailed = f" What went to {work.mailed_to} is without that." if work.mailed_to else ""
        return (yield from _say_and_end(words + mailed))

    def _write_topic(self, text: str) -> Script:
        """Look a topic up, write a section about it, then continue."""
        use = Use("search_library", query=text)
        made = yield ScriptLine(
            f"Changing course: {text.rstrip('.')}. I look what the library has on that.", (use,)
        )
        name, heading = _best_hit(made[0].result), _extract_topic(text)
        if not name:
            words = "The library has nothing on it. I put that on record and make nothing up."
            asked = f"Asked for, and not in the library: {text}"
            yield from write_section(self._work, words, f"Open: {heading}", asked)
            return "Noted. Back to where I was."
        note = load_library()[name]
        yield ScriptLine(f"“{note.title}” is the closest.", (Use("read_note", name=name),))
        found = " ".join(best_sentences(note, text, 3))
        words = f"That deserves a section of its own.\n\n{heading}. {found}"
        yield from write_section(self._work, words, heading, found)
        return "That is in the draft. Back to where I was."

    def _do_other_task(self, task: str) -> Script:
        """Do a task other than the demo's, from the library."""
        yield from self._write_topic(task)
        return (yield from _say_and_end("That is what the library has. It is in the draft."))

    # ── side questions ────────────────────────────────────────────────────────────────────

    def answer_side_question(self, text: str) -> Script:
        """Answer a side question, from the progress or from the library."""
        if PROGRESS_QUESTION.search(text):
            return _say_and_end(self._describe_progress())
        if GREETING_PATTERN.search(text) and "?" not in text:
            return _say_and_end("You are welcome.")
        return _answer_from_notes(text)

    def _describe_progress(self) -> str:
        work = self._work
        now = texts.PLAN[max(work.item, 1) - 1]
        sections = len({*work.sections, *texts.HEADINGS})
        return (
            f"I am at “{now}”, item {max(work.item, 1)} of {len(texts.PLAN)}. So far I have "
            f"read {len(work.notes_read)} of {len(load_library())} notes and written "
            f"{len(work.sections)} of {sections} sections."
        )


def _answer_from_notes(question: str) -> Script:
    """Answer a question from the notes."""
    made = yield ScriptLine("Let me look.", (Use("search_library", query=question),))
    hits = made[0].result if isinstance(made[0].result, list) else []
    found = find_answer(question, [str(hit["name"]) for hit in hits if isinstance(hit, dict)])
    if found is None:
        return (
            yield from _say_and_end(
                "The library has nothing on that, and I had rather not guess."
            )
        )
    note, said = found
    return (yield from _say_and_end(f"{said} That is from “{note.title}”."))


def _say_and_end(words: str) -> Script:
    yield ScriptLine(words)
    return ""


def _best_hit(hits: Json) -> str:
    """Return the name of the best hit, or ""."""
    match hits:
        case [{"name": str(name)}, *_]:
            return name
        case _:
            return ""


def _extract_topic(text: str) -> str:
    """Return the topic of an instruction as a heading."""
    asked = POLITE_ENDING.sub("", text.strip(" .!?"))
    words = re.sub(r"[^\w\s'-]", "", TOPIC_INTRODUCTION.sub("", asked) or asked).split()[
        :HEADING_MAX_WORDS
    ]
    heading = " ".join(words)
    return heading[:1].upper() + heading[1:]


def _is_briefing_task(task: str) -> bool:
    return bool(re.search(r"\b(quay|tree|brief)", task, re.IGNORECASE))
