"""Journal lines: entries to bytes and back, upcasts, hashes, and lines that are refused."""

from typing import cast, get_type_hints
from unittest.mock import Mock

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import force_setattr

from midrun.codec.hash_chain import UNKEYED_CHAIN
from midrun.codec.journal import (
    Line,
    decode_line,
    decode_lines,
    encode_entry,
    format_line,
    format_record,
    hash_line,
    hash_run_id,
    normalize_entry,
    prepare_entry,
)
from midrun.codec.redaction import run_steps
from midrun.codec.strict_json import INTEGER_MAX, JsonLimits
from midrun.core.entries import (
    ENTRY_TYPES,
    CallDone,
    CallStarted,
    CapRaised,
    Entry,
    PauseRequested,
    Record,
    RunPaused,
    RunStarted,
)
from midrun.core.ids import CallId, Epoch, Micros, RunId, Seq
from midrun.core.stops import MaxCost
from midrun.core.values import Reply, RequestedCall
from midrun.errors import JournalCorrupt, JournalTooNew, NotJson, TooLarge
from midrun.testing.store_suite.fixtures import make_example

AT = Micros(1_763_251_200_000_000)
INFINITE_COST = MaxCost(usd=1.0)
force_setattr(INFINITE_COST, "usd", float("inf"))  # the constructor refuses this
JSON_DEPTH = 200_000  # deeper than the stack of any Python


def make_line(entry: Entry, seq: int = 7, epoch: int | None = 3) -> bytes:
    """Return the line of `entry`."""
    line_epoch = None if epoch is None else Epoch(epoch)
    return format_line(encode_entry(entry), seq=Seq(seq), at=AT, epoch=line_epoch)


PAUSED_LINE = make_line(RunPaused())


def change_line(data: bytes, **outer: object) -> bytes:
    """Return the line with some of its outer fields changed; None removes a field."""
    fields = {**msgspec.json.decode(data), **outer}
    return msgspec.json.encode(
        {k: v for k, v in fields.items() if v is not None}, order="sorted"
    )


def test_a_line_is_canonical_json() -> None:
    """These bytes are hashed: a change of them is a change of the format."""
    assert PAUSED_LINE == (
        b'{"at":1763251200000000,"entry":{"kind":"RunPaused"},"epoch":3,"seq":7,"v":1}'
    )
    assert make_line(PauseRequested(by="ann", now=True), epoch=None) == (
        b'{"at":1763251200000000,"entry":{"by":"ann","kind":"PauseRequested","now":true},'
        b'"seq":7,"v":1}'
    )


@pytest.mark.parametrize("kind", [*ENTRY_TYPES])
def test_every_type_of_entry_decodes_to_the_same_record(kind: type[Entry]) -> None:
    entry = make_example(kind)
    record = decode_line(make_line(entry), seq=Seq(7))
    assert record == Record(seq=Seq(7), at=AT, entry=entry, epoch=Epoch(3))
    assert type(record) is Record
    assert format_record(record) == make_line(entry)


def test_user_data_in_an_entry_becomes_plain_json() -> None:
    """A fold after the append must equal a fold after a restart."""
    use = RequestedCall(tool="t", args={"b": (1, 2), "a": None})
    entry = CallDone(call=CallId("c1"), reply=Reply(uses=(use,)), result=("x",))
    plain = normalize_entry(entry)
    assert isinstance(plain, CallDone)
    assert plain.result == ["x"]
    assert plain.reply is not None
    assert plain.reply.uses[0].args == {"b": [1, 2], "a": None}
    assert decode_line(make_line(entry)).entry == plain


def test_an_entry_rename_user_data_is_not_copied() -> None:
    """Most entries have no user data, so this saves time."""
    entry = CallStarted(call=CallId("c1"), call_kind="tool", attempt=1, seen=Seq(3))
    assert normalize_entry(entry) is entry


