"""Lines: entries to bytes and back, versions, and everything that is refused on reading."""

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
from midrun.core.values import Reply, Use
from midrun.errors import JournalCorrupt, JournalTooNew, NotJson, TooLarge
from midrun.testing.store_suite.fixtures import make_example

AT = Micros(1_763_251_200_000_000)
ENDLESS = MaxCost(usd=1.0)
force_setattr(ENDLESS, "usd", float("inf"))  # no stop can be made like this


def put(entry: Entry, seq: int = 7, epoch: int | None = 3) -> bytes:
    """Return the line that has `entry`."""
    its_epoch = None if epoch is None else Epoch(epoch)
    return format_line(encode_entry(entry), seq=Seq(seq), at=AT, epoch=its_epoch)


def changed(data: bytes, **outer: object) -> bytes:
    """Return a line with some of its outer fields changed; None takes one away."""
    fields = {**msgspec.json.decode(data), **outer}
    return msgspec.json.encode(
        {k: v for k, v in fields.items() if v is not None}, order="sorted"
    )


def test_a_line_is_canonical_json() -> None:
    """These bytes are hashed: any change of them is a change of the format."""
    assert put(RunPaused()) == (
        b'{"at":1763251200000000,"entry":{"kind":"RunPaused"},"epoch":3,"seq":7,"v":1}'
    )
    assert put(PauseRequested(by="ann", now=True), epoch=None) == (
        b'{"at":1763251200000000,"entry":{"by":"ann","kind":"PauseRequested","now":true},'
        b'"seq":7,"v":1}'
    )


@pytest.mark.parametrize("kind", [*ENTRY_TYPES])
def test_every_kind_of_entry_is_read_back_as_it_was(kind: type[Entry]) -> None:
    """Also those that no other test happens to write."""
    entry = make_example(kind)
    record = decode_line(put(entry), seq=Seq(7))
    assert record == Record(seq=Seq(7), at=AT, entry=entry, epoch=Epoch(3))
    assert type(record) is Record
    assert format_record(record) == put(entry)


def test_user_data_is_plain_once_it_is_in_an_entry() -> None:
    """What is folded after an append must equal what is folded after a restart."""
    use = Use(tool="t", args={"b": (1, 2), "a": None})
    entry = CallDone(call=CallId("c1"), reply=Reply(uses=(use,)), result=("x",))
    sound = normalize_entry(entry)
    assert isinstance(sound, CallDone)
    assert sound.result == ["x"]
    assert sound.reply is not None
    assert sound.reply.uses[0].args == {"b": [1, 2], "a": None}
    assert decode_line(put(entry)).entry == sound


def test_an_entry_without_user_data_is_not_copied() -> None:
    """Most entries have none; the walk costs them next to nothing."""
    entry = CallStarted(call=CallId("c1"), call_kind="tool", attempt=1, seen=Seq(3))
    assert normalize_entry(entry) is entry


@pytest.mark.parametrize(
    ("entry", "path"),
    [
        (CallDone(call=CallId("c"), result={"a": [float("nan")]}), "$.result.a[0]"),
        (CallDone(call=CallId("c"), reply=Reply(opaque=b"x")), "$.reply.opaque"),
        (
            CallDone(call=CallId("c"), reply=Reply(uses=(Use(tool="t", args={1: 2}),))),
            "$.reply.uses[0].args",
        ),
        (RunStarted(agent="a", task="t", stop=ENDLESS), "$.stop.usd"),
        (CapRaised(caps={"steps": INTEGER_MAX + 1}), "$.caps.steps"),
        (PauseRequested(until=Micros(INTEGER_MAX + 1)), "$.until"),
        (PauseRequested(by="\ud800"), "$"),
        (PauseRequested(now=cast("bool", "yes")), "$"),
        (PauseRequested(by=cast("str", b"bytes")), "$"),
    ],
)
def test_an_entry_that_could_not_be_read_back_is_not_written(entry: Entry, path: str) -> None:
    """A line that is stored but unreadable would be a run that is lost."""
    with pytest.raises(NotJson) as refused:
        encode_entry(entry)
    assert refused.value.path == path


