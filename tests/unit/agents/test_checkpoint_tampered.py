"""Checkpoints that were changed, cut or forged after they were issued are refused."""

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
from tests.unit.agents.checkpoints import (
    FINGERPRINT,
    ISSUED_AT,
    KEY,
    forge_checkpoint,
    format_journal,
    make_checkpoint,
)
from tests.unit.core.phases import idle_run, paused_run

SIGNED = make_checkpoint(key=KEY, expires=ISSUED_AT).to_json()
UNSIGNED = make_checkpoint(expires=ISSUED_AT).to_json()
LINES = format_journal(paused_run)
BITS = [1 << bit for bit in range(8)]


def expect_refusal(text: str | bytes, key: bytes | None = None) -> str:
    """Return the detail of the refusal of `text`; fail if it is not refused."""
    with pytest.raises(CheckpointRefused) as refusal:
        Checkpoint.from_json(text, key=key)
    assert refusal.value.reason == "checkpoint_invalid"
    assert len(str(refusal.value)) < 1000
    return refusal.value.detail


def read_unless_refused(text: str | bytes) -> Checkpoint | None:
    """Return the checkpoint in `text`, or None if it is refused with the right error."""
    try:
        return Checkpoint.from_json(text)
    except CheckpointRefused:
        expect_refusal(text)
        return None


def replace_fields(text: str, **fields: object) -> str:
    """Return a checkpoint with some fields replaced; None removes a field."""
    merged = json.loads(text) | fields
    return json.dumps({name: value for name, value in merged.items() if value is not None})


def test_every_flipped_bit_of_a_signed_checkpoint_is_refused_before_a_line_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """F35: all bits of all bytes. Unsigned text never reaches the journal decoder."""
    monkeypatch.setattr(module, "decode_line", None)
    monkeypatch.setattr(module, "_convert_envelope", None)
    data = bytearray(SIGNED.encode())
    for at in range(len(data)):
        for bit in BITS:
            data[at] ^= bit
            expect_refusal(bytes(data), KEY)
            data[at] ^= bit
    with pytest.raises(TypeError):  # unchanged, it gets past the signature
        Checkpoint.from_json(bytes(data), key=KEY)


def test_a_flipped_bit_of_an_unsigned_checkpoint_is_refused_or_changes_only_the_envelope() -> (
    None
):
    """Without a key, the chain of hashes protects the run id, lines, agent and phase."""
    whole = Checkpoint.from_json(UNSIGNED)
    data = bytearray(UNSIGNED.encode())
    survivors: list[Checkpoint] = []
    for at in range(len(data)):
        for bit in BITS:
            data[at] ^= bit
            if (read := read_unless_refused(bytes(data))) is not None:
                survivors.append(read)
            data[at] ^= bit
    unguarded = {
        name: getattr(whole, name) for name in ("agent_fingerprint", "issued_at", "expires_at")
    }
    assert {structs.replace(read, **unguarded) for read in survivors} == {whole}


@pytest.mark.parametrize("text", [SIGNED, UNSIGNED], ids=["signed", "unsigned"])
def test_a_checkpoint_that_was_cut_off_anywhere_is_refused(text: str) -> None:
    """For example by a full disk or a lost connection."""
    key = KEY if text is SIGNED else None
    for end in range(len(text)):
        expect_refusal(text[:end], key)


@pytest.mark.parametrize(
    "fields",
    [
        {"agent": "baker"},
        {"agent_fingerprint": "other"},
        {"expires_at": ISSUED_AT + 1},
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
    """This includes the expiry, the agent and the fields of the signature."""
    expect_refusal(replace_fields(SIGNED, **fields), KEY)


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
def test_an_invalid_field_of_an_unsigned_checkpoint_is_refused(
    fields: dict[str, object], detail: str
) -> None:
    """F18: a missing or wrong field never becomes a default."""
    assert detail in expect_refusal(replace_fields(UNSIGNED, **fields))


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
def test_edited_lines_do_not_match_the_head_hash(
    edit: Callable[[list[str]], list[str]],
) -> None:
    """Without a key, the chain of hashes finds the change."""
    lines = edit(json.loads(UNSIGNED)["lines"])
    assert "do not match head_seq" in expect_refusal(replace_fields(UNSIGNED, lines=lines))


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
def test_invalid_lines_are_refused_even_if_their_hashes_match(
    lines: tuple[bytes, ...], detail: str
) -> None:
    """An attacker can compute hashes, and so can a holder of the key by mistake."""
    for key in (None, KEY):
        assert detail in expect_refusal(forge_checkpoint(lines, key=key).to_json(), key)


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
def test_lines_that_cannot_be_folded_are_refused_and_do_not_crash(
    seq: int, old: bytes, new: bytes, detail: str
) -> None:
    """A call that was never proposed; a number above the limit of a journal."""
    lines = [*LINES]
    lines[seq - 1] = lines[seq - 1].replace(old, new)
    assert lines[seq - 1] != LINES[seq - 1]
    assert detail in expect_refusal(forge_checkpoint(tuple(lines)).to_json())


def test_a_journal_of_a_run_that_is_not_parked_is_refused() -> None:
    """The phase is computed from the lines, not taken from the envelope."""
    assert "running run" in expect_refusal(forge_checkpoint(format_journal(idle_run)).to_json())
    assert "queued run" in expect_refusal(
        forge_checkpoint(format_journal(journal(LEASED_RUN[0]))).to_json()
    )


def test_a_signature_does_not_move_to_another_checkpoint() -> None:
    """Both checkpoints are signed with the same key."""
    other = forge_checkpoint(LINES, Phase.PAUSED, key=KEY)
    assert other.agent_fingerprint == FINGERPRINT
    assert "changed after" in expect_refusal(replace_fields(SIGNED, mac=other.mac), KEY)


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
    """All refusals are the same error, `CheckpointRefused`."""
    expect_refusal(text)
    expect_refusal(text, KEY)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=4,
)


@pytest.mark.slow
@given(st.dictionaries(st.sampled_from(sorted(json.loads(SIGNED))), JSON, min_size=1))
def test_random_values_in_fields_are_refused_or_do_not_change_the_state(
    fields: dict[str, object],
) -> None:
    """F18, with random changes to a valid checkpoint."""
    text = json.dumps(json.loads(UNSIGNED) | fields)
    read = read_unless_refused(text)
    assert read is None or read.state() == paused_run.state


@pytest.mark.slow
@given(st.text() | st.binary())
def test_random_text_is_refused(text: str | bytes) -> None:
    expect_refusal(text)
    expect_refusal(text, KEY)


def test_a_text_above_the_size_limit_is_refused_before_it_is_parsed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("json.loads", None)
    assert "the limit is" in expect_refusal("[" * (ENVELOPE_LIMITS.max_bytes + 1))