@pytest.mark.parametrize(
    ("entry", "path"),
    [
        (CallDone(call=CallId("c"), result={"a": [float("nan")]}), "$.result.a[0]"),
        (CallDone(call=CallId("c"), reply=Reply(opaque=b"x")), "$.reply.opaque"),
        (
            CallDone(
                call=CallId("c"), reply=Reply(uses=(RequestedCall(tool="t", args={1: 2}),))
            ),
            "$.reply.uses[0].args",
        ),
        (RunStarted(agent="a", task="t", stop=INFINITE_COST), "$.stop.usd"),
        (CapRaised(caps={"steps": INTEGER_MAX + 1}), "$.caps.steps"),
        (PauseRequested(until=Micros(INTEGER_MAX + 1)), "$.until"),
        (PauseRequested(by="\ud800"), "$"),
        (PauseRequested(now=cast("bool", "yes")), "$"),
        (PauseRequested(by=cast("str", b"bytes")), "$"),
    ],
)
def test_an_entry_that_could_not_be_decoded_is_not_encoded(entry: Entry, path: str) -> None:
    """A stored line that cannot be read would lose the run."""
    with pytest.raises(NotJson) as refused:
        encode_entry(entry)
    assert refused.value.path == path


def test_a_prepared_entry_is_encoded_to_the_same_bytes() -> None:
    """Its user data was encoded in steps before."""
    data = {"b": [{"n": n, "text": "é" * 9, "deep": [[n]]} for n in range(2000)], "a": {}}
    entry = CallDone(call=CallId("c1"), result=data, encoding_error="none")
    expected = encode_entry(entry)
    assert sum(1 for _ in prepare_entry(entry)) > 10, "it must yield between its steps"
    prepared = run_steps(prepare_entry(entry))
    assert isinstance(prepared, CallDone)
    assert prepared == entry
    assert prepared.result is not data
    assert encode_entry(prepared) == expected
    with pytest.raises(TooLarge):
        encode_entry(prepared, JsonLimits(max_bytes=1000))
    with pytest.raises(NotJson):
        run_steps(prepare_entry(CallDone(call=CallId("c1"), result=[*data["b"], object()])))


def test_an_entry_above_the_size_limit_is_not_encoded() -> None:
    """The limit holds for user data and for the other text fields."""
    with pytest.raises(TooLarge):
        encode_entry(PauseRequested(reason="x" * 200), JsonLimits(max_bytes=100))
    with pytest.raises(TooLarge):
        encode_entry(CallDone(call=CallId("c"), result="x" * 200), JsonLimits(max_bytes=100))


def test_user_data_has_one_type_hint_in_all_entries() -> None:
    """`normalize_entry` finds user data by this type hint."""
    hint = get_type_hints(RequestedCall)["args"]
    assert get_type_hints(CallDone)["result"] == hint


@pytest.mark.parametrize("kind", [*ENTRY_TYPES])
def test_an_unknown_field_is_refused_in_every_type_of_entry(kind: type[Entry]) -> None:
    """A field that is dropped silently could change the meaning of the entry."""
    fields = msgspec.json.decode(encode_entry(make_example(kind)))
    with pytest.raises(JournalCorrupt):
        decode_line(change_line(PAUSED_LINE, entry={**fields, "approved": True}))


UNKNOWN_NESTED_FIELD = b'{"call":"c","kind":"CallDone","reply":{"text":"t","odd":1}}'


CORRUPT_LINES: list[bytes] = [
    b"",
    b"{}",
    b"null",
    b"[]",
    b"\xff\xfe",
    b'{"at":1',
    change_line(PAUSED_LINE, odd=1),
    change_line(PAUSED_LINE, at=None),
    change_line(PAUSED_LINE, at="1"),
    change_line(PAUSED_LINE, seq=None),
    change_line(PAUSED_LINE, seq=7.5),
    change_line(PAUSED_LINE, epoch="3"),
    change_line(PAUSED_LINE, v=None),
    change_line(PAUSED_LINE, v="1"),
    change_line(PAUSED_LINE, v=0),
    change_line(PAUSED_LINE, entry={}),
    change_line(PAUSED_LINE, entry={"kind": 5}),
    change_line(PAUSED_LINE, entry="RunPaused"),
    change_line(PAUSED_LINE, entry={"kind": "CallStarted"}),
    change_line(PAUSED_LINE, entry={"kind": "PauseRequested", "now": "yes"}),
    format_line(UNKNOWN_NESTED_FIELD, seq=Seq(7), at=AT, epoch=None),
    PAUSED_LINE + b"x",
]


