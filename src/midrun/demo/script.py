"""Scripts: what the played model says next, from nothing but the transcript.

A script is a generator: it yields a line and is sent what came of the calls in it. Before every
reply all of it is played anew against the transcript, so a pause, a crash or another machine
makes no difference. Of a line that was cut off, what had been said is taken away, and the rest
is what comes next: it goes on in the middle of the sentence and repeats nothing.

A side question is a script on top of the others, until the run goes back. An instruction puts
another script on top, or in place of all, or only some words before what comes next.
"""

from collections.abc import Generator, Iterable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from midrun.core.transcript import Made, Turn
from midrun.models.scripted import Use

NOT_EXECUTED = "not executed"
"""How the problem of a call begins that was not made because somebody changed the course."""

STOPPED = "stopped midway"
"""How the problem of a call begins that was under way when somebody changed the course."""

GOING_ON = "… "
"""What is said before the rest of a sentence, where something came in between."""


@dataclass(frozen=True)
class Line:
    """What is said in one reply: thinking, text, calls. Without calls it is the answer."""

    text: str
    uses: tuple[Use, ...] = ()
    thinking: str = ""
    again: bool = True  # calls that were not made, for a new course, are asked for once more


Script: TypeAlias = Generator[Line, tuple[Made, ...], str]
"""Yields lines, is sent what came of their calls, returns words that lead to what follows."""


@dataclass(frozen=True)
class Course:
    """What an instruction does: `words` come first, then a detour, or another way for good."""

    words: str = ""
    detour: Script | None = None
    instead: Script | None = None


class Play(Protocol):
    """A cast of scripts that know of each other."""

    def begin(self, task: str) -> Script:
        """Return the script for a task."""
        ...

    def redirected(self, text: str) -> Course:
        """Return what becomes of an instruction."""
        ...

    def asked(self, text: str) -> Script:
        """Return the script that answers a side question."""
        ...


def next_line(play: Play, transcript: Iterable[Turn]) -> Line:
    """Return what `play` says after `transcript`."""
    stage = _Stage(play)
    for turn in transcript:
        stage.hear(turn)
    return stage.line


class _Part:
    """A script being played: its line, and how much of that is still to be said and made.

    The script goes on when somebody looks, not before: what was said in between counts.
    """

    def __init__(self, script: Script, *, framed: bool = False) -> None:
        self.framed = framed
        self.closing = ""
        self._script = script
        self._over = False
        self._came: tuple[Made, ...] | None = None  # of the last line; None before the first
        self._due = True
        self._line = Line("")
        self._words = self._thinking = ""
        self._cut = False
        self._made: dict[int, Made] = {}

    @property
    def over(self) -> bool:
        """It has said all of its lines."""
        self._go_on()
        return self._over

    @property
    def line(self) -> Line:
        """What is left of the line."""
        self._go_on()
        uses = tuple(use for _, use in self._left())
        return Line(self._words or ("" if uses else "That is all."), uses, self._thinking)

    def say_first(self, words: str) -> None:
        """Put words before what comes next."""
        self.come_back()
        self._words = f"{words.strip()} {self._words}"

    def come_back(self) -> None:
        """Show that a sentence goes on after something came in between."""
        self._go_on()
        if self._cut:
            self._words, self._cut = f"{GOING_ON}{self._words}", False

    def hear(self, turn: Turn, text: str) -> None:
        """Take note of what was said, and be due for the next line if it was all of this one.

        What does not fit was said by somebody else, by another model for instance.
        """
        self._go_on()
        if turn.interrupted:
            if self._words.startswith(text):
                self._words, self._thinking = self._words[len(text) :], ""
                self._cut = (self._cut or bool(text.strip())) and not _ends(text)
            return
        left = self._left()
        if [made.tool for made in turn.uses] != [use.tool for _, use in left]:
            return
        for (place, _), made in zip(left, turn.uses, strict=True):
            if not (self._line.again and made.problem.startswith(NOT_EXECUTED)):
                self._made[place] = made
        self._words, self._thinking, self._cut = "", "", False
        if not self._left():
            self._came = tuple(self._made[place] for place in range(len(self._line.uses)))
            self._due = True

    def _go_on(self) -> None:
        if not self._due:
            return
        self._due, self._made = False, {}
        try:
            came = self._came
            self._line = next(self._script) if came is None else self._script.send(came)
        except StopIteration as end:
            self._over, self.closing, self._line = True, end.value, Line("")
        self._words, self._thinking = self._line.text, self._line.thinking

    def _left(self) -> list[tuple[int, Use]]:
        return [(n, use) for n, use in enumerate(self._line.uses) if n not in self._made]


class _Stage:
    """The scripts that are being played; the last one speaks."""

    def __init__(self, play: Play) -> None:
        self._play = play
        self._parts: list[_Part] = []
        self._prefix = ""  # what the runtime puts before the next reply
        self._held = False

    @property
    def line(self) -> Line:
        """What comes next."""
        return self._parts[-1].line if self._parts else Line("There is nothing to do.")

    def hear(self, turn: Turn) -> None:
        """Take note of one turn."""
        match turn.role, turn.kind:
            case "user", "message":
                self._parts.append(_Part(self._play.asked(turn.text), framed=self._held))
                self._held = False
            case "user", _ if not self._parts:
                self._parts.append(_Part(self._play.begin(turn.text)))
            case "user", _:
                self._redirect(turn.text)
            case "assistant", "person":
                self._first(f"I have read what {turn.by} wrote.")
            case "assistant", _:
                self._said(turn)
            case "runtime", _:
                self._told(turn)

    def _said(self, turn: Turn) -> None:
        text = turn.text
        if self._prefix:
            text, self._prefix = text.removeprefix(self._prefix).removeprefix("\n\n"), ""
        if not self._parts:
            return
        self._parts[-1].hear(turn, text)
        while len(self._parts) > 1 and self._parts[-1].over and not self._parts[-1].framed:
            over = self._parts.pop()
            self._first(over.closing)

    def _told(self, turn: Turn) -> None:
        match turn.kind:
            case "held":
                self._held, self._prefix = True, ""
            case "back":
                self._prefix = turn.text
                while len(self._parts) > 1:
                    if self._parts.pop().framed:
                        break
                if self._parts:
                    self._parts[-1].come_back()
            case "dropped":
                self._prefix = f"{self._prefix} {turn.text}".strip()
                self._drop()
            case _:
                return

    def _drop(self) -> None:
        """Forget what was held below the side question that is being answered."""
        framed = [n for n, part in enumerate(self._parts) if part.framed]
        if framed:
            del self._parts[framed[-1] - 1]
            self._parts[framed[-1] - 1].framed = False

    def _redirect(self, text: str) -> None:
        course = self._play.redirected(text)
        aside = [n for n, part in enumerate(self._parts) if part.framed and not part.over]
        above = aside[0] if aside else len(self._parts)  # a side question is answered first
        if course.instead is not None:
            self._parts[:above] = [_Part(course.instead)]
        elif course.detour is not None:
            self._parts.insert(above, _Part(course.detour))
        if aside:
            self._first(f"I come to that when I am back: {text.rstrip('.')}.")
        else:
            self._first(course.words)

    def _first(self, words: str) -> None:
        if words and self._parts:
            self._parts[-1].say_first(words)


def _ends(text: str) -> bool:
    """Tell whether a sentence is over here."""
    return text.rstrip().endswith((".", "!", "?", ":"))
