"""Format actors, calls, values, durations and lists as parts of a sentence."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, Literal, NamedTuple, TypeAlias

from midrun.core.entries import RequestEntry
from midrun.core.evolve.calls import get_call
from midrun.core.ids import MICROS_PER_SECOND, Micros, make_child_id
from midrun.core.journaled_text import quote_title
from midrun.core.state import CallState, State
from midrun.core.values import Actor, FileRef, Json, RequestedCall, Value

RUN_SUBJECT: Final = "the run"
AGENT_SUBJECT: Final = "the agent"
SYSTEM_ACTOR_PREFIX: Final = "system:"

QUOTE_MAX_CHARS: Final = 400
"""Maximum length of a quoted text or of arguments. The journal has the full text."""

PREVIEW_MAX_CHARS: Final = 160
"""Maximum length of the beginning of an answer in a list of runs."""

RESULT_MAX_CHARS: Final = 160
"""Maximum length of a tool's result. The agent reads all of it; people need an impression."""

BUILT_IN_TOOL_ARGS: Final[Mapping[str, frozenset[str]]] = {
    "plan": frozenset({"items", "marks"}),
    "ask_human": frozenset({"question", "options"}),
}
"""Built-in tool → its argument names.

The entries `PlanMade` and `AskOpened` describe calls of these tools. A user's tool of the same
name has other arguments and is described like any tool.
"""

QUOTATION_MARKS: Final = '"“”„‟«»‹›〝〞＂'  # noqa: RUF001 - look-alikes on purpose
"""The straight mark, then others that could end a quotation or look like its end."""

_EMPHASIS_PATTERN: Final = re.compile(r"\*([^*\n]+)\*")
# `str(stop)` is journaled with the entry: "at most 1 steps or the agent says 'FIN'". These two
# patterns correct the plural and the quotes when a condition is displayed.
_SINGULAR_PATTERN: Final = re.compile(r"(at most 1 [a-z ]+?)s(?= or | and |\)|$)")
# In the programming interface a turn of the agent is a step.
_STEPS_PATTERN: Final = re.compile(r"(at most \d+ )step(s?)(?= or | and |\)|$)")
_MENTION_PATTERN: Final = re.compile(r"(the agent says )['\"](.*?)['\"](?= or | and |\)|$)")
# All backslashes before a mark or the end, at once: a long run of them is searched only once.
_MARK_PATTERN: Final = re.compile(rf"(?<!\\)(\\*+)([{QUOTATION_MARKS}]|\Z)")
# A quotation is matched as a whole, so that a number inside it stays as it was written.
_LARGE_NUMBER_PATTERN: Final = re.compile(r"“[^”]*”|(?<![\w.$])(\d{5,15})(?![\w.])")
_HEADING_PATTERN: Final = re.compile(r"^ {0,3}#{1,6}[ \t].*\n?", re.MULTILINE)
# Marks at the start of a line (heading, list, quotation, fence, table row), and of emphasis.
_MARKDOWN_PATTERN: Final = re.compile(
    r"^[ \t]*(?:#{1,6}[ \t]|[-*+>][ \t]|```\w*$|\|[-:| \t]*$|\|)|\*\*|`", re.MULTILINE
)
_LINK_PATTERN: Final = re.compile(r"!?\[([^\[\]\n]{1,200})\]\([^()\s]{1,400}\)")
_PLAIN_NAME_PATTERN: Final = re.compile(r"[\w.\-]+")
_DURATION_UNITS: Final = ((86_400, "day"), (3_600, "hour"), (60, "minute"))


Tone = Literal[
    "work", "good", "bad", "person", "go", "hold", "wait", "stop", "undo", "quiet", "detail"
]
"""The character of an entry, from which page and terminal choose a colour and an icon.

`work`: a call starts; `good` and `bad`: it succeeded or failed; `person`: a person said or did
something; `go`: the run continues; `hold`: it pauses; `wait`: a person must decide; `stop`: it
is cancelled or halted; `undo`: an effect is taken back; `quiet`: a minor change; `detail`:
bookkeeping, or a fact that other entries show better. A live view may leave `detail` out.
"""

SHORT_MAX_CHARS: Final = 160
"""Maximum length of the short form of an entry."""