@pytest.mark.parametrize("data", CORRUPT_LINES, ids=[str(n) for n in range(len(CORRUPT_LINES))])
def test_a_malformed_line_is_corrupt_with_its_run_and_seq(data: bytes) -> None:
    with pytest.raises(JournalCorrupt) as refused:
        decode_line(data, run="run_1", seq=Seq(7))
    assert (refused.value.run, refused.value.seq) == ("run_1", 7)


def test_a_line_with_another_seq_is_corrupt() -> None:
    """A swapped line is well-formed; only its seq shows the fault."""
    with pytest.raises(JournalCorrupt, match="the line has seq 7"):
        decode_line(PAUSED_LINE, seq=Seq(8))
    with pytest.raises(JournalCorrupt):
        decode_lines(RunId("r"), [make_line(RunPaused(), seq=1), make_line(RunPaused(), seq=3)])


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (
            change_line(PAUSED_LINE, entry={"kind": "RunSplit", "into": 2}),
            "RunSplit",
        ),
        (change_line(PAUSED_LINE, v=2), "format version 2"),
        (change_line(PAUSED_LINE, v=2, entry=5, odd=1), "format version 2"),
    ],
)
def test_a_line_of_a_newer_version_is_too_new_and_not_corrupt(data: bytes, kind: str) -> None:
    with pytest.raises(JournalTooNew) as refused:
        decode_line(data, run="run_1", seq=Seq(7))
    assert refused.value.kind == kind


def test_older_lines_are_decoded_through_every_upcast() -> None:
    """Here `by` was `user` in version 0, and `entry` was `fact` in version -1."""

    def rename_fact(old: Line) -> Line:
        return {("entry" if key == "fact" else key): value for key, value in old.items()}

    def rename_user(old: Line) -> Line:
        entry = dict(cast("Line", old["entry"]))
        if "user" in entry:
            entry["by"] = entry.pop("user")
        return {**old, "entry": entry}

    upcasts = {-1: rename_fact, 0: rename_user}
    fact = {"kind": "PauseRequested", "user": "ann"}
    oldest = change_line(PAUSED_LINE, v=-1, entry=None, fact=fact)
    old = change_line(PAUSED_LINE, v=0, entry=fact)
    for data in (oldest, old):
        assert decode_line(data, upcasts=upcasts).entry == PauseRequested(by="ann")
    assert decode_line(PAUSED_LINE, upcasts=upcasts).entry == RunPaused()
    with pytest.raises(JournalCorrupt, match="version -1 cannot be read"):
        decode_line(oldest, upcasts={0: rename_user})


def test_an_unknown_entry_in_an_older_version_is_too_new() -> None:
    data = change_line(PAUSED_LINE, v=0, entry={"kind": "RunSplit"})
    with pytest.raises(JournalTooNew):
        decode_line(data, upcasts={0: dict})


def make_journal(run: RunId, entries: int = 6) -> list[tuple[bytes, bytes]]:
    """Return the lines and hashes of a short journal."""
    line_hash, pairs = hash_run_id(run), []
    for seq in range(1, entries + 1):
        data = make_line(PauseRequested(reason=f"r{seq}"), seq=seq)
        line_hash = hash_line(line_hash, data)
        pairs.append((data, line_hash))
    return pairs


def test_an_unchanged_journal_is_verified() -> None:
    """The check starts at the first entry, or after a seq that is already trusted."""
    pairs = make_journal(RunId("r"))
    lines = [data for data, _ in pairs]
    assert UNKEYED_CHAIN.verify_lines(RunId("r"), pairs) == lines
    assert (
        UNKEYED_CHAIN.verify_lines(RunId("r"), pairs[2:], after=Seq(2), previous=pairs[1][1])
        == lines[2:]
    )
    assert UNKEYED_CHAIN.verify_lines(RunId("r"), []) == []


