"""What comes over the wire is what was there: every entry, every error."""

import msgspec
import pytest

import midrun.errors as errors  # noqa: PLR0402 - as tests/test_tidy_errors.py
from midrun.client.decode import happened, read
from midrun.client.transport import refusal
from midrun.core.entries import KINDS, Entry, Record, RunStarted
from midrun.core.ids import Micros, RunId, Seq
from midrun.errors import JournalTooNew, MidrunError, ServerRefused
from midrun.runs.values import Receipt
from midrun.server.events import _encoded
from midrun.server.problem_details import problem_of, reply
from midrun.stops import MaxCost, MaxSteps, TextMention
from midrun.testing.store_suite.fixtures import example
from tests.test_tidy_errors import LEAVES, build

RUN = RunId("run_1")


def _shown(entry: Entry) -> dict[str, object]:
    record = Record(seq=Seq(3), at=Micros(1_800_000_000_000_001), entry=entry)
    made: dict[str, object] = msgspec.json.decode(_encoded(RUN, record, b"\0" * 32).body)
    return made


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: str(kind.__name__))
def test_every_entry_survives_the_wire(kind: type[Entry]) -> None:
    """Times as text on the way, numbers again after it."""
    entry = example(kind)
    item = happened(_shown(entry))
    assert (item.seq, item.at, item.kind) == (3, 1_800_000_000_000_001, kind.__name__)
    assert item.entry == entry


def test_a_condition_within_an_entry_survives_the_wire() -> None:
    """A tree of structs, told apart by their tags."""
    stop = (MaxSteps(3) & ~TextMention("done")) | MaxCost(2.5)
    entry = RunStarted(agent="a", task="t", stop=stop)
    assert happened(_shown(entry)).entry == entry


def test_what_a_newer_server_says_besides_is_passed_over() -> None:
    """A client of today speaks to a server of tomorrow, but for entries it cannot read."""
    receipt = {"seq": 1, "phase": "paused", "mood": "calm"}
    assert read(Receipt, receipt) == Receipt(seq=Seq(1), phase="paused")  # type: ignore[arg-type]  # a phase is a word
    shown = _shown(example(RunStarted))
    assert isinstance(shown["data"], dict)
    shown["data"] |= {"kind": "RunTeleported"}
    with pytest.raises(JournalTooNew) as new:
        happened(shown)
    assert new.value.kind == "RunTeleported"


@pytest.mark.parametrize("kind", LEAVES, ids=lambda kind: str(kind.__name__))
def test_an_error_that_the_server_tells_is_the_same_error_here(
    kind: type[MidrunError],
) -> None:
    """With its class, its fields and its words; what it does not tell stays there."""
    before = build(kind)
    problem = problem_of(before)
    if problem is None:
        return
    response = reply(problem)
    after = refusal("http://x", response.status_code, bytes(response.body))
    assert type(after) is kind
    assert (after.args, str(after)) == (before.args, str(before))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>Bad Gateway</html>",
        b"[1]",
        b'{"code":"control_refused","args":[1]}',
        b'{"code":"control_refused","args":"x"}',
        b'{"code":"midrun","args":[]}',
        b'{"code":"__class__","args":[]}',
        b"\xff",
    ],
)
def test_whoever_answers_in_between_is_told_apart(body: bytes) -> None:
    """A proxy's error page is no error of ours, and breaks nothing."""
    error = refusal("http://x", 418, body)
    assert isinstance(error, ServerRefused | MidrunError)
    assert not isinstance(error, errors.ControlRefused)
