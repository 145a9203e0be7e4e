"""Scripts: find the next line of the scripted model from the transcript alone.

A script is a generator. It yields a line and receives the results of the line's calls. Before
every reply the whole script is replayed against the transcript, so a pause, a crash or another
machine makes no difference. If a line was interrupted, the part that was streamed is removed,
and the rest comes next: the model continues in the middle of the sentence.

A stack holds the active scripts. A side question pushes a script, until the run returns to its
topic. An instruction inserts a script, replaces all, or only adds words before the next line.
"""

from collections.abc import Generator, Iterable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from midrun.core.transcript import Made, Turn
from midrun.models.scripted import Use

NOT_EXECUTED = "not executed"
"""Beginning of the problem text of a call that was not made because of a redirect."""

STOPPED = "stopped midway"
"""Beginning of the problem text of a call that was in flight at a redirect."""

GOING_ON = "… "
"""Text before the rest of a sentence that was interrupted."""


@dataclass(frozen=True)
class Line:
    """One reply: thinking, text and calls. Without calls it is the final answer."""

    text: str
    uses: tuple[Use, ...] = ()
    thinking: str = ""
    again: bool = True  # request calls once more that were not made because of a redirect


Script: TypeAlias = Generator[Line, tuple[Made, ...], str]
"""Yields lines, receives the results of their calls, returns words that lead back."""


@dataclass(frozen=True)
class Course:
    """The effect of an instruction: `words`, then a detour, or a script instead of all."""

    words: str = ""
    detour: Script | None = None
    instead: Script | None = None


class Play(Protocol):
    """The scripts of one agent, which share their state."""

    def begin(self, task: str) -> Script:
        """Return the script for a task."""
        ...

    def redirected(self, text: str) -> Course:
        """Return the effect of an instruction."""
        ...

    def asked(self, text: str) -> Script:
        """Return the script that answers a side question."""
        ...


def next_line(play: Play, transcript: Iterable[Turn]) -> Line:
    """Return the next line of `scripts` after `transcript`."""
    stage = _Stage(play)
    for turn in transcript:
        stage.hear(turn)
    return stage.line


class _Part:
    """A script in progress: its current line, and the part that is still to be streamed.

    The generator is advanced lazily, when its next line is read: instructions that come before
    that can still change it.
    """

    def __init__(self, script: Script, *, framed: bool = False) -> None:
        self.framed = framed
        self.closing = ""
        self._script = script
        self._over = False
        self._came: tuple[Made, ...] | None = None  # results of the last line; None at first
        self._due = True  # the generator must be advanced
        self._line = Line("")
        self._words = self._thinking = ""
        self._cut = False
        self._made: dict[int, Made] = {}

    @property
    def over(self) -> bool:
        """True if all lines of the script were said."""
        self._go_on()
        return self._over

    @property
    def line(self) -> Line:
        """The rest of the current line."""
        self._go_on()
        uses = tuple(use for _, use in self._left())
        return Line(self._words or ("" if uses else "That is all."), uses, self._thinking)

    def say_first(self, words: str) -> None:
        """Insert words before the next line."""
        self.come_back()
        self._words = f"{words.strip()} {self._words}"

    def come_back(self) -> None:
        """Put an ellipsis before the rest of an interrupted sentence."""
        self._go_on()
        if self._cut:
            self._words, self._cut = f"{GOING_ON}{self._words}", False

    def hear(self, turn: Turn, text: str) -> None:
        """Match a turn of the transcript with the current line.

        If the whole line was said, the next one becomes due. A turn that does not match comes
        from another source, such as another model, and is ignored.
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
    """The stack of active scripts; the last one gives the next line."""

    def __init__(self, play: Play) -> None:
        self._play = play
        self._parts: list[_Part] = []
        self._prefix = ""  # text that the runtime puts before the next reply
        self._held = False  # the next side question suspends the current topic

    @property
    def line(self) -> Line:
        """The next line."""
        return self._parts[-1].line if self._parts else Line("There is nothing to do.")

    def hear(self, turn: Turn) -> None:
        """Process one turn of the transcript."""
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
        """Remove the topic that is held below the current side question."""
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
    """Tell whether the text ends with the end of a sentence."""
    return text.rstrip().endswith((".", "!", "?", ":"))
