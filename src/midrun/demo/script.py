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
from typing import Final, Protocol, TypeAlias

from midrun.core.ids import CallId
from midrun.core.transcript import CallResult, Turn
from midrun.models.scripted import Thinking, Use

NOT_EXECUTED_PREFIX: Final = "not executed"  # the problem of a call that a redirect prevented
STOPPED_PREFIX: Final = "stopped midway"  # the problem of a call that a redirect interrupted
CONTINUATION_PREFIX: Final = "… "  # before the rest of a sentence that was interrupted


@dataclass(frozen=True)
class ScriptLine:
    """One reply: thinking, text and calls. Without calls it is the final answer."""

    text: str
    uses: tuple[Use, ...] = ()
    thinking: str = ""
    retry_unmade_calls: bool = True  # request calls again that a redirect prevented

    def to_turn(self) -> list[str | Use]:
        """Return the line as a turn of a `ScriptedModel`."""
        return [Thinking(self.thinking), self.text, *self.uses]


Steps: TypeAlias = Generator[ScriptLine, tuple[CallResult, ...], None]
"""Yields lines, and receives the results of their calls."""

Script: TypeAlias = Generator[ScriptLine, tuple[CallResult, ...], str | None]
"""Steps that may return words that lead back."""


@dataclass(frozen=True)
class InstructionEffect:
    """The effect of an instruction: `words`, then a detour, or a script instead of all."""

    words: str = ""
    detour: Script | None = None
    instead: Script | None = None
    dropped_tools: frozenset[str] = frozenset()  # calls of the current line not to be made


class AgentScripts(Protocol):
    """The scripts of one agent, which share their state."""

    def begin(self, task: str) -> Script:
        """Return the script for a task."""
        ...

    def react_to_instruction(self, text: str) -> InstructionEffect:
        """Return the effect of an instruction."""
        ...

    def answer_side_question(self, text: str) -> Script:
        """Return the script that answers a side question."""
        ...


def find_next_line(scripts: AgentScripts, transcript: Iterable[Turn]) -> ScriptLine:
    """Return the next line of `scripts` after `transcript`."""
    stage = _ScriptStack(scripts)
    for turn in transcript:
        stage.add_turn(turn)
    return stage.line


class _RunningScript:
    """A script in progress: its current line, and the part that is still to be streamed.

    The generator is advanced lazily, when its next line is read: instructions that come before
    that can still change it.
    """

    def __init__(self, script: Script, *, is_side_question: bool = False) -> None:
        self.is_side_question = is_side_question
        self.closing = ""
        self._script = script
        self._is_finished = False
        self._last_results: tuple[CallResult, ...] | None = None  # of the last line
        self._must_advance = True
        self._line = ScriptLine("")
        self._words_left = self._thinking_left = ""
        self._is_interrupted = False
        self._made: dict[int, CallResult] = {}

    @property
    def is_finished(self) -> bool:
        """True if all lines of the script were said."""
        self._advance()
        return self._is_finished

    @property
    def line(self) -> ScriptLine:
        """The rest of the current line."""
        self._advance()
        uses = tuple(use for _, use in self._calls_left())
        return ScriptLine(
            self._words_left or ("" if uses else "That is all."), uses, self._thinking_left
        )

    def prepend_words(self, words: str) -> None:
        """Insert words before the next line."""
        self.mark_continuation()
        self._words_left = f"{words.strip()} {self._words_left}"

    def mark_continuation(self) -> None:
        """Put an ellipsis before the rest of an interrupted sentence."""
        self._advance()
        if self._is_interrupted:
            self._words_left = f"{CONTINUATION_PREFIX}{self._words_left}"
            self._is_interrupted = False

    def drop_calls(self, tools: frozenset[str]) -> None:
        """Leave out the calls of these tools, and the words that announce them."""
        self._advance()
        dropped = [(place, use) for place, use in self._calls_left() if use.tool in tools]
        for place, use in dropped:
            problem = f"{NOT_EXECUTED_PREFIX}: as the user asked"
            self._made[place] = CallResult(call=CallId(""), tool=use.tool, problem=problem)
        if dropped:
            self._words_left, self._thinking_left, self._is_interrupted = "", "", False
            self._finish_line()

    def match_turn(self, turn: Turn, text: str) -> None:
        """Match a turn of the transcript with the current line.

        If the whole line was said, the next one becomes due. A turn that does not match comes
        from another source, such as another model, and is ignored.
        """
        self._advance()
        if turn.interrupted:
            if self._words_left.startswith(text):
                self._words_left, self._thinking_left = self._words_left[len(text) :], ""
                said = self._is_interrupted or bool(text.strip())
                ends_sentence = text.rstrip().endswith((".", "!", "?", ":"))
                self._is_interrupted = said and not ends_sentence
            return
        left = self._calls_left()
        if [made.tool for made in turn.uses] != [use.tool for _, use in left]:
            return
        for (place, _), made in zip(left, turn.uses, strict=True):
            unmade = made.problem.startswith(NOT_EXECUTED_PREFIX)
            if not (unmade and self._line.retry_unmade_calls):
                self._made[place] = made
        self._words_left, self._thinking_left, self._is_interrupted = "", "", False
        self._finish_line()

    def _finish_line(self) -> None:
        if not self._calls_left():
            self._last_results = tuple(made for _, made in sorted(self._made.items()))
            self._must_advance = True

    def _advance(self) -> None:
        if not self._must_advance:
            return
        self._must_advance, self._made = False, {}
        try:
            results = self._last_results
            self._line = next(self._script) if results is None else self._script.send(results)
        except StopIteration as end:
            self._is_finished, self.closing, self._line = True, end.value or "", ScriptLine("")
        self._words_left, self._thinking_left = self._line.text, self._line.thinking

    def _calls_left(self) -> list[tuple[int, Use]]:
        return [(n, use) for n, use in enumerate(self._line.uses) if n not in self._made]