class EntryText(Value, kw_only=True):
    """The text of one entry, the same on every surface.

    Attributes:
        who: The subject: an actor, "the run", "the agent", or a call.
        sentence: The whole sentence. It begins with `who`.
        short: The short form without its subject: "asked the run to pause".
        tone: The character of the entry; each surface has a colour for it.
    """

    who: str
    sentence: str
    short: str
    tone: Tone

    def __str__(self) -> str:
        return self.sentence


class Clause(NamedTuple):
    """The parts of an entry's text. Without a tone, it has the tone of its kind of entry."""

    who: str
    short: str
    more: str = ""  # the end of the sentence, which the short form leaves out
    tone: Tone | None = None


DescribeFunction: TypeAlias = Callable[..., Clause]  # type: ignore[explicit-any]  # as `state.EvolveFunctions`
DescribeFunctions: TypeAlias = Mapping[type, tuple[Tone, DescribeFunction]]
"""Kind of entry → its usual tone, and the function that describes it."""


def format_actor(actor: str) -> str:
    """Return an actor as the subject of a sentence."""
    run = actor.removeprefix("run:")
    if run != actor:
        return f"the parent {format_run(run)}"
    return "the user" if actor == Actor().name else actor or "an unnamed user"


def format_run(run: str) -> str:
    """Return the id of a run, prefixed with "run" if it does not start so."""
    return run if run.startswith("run") else f"run {run}"


def describe_request(
    entry: RequestEntry, short: str, more: str = "", tone: Tone | None = None
) -> Clause:
    """Describe a request by its actor, with the reason that was given at the end."""
    return Clause(format_actor(entry.by), short, f"{more}{format_reason(entry.reason)}", tone)


def is_automatic(actor: str) -> bool:
    """Tell whether an entry came from a timer or from the run itself."""
    return not actor or actor == f"{SYSTEM_ACTOR_PREFIX}clock"


def flatten(text: str, max_chars: int = QUOTE_MAX_CHARS) -> str:
    """Return `text` as one line, cut to `max_chars` characters."""
    text = " ".join(text.split())
    return text if len(text) <= max_chars else text[: max_chars - 1].rstrip() + "…"


def quote(text: str, max_chars: int = QUOTE_MAX_CHARS) -> str:
    """Return `text` in quotation marks, or "nothing" if it is empty."""
    said = flatten(text, max_chars)
    return f"“{said}”" if said else "nothing"


def format_files(files: Sequence[FileRef]) -> str:
    """Return the files of a text for the end of its sentence; "" if there are none."""
    if len(files) == 1:
        return f", with the file {quote(files[0].name)}"
    return f", with {len(files)} files" if files else ""


def quote_markdown(text: str) -> str:
    """Return a text of the agent in quotation marks, on one line, without marks of Markdown."""
    return quote(_strip_markdown(text[: QUOTE_MAX_CHARS * 20]))


def _strip_markdown(text: str) -> str:
    return strip_emphasis(_LINK_PATTERN.sub(r"\1", _MARKDOWN_PATTERN.sub("", text)))


def preview_output(output: str, value: Json = None) -> str:
    """Return the first paragraph of an answer as one line, without marks of Markdown.

    Headings are left out, unless there is nothing else. An answer with fields is a `value`; it
    is returned field by field.
    """
    if isinstance(value, dict | list):
        return quote_value(value, PREVIEW_MAX_CHARS).removeprefix("(").removesuffix(")")
    beginning = output[: PREVIEW_MAX_CHARS * 20]
    paragraphs = _HEADING_PATTERN.sub("\n", beginning).strip().split("\n\n", 1)
    return flatten(_strip_markdown(paragraphs[0] or beginning), PREVIEW_MAX_CHARS)


def strip_emphasis(text: str) -> str:
    """Remove the asterisks of emphasis from a text of the runtime."""
    return _EMPHASIS_PATTERN.sub(r"\1", text)


def format_value(value: Json, max_chars: int = QUOTE_MAX_CHARS) -> str:
    """Return a value for people, cut to `max_chars` characters.

    A text is returned as it is; inside of lists and objects, texts are in quotation marks.
    """
    if isinstance(value, str):
        return flatten(value, max_chars)
    text = ""
    for piece in _iter_pieces(value):  # of a value of megabytes only the beginning is needed
        text += piece
        if len(text) > max_chars:
            break
    return flatten(text, max_chars)


