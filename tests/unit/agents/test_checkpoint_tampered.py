"""Checkpoints that somebody, or something, changed on the way."""

import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from midrun.agents import checkpoint as module
from midrun.agents.checkpoint import ENVELOPE_LIMITS, Checkpoint
from midrun.core.values import Phase
from midrun.errors import CheckpointRefused
from midrun.testing.scenario import LEASED_RUN
from midrun.testing.scenario import given as journal
from tests.unit.agents.parked import KEY, LATER, PRINT, checkpoint_of, forged, lines_of
from tests.unit.core.phases import begun, paused

SIGNED = checkpoint_of(key=KEY, expires=LATER).to_json()
UNSIGNED = checkpoint_of(expires=LATER).to_json()
LINES = lines_of(paused)
BITS = [1 << bit for bit in range(8)]


def refused(text: str | bytes, key: bytes | None = None) -> str:
    """Return in which words `text` is refused; anything but that fails the test."""
    with pytest.raises(CheckpointRefused) as refusal:
        Checkpoint.from_json(text, key=key)
    assert refusal.value.reason == "checkpoint_invalid"
    assert len(str(refusal.value)) < 1000
    return refusal.value.detail


def read_or_refused(text: str | bytes) -> Checkpoint | None:
    """Return what `text` is, or None if it was refused as it should be."""
    try:
        return Checkpoint.from_json(text)
    except CheckpointRefused:
        refused(text)
        return None


def changed(text: str, **fields: object) -> str:
    """Return a checkpoint with some fields replaced, or left out where None."""
    merged = json.loads(text) | fields
    return json.dumps({name: value for name, value in merged.items() if value is not None})


def test_every_flipped_bit_of_a_signed_checkpoint_is_refused_before_a_line_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """F35: one loop over all bytes. What was not signed is never handed to the journal."""
    monkeypatch.setattr(module, "decode_line", None)
    monkeypatch.setattr(module, "_convert_envelope", None)
    data = bytearray(SIGNED.encode())
    for at in range(len(data)):
        for bit in BITS:
            data[at] ^= bit
            refused(bytes(data), KEY)
            data[at] ^= bit
    with pytest.raises(TypeError):  # the untouched one would be read
        Checkpoint.from_json(bytes(data), key=KEY)


def test_a_flipped_bit_of_an_unsigned_checkpoint_is_refused_or_changes_nothing_that_ran() -> (
    None
):
    """Without a key, the chain still guards the run, its lines, its agent and its phase."""
    whole = Checkpoint.from_json(UNSIGNED)
    data = bytearray(UNSIGNED.encode())
    survivors: list[Checkpoint] = []
    for at in range(len(data)):
        for bit in BITS:
            data[at] ^= bit
            if (read := read_or_refused(bytes(data))) is not None:
                survivors.append(read)
            data[at] ^= bit
    unguarded = {
        name: getattr(whole, name) for name in ("agent_print", "issued_at", "expires_at")
    }
    assert {structs.replace(read, **unguarded) for read in survivors} == {whole}


@pytest.mark.parametrize("text", [SIGNED, UNSIGNED], ids=["signed", "unsigned"])
def test_a_checkpoint_that_was_cut_off_anywhere_is_refused(text: str) -> None:
    """A full disk, a broken connection."""
    key = KEY if text is SIGNED else None
    for end in range(len(text)):
        refused(text[:end], key)


@pytest.mark.parametrize(
    "fields",
    [
        {"agent": "baker"},
        {"agent_print": "other"},
        {"expires_at": LATER + 1},
        {"expires_at": None},
        {"phase": "waiting"},
        {"issued_at": 0},
        {"mac": ""},
        {"mac": None},
        {"mac": 7},
        {"mac": "é"},
        {"mac": ["x"]},
        {"kid": None},
        {"kid": "0" * 16},
        {"signed": False},
        {"signed": None},
        {"signed": 1},
        {"signed": False, "mac": None, "kid": None},
        {"lines": []},
        {"extra": 1},
        {"v": 2},
    ],
    ids=str,
)
def test_no_field_of_a_signed_checkpoint_can_be_changed(fields: dict[str, object]) -> None:
    """The expiry, the agent and the signature's own fields included."""
    refused(changed(SIGNED, **fields), KEY)