class _ScriptStack:
    """The stack of active scripts; the last one gives the next line."""

    def __init__(self, agent_scripts: AgentScripts) -> None:
        self._agent_scripts = agent_scripts
        self._running: list[_RunningScript] = []
        self._prefix = ""  # text that the runtime puts before the next reply
        self._next_suspends = False  # the next side question suspends the current topic

    @property
    def line(self) -> ScriptLine:
        """The next line."""
        return (
            self._running[-1].line if self._running else ScriptLine("There is nothing to do.")
        )

    def add_turn(self, turn: Turn) -> None:
        """Process one turn of the transcript."""
        match turn.role, turn.kind:
            case "user", "message":
                answer = self._agent_scripts.answer_side_question(turn.text)
                suspends, self._next_suspends = self._next_suspends, False
                self._running.append(_RunningScript(answer, is_side_question=suspends))
            case "user", _ if not self._running:
                self._running.append(_RunningScript(self._agent_scripts.begin(turn.text)))
            case "user", _:
                self._apply_instruction(turn.text)
            case "assistant", "person":
                self._prepend_words(f"I have read what {turn.by} wrote.")
            case "assistant", _:
                self._add_reply(turn)
            case "runtime", "held":
                self._next_suspends, self._prefix = True, ""
            case "runtime", "back":
                self._return_to_topic(turn.text)
            case "runtime", "dropped":
                self._prefix = f"{self._prefix} {turn.text}".strip()
                self._drop_held()
            case _:
                pass

    def _add_reply(self, turn: Turn) -> None:
        text = turn.text
        if self._prefix:
            text, self._prefix = text.removeprefix(self._prefix).removeprefix("\n\n"), ""
        if not self._running:
            return
        self._running[-1].match_turn(turn, text)
        while len(self._running) > 1:
            last = self._running[-1]
            if not last.is_finished or last.is_side_question:
                break
            self._running.pop()
            self._prepend_words(last.closing)

    def _return_to_topic(self, text: str) -> None:
        self._prefix = text
        while len(self._running) > 1:
            if self._running.pop().is_side_question:
                break
        if self._running:
            self._running[-1].mark_continuation()

    def _drop_held(self) -> None:
        """Remove the topic that is held below the current side question."""
        places = [n for n, part in enumerate(self._running) if part.is_side_question]
        if places:
            self._running[places[-1]].is_side_question = False
            del self._running[places[-1] - 1]

    def _apply_instruction(self, text: str) -> None:
        effect = self._agent_scripts.react_to_instruction(text)
        questions = [
            n
            for n, part in enumerate(self._running)
            if part.is_side_question and not part.is_finished
        ]
        above = (
            questions[0] if questions else len(self._running)
        )  # a question is answered first
        if effect.instead is not None:
            self._running[:above] = [_RunningScript(effect.instead)]
        elif effect.detour is not None:
            self._running.insert(above, _RunningScript(effect.detour))
        if effect.dropped_tools and not questions:
            self._running[-1].drop_calls(effect.dropped_tools)
        later = f"I come to that when I am back: {text.rstrip('.')}."
        self._prepend_words(later if questions else effect.words)

    def _prepend_words(self, words: str) -> None:
        if words and self._running:
            self._running[-1].prepend_words(words)