def _iter_pieces(value: Json) -> Iterator[str]:
    """Yield a value piece by piece: objects name by name, lists and objects in brackets."""
    match value:
        case _ if is_empty(value):
            yield "nothing"
        case str():
            yield _quote_exactly(value)
        case bool():
            yield "yes" if value else "no"
        case list():
            for number, item in enumerate(value):
                yield ", " if number else "("
                yield from _iter_pieces(item)
            yield ")"
        case dict():
            for number, (name, item) in enumerate(value.items()):
                yield f"{', ' if number else '('}{_format_name(name)}: "
                yield from _iter_pieces(item)
            yield ")"
        case _:
            yield str(value)


def quote_value(value: Json, max_chars: int = QUOTE_MAX_CHARS) -> str:
    """Return an answer or a result: a string quoted, an object name by name."""
    if isinstance(value, str):
        return quote(value, max_chars)
    if is_empty(value):
        return "nothing"
    if isinstance(value, list) and any(isinstance(item, dict) for item in value):
        return format_count(len(value), "item")  # records on one line cannot be read
    return (
        format_arguments(value, max_chars).strip()
        if isinstance(value, dict)
        else format_value(value, max_chars)
    )


def is_empty(value: Json) -> bool:
    """Tell whether a value is None or an empty string, list or object.

    0 and False are not empty: they are answers.
    """
    return value is None or (isinstance(value, str | list | dict) and not value)


def format_arguments(args: Json, max_chars: int = QUOTE_MAX_CHARS) -> str:
    """Return the arguments of a call in brackets, or "" without arguments.

    Every text is in quotation marks, and marks inside it are escaped, so that the value
    "ada, cc: bob" cannot be read as two arguments.
    """
    if is_empty(args):
        return ""
    if isinstance(args, dict):
        said = ", ".join(
            f"{_format_name(name)}: {_format_argument(value, max_chars)}"
            for name, value in args.items()
        )
        return f" ({flatten(said, max_chars)})"
    return f" ({flatten(_format_argument(args, max_chars), max_chars)})"


def list_field_lines(value: Json, *, name: str = "") -> list[str]:
    """Return a value as indented lines: one per field of an object or item of a list.

    The further lines of a text have a bar before them, so that no text looks like a field.
    """
    head = f"{_format_name(name)}: " if name else ""
    if isinstance(value, str):
        first, *rest = value.split("\n")
        return [f"{head}{first}", *(f"  │ {line}" for line in rest)]
    if isinstance(value, dict) and value:
        fields = [line for key in value for line in list_field_lines(value[key], name=key)]
        return [f"{head}".rstrip(), *(f"  {line}" for line in fields)] if name else fields
    if isinstance(value, list) and value:
        items = [line for item in value for line in _list_item_lines(item)]
        return [f"{head}".rstrip(), *(f"  {line}" for line in items)] if name else items
    return [f"{head}{format_value(value)}"]


def _list_item_lines(item: Json) -> list[str]:
    first, *rest = list_field_lines(item)
    return [f"- {first}", *(f"  {line}" for line in rest)]


def _format_name(name: str) -> str:
    if not _PLAIN_NAME_PATTERN.fullmatch(name):
        return _quote_exactly(name)
    return name.strip("_").replace("_", " ") or name


def _format_argument(value: Json, max_chars: int) -> str:
    said = "" if is_empty(value) else format_value(value, max_chars)
    if not said:
        return "nothing"
    return _quote_exactly(said) if isinstance(value, str) else said


def _quote_exactly(text: str) -> str:
    """Return `text` in quotation marks, with a backslash before each mark inside it.

    Backslashes before a mark, and at the end, are doubled. So no text looks like two.
    """
    return f"“{_MARK_PATTERN.sub(_escape_mark, text)}”"


def _escape_mark(found: re.Match[str]) -> str:
    slashes, mark = found[1], found[2]
    return f"{slashes * 2}\\{mark}" if mark else slashes * 2


def format_condition(stop: str) -> str:
    """Return a journaled stop condition in the words and with the quotes of people."""
    stop = _STEPS_PATTERN.sub(r"\1turn\2", _SINGULAR_PATTERN.sub(r"\1", stop))
    stop = _MENTION_PATTERN.sub(r"\1“\2”", stop)
    return _LARGE_NUMBER_PATTERN.sub(
        lambda found: f"{int(found[1]):,}" if found[1] else found[0], stop
    )


