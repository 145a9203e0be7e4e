"""The agents of the demo: the researcher and its fact checker, scripted or on a real model."""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from midrun.agents.agent import Agent
from midrun.agents.builtin_tools import ask_human
from midrun.demo.analysis import find_themes
from midrun.demo.files import DemoFiles
from midrun.demo.interruptions import ResearcherScript, list_hits
from midrun.demo.model import DemoModel, Pace
from midrun.demo.notes import best_sentences, load_library, read_note, search_library
from midrun.demo.script import AgentScripts, InstructionEffect, ScriptLine, Steps
from midrun.demo.texts import TEXTS
from midrun.models.scripted import MODEL_NAME, Use
from midrun.ports.model import Model
from midrun.stops import MaxSteps, MaxTokens

AGENT_NAME: Final = "researcher"
SCRIPTED_MODEL: Final = MODEL_NAME
NATURAL_PACE: Final = Pace()
ANALYSIS_ROUNDS: Final = 150  # at normal speed; they take some seconds
ANALYSIS_MIN_ROUNDS: Final = 8
STOP_CONDITION: Final = MaxSteps(120) | MaxTokens(400_000)
MODEL_BY_API_KEY: Final = {  # small models: the user pays for them
    "ANTHROPIC_API_KEY": ("anthropic", "anthropic:claude-haiku-5-5"),
    "OPENAI_API_KEY": ("openai", "openai:gpt-5.4-mini"),
}


class FactCheckerScript:
    """The script of the fact checker, a child run: it looks up claims one by one."""

    def __init__(self) -> None:
        self._remarks: list[str] = []

    def begin(self, task: str) -> Steps:
        """Check the claims that the task lists."""
        claims = re.findall(r"^- (.+)$", task, re.MULTILINE)
        holding, said = 0, "I look each of them up."
        for number, claim in enumerate(claims, 1):
            words = f"{said} Claim {number} of {len(claims)}: {claim}."
            (made,) = yield ScriptLine(words, (Use("search_library", query=claim),))
            holds, said = _check_claim(claim, next(iter(list_hits(made.result)), ""))
            holding += holds
            self._remarks.append(said)
        wrong = [remark for remark in self._remarks if remark.startswith("Wrong")]
        end = " ".join(wrong) or "There is nothing to correct."
        yield ScriptLine(f"{said} {holding} of {len(claims)} claims hold. {end}")

    def react_to_instruction(self, text: str) -> InstructionEffect:
        """Acknowledge an instruction and go on: the checker has only one task."""
        return InstructionEffect(words=f"Noted: {text.rstrip('.')}. I finish the check.")

    def answer_side_question(self, text: str) -> Steps:
        """Report the findings so far."""
        del text
        yield ScriptLine(" ".join(self._remarks) or "I have not found anything yet.")


def _check_claim(claim: str, name: str) -> tuple[bool, str]:
    """Compare the figures of a claim with the note's closest sentence."""
    note = load_library().get(name)
    if note is None:
        return False, "Nothing in the library says so."
    (sentence,) = best_sentences(note, claim, 1)
    claimed, found = (set(re.findall(r"\d+(?:[.,]\d+)*", text)) for text in (claim, sentence))
    if claimed <= found:
        return True, f"That holds, see “{note.title}”."
    return False, f"Wrong: the note “{note.title}” says: {sentence}"


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
        instructions=TEXTS.fact_checker_instructions,
        tools=[search_library, read_note],
    )
    check = replace(
        checker.as_tool("check_facts", "Have a colleague check claims against the library."),
        title="Have the figures checked",
    )
    return Agent(
        AGENT_NAME,
        model=_build_model(model, pace, lambda: ResearcherScript(rounds=rounds)),
        instructions=TEXTS.instructions,
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
            problem = f"{key} is set, but midrun[{package}] is not installed"
            return SCRIPTED_MODEL, f"a script: {problem}"
        return name, f"{name}, because {key} is set; --model scripted spends nothing"
    return SCRIPTED_MODEL, "a script, without an API key; it reacts to your texts"


def _build_model(
    name: str, pace: Pace, make_scripts: Callable[[], AgentScripts]
) -> str | Model:
    return DemoModel(make_scripts, pace) if name == SCRIPTED_MODEL else name
