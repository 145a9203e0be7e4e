"""Reactions of the scripted model to instructions and side questions.

Regular expressions recognise a few intentions. Any other text is taken for a topic and looked
up in the library. So every instruction changes something, and every question gets an answer
from the notes, or the statement that they have none.
"""

import re
from typing import Final

from midrun.core.values import Json
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
from midrun.demo.script import InstructionEffect, Script, ScriptLine, Steps
from midrun.demo.texts import TEXTS
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
READING_TOOLS: Final = frozenset({"search_library", "read_note"})
SKIP_PATTERNS: Final = {  # plan item to skip → pattern, and the reply unless it is done
    MAIL_ITEM: (
        _compile_any(r"\b(no|not|don'?t|never|skip|without)\b[^.]*\b(e-?mail|mail|send)"),
        "I will mail nothing.",
    ),
    CHECK_ITEM: (
        _compile_any(r"\b(no|not|don'?t|never|skip|without)\b[^.]*\b(check|fact)"),
        "I leave out the fact check, and will say so.",
    ),
    THEMES_ITEM: (
        _compile_any(r"\b(no|not|don'?t|never|skip|without|stop)\b[^.]*\b(analy|themes?\b)"),
        "I leave out the analysis.",
    ),
}
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
        if re.search(r"\b(quay|tree|brief)", task, re.IGNORECASE):
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
        words = " ".join(understood)
        if understood and not topics:
            dropped = READING_TOOLS if HURRY_PATTERN.search(text) else frozenset()
            return InstructionEffect(f"Changing course. {words}", dropped_tools=dropped)
        is_short = len(text.split()) <= CONTINUE_MAX_WORDS
        if not understood and is_short and CONTINUE_PATTERN.search(text):
            return InstructionEffect(words="Going on.")
        topics = topics or [text]
        if self._work.only_farewell_left:
            return InstructionEffect(words, instead=self._write_late_topics(topics))
        return InstructionEffect(words, detour=self._write_topics(topics))

    def _apply_requests(self, text: str) -> list[str]:
        """Record the requests in a text, and return sentences about the changes."""
        requests, said = self._requests, []
        if HURRY_PATTERN.search(text):
            requests.skip_reading = True
            little = "" if self._work.notes_read else ", which is not much yet"
            said.append(f"No more searching: I write with what I have{little}.")
        for item, (pattern, reply) in SKIP_PATTERNS.items():
            if pattern.search(text):
                requests.skipped_items.add(item)
                done = f"“{TEXTS.plan[item - 1]}” is done already; that stays."
                said.append(done if self._work.marks[item] == "done" else reply)
            elif item == MAIL_ITEM and (address := MAIL_ADDRESS_PATTERN.search(text)):
                requests.mail_to = address[0]
                requests.skipped_items.discard(item)
                said.append(f"The mail is for {address[0]}.")
        if not (self._work.has_begun_writing or TOPIC_PATTERN.search(text)):
            for name, pattern in EMPHASIS_PATTERNS.items():
                if pattern.search(text):
                    requests.emphasis = name
                    said.append(f"“{TEXTS.emphasis_options[name]}” goes to the top.")
                    break
        return said

    def _write_summary(self) -> Steps:
        """Summarise the notes that were read so far, and end."""
        work = self._work
        if not work.notes_read:
            if work.item:
                plan = work.plan_with_last_item("Stop, as asked", "done")
                yield ScriptLine("I stop here.", (plan,))
            kept = " What is written stays in the draft." if work.sections else ""
            yield ScriptLine(f"{TEXTS.nothing_read}{kept}")
            return
        count = "one note" if len(work.notes_read) == 1 else f"{len(work.notes_read)} notes"
        words = f"Changing course: no more searching. I sum up the {count} that I have read."
        plan = work.plan_with_last_item(TEXTS.stop_plan_item, "running")
        yield ScriptLine(words, (plan,), STOPPING_THOUGHT)
        brief = len(work.notes_read) > len(TEXTS.summary_notes)
        gists = [t for n, t in work.notes_read.items() if not brief or n in TEXTS.summary_notes]
        points = "\n".join(f"- {gist}" for gist in gists)
        ended = work.plan_with_last_item(TEXTS.stop_plan_item, "done")
        yield from write_section(work, f"Summary.\n\n{points}", "Summary", points, ended)
        mailed = "Nothing was mailed"
        if work.mailed_to:
            mailed = f"The mail to {work.mailed_to} had left"
        words = f"I stop here, as you asked. The summary of {count} is in the draft. {mailed}."
        yield ScriptLine(words)

    def _write_topics(self, wanted: list[str]) -> Script:
        closing = None
        for text in wanted:
            closing = yield from self._write_topic(text)
        return closing

    def _write_late_topics(self, wanted: list[str]) -> Steps:
        yield from self._write_topics(wanted)
        work = self._work
        count = len(work.sections)
        words = f"The briefing has {count} section{'' if count == 1 else 's'} now."
        mailed = f" What went to {work.mailed_to} is without that." if work.mailed_to else ""
        yield ScriptLine(words + mailed)

    def _write_topic(self, text: str) -> Script:
        """Look a topic up, write a section about it, then continue."""
        words = f"Changing course: {text.rstrip('.')}. I look what the library has on that."
        (made,) = yield ScriptLine(words, (Use("search_library", query=text),))
        names, heading = list_hits(made.result), _extract_topic(text)
        if not names:
            words = "The library has nothing on it. I put that on record and make nothing up."
            asked = f"Asked for, and not in the library: {text}"
            yield from write_section(self._work, words, f"Open: {heading}", asked)
            return "Noted. Back to where I was."
        note = load_library()[names[0]]
        yield ScriptLine(f"“{note.title}” is the closest.", (Use("read_note", name=note.name),))
        found = " ".join(best_sentences(note, text, 3))
        words = f"That deserves a section of its own.\n\n**{heading}**\n\n{found}"
        yield from write_section(self._work, words, heading, found)
        return "That is in the draft. Back to where I was."

    def _do_other_task(self, task: str) -> Steps:
        """Do a task other than the demo's, from the library."""
        yield from self._write_topic(task)
        yield ScriptLine("That is what the library has. It is in the draft.")

    # ── side questions ────────────────────────────────────────────────────────────────────

    def answer_side_question(self, text: str) -> Steps:
        """Answer a side question, from the progress or from the library."""
        if PROGRESS_QUESTION.search(text):
            yield ScriptLine(self._describe_progress())
        elif GREETING_PATTERN.search(text) and "?" not in text:
            yield ScriptLine("You are welcome.")
        else:
            (made,) = yield ScriptLine("Let me look.", (Use("search_library", query=text),))
            found = find_answer(text, list_hits(made.result))
            if found is None:
                yield ScriptLine("The library has nothing on that, and I had rather not guess.")
            else:
                yield ScriptLine(f"{found[1]} That is from “{found[0].title}”.")

    def _describe_progress(self) -> str:
        work = self._work
        item = max(work.item, 1)
        sections = len({*work.sections, *TEXTS.headings})
        return (
            f"I am at “{TEXTS.plan[item - 1]}”, item {item} of {len(TEXTS.plan)}. "
            f"So far I have read {len(work.notes_read)} of {len(load_library())} notes and "
            f"written {len(work.sections)} of {sections} sections."
        )


def list_hits(hits: Json) -> list[str]:
    """Return the names of the notes that a search found, best first."""
    found = hits if isinstance(hits, list) else []
    return [str(hit["name"]) for hit in found if isinstance(hit, dict)]


def _extract_topic(text: str) -> str:
    """Return the topic of an instruction as a heading."""
    asked = POLITE_ENDING.sub("", text.strip(" .!?"))
    words = re.sub(r"[^\w\s'-]", "", TOPIC_INTRODUCTION.sub("", asked) or asked).split()
    heading = " ".join(words[:HEADING_MAX_WORDS])
    return heading[:1].upper() + heading[1:]
