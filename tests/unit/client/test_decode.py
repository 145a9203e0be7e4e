"""Entries and errors are the same after they were sent by the server and decoded."""

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
from midrun.server.problem_details import make_problem_response, to_problem
from midrun.stops import MaxCost, MaxSteps, TextMention
from midrun.testing.store_suite.fixtures import make_example
from midrun.text.phrases import EntryText
from tests.test_tidy_errors import LEAVES, build

RUN = RunId("run_1")


def _encode_as_server(entry: Entry) -> dict[str, object]:
    record = Record(seq=Seq(3), at=Micros(1_800_000_000_000_001), entry=entry)
    text = EntryText(who="ann", sentence="ann spoke", short="spoke", tone="person")
    encoded = _encode_event(RUN, record, b"\0" * 32, text)
    event: dict[str, object] = msgspec.json.decode(encoded.body)
    return event


@pytest.mark.parametrize("kind", ENTRY_TYPES, ids=lambda kind: str(kind.__name__))
def test_every_entry_type_is_decoded_as_it_was(kind: type[Entry]) -> None:
    """Times are text on the wire, and numbers again after it."""
    entry = make_example(kind)
    item = decode_feed_entry(_encode_as_server(entry))
    assert (item.seq, item.at, item.kind) == (3, 1_800_000_000_000_001, kind.__name__)
    assert item.entry == entry


def test_a_stop_condition_in_an_entry_is_decoded_as_it_was() -> None:
    """It is a tree of structs, distinguished by their tags."""
    stop = (MaxSteps(3) & ~TextMention("done")) | MaxCost(2.5)
    entry = RunStarted(agent="a", task="t", stop=stop)
    assert decode_feed_entry(_encode_as_server(entry)).entry == entry


def test_unknown_fields_of_a_newer_server_are_ignored_and_unknown_entries_refused() -> None:
    receipt = {"seq": 1, "phase": "paused", "mood": "calm"}
    assert decode_value(Receipt, receipt) == Receipt(seq=Seq(1), phase="paused")  # type: ignore[arg-type]  # a phase is a word
    event = _encode_as_server(make_example(RunStarted))
    assert isinstance(event["data"], dict)
    event["data"] |= {"kind": "RunTeleported"}
    with pytest.raises(JournalTooNew) as too_new:
        decode_feed_entry(event)
    assert too_new.value.kind == "RunTeleported"


@pytest.mark.parametrize("kind", LEAVES, ids=lambda kind: str(kind.__name__))
def test_an_error_of_the_server_is_decoded_as_the_same_error(
    kind: type[MidrunError],
) -> None:
    """Class, fields and text are the same.

    Errors that the server does not disclose are skipped.
    """
    before = build(kind)
    problem = to_problem(before)
    if problem is None:
        return
    response = make_problem_response(problem)
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
def test_an_error_page_of_a_proxy_is_not_taken_for_an_error_of_the_server(body: bytes) -> None:
    error = make_error("http://x", 418, body)
    assert isinstance(error, ServerRefused | MidrunError)
    assert not isinstance(error, errors.ControlRefused)
