"""What comes over the wire is what was there: every entry, every error."""

import msgspec
import pytest

import midrun.errors as errors  # noqa: PLR0402 - as tests/test_tidy_errors.py
from midrun.client.decode import decode_feed_entry, decode_value
from midrun.client.transport import make_error
from midrun.core.entries import ENTRY_TYPES, Entry, Record, RunStarted
from midrun.core.ids import Micros, RunId, Seq
from midrun.errors import JournalTooNew, MidrunError, ServerRefused
from midrun.runs.values import Receipt
from midrun.server.events import _encode_event
from midrun.server.problem_details import problem_response, to_problem
from midrun.stops import MaxCost, MaxSteps, TextMention
from midrun.testing.store_suite.fixtures import make_example
from tests.test_tidy_errors import LEAVES, build

RUN = RunId("run_1")


def _shown(entry: Entry) -> dict[str, object]:
    record = Record(seq=Seq(3), at=Micros(1_800_000_000_000_001), entry=entry)
    made: dict[str, object] = msgspec.json.decode(_encode_event(RUN, record, b"\0" * 32).body)
    return made


@pytest.mark.parametrize("kind", ENTRY_TYPES, ids=lambda kind: str(kind.__name__))
def test_every_entry_survives_the_wire(kind: type[Entry]) -> None:
    """Times as text on the way, numbers again after it."""
    entry = make_example(kind)
    item = decode_feed_entry(_shown(entry))
    assert (item.seq, item.at, item.kind) == (3, 1_800_000_000_000_001, kind.__name__)
    assert item.entry == entry


def test_a_condition_within_an_entry_survives_the_wire() -> None:
    """A tree of structs, told apart by their tags."""
    stop = (MaxSteps(3) & ~TextMention("done")) | MaxCost(2.5)
    entry = RunStarted(agent="a", task="t", stop=stop)
    assert decode_feed_entry(_shown(entry)).entry == entry


def test_what_a_newer_server_says_besides_is_passed_over() -> None:
    """A client of today speaks to a server of tomorrow, but for entries it cannot read."""
    receipt = {"seq": 1, "phase": "paused", "mood": "calm"}
    assert decode_value(Receipt, receipt) == Receipt(seq=Seq(1), phase="paused")  # type: ignore[arg-type]  # a phase is a word
    shown = _shown(make_example(RunStarted))
    assert isinstance(shown["data"], dict)
    shown["data"] |= {"kind": "RunTeleported"}
    with pytest.raises(JournalTooNew) as new:
        decode_feed_entry(shown)
    assert new.value.kind == "RunTeleported"


@pytest.mark.parametrize("kind", LEAVES, ids=lambda kind: str(kind.__name__))
def test_an_error_that_the_server_tells_is_the_same_error_here(
    kind: type[MidrunError],
) -> None:
    """With its class, its fields and its words; what it does not tell stays there."""
    before = build(kind)
    problem = to_problem(before)
    if problem is None:
        return
    response = problem_response(problem)
    after = make_error("http://x", response.status_code, bytes(response.body))
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
    error = make_error("http://x", 418, body)
    assert isinstance(error, ServerRefused | MidrunError)
    assert not isinstance(error, errors.ControlRefused)