@pytest.mark.parametrize(
    ("fields", "detail"),
    [
        ({"v": 2}, "a newer version of midrun"),
        ({"v": 0}, "format 0 does not exist"),
        ({"v": True}, "Expected `int`"),
        ({"v": None}, "missing required field `v`"),
        ({"extra": 1}, "unknown field `extra`"),
        ({"agent": "baker"}, "paused run of agent 'clerk'"),
        ({"phase": "waiting"}, "paused run of agent 'clerk'"),
        ({"phase": "running"}, "parked"),
        ({"phase": "asleep"}, "Invalid enum value"),
        ({"run": "run_2"}, "do not match head_seq and head_hash"),
        ({"run": "run_1\n"}, "matching regex"),
        ({"run": "../run_1"}, "matching regex"),
        ({"run": "r" * 65}, "matching regex"),
        ({"head_seq": 6}, "do not match head_seq and head_hash"),
        ({"head_seq": "7"}, "Expected `int`"),
        ({"head_seq": 7.0}, "Expected `int`"),
        ({"head_seq": 2**53}, "integer beyond"),
        ({"head_hash": "é"}, "do not match head_seq and head_hash"),
        ({"lines": {}}, "Expected `array`"),
        ({"lines": [1]}, "Expected `str`"),
        ({"lines": [["x"]]}, "Expected `str`"),
        ({"lines": [[[["x"]]]]}, "nested deeper"),
        ({"children": [{"run": "run_x"}]}, "not one of its child runs"),
        ({"signed": None}, "missing required field `signed`"),
        ({"signed": "no"}, "Expected `bool`"),
        ({"mac": "00"}, "contradict"),
        ({"kid": "00"}, "contradict"),
    ],
    ids=str,
)
def test_an_envelope_that_is_wrong_is_refused_in_words(
    fields: dict[str, object], detail: str
) -> None:
    """F18: never a default that happens to mean something."""
    assert detail in refused(changed(UNSIGNED, **fields))


@pytest.mark.parametrize(
    "edit",
    [
        lambda lines: lines[:-1],
        lambda lines: lines[1:],
        lambda _: [],
        lambda lines: [*lines, lines[-1]],
        lambda lines: [lines[1], lines[0], *lines[2:]],
        lambda lines: [*lines[:3], *lines[4:]],
        lambda lines: [line.replace("clerk", "baker") for line in lines],
        lambda lines: ["".join(lines)],
        lambda lines: [line + " " for line in lines],
    ],
    ids=["tail", "first", "all", "twice", "swapped", "middle", "edited", "joined", "spaced"],
)
def test_lines_that_were_edited_do_not_fit_the_head(
    edit: Callable[[list[str]], list[str]],
) -> None:
    """Without a key this is what the chain is for."""
    lines = edit(json.loads(UNSIGNED)["lines"])
    assert "do not match head_seq and head_hash" in refused(changed(UNSIGNED, lines=lines))


@pytest.mark.parametrize(
    ("lines", "detail"),
    [
        ((), "it has no lines"),
        (LINES[:-1], "pausing run"),
        (LINES[1:], "line 1: the line has seq 2"),
        ((LINES[0], LINES[0]), "line 2: the line has seq 1"),
        ((LINES[0], b" " + LINES[1]), "line 2: it is not canonical"),
        ((LINES[0], b'{"seq":0,' + LINES[1][1:]), "line 2: it is not canonical"),
        ((LINES[0], LINES[1].replace(b'"at":18', b'"at":17')), "line 2: it is older"),
        ((LINES[0], LINES[1].replace(b'"v":1', b'"v":9')), "line 2: a newer version"),
        (
            (LINES[0], LINES[1].replace(b"LeaseTaken", b"LeaseSold")),
            "newer version of midrun wrote Lease",
        ),
        ((LINES[0], LINES[1].replace(b"LeaseTaken", b"RunWaiting")), "line 2: Object contains"),
        ((LINES[0], b"{}"), "line 2: the line has no version"),
        ((LINES[0], b"[" * 100_000), "line 2: "),
        ((*LINES[:2], b'{"at":1,"entry":{"call":"c9","kind":"CallDone"},"seq":3,"v":1}'), ""),
    ],
)
def test_lines_that_no_midrun_wrote_are_refused_even_if_the_chain_fits(
    lines: tuple[bytes, ...], detail: str
) -> None:
    """An enemy can compute hashes, too; and so can a key holder who made a mistake."""
    for key in (None, KEY):
        assert detail in refused(forged(lines, key=key).to_json(), key)


