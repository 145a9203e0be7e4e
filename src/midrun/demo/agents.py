"""The agents of the demo: the researcher and its fact checker, scripted or on a real model."""

import re
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from midrun.agents.agent import Agent
from midrun.agents.builtin_tools import ask_human
from midrun.core.transcript import Transcript
from midrun.demo.analysis import find_themes
from midrun.demo.files import DemoFiles
from midrun.demo.interruptions import ResearcherScript
from midrun.demo.model import SCRIPTED_MODEL_NAME, DemoModel, Pace
from midrun.demo.notes import best_sentences, load_library, read_note, search_library
from midrun.demo.script import (
    AgentScripts,
    InstructionEffect,
    Script,
    ScriptLine,
    find_next_line,
)
from midrun.models.scripted import Use
from midrun.ports.model import Model
from midrun.stops import MaxSteps, MaxTokens

# The fact checker: a child run that looks up claims one by one and finds the wrong one.

_FIGURE_PATTERN = re.compile(r"\d+(?:[.,]\d+)*")


class FactCheckerScript:
    """The script of the fact checker."""

    def __init__(self) -> None:
        self._remarks: list[str] = []

    def begin(self, task: str) -> Script:
        """Check the claims that the task lists."""
        claims = re.findall(r"^- (.+)$", task, re.MULTILINE)
        holding, said = 0, "I look each of them up."
        for number, claim in enumerate(claims, 1):
            words = f"{said} Claim {number} of {len(claims)}: {claim}."
            made = yield ScriptLine(words, (Use("search_library", query=claim),))
            hits = made[0].result
            found = hits[0] if isinstance(hits, list) and hits else None
            name = str(found["name"]) if isinstance(found, dict) else ""
            holds, said = _check_claim(claim, name)
            holding += holds
            self._remarks.append(said)
        wrong = [remark for remark in self._remarks if remark.startswith("Wrong")]
        end = " ".join(wrong) or "There is nothing to correct."
        yield ScriptLine(f"{said} {holding} of {len(claims)} claims hold. {end}")
        return ""

    def react_to_instruction(self, text: str) -> InstructionEffect:
        """Acknowledge an instruction and go on: the checker has only one task."""
        return InstructionEffect(words=f"Noted: {text.rstrip('.')}. I finish the check.")

    def answer_side_question(self, text: str) -> Script:
        """Report the findings so far."""
        del text
        yield ScriptLine(" ".join(self._remarks) or "I have not found anything yet.")
        return ""


def _check_claim(claim: str, name: str) -> tuple[bool, str]:
    """Compare the figures of a claim with the note's closest sentence."""
    note = load_library().get(name)
    if note is None:
        return False, "Nothing in the library says so."
    (sentence,) = best_sentences(note, claim, 1)
    if set(_FIGURE_PATTERN.findall(claim)) <= set(_FIGURE_PATTERN.findall(sentence)):
        return True, f"That holds, see “{note.title}”."
    return False, f"Wrong: the note “{note.title}” says: {sentence}"


SCRIPTED_MODEL: Final = SCRIPTED_MODEL_NAME

AGENT_NAME: Final = "researcher"

ANALYSIS_ROUNDS: Final = 150
"""Rounds of the analysis at normal speed; they take some seconds."""

ANALYSIS_MIN_ROUNDS: Final = 8

STOP_CONDITION: Final = MaxSteps(120) | MaxTokens(400_000)

MODEL_BY_API_KEY: Final = {  # small models: the user pays for them
    "ANTHROPIC_API_KEY": ("anthropic", "anthropic:claude-haiku-5-5"),
    "OPENAI_API_KEY": ("openai", "openai:gpt-5.4-mini"),
}

INSTRUCTIONS: Final = """\
You write briefings for the council of Larkhaven, an invented town, from its library of notes.

Work in this order, and keep a plan with the `plan` tool that shows it:
lock the briefing; search the library and read the notes that matter, one at a time, with a
sentence or two on each; let `find_themes` look at all of them; ask the person with `ask_human`
what the briefing should put first (cost, shade or upkeep); write the briefing section by
section with `write_section`, and say each section as you write it; have the figures checked
with `check_facts`, and correct what was wrong; then mail it to clerk@larkhaven.example with
`send_mail`.

People interrupt you; that is what you are here to show. When you were cut off, go on from
there without repeating yourself. When you are given a new instruction, say in one sentence what
you change, and do it; told to sum up and stop, write a short summary section and end. Answer
side questions from the library, briefly. Use only what the notes say."""

FACT_CHECKER_INSTRUCTIONS: Final = """\
You check claims against the library of notes, one by one: search for each, read the note if you
must, and say whether it holds. End with how many hold, and quote the note for each that does
not."""


NATURAL_PACE: Final = Pace()


def build_researcher(
    folder: Path,
    *,
    model: str = SCRIPTED_MODEL,
    pace: Pace = NATURAL_PACE,
    rounds: int | None = None,
) -> Agent:
    """Return the researcher, whose files are in `folder`.

    `model` is "provider:model", or "scripted", which streams at `pace` and needs no key.
    `rounds` is the number of rounds of the analysis; by default it depends on the pace.
    """
    rounds = rounds or max(ANALYSIS_MIN_ROUNDS, round(ANALYSIS_ROUNDS / pace.speed))
    checker = Agent(
        "fact-checker",
        model=_build_model(model, pace, FactCheckerScript),
        instructions=FACT_CHECKER_INSTRUCTIONS,
        tools=[search_library, read_note],
    )
    check = checker.as_tool("check_facts", "Have a colleague check claims against the library.")
    return Agent(
        AGENT_NAME,
        model=_build_model(model, pace, lambda: ResearcherScript(rounds=rounds)),
        instructions=INSTRUCTIONS,
        tools=[
            search_library,
            read_note,
            find_themes,
            ask_human,
            *DemoFiles(folder).make_tools(),
            check,
        ],
        stop=STOP_CONDITION,
    )


def choose_model(environ: Mapping[str, str]) -> tuple[str, str]:
    """Choose a model by the API keys in the environment; return it with an explanation."""
    for key, (package, name) in MODEL_BY_API_KEY.items():
        if not environ.get(key):
            continue
        if find_spec("pydantic_ai") is None or find_spec(package) is None:
            return (
                SCRIPTED_MODEL,
                f"a script: {key} is set, but midrun[{package}] is not installed",
            )
        return name, f"{name}, because {key} is set; --model scripted spends nothing"
    return SCRIPTED_MODEL, "a script, without an API key; it reacts to your texts"


def _build_model(name: str, pace: Pace, play: Callable[[], AgentScripts]) -> str | Model:
    if name != SCRIPTED_MODEL:
        return name

    def find(transcript: Transcript) -> ScriptLine:
        return find_next_line(play(), transcript)

    return DemoModel(find, pace)