def format_error(error: str) -> str:
    """Return the text of an error, or a note that there is none."""
    return flatten(error) or "no reason was given"


def format_reason(reason: str) -> str:
    """Return a reason as the end of a sentence, or ""."""
    return f", because: {flatten(reason)}" if reason.strip() else ""


def join_names(names: Iterable[str]) -> str:
    """Join names: "a", "a and b", "a, b and c"."""
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last


def format_count(number: int, one: str, many: str = "") -> str:
    """Return a number with its noun: "1 turn", "3 turns"."""
    return f"{number} {one if number == 1 else many or f'{one}s'}"


def format_duration(micros: int) -> str:
    """Return a duration in its largest unit: "2 hours", "less than a second"."""
    seconds = max(0, micros) / MICROS_PER_SECOND
    for size, unit in _DURATION_UNITS:
        if seconds >= size:
            return format_count(round(seconds / size), unit)
    if 0 < seconds < 1:
        return "less than a second"
    return format_count(round(seconds), "second")


def format_time_until(state: State, at: Micros) -> str:
    """Return the duration from the newest entry to `at`."""
    return format_duration(at - state.at)


# ── calls ─────────────────────────────────────────────────────────────────────────────────


def format_call(state: State, call_id: str) -> str:
    """Return the name of a call: its title in quotation marks, or the name of its tool.

    The latter is "draft", "draft #2" or "draft #2 of turn 1": the number is added if its turn
    has several calls of the same tool, the turn if a later turn has begun. A model call is
    "the agent".
    """
    call = get_call(state, call_id)
    if call.call_kind == "model":
        return format_agent(state, call.agent)
    return f"{_format_tool_in_step(state, call)}{_format_step_suffix(state, call)}"


def _format_tool_in_step(state: State, call: CallState) -> str:
    if call.use.title:
        return quote_title(call.use.title)
    # A hosted agent has no steps: its calls come one by one. Number them over the whole run.
    if state.run_started.hosted:
        return f"{call.use.tool} #{call.number}"
    alike = [
        one.number for one in _iter_calls_of_step(state, call) if one.use.tool == call.use.tool
    ]
    if len(alike) == 1:
        return call.use.tool
    return f"{call.use.tool} #{alike.index(call.number) + 1}"


def _format_step_suffix(state: State, call: CallState) -> str:
    return f" of turn {call.step}" if 0 < call.step < state.meter.steps else ""


def _iter_calls_of_step(state: State, call: CallState) -> Iterable[CallState]:
    """Yield the tool calls of the same step: they have consecutive numbers."""
    # A model call separates the steps, so the calls of a step are neighbours. Walk back to the
    # first and then forward, instead of scanning all calls of the run.
    first = call.number
    while first > 1 and _is_in_step(state.calls[first - 2], call):
        first -= 1
    for number in range(first, len(state.calls) + 1):
        if not _is_in_step(one := state.calls[number - 1], call):
            return
        yield one


def _is_in_step(other: CallState, call: CallState) -> bool:
    return other.step == call.step and other.call_kind != "model"


def format_caller(call: CallState, state: State) -> str:
    """Return the subject of a call: the agent, or the person who has taken over."""
    return (
        format_actor(state.taken_over_by)
        if call.requested_by_operator and state.taken_over_by
        else format_agent(state, call.agent)
    )


def format_agent(state: State, name: str) -> str:
    """Return "the agent"; in a run with handoffs, with its name.

    `name` is empty for the agent of the run.
    """
    if not state.run_started.handoffs:
        return AGENT_SUBJECT
    return f"{AGENT_SUBJECT} {name or state.run_started.agent}"


def format_child_run(state: State, call: CallState) -> str:
    """Return the child run of a call: "child run_1"."""
    return f"child {format_run(make_child_id(state.run, call.id))}"


def format_child_call(state: State, call: CallState) -> str:
    """Return the name of a child call with its run: "aide (child run_1)"."""
    return f"{format_call(state, call.id)} ({format_child_run(state, call)})"


def is_described_elsewhere(use: RequestedCall) -> bool:
    """Tell whether other entries describe this call: a plan, or a question to a person."""
    ours = BUILT_IN_TOOL_ARGS.get(use.tool)
    return ours is not None and isinstance(use.args, dict) and use.args.keys() <= ours