def test_a_prepared_entry_is_encoded_as_any_other() -> None:
    """From the text that was made of its data, in slices, before; byte for byte."""
    data = {"b": [{"n": n, "text": "é" * 9, "deep": [[n]]} for n in range(2000)], "a": {}}
    entry = CallDone(call=CallId("c1"), result=data, encoding_error="none")
    expected = encode_entry(entry)
    assert sum(1 for _ in prepare_entry(entry)) > 10, "it yields now and then"
    prepared = run_steps(prepare_entry(entry))
    assert isinstance(prepared, CallDone)
    assert prepared == entry
    assert prepared.result is not data
    assert encode_entry(prepared) == expected
    with pytest.raises(TooLarge):
        encode_entry(prepared, JsonLimits(max_bytes=1000))
    with pytest.raises(NotJson):
        run_steps(prepare_entry(CallDone(call=CallId("c1"), result=[*data["b"], object()])))


def test_an_entry_beyond_its_bound_is_not_written() -> None:
    """Both in user data and in our own text fields."""
    with pytest.raises(TooLarge):
        encode_entry(PauseRequested(reason="x" * 200), JsonLimits(max_bytes=100))
    with pytest.raises(TooLarge):
        encode_entry(CallDone(call=CallId("c"), result="x" * 200), JsonLimits(max_bytes=100))


def test_free_data_is_known_by_its_type_in_every_entry() -> None:
    """The walk finds user data by type hint: a renamed hint must not switch it off."""
    free = get_type_hints(Use)["args"]
    assert get_type_hints(CallDone)["result"] == free


@pytest.mark.parametrize("kind", [*ENTRY_TYPES])
def test_a_field_that_is_not_known_is_refused_in_every_kind(kind: type[Entry]) -> None:
    """Dropping it silently could mean that something counts as approved."""
    fields = msgspec.json.decode(encode_entry(make_example(kind)))
    with pytest.raises(JournalCorrupt):
        decode_line(changed(put(RunPaused()), entry={**fields, "approved": True}))


NESTED = b'{"call":"c","kind":"CallDone","reply":{"text":"t","odd":1}}'

CORRUPT: list[bytes] = [
    b"",
    b"{}",
    b"null",
    b"[]",
    b"\xff\xfe",
    b'{"at":1',
    changed(put(RunPaused()), odd=1),
    changed(put(RunPaused()), at=None),
    changed(put(RunPaused()), at="1"),
    changed(put(RunPaused()), seq=None),
    changed(put(RunPaused()), seq=7.5),
    changed(put(RunPaused()), epoch="3"),
    changed(put(RunPaused()), v=None),
    changed(put(RunPaused()), v="1"),
    changed(put(RunPaused()), v=0),
    changed(put(RunPaused()), entry={}),
    changed(put(RunPaused()), entry={"kind": 5}),
    changed(put(RunPaused()), entry="RunPaused"),
    changed(put(RunPaused()), entry={"kind": "CallStarted"}),
    changed(put(RunPaused()), entry={"kind": "PauseRequested", "now": "yes"}),
    format_line(NESTED, seq=Seq(7), at=AT, epoch=None),
    put(RunPaused()) + b"x",
]


@pytest.mark.parametrize("data", CORRUPT, ids=[str(n) for n in range(len(CORRUPT))])
def test_a_malformed_line_is_corrupt_and_says_where(data: bytes) -> None:
    """The first bad seq is what one needs to know to compare with a backup."""
    with pytest.raises(JournalCorrupt) as refused:
        decode_line(data, run="run_1", seq=Seq(7))
    assert (refused.value.run, refused.value.seq) == ("run_1", 7)


