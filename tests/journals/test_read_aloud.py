"""Every journal can be read aloud: each entry a sentence, for a person who was not there.

The texts beside the stored journals are what `midrun feed` prints. `python -m
tools.make_golden` writes them anew; read what changed before you keep it.
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
HOLLOW = re.compile(r"“\s*”|\(\s*\)|\"\"|: *(?:[;,)]|$)|  |\s$|\{\}|\[\]")
SUBJECTS = re.compile(
    r"the (run|agent|agent's model( call)?|user|worker|parent \S+|check of .+)"
    r"|the stop condition \S+|a worker( that was lost)?|worker \S+|an unnamed user"
)


def read(path: Path) -> list[Record]:
    """Return what a stored journal says."""
    return decode_lines(RUN, path.read_bytes().splitlines())


def sentences(records: Iterable[Record]) -> Iterator[tuple[Record, EntryText]]:
    """Read a journal from its beginning."""
    reader = JournalDescriber(RUN)
    for record in records:
        yield record, reader.describe_next(record.entry, record.at)


def inner_names() -> set[str]:
    """Return what things are called inside: kinds of entries, and fields and values of them."""
    names = {kind.__name__ for kind in ENTRY_TYPES}
    todo: list[object] = list(ENTRY_TYPES)
    seen: set[object] = set()
    while todo:
        one = todo.pop()
        if one in seen:
            continue
        seen.add(one)
        if isinstance(one, str):
            names.add(one)
        elif isinstance(one, type) and issubclass(one, Struct):
            names |= set(one.__struct_fields__)
            todo += get_type_hints(one).values()
        todo += get_args(one)
    return {name for name in names if "_" in name or name in {k.__name__ for k in ENTRY_TYPES}}


INNER = re.compile(rf"\b({'|'.join(sorted(inner_names()))})\b")


def problems(record: Record, told: EntryText) -> list[str]:
    """Return what a person would stumble over."""
    patterns = (("a repr", REPR), ("an inner name", INNER), ("a hole", HOLLOW))
    return [
        f"{record.seq} {type(record.entry).__name__}: {why} in {text!r}"
        for text in (told.sentence, f"{told.who} {told.short}")
        for why, pattern in patterns
        if pattern.search(text)
    ]


@pytest.mark.parametrize("path", STORED, ids=lambda path: str(path.stem))
def test_a_stored_journal_reads_as_it_was_reviewed(path: Path) -> None:
    """Word for word; somebody has read it aloud."""
    assert read_aloud(read(path)) == path.with_suffix(".aloud.txt").read_text()


@pytest.mark.parametrize("path", STORED, ids=lambda path: str(path.stem))
def test_each_line_begins_with_when_and_who(path: Path) -> None:
    """A number to find it by, a time, and somebody or something with a name."""
    records = read(path)
    tools = {use.tool for record in records for use in _uses(record.entry)}
    people = {record.entry.by for record in records if isinstance(record.entry, RequestEntry)}
    lines = [line for line in read_aloud(records).splitlines() if not DAY.fullmatch(line)]
    assert len(lines) == len(records)
    for line, (record, told) in zip(lines, sentences(records), strict=True):
        found = LINE.fullmatch(line)
        assert found is not None, line
        assert (int(found[1]), found[2]) == (record.seq, str(told))
        named = told.who in people or re.split(r" [#(]| of step ", told.who)[0] in tools
        assert named or SUBJECTS.fullmatch(told.who), line


def _uses(entry: e.Entry) -> tuple[RequestedCall, ...]:
    if isinstance(entry, e.CallDone) and entry.reply is not None:
        return entry.reply.uses
    return (entry.use,) if isinstance(entry, e.CallProposed) else ()


@pytest.mark.parametrize("path", STORED, ids=lambda path: str(path.stem))
def test_no_line_speaks_of_the_inside_or_of_nothing(path: Path) -> None:
    """No repr, no name of a field or an entry, no empty quotation, no loose end."""
    found = [one for record, told in sentences(read(path)) for one in problems(record, told)]
    assert found == []


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
def test_what_a_person_would_stumble_over_is_noticed(what: str) -> None:
    """Or the tests around this one would be at ease with anything."""
    record = read(STORED[0])[0]
    assert problems(record, _make_text(what)) != []
    assert problems(record, _make_text("is paused")) == []


def _make_text(what: str) -> EntryText:
    return EntryText(who="the run", sentence=f"the run {what}", short=what, tone="detail")


@pytest.mark.parametrize("path", STORED, ids=lambda path: str(path.stem))
def test_the_short_form_is_the_beginning_of_the_sentence(path: Path) -> None:
    """There is one wording of an entry; a long short form is cut."""
    for _, told in sentences(read(path)):
        assert told.sentence.startswith(f"{told.who} {told.short.removesuffix('…')}")
        assert len(told.short) <= SHORT_MAX_CHARS


@pytest.mark.parametrize("path", STORED, ids=lambda path: str(path.stem))
def test_no_two_lines_in_a_row_say_the_same(path: Path) -> None:
    """Whoever hears it twice looks for a second thing."""
    said = [str(told) for _, told in sentences(read(path))]
    assert [one for one, after in pairwise(said) if one == after] == []


def test_every_kind_of_entry_has_its_sentence() -> None:
    """Nothing falls back to how it is written down."""
    assert DESCRIBE_FUNCTIONS.keys() == set(ENTRY_TYPES)


def test_nothing_is_told_as_nothing() -> None:
    """Tools return nothing, and raise without a word; no sentence has a hole for that."""
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
    found = [one for record, told in sentences(run.records) for one in problems(record, told)]
    assert (found, run.state.phase) == ([], Phase.COMPLETED)
    said = [str(told) for _, told in sentences(run.records)]
    assert said[0] == "an unnamed user started run_1 with the agent clerk: nothing"
    assert said[-1] == "the run completed without an answer"


def test_built_in_tools_are_told_as_what_they_are() -> None:
    """The core cannot see them; their names and arguments are said there once more."""
    for one in (PLAN_TOOL, ask_human):
        taken = one.schema["properties"]
        assert isinstance(taken, dict)
        assert BUILT_IN_TOOL_ARGS[one.name] == taken.keys()
    assert len(BUILT_IN_TOOL_ARGS) == 2


def test_the_conversations_of_the_examples_are_among_them() -> None:
    """Real ones, held by the runtime; the others are made by the machine alone."""
    assert CONVERSATIONS.keys() <= {path.stem for path in STORED}
    assert all(path.with_suffix(".aloud.txt").exists() for path in STORED)


ASKED_FOR = (e.PauseRequested, e.RedirectRequested, e.CancelRequested)
HAPPENED = (e.RunPaused, e.RedirectApplied, e.RunCancelled)


def test_what_was_asked_for_and_what_happened_sound_different() -> None:
    """A person who asked to pause must never hear that it is paused."""
    told = [(r.entry, str(t)) for path in STORED for r, t in sentences(read(path))]
    for entry, text in told:
        if isinstance(entry, ASKED_FOR):
            assert " asked " in text or " will " in text
        if isinstance(entry, HAPPENED):
            assert " asked " not in text
    assert {type(entry) for entry, _ in told} >= {*ASKED_FOR, *HAPPENED}


@pytest.mark.slow
@pytest.mark.once
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_whatever_happens_to_a_run_can_be_told(strategy: Strategy) -> None:
    """Crashes, zombies, side questions, children, take-overs: there is a sentence for it."""
    phases = set()
    for seed in range(60):
        simulation = Simulation(seed, strategy)
        simulation.run()
        reader = JournalDescriber(RUN)
        for seq, (entry, _) in enumerate(simulation.env.journal.entries_with_epochs, 1):
            record = Record(seq=Seq(seq), at=Micros(seq * MICROS_PER_SECOND), entry=entry)
            assert problems(record, reader.describe_next(entry, record.at)) == []
        phases.add(reader.state.phase)
    assert {Phase.COMPLETED, Phase.CANCELLED} <= phases
