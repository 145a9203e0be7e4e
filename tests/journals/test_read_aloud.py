"""Every entry of a journal has a sentence that a person understands without the code.

The `.aloud.txt` files beside the stored journals have the output of `midrun feed`. `python -m
tools.make_golden` writes them again; read the changes before you commit them.
"""

import re
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import get_args, get_type_hints

import pytest
from msgspec import Struct

from midrun.agents.builtin_tools import PLAN_TOOL, ask_human
from midrun.codec.journal import decode_lines
from midrun.core import driver_inputs as v
from midrun.core import entries as e
from midrun.core.entries import ENTRY_TYPES, Record, RequestEntry
from midrun.core.ids import MICROS_PER_SECOND, CallId, Epoch, Micros, Seq
from midrun.core.journaled_text import quote_title
from midrun.core.values import Json, Phase, RequestedCall
from midrun.testing.scenario import given
from midrun.text.entries import DESCRIBE_FUNCTIONS, JournalDescriber
from midrun.text.phrases import BUILT_IN_TOOL_ARGS, SHORT_MAX_CHARS, EntryText
from tests.support.simulate.setup import STRATEGIES, Strategy
from tests.support.simulate.simulation import Simulation
from tools.golden.aloud import read_aloud
from tools.golden.facts import RUN
from tools.golden.recorded import CONVERSATIONS

STORED = sorted(Path(__file__).parent.glob("*.jsonl"))
LINE = re.compile(r" *(\d+)  \d\d:\d\d:\d\d  (\S.*\S)")
DAY = re.compile(r"\d{4}-\d\d-\d\d")
REPR = re.compile(r"\w\(\w+=|<\w+[ .]|\b(None|True|False)\b|\{'|\['|Micros|Struct")
GAP = re.compile(r"“\s*”|\(\s*\)|\"\"|: *(?:[;,)]|$)|  |\s$|\{\}|\[\]")
SUBJECTS = re.compile(
    r"the (run|agent( \S+)?|agent's model( call)?|user|worker|parent \S+|check of .+)"
    r"|the stop condition \S+|a worker( that was lost)?|worker \S+|an unnamed user"
)


def read_journal(path: Path) -> list[Record]:
    """Return the records of a stored journal."""
    return decode_lines(RUN, path.read_bytes().splitlines())


def describe_records(records: Iterable[Record]) -> Iterator[tuple[Record, EntryText]]:
    """Yield each record of a journal with its sentence."""
    describer = JournalDescriber(RUN)
    for record in records:
        yield record, describer.describe_next(record.entry, record.at)


def list_code_names() -> set[str]:
    """Return names that only the code uses: of entry classes, their fields and values."""
    class_names = {entry.__name__ for entry in ENTRY_TYPES}
    names = set(class_names)
    todo: list[object] = list(ENTRY_TYPES)
    seen: set[object] = set()
    while todo:
        hint = todo.pop()
        if hint in seen:
            continue
        seen.add(hint)
        if isinstance(hint, str):  # a value of a `Literal`
            names.add(hint)
        elif isinstance(hint, type) and issubclass(hint, Struct):
            names |= set(hint.__struct_fields__)
            todo += get_type_hints(hint).values()
        todo += get_args(hint)
    # A field such as `text` is an English word as well. One with an underscore is not.
    return {name for name in names if "_" in name or name in class_names}


CODE_NAME = re.compile(rf"\b({'|'.join(sorted(list_code_names()))})\b")


def find_problems(record: Record, sentence: EntryText) -> list[str]:
    """Return the parts of a text that a person cannot understand."""
    patterns = (("a repr", REPR), ("a code name", CODE_NAME), ("a gap", GAP))
    return [
        f"{record.seq} {type(record.entry).__name__}: {why} in {text!r}"
        for text in (sentence.sentence, f"{sentence.who} {sentence.short}")
        for why, pattern in patterns
        if pattern.search(text)
    ]


def list_problems(records: Iterable[Record]) -> list[str]:
    """Return the problems of all sentences of a journal."""
    return [
        problem
        for record, sentence in describe_records(records)
        for problem in find_problems(record, sentence)
    ]


@pytest.mark.parametrize("path", STORED, ids=lambda path: str(path.stem))
def test_a_stored_journal_has_the_reviewed_text(path: Path) -> None:
    assert read_aloud(read_journal(path)) == path.with_suffix(".aloud.txt").read_text()


@pytest.mark.parametrize("path", STORED, ids=lambda path: str(path.stem))
def test_each_line_has_a_number_a_time_and_a_named_subject(path: Path) -> None:
    """The subject is a person, a tool, or a part of the run."""
    records = read_journal(path)
    uses = [use for record in records for use in list_requested_calls(record.entry)]
    answers = [r.entry.title for r in records if isinstance(r.entry, e.AskAnswered)]
    titles = {*(use.title for use in uses), *answers}
    tools = {*(use.tool for use in uses), *map(quote_title, titles)}
    people = {record.entry.by for record in records if isinstance(record.entry, RequestEntry)}
    lines = [line for line in read_aloud(records).splitlines() if not DAY.fullmatch(line)]
    assert len(lines) == len(records)
    for line, (record, sentence) in zip(lines, describe_records(records), strict=True):
        found = LINE.fullmatch(line)
        assert found is not None, line
        assert (int(found[1]), found[2]) == (record.seq, str(sentence))
        who = sentence.who
        named = who in people or re.split(r" [#(]| of turn ", who)[0] in tools
        assert named or SUBJECTS.fullmatch(who), line


def list_requested_calls(entry: e.Entry) -> tuple[RequestedCall, ...]:
    if isinstance(entry, e.CallDone) and entry.reply is not None:
        return entry.reply.uses
    return (entry.use,) if isinstance(entry, e.CallProposed) else ()