def test_a_line_in_another_place_is_corrupt() -> None:
    """A swapped line is well-formed; only its number gives it away."""
    with pytest.raises(JournalCorrupt, match="the line has seq 7"):
        decode_line(put(RunPaused()), seq=Seq(8))
    with pytest.raises(JournalCorrupt):
        decode_lines(RunId("r"), [put(RunPaused(), seq=1), put(RunPaused(), seq=3)])


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (changed(put(RunPaused()), entry={"kind": "RunSplit", "into": 2}), "RunSplit"),
        (changed(put(RunPaused()), v=2), "format version 2"),
        (changed(put(RunPaused()), v=2, entry=5, odd=1), "format version 2"),
    ],
)
def test_what_newer_code_wrote_is_left_alone(data: bytes, kind: str) -> None:
    """Not corrupt: there is nothing to restore, only something to upgrade."""
    with pytest.raises(JournalTooNew) as refused:
        decode_line(data, run="run_1", seq=Seq(7))
    assert refused.value.kind == kind


def test_older_lines_are_read_through_every_upcast_on_the_way() -> None:
    """As if `by` had been `user` in version 0, and the entry had been called `fact` before."""

    def renamed(old: Line) -> Line:
        return {("entry" if key == "fact" else key): value for key, value in old.items()}

    def named(old: Line) -> Line:
        entry = dict(cast("Line", old["entry"]))
        return {
            **old,
            "entry": {**entry, "by": entry.pop("user")} if "user" in entry else entry,
        }

    def without_user(old: Line) -> Line:
        new = named(old)
        cast("Line", new["entry"]).pop("user", None)
        return new

    upcasts = {-1: renamed, 0: without_user}
    fact = {"kind": "PauseRequested", "user": "ann"}
    oldest = changed(put(RunPaused()), v=-1, entry=None, fact=fact)
    old = changed(put(RunPaused()), v=0, entry=fact)
    for data in (oldest, old):
        assert decode_line(data, upcasts=upcasts).entry == PauseRequested(by="ann")
    assert decode_line(put(RunPaused()), upcasts=upcasts).entry == RunPaused()
    with pytest.raises(JournalCorrupt, match="version -1 cannot be read"):
        decode_line(oldest, upcasts={0: without_user})


def test_a_kind_that_an_upcast_does_not_know_is_too_new() -> None:
    """Old format, unknown kind: somebody else extended it."""
    data = changed(put(RunPaused()), v=0, entry={"kind": "RunSplit"})
    with pytest.raises(JournalTooNew):
        decode_line(data, upcasts={0: dict})


def journal(run: RunId, entries: int = 6) -> list[tuple[bytes, bytes]]:
    """Return the lines and hashes of a short journal."""
    link, pairs = hash_run_id(run), []
    for seq in range(1, entries + 1):
        data = put(PauseRequested(reason=f"r{seq}"), seq=seq)
        link = hash_line(link, data)
        pairs.append((data, link))
    return pairs


def test_a_journal_that_was_left_alone_is_verified() -> None:
    """From its start, and from a seq that is trusted already."""
    pairs = journal(RunId("r"))
    lines = [data for data, _ in pairs]
    assert UNKEYED_CHAIN.verify_lines(RunId("r"), pairs) == lines
    assert (
        UNKEYED_CHAIN.verify_lines(RunId("r"), pairs[2:], after=Seq(2), previous=pairs[1][1])
        == lines[2:]
    )
    assert UNKEYED_CHAIN.verify_lines(RunId("r"), []) == []


