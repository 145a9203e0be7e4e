"""Checkpoints (parked runs as JSON): issuing, reading back, and the checks before a resume."""

import json

import pytest

from midrun.agents import checkpoint as module
from midrun.agents.checkpoint import ENVELOPE_LIMITS, PARKED_PHASES, Checkpoint, make_key_id
from midrun.codec.strict_json import JsonLimits
from midrun.core import controls as c
from midrun.core.decide import decide
from midrun.core.entries import RunImported
from midrun.core.evolve import apply_entries
from midrun.core.ids import Micros, Seq
from midrun.core.run_head import build_head
from midrun.core.transitions import Accepted
from midrun.core.values import Phase
from midrun.errors import CheckpointRefused, JournalCorrupt, Misconfigured, TooLarge
from midrun.stores.memory import MemoryStore
from midrun.testing.scenario import RUN, Scenario
from tests.unit.agents.checkpoints import (
    FINGERPRINT,
    ISSUED_AT,
    KEY,
    ONE_HOUR,
    add_hashes,
    format_journal,
    make_checkpoint,
)
from tests.unit.core.phases import RUNS_BY_PHASE, idle_run, paused_run, waiting_run

PARKED_RUNS = [run for phase in sorted(PARKED_PHASES) for run in RUNS_BY_PHASE[phase]]


@pytest.mark.parametrize("key", [None, KEY])
@pytest.mark.parametrize("run", PARKED_RUNS, ids=lambda run: str(run.state.phase))
def test_reading_a_checkpoint_returns_the_same_run(run: Scenario, key: bytes | None) -> None:
    """The state is folded from the same lines, so it is equal to the parked state."""
    issued = make_checkpoint(run, key=key, expires=Micros(ISSUED_AT + ONE_HOUR))
    restored = Checkpoint.from_json(issued.to_json(), key=key)
    assert restored == issued
    assert restored.state() == run.state
    assert restored.journal == format_journal(run)
    assert Checkpoint.from_json(issued.to_json().encode(), key=key) == issued


def test_the_parked_phases_are_the_phases_at_rest_that_can_be_resumed() -> None:
    """A change to the phases must include a decision about checkpoints."""
    assert {Phase.PAUSED, Phase.WAITING, Phase.FAILED, Phase.HALTED} == PARKED_PHASES


def test_the_state_of_a_checkpoint_accepts_the_pending_answer() -> None:
    restored = Checkpoint.from_json(make_checkpoint(waiting_run).to_json())
    answer = c.Answer(ask=waiting_run.state.asks[0].id, value="yes")
    assert isinstance(decide(restored.state(), answer, ISSUED_AT), Accepted)


async def test_a_store_adopts_the_journal_of_a_checkpoint() -> None:
    """A store that has not seen the run checks its lines and keeps them byte by byte."""
    restored = Checkpoint.from_json(make_checkpoint(key=KEY).to_json(), key=KEY)
    store = MemoryStore()
    imported = RunImported(checkpoint=restored.run, head=restored.head_hash, by="ann")
    head = build_head(apply_entries(restored.state(), [imported]))
    adopted = await store.adopt(restored.run, restored.journal, imported, head=head)
    lines = [*await store.read_lines(restored.run)]
    assert lines[:-1] == add_hashes(restored.journal)
    assert (len(lines), lines[-1][1]) == (adopted.seq, adopted.hash)


def test_the_text_is_plain_json_with_a_fixed_set_of_fields() -> None:
    """Programs in other languages rely on this format."""
    fields = {
        "agent",
        "agent_fingerprint",
        "head_hash",
        "head_seq",
        "issued_at",
        "lines",
        "phase",
    }
    fields |= {"run", "signed", "v"}
    unsigned = json.loads(make_checkpoint().to_json())
    assert unsigned.keys() == fields
    assert unsigned["signed"] is False
    signed = json.loads(make_checkpoint(key=KEY, expires=ISSUED_AT).to_json())
    assert signed.keys() == fields | {"expires_at", "kid", "mac"}
    assert signed["signed"] is True


def test_a_signature_survives_another_layout_of_the_same_json() -> None:
    """A jsonb column reorders the keys, and a person may pretty-print the text."""
    issued = make_checkpoint(key=KEY)
    fields = json.loads(issued.to_json())
    reordered = json.dumps(dict(reversed(fields.items())), indent=2)
    assert Checkpoint.from_json(reordered, key=KEY) == issued


def test_the_same_run_at_the_same_moment_gives_the_same_text() -> None:
    """A checkpoint contains nothing random, so two checkpoints can be compared."""
    assert make_checkpoint(key=KEY).to_json() == make_checkpoint(key=KEY).to_json()


# ── key and signature ────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("signed_with", "read_with", "detail"),
    [
        (None, KEY, "not signed"),
        (KEY, None, "no key is given"),
        (KEY, KEY + b"!", "another key"),
    ],
)
def test_a_signature_that_does_not_match_the_key_is_refused(
    signed_with: bytes | None, read_with: bytes | None, detail: str
) -> None:
    """A missing signature or a missing key must not bypass the check."""
    text = make_checkpoint(key=signed_with).to_json()
    with pytest.raises(CheckpointRefused, match=detail) as refusal:
        Checkpoint.from_json(text, key=read_with)
    assert refusal.value.reason == "checkpoint_invalid"


@pytest.mark.parametrize("key", [b"", b"short"])
def test_a_key_that_is_too_short_is_refused(key: bytes) -> None:
    """An environment variable that is not set gives an empty key."""
    with pytest.raises(Misconfigured, match="at least 16"):
        make_checkpoint(key=key)
    with pytest.raises(Misconfigured, match="at least 16"):
        Checkpoint.from_json(make_checkpoint().to_json(), key=key)