@pytest.mark.parametrize("at", [*range(6)])
@pytest.mark.parametrize("damage", ["changed", "missing", "inserted", "swapped", "hash"])
def test_the_first_entry_that_was_changed_is_named(damage: str, at: int) -> None:
    pairs = make_journal(RunId("r"))
    data, line_hash = pairs[at]
    match damage:
        case "changed":
            pairs[at] = (data.replace(b'"r', b'"R'), line_hash)
        case "missing":
            del pairs[at]
        case "inserted":
            pairs.insert(at, (data, line_hash))
            at += 1
        case "swapped":
            pairs[at - 1], pairs[at] = pairs[at], pairs[at - 1]
            at = min(at, len(pairs) + at - 1) - 1 if at else 0
        case _:
            pairs[at] = (data, bytes(32))
    if damage in {"missing", "inserted"} and at >= len(pairs):
        # A missing last entry shows only if the head was stored elsewhere.
        assert len(UNKEYED_CHAIN.verify_lines(RunId("r"), pairs)) == at
        return
    with pytest.raises(JournalCorrupt) as refused:
        UNKEYED_CHAIN.verify_lines(RunId("r"), pairs)
    assert refused.value.seq == at + 1


def test_lines_of_another_run_are_corrupt() -> None:
    """The first hash contains the id of the run."""
    with pytest.raises(JournalCorrupt):
        UNKEYED_CHAIN.verify_lines(RunId("other"), make_journal(RunId("r")))


@pytest.mark.parametrize(
    "data",
    [
        b"[" * JSON_DEPTH + b"]" * JSON_DEPTH,
        b'{"a":' * JSON_DEPTH + b"1" + b"}" * JSON_DEPTH,
        format_line(
            b'{"call":"c","kind":"CallDone","result":'
            + b"[" * JSON_DEPTH
            + b"]" * JSON_DEPTH
            + b"}",
            seq=Seq(7),
            at=AT,
            epoch=None,
        ),
        change_line(PAUSED_LINE, v=0, entry=None).replace(b'"v"', b'"x":' + b"9" * 5000),
        PAUSED_LINE.replace(b'"seq":7', b'"seq":' + b"7" * 400),
        PAUSED_LINE.replace(b'"at":1', b'"at":' + b"1" * 5000),
        PAUSED_LINE.replace(b'"at":1', b'"at":-9' + b"1" * 30),
        PAUSED_LINE.replace(b'"epoch":3', b'"epoch":18446744073709551616'),
        PAUSED_LINE.replace(b'"v":1', b'"v":' + b"0" * 10),
    ],
    ids=lambda data: str(data[:40]),
)
def test_hostile_bytes_are_corrupt(data: bytes) -> None:
    """A line must not cause a RecursionError or an OverflowError."""
    with pytest.raises(JournalCorrupt):
        decode_line(data, run="run_1", seq=Seq(7))


class RaisingText(str):
    """Text that raises when it is compared."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        raise OSError

    __ne__ = __eq__
    __hash__ = str.__hash__


@pytest.mark.parametrize(
    "entry",
    [
        CallDone(call=CallId("c"), result=Mock(spec=dict)),
        CallDone(call=CallId("c"), result=[Mock(spec=list), Mock(spec=str)]),
        CallDone(call=CallId("c"), reply=cast("Reply", Mock(spec=Reply))),
        CallDone(call=cast("CallId", Mock(spec=str))),
        CallDone(
            call=CallId("c"), reply=Reply(uses=cast("tuple[RequestedCall]", Mock(spec=tuple)))
        ),
        CapRaised(caps=cast("dict[str, int]", Mock(spec=dict))),
        PauseRequested(by=RaisingText("ann")),
        PauseRequested(until=cast("Micros", Mock(spec=int))),
    ],
    ids=range(8),
)
def test_values_that_imitate_json_types_are_refused(entry: Entry) -> None:
    """The tool has taken effect: another exception would leave its call without an end."""
    with pytest.raises(NotJson):
        encode_entry(entry)


@given(st.binary())
def test_random_bytes_are_refused_with_a_journal_error(data: bytes) -> None:
    with pytest.raises((JournalCorrupt, JournalTooNew)):
        decode_line(data)


@given(st.integers(0, 75), st.integers(1, 255))
def test_a_line_with_a_changed_byte_is_decoded_or_refused(index: int, mask: int) -> None:
    """The hash chain finds the change; the decoder must raise no other error."""
    data = bytearray(PAUSED_LINE)
    data[index] ^= mask
    try:
        decode_line(bytes(data))
    except (JournalCorrupt, JournalTooNew) as refusal:
        assert refusal.seq == 0  # noqa: PT017 - both results are allowed