@pytest.mark.parametrize("at", [*range(6)])
@pytest.mark.parametrize("damage", ["changed", "missing", "inserted", "swapped", "hash"])
def test_the_first_entry_that_was_tampered_with_is_named(damage: str, at: int) -> None:
    """Changed, missing, inserted and swapped entries, at every seq."""
    pairs = journal(RunId("r"))
    data, link = pairs[at]
    match damage:
        case "changed":
            pairs[at] = (data.replace(b'"r', b'"R'), link)
        case "missing":
            del pairs[at]
        case "inserted":
            pairs.insert(at, (data, link))
            at += 1
        case "swapped":
            pairs[at - 1], pairs[at] = pairs[at], pairs[at - 1]
            at = min(at, len(pairs) + at - 1) - 1 if at else 0
        case _:
            pairs[at] = (data, bytes(32))
    if damage in {"missing", "inserted"} and at >= len(pairs):
        assert (
            len(UNKEYED_CHAIN.verify_lines(RunId("r"), pairs)) == at
        )  # only a kept head shows a cut tail
        return
    with pytest.raises(JournalCorrupt) as refused:
        UNKEYED_CHAIN.verify_lines(RunId("r"), pairs)
    assert refused.value.seq == at + 1


def test_lines_cannot_be_moved_to_another_run() -> None:
    """The id of the run is in the first link."""
    with pytest.raises(JournalCorrupt):
        UNKEYED_CHAIN.verify_lines(RunId("other"), journal(RunId("r")))


DEEP = 200_000  # deeper than the stack of any Python


@pytest.mark.parametrize(
    "data",
    [
        b"[" * DEEP + b"]" * DEEP,
        b'{"a":' * DEEP + b"1" + b"}" * DEEP,
        format_line(
            b'{"call":"c","kind":"CallDone","result":' + b"[" * DEEP + b"]" * DEEP + b"}",
            seq=Seq(7),
            at=AT,
            epoch=None,
        ),
        changed(put(RunPaused()), v=0, entry=None).replace(b'"v"', b'"x":' + b"9" * 5000),
        put(RunPaused()).replace(b'"seq":7', b'"seq":' + b"7" * 400),
        put(RunPaused()).replace(b'"at":1', b'"at":' + b"1" * 5000),
        put(RunPaused()).replace(b'"at":1', b'"at":-9' + b"1" * 30),
        put(RunPaused()).replace(b'"epoch":3', b'"epoch":18446744073709551616'),
        put(RunPaused()).replace(b'"v":1', b'"v":' + b"0" * 10),
    ],
    ids=lambda data: str(data[:40]),
)
def test_bytes_that_somebody_made_to_hurt_are_refused_by_name(data: bytes) -> None:
    """No recursion limit and no overflow may come out of a line."""
    with pytest.raises(JournalCorrupt):
        decode_line(data, run="run_1", seq=Seq(7))


class Hostile(str):
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
        CallDone(call=CallId("c"), reply=Reply(uses=cast("tuple[Use]", Mock(spec=tuple)))),
        CapRaised(caps=cast("dict[str, int]", Mock(spec=dict))),
        PauseRequested(by=Hostile("ann")),
        PauseRequested(until=cast("Micros", Mock(spec=int))),
    ],
    ids=range(8),
)
def test_what_only_claims_to_be_data_is_refused_by_name(entry: Entry) -> None:
    """The tool has taken effect by then: another error would leave its call without an end."""
    with pytest.raises(NotJson):
        encode_entry(entry)


@given(st.binary())
def test_any_bytes_are_read_or_refused_by_name(data: bytes) -> None:
    """Nothing but our own two errors may come out."""
    with pytest.raises((JournalCorrupt, JournalTooNew)):
        decode_line(data)


@given(st.integers(0, 75), st.integers(1, 255))
def test_any_changed_byte_of_a_line_is_read_or_refused_by_name(at: int, flip: int) -> None:
    """The chain notices the change; the decoder must only survive it."""
    data = bytearray(put(RunPaused()))
    data[at] ^= flip
    try:
        decode_line(bytes(data))
    except (JournalCorrupt, JournalTooNew) as refusal:
        assert refusal.seq == 0  # noqa: PT017 - either way is fine