def test_a_checkpoint_contains_the_key_id_and_not_the_key() -> None:
    """The id tells keys apart when they are rotated."""
    signed = make_checkpoint(key=KEY)
    assert signed.kid == make_key_id(KEY) != make_key_id(KEY + b"!")
    assert KEY.decode() not in signed.to_json()
    assert KEY.hex() not in signed.to_json()


# ── issuing ──────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("phase", sorted(set(Phase) - PARKED_PHASES))
def test_only_a_parked_run_has_a_checkpoint(phase: Phase) -> None:
    """Runs in other phases are driven by a worker or have ended."""
    with pytest.raises(CheckpointRefused, match="parked") as refusal:
        make_checkpoint(RUNS_BY_PHASE[phase][0])
    assert refusal.value.reason == "checkpoint_invalid"


def test_no_checkpoint_is_issued_of_a_journal_that_was_changed_in_the_store() -> None:
    """A signature would make the change look valid."""
    pairs = add_hashes(format_journal(paused_run))
    pairs[2] = (pairs[2][0].replace(b"c1", b"c7"), pairs[2][1])
    with pytest.raises(JournalCorrupt, match="seq 3"):
        Checkpoint.of(
            RUN,
            pairs,
            agent="clerk",
            agent_fingerprint=FINGERPRINT,
            phase=Phase.PAUSED,
            now=ISSUED_AT,
        )


def test_a_checkpoint_above_the_size_limit_is_neither_written_nor_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The error comes when it is issued, not only when it is resumed."""
    issued = make_checkpoint()
    text = issued.to_json()
    for size, fits in ((len(text), True), (len(text) - 1, False)):
        monkeypatch.setattr(
            module,
            "ENVELOPE_LIMITS",
            JsonLimits(max_depth=ENVELOPE_LIMITS.max_depth, max_bytes=size),
        )
        if fits:
            assert Checkpoint.from_json(issued.to_json()) == issued
            continue
        with pytest.raises(TooLarge):
            issued.to_json()
        with pytest.raises(CheckpointRefused, match="the limit is"):
            Checkpoint.from_json(text)


def test_a_checkpoint_of_a_long_run_can_be_read_back() -> None:
    """500 messages, with characters outside of ASCII."""
    run = idle_run
    for number in range(500):
        run = run.when(c.Say(text=f"Größe {number} 漢字 🐦 " + "x" * 500, urgency="later"))
    run = run.when(c.Pause()).advances()
    issued = make_checkpoint(run, key=KEY)
    assert Checkpoint.from_json(issued.to_json(), key=KEY).state() == run.state


def test_the_repr_of_a_checkpoint_contains_no_journal_lines() -> None:
    """The lines contain arguments and results, which do not belong into a log."""
    shown = f"{make_checkpoint(key=KEY)!r} {make_checkpoint()}"
    assert "run_1, paused at seq" in shown
    assert "unsigned" in shown
    assert "mail" not in shown


# ── checks before a resume ───────────────────────────────────────────────────

EXPIRES_AT = Micros(ISSUED_AT + ONE_HOUR)
LAST_VALID_MOMENT = Micros(EXPIRES_AT - 1)


def test_the_same_agent_may_resume_until_the_checkpoint_expires() -> None:
    make_checkpoint(expires=EXPIRES_AT).check_for("clerk", FINGERPRINT, LAST_VALID_MOMENT)
    make_checkpoint().check_for("clerk", FINGERPRINT, Micros(EXPIRES_AT + 1000 * ONE_HOUR))


@pytest.mark.parametrize(
    ("agent", "agent_fingerprint", "now", "reason", "detail"),
    [
        ("clerk", FINGERPRINT, EXPIRES_AT, "checkpoint_expired", "expired 0 s ago"),
        (
            "clerk",
            FINGERPRINT,
            Micros(EXPIRES_AT + ONE_HOUR),
            "checkpoint_expired",
            "expired 3600 s ago",
        ),
        ("baker", "other", EXPIRES_AT, "checkpoint_expired", ""),
        ("baker", FINGERPRINT, LAST_VALID_MOMENT, "agent_mismatch", "'clerk', got 'baker'"),
        ("clerk", "other", LAST_VALID_MOMENT, "agent_mismatch", "changed since"),
    ],
)
def test_an_expired_checkpoint_or_another_agent_is_refused(
    agent: str, agent_fingerprint: str, now: Micros, reason: str, detail: str
) -> None:
    """The expiry is checked first: an expired checkpoint stays useless with the right agent."""
    with pytest.raises(CheckpointRefused) as refusal:
        make_checkpoint(expires=EXPIRES_AT).check_for(agent, agent_fingerprint, now)
    assert refusal.value.reason == reason
    assert detail in refusal.value.detail


@pytest.mark.parametrize(
    ("ahead", "detail"),
    [(2, "at seq 10, the checkpoint at 8"), (-1, "at seq 7"), (0, "another entry at seq 8")],
)
def test_a_checkpoint_is_stale_if_the_run_in_the_store_has_another_head(
    ahead: int, detail: str
) -> None:
    """The run was resumed before, the store was restored, or the journals differ."""
    issued = make_checkpoint()
    with pytest.raises(CheckpointRefused, match=detail) as refusal:
        issued.check_head(Seq(issued.head_seq + ahead), b"another hash")
    assert refusal.value.reason == "stale_checkpoint"
