"""The fact checker: a child run that looks up claims, one by one, and finds the wrong one."""

import re

from midrun.demo.notes import best_sentences, library
from midrun.demo.scripts import Course, Line, Script
from midrun.models.scripted import Use

_FIGURE = re.compile(r"\d+(?:[.,]\d+)*")


class Checker:
    """The play of the fact checker."""

    def __init__(self) -> None:
        self._remarks: list[str] = []

    def begin(self, task: str) -> Script:
        """Check the claims that stand in the task as a list."""
        claims = re.findall(r"^- (.+)$", task, re.MULTILINE)
        holding, said = 0, "I look each of them up."
        for number, claim in enumerate(claims, 1):
            words = f"{said} Claim {number} of {len(claims)}: {claim}."
            made = yield Line(words, (Use("search_library", query=claim),))
            hits = made[0].result
            found = hits[0] if isinstance(hits, list) and hits else None
            name = str(found["name"]) if isinstance(found, dict) else ""
            holds, said = _judged(claim, name)
            holding += holds
            self._remarks.append(said)
        wrong = [remark for remark in self._remarks if remark.startswith("Wrong")]
        end = " ".join(wrong) or "There is nothing to correct."
        yield Line(f"{said} {holding} of {len(claims)} claims hold. {end}")
        return ""

    def redirected(self, text: str) -> Course:
        """Take note, and go on: a checker has one thing to do."""
        return Course(words=f"Noted: {text.rstrip('.')}. I finish the check.")

    def asked(self, text: str) -> Script:
        """Say what was found so far."""
        del text
        yield Line(" ".join(self._remarks) or "I have not found anything yet.")
        return ""


def _judged(claim: str, name: str) -> tuple[bool, str]:
    """Compare the figures of a claim with the sentence that is nearest to it."""
    note = library().get(name)
    if note is None:
        return False, "Nothing in the library says so."
    (sentence,) = best_sentences(note, claim, 1)
    if set(_FIGURE.findall(claim)) <= set(_FIGURE.findall(sentence)):
        return True, f"That holds, see “{note.title}”."
    return False, f"Wrong: the note “{note.title}” says: {sentence}"
