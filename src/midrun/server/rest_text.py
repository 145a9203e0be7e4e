"""Describe a run at rest for clients that show only text, with the way to continue."""

import re
from collections.abc import Iterator
from typing import Final

import msgspec

from midrun.agents.outcome import AskView, make_ask_views
from midrun.core.ids import Seq
from midrun.core.state import State
from midrun.core.values import Json, Phase
from midrun.text.hidden_characters import show_hidden
from midrun.text.report import build_report
from midrun.text.status import describe_hold

PARAGRAPH_BREAK: Final = "\n\n"


def describe_rest(state: State, begins_at: Seq, base_url: str) -> str:
    """Return the text after the last reply of the agent: artifacts, and the way to continue.

    The artifacts are those since the entry `begins_at`, as links below `base_url`. A completed
    run without one has no such text: "".
    """
    links = _link_artifacts(state, begins_at, base_url)
    return PARAGRAPH_BREAK.join(filter(None, (links, _describe_phase(state))))


def _link_artifacts(state: State, begins_at: Seq, base_url: str) -> str:
    shown = {each.name: each for each in state.artifacts if each.seq >= begins_at}
    return "\n".join(
        f"- [{_escape(each.name)}]({base_url}/v1/runs/{state.run}/files/{each.file.hash})"
        for each in shown.values()
    )


def _escape(name: str) -> str:
    """Return a name as Markdown that shows its characters and has no other meaning."""
    return re.sub(r"([\\`*_{}\[\]()<>#!|&~])", r"\\\1", show_hidden(name))


def _describe_phase(state: State) -> str:
    match state.phase:
        case Phase.WAITING:
            return describe_asks(state)
        case Phase.PAUSED:
            return f"*{describe_hold(state)} The next message resumes the run.*"
        case Phase.HALTED:
            return f"*{describe_hold(state)}*"
        case Phase.CANCELLED:
            return str(build_report(state))
        case Phase.FAILED:
            return f"*{find_error(state)} The next message resumes the run.*"
        case _:
            return ""


def find_error(state: State) -> str:
    """Return the error of a failed run."""
    return state.error.error if state.error is not None else "The run has failed."


def format_arguments(args: Json) -> str:
    """Return the arguments of a call as JSON in one line."""
    return msgspec.json.encode({} if args is None else args).decode()


def describe_asks(state: State) -> str:
    """Return the open asks as Markdown, with all arguments and the words that decide."""
    return PARAGRAPH_BREAK.join(_describe_asks(make_ask_views(state)))


def _describe_asks(asks: tuple[AskView, ...]) -> Iterator[str]:
    """Yield a paragraph or more for each ask; several asks are told apart by their names."""
    for ask in asks:
        name = f" {ask.id}" if len(asks) > 1 else ""
        if ask.effective_kind == "approval":
            yield from _describe_approval(ask, name)
        elif ask.effective_kind == "unsure":
            yield f"**Unknown outcome:** {ask.title}. Did it happen?"
            words = "`yes`, `no` or `unknown`"
            yield f"*Reply `answer{name}` and {words}.*" if name else f"*Reply {words}.*"
        else:
            yield ask.question or ask.title
            yield f"*Reply `answer{name}` and your answer.*" if name else _NEXT_IS_ANSWER


_NEXT_IS_ANSWER: Final = "*The next message is the answer.*"


def _describe_approval(ask: AskView, name: str) -> Iterator[str]:
    yield f"**Approval needed:** {ask.question or ask.title}"
    # JSON is one line that begins with a bracket, so no argument can end the block.
    args = show_hidden(format_arguments(ask.args))
    yield f"```json\n{args}\n```"
    if ask.hidden:
        yield ask.hidden
    yield f"*Reply `approve{name}`, or `decline{name}` and a reason.*"