@pytest.mark.parametrize("path", STORED, ids=lambda path: str(path.stem))
def test_no_line_has_a_code_name_or_a_gap(path: Path) -> None:
    """No repr, no name of a field or an entry, no empty quotation."""
    assert list_problems(read_journal(path)) == []


@pytest.mark.parametrize(
    "what",
    [
        "met MaxSteps(n=3)",
        "returned None",
        "met {'a': 1}",
        "is at PauseRequested",
        "tries again, retry_at 5",
        "undid in_flight",
        "said “”",
        "called look ()",
        "failed: ",
    ],
)
def test_the_check_finds_a_planted_problem(what: str) -> None:
    """Without this, a pattern that matches nothing would pass all tests above."""
    record = read_journal(STORED[0])[0]
    assert find_problems(record, make_text(what)) != []
    assert find_problems(record, make_text("is paused")) == []


def make_text(what: str) -> EntryText:
    """Return a text whose sentence is its short form."""
    return EntryText(who="the run", sentence=f"the run {what}", short=what, tone="detail")


@pytest.mark.parametrize("path", STORED, ids=lambda path: str(path.stem))
def test_the_short_form_is_the_beginning_of_the_sentence(path: Path) -> None:
    """There is one wording of an entry; a long short form is cut."""
    for _, text in describe_records(read_journal(path)):
        assert text.sentence.startswith(f"{text.who} {text.short.removesuffix('…')}")
        assert len(text.short) <= SHORT_MAX_CHARS


@pytest.mark.parametrize("path", STORED, ids=lambda path: str(path.stem))
def test_no_two_lines_in_a_row_say_the_same(path: Path) -> None:
    """A reader of the same sentence twice would look for a second event."""
    sentences = [str(sentence) for _, sentence in describe_records(read_journal(path))]
    assert [first for first, second in pairwise(sentences) if first == second] == []


def test_every_entry_class_has_a_describe_function() -> None:
    assert DESCRIBE_FUNCTIONS.keys() == set(ENTRY_TYPES)


def test_empty_values_leave_no_gap_in_a_sentence() -> None:
    """A task, an argument, a result or an error text may be empty."""
    begun = given(e.RunStarted(agent="clerk", task=" "), e.LeaseTaken(epoch=Epoch(1)))
    empty: tuple[Json, ...] = (None, "", {}, [], " ", False, 0)
    run = begun.replies(*(RequestedCall(tool="look", args={"to": value}) for value in empty))
    for number, value in enumerate(empty, 2):
        call = CallId(f"c{number}")
        done = e.CallDone(call=call, result=value)
        run = run.starts(call).after(v.CloseCall(epoch=Epoch(1), outcome=done))
    run = run.replies(
        RequestedCall(tool="look", args={}), RequestedCall(tool="look", args=[]), text=" "
    )
    for number in (len(empty) + 3, len(empty) + 4):
        failed = e.CallFailed(call=CallId(f"c{number}"), error="")
        run = run.starts(f"c{number}").after(v.CloseCall(epoch=Epoch(1), outcome=failed))
    run = run.replies().advances()
    assert (list_problems(run.records), run.state.phase) == ([], Phase.COMPLETED)
    sentences = [str(sentence) for _, sentence in describe_records(run.records)]
    assert (
        sentences[0] == "an unnamed user started the run: nothing (run_1 with the agent clerk)"
    )
    assert sentences[-1] == "the run completed without an answer"


def test_the_texts_know_the_arguments_of_the_built_in_tools() -> None:
    """`text` may not import `agents`, so it has a second list of names and arguments."""
    for tool in (PLAN_TOOL, ask_human):
        arguments = tool.schema["properties"]
        assert isinstance(arguments, dict)
        assert BUILT_IN_TOOL_ARGS[tool.name] == arguments.keys()
    assert len(BUILT_IN_TOOL_ARGS) == 2


def test_the_conversations_of_the_examples_are_stored() -> None:
    """The real driver made these journals; the others come from `core` alone."""
    assert CONVERSATIONS.keys() <= {path.stem for path in STORED}
    assert all(path.with_suffix(".aloud.txt").exists() for path in STORED)


REQUESTS = (e.PauseRequested, e.RedirectRequested, e.CancelRequested)
EFFECTS = (e.RunPaused, e.RedirectApplied, e.RunCancelled)


def test_the_sentences_of_a_request_and_of_its_effect_differ() -> None:
    """The sentence of a requested pause must not say that the run is paused."""
    described = [
        (record.entry, str(sentence))
        for path in STORED
        for record, sentence in describe_records(read_journal(path))
    ]
    for entry, text in described:
        if isinstance(entry, REQUESTS):
            assert " asked " in text or " will " in text
        if isinstance(entry, EFFECTS):
            assert " asked " not in text
    assert {type(entry) for entry, _ in described} >= {*REQUESTS, *EFFECTS}


@pytest.mark.slow
@pytest.mark.once
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_entry_of_a_simulated_run_has_a_sentence(strategy: Strategy) -> None:
    """The simulator adds crashes, zombies, side questions, children and take-overs."""
    phases = set()
    for seed in range(60):
        simulation = Simulation(seed, strategy)
        simulation.run()
        describer = JournalDescriber(RUN)
        for seq, (entry, _) in enumerate(simulation.env.journal.entries_with_epochs, 1):
            record = Record(seq=Seq(seq), at=Micros(seq * MICROS_PER_SECOND), entry=entry)
            assert find_problems(record, describer.describe_next(entry, record.at)) == []
        phases.add(describer.state.phase)
    assert {Phase.COMPLETED, Phase.CANCELLED} <= phases