@pytest.mark.parametrize(
    ("seq", "old", "new", "detail"),
    [
        (5, b'"call":"c2"', b'"call":"c8"', "line 5: "),
        (
            1,
            b'"agent":',
            b'"frame_ttl":9007199254740993,"agent":',
            "line 1 is not possible there",
        ),
    ],
)
def test_what_the_fold_relies_on_is_refused_and_not_a_crash(
    seq: int, old: bytes, new: bytes, detail: str
) -> None:
    """A call that never was; a number that no journal holds."""
    lines = [*LINES]
    lines[seq - 1] = lines[seq - 1].replace(old, new)
    assert lines[seq - 1] != LINES[seq - 1]
    assert detail in refused(forged(tuple(lines)).to_json())


def test_a_journal_of_a_run_that_is_not_parked_is_refused_whatever_the_envelope_says() -> None:
    """The phase that counts is the one that the lines mean."""
    assert "running run" in refused(forged(lines_of(begun)).to_json())
    assert "queued run" in refused(forged(lines_of(journal(LEASED_RUN[0]))).to_json())


def test_a_signature_does_not_move_to_another_checkpoint() -> None:
    """Two runs, one key: the parts of one do not fit the other."""
    other = forged(LINES, Phase.PAUSED, key=KEY)
    assert other.agent_print == PRINT
    assert "changed after" in refused(changed(SIGNED, mac=other.mac), KEY)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "null",
        "true",
        "7",
        "NaN",
        '"text"',
        "[]",
        "{}",
        "{" * 100_000,
        '{"lines":' * 100_000,
        "[" * 100_000,
        '{"v":1,"v":1}',
        '{"signed":true}',
        '{"signed":true,"mac":"\ud800"}',
        '{"signed":true,"mac":"\\ud800"}',
        '{"signed":1e999}',
        '{"signed":' + "9" * 10_000 + "}",
        UNSIGNED + UNSIGNED,
        UNSIGNED + "x",
        "\ufeff" + UNSIGNED,
        UNSIGNED.replace('"v":1', '"v":1,"v":1'),
        UNSIGNED.replace('"signed":false', '"signed":false,"signed":false'),
        b"\xff\xfe",
        b"\x80\x04\x95.",
        UNSIGNED.encode("utf-16"),
    ],
    ids=lambda text: repr(text[:20]),
)
def test_garbage_is_refused_with_and_without_a_key(text: str | bytes) -> None:
    """Whatever it is, there is one error to catch."""
    refused(text)
    refused(text, KEY)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=4,
)


@given(st.dictionaries(st.sampled_from(sorted(json.loads(SIGNED))), JSON, min_size=1))
def test_any_json_in_any_field_is_refused_or_read_as_it_stands(
    fields: dict[str, object],
) -> None:
    """F18 by chance: valid documents, mutated."""
    text = json.dumps(json.loads(UNSIGNED) | fields)
    read = read_or_refused(text)
    assert read is None or read.state() == paused.state


@given(st.text() | st.binary())
def test_any_text_at_all_is_refused(text: str | bytes) -> None:
    """And never with anything but a refusal."""
    refused(text)
    refused(text, KEY)


def test_a_text_beyond_the_bound_is_refused_before_it_is_parsed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The bound is on what is read, not on what was meant."""
    monkeypatch.setattr("json.loads", None)
    assert "the limit is" in refused("[" * (ENVELOPE_LIMITS.max_bytes + 1))
