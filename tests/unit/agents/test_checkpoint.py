"""A parked run leaves as text and comes back as the same run."""

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
from tests.unit.agents.parked import HOUR, KEY, LATER, PRINT, checkpoint_of, lines_of, pairs_of
from tests.unit.core.phases import RUNS, begun, paused, waiting

PARKED_RUNS = [run for phase in sorted(PARKED_PHASES) for run in RUNS[phase]]


@pytest.mark.parametrize("key", [None, KEY])
@pytest.mark.parametrize("run", PARKED_RUNS, ids=lambda run: str(run.state.phase))
def test_a_checkpoint_comes_back_as_the_same_run(run: Scenario, key: bytes | None) -> None:
    """Resume is the fold: what comes back is the state that was parked, bytes and all."""
    issued = checkpoint_of(run, key=key, expires=Micros(LATER + HOUR))
    back = Checkpoint.from_json(issued.to_json(), key=key)
    assert back == issued
    assert back.state() == run.state
    assert back.journal == lines_of(run)
    assert Checkpoint.from_json(issued.to_json().encode(), key=key) == issued


def test_the_parked_phases_are_those_in_which_a_run_rests_and_can_go_on() -> None:
    """A change to the phases must be a decision about checkpoints, too."""
    assert {Phase.PAUSED, Phase.WAITING, Phase.FAILED, Phase.HALTED} == PARKED_PHASES


def test_a_run_goes_on_from_its_checkpoint() -> None:
    """The state that comes back takes the answer that the run waits for."""
    back = Checkpoint.from_json(checkpoint_of(waiting).to_json())
    answer = c.Answer(ask=waiting.state.asks[0].id, value="yes")
    assert isinstance(decide(back.state(), answer, LATER), Accepted)


async def test_a_store_adopts_the_journal_of_a_checkpoint() -> None:
    """A store that never saw the run holds it against its own rules, and keeps every byte."""
    back = Checkpoint.from_json(checkpoint_of(key=KEY).to_json(), key=KEY)
    store = MemoryStore()
    imported = RunImported(checkpoint=back.run, head=back.head_hash, by="ann")
    head = build_head(apply_entries(back.state(), [imported]))
    adopted = await store.adopt(back.run, back.journal, imported, head=head)
    lines = [*await store.read_lines(back.run)]
    assert lines[:-1] == pairs_of(back.journal)
    assert (len(lines), lines[-1][1]) == (adopted.seq, adopted.hash)


def test_the_text_is_plain_json_with_a_fixed_set_of_fields() -> None:
    """Other languages read it; this is what they are promised."""
    fields = {"agent", "agent_print", "head_hash", "head_seq", "issued_at", "lines", "phase"}
    fields |= {"run", "signed", "v"}
    unsigned = json.loads(checkpoint_of().to_json())
    assert unsigned.keys() == fields
    assert unsigned["signed"] is False
    signed = json.loads(checkpoint_of(key=KEY, expires=LATER).to_json())
    assert signed.keys() == fields | {"expires_at", "kid", "mac"}
    assert signed["signed"] is True


def test_a_signature_survives_another_layout_of_the_same_json() -> None:
    """A jsonb column sorts keys its own way, a person pretty-prints; neither is tampering."""
    issued = checkpoint_of(key=KEY)
    fields = json.loads(issued.to_json())
    turned = json.dumps(dict(reversed(fields.items())), indent=2)
    assert Checkpoint.from_json(turned, key=KEY) == issued


def test_the_same_run_at_the_same_moment_gives_the_same_text() -> None:
    """Nothing in it is drawn by chance, so two of them can be compared."""
    assert checkpoint_of(key=KEY).to_json() == checkpoint_of(key=KEY).to_json()


# ── key and signature go together ────────────────────────────────────────────


@pytest.mark.parametrize(
    ("signed_with", "read_with", "detail"),
    [
        (None, KEY, "not signed"),
        (KEY, None, "no key is given"),
        (KEY, KEY + b"!", "another key"),
    ],
)
def test_a_signature_and_a_key_that_do_not_go_together_are_refused(
    signed_with: bytes | None, read_with: bytes | None, detail: str
) -> None:
    """Leaving the signature off must not be a way around it, nor forgetting the key."""
    text = checkpoint_of(key=signed_with).to_json()
    with pytest.raises(CheckpointRefused, match=detail) as refusal:
        Checkpoint.from_json(text, key=read_with)
    assert refusal.value.reason == "checkpoint_invalid"


@pytest.mark.parametrize("key", [b"", b"short"])
def test_a_key_that_proves_nothing_is_a_mistake_of_the_deployment(key: bytes) -> None:
    """An unset variable gives an empty key, and anybody can sign with that."""
    with pytest.raises(Misconfigured, match="at least 16"):
        checkpoint_of(key=key)
    with pytest.raises(Misconfigured, match="at least 16"):
        Checkpoint.from_json(checkpoint_of().to_json(), key=key)


def test_a_key_is_named_but_not_shown() -> None:
    """The name tells keys apart when they are rotated."""
    named = checkpoint_of(key=KEY)
    assert named.kid == make_key_id(KEY) != make_key_id(KEY + b"!")
    assert KEY.decode() not in named.to_json()
    assert KEY.hex() not in named.to_json()


# ── issuing ──────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("phase", sorted(set(Phase) - PARKED_PHASES))
def test_only_a_parked_run_has_a_checkpoint(phase: Phase) -> None:
    """A driver still has the others in its hands, or nothing more will come of them."""
    with pytest.raises(CheckpointRefused, match="parked") as refusal:
        checkpoint_of(RUNS[phase][0])
    assert refusal.value.reason == "checkpoint_invalid"


def test_a_journal_that_was_changed_in_the_store_is_not_issued() -> None:
    """A signature over it would make the change look right for ever."""
    pairs = pairs_of(lines_of(paused))
    pairs[2] = (pairs[2][0].replace(b"c1", b"c7"), pairs[2][1])
    with pytest.raises(JournalCorrupt, match="seq 3"):
        Checkpoint.of(
            RUN, pairs, agent="clerk", agent_print=PRINT, phase=Phase.PAUSED, now=LATER
        )


def test_a_checkpoint_beyond_the_bound_is_neither_written_nor_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever writes one learns it at once, not whoever resumes it."""
    issued = checkpoint_of()
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


def test_a_long_run_fits() -> None:
    """Thousands of entries, in more than one script."""
    run = begun
    for number in range(500):
        run = run.when(c.Say(text=f"Größe {number} 漢字 🐦 " + "x" * 500, urgency="later"))
    run = run.when(c.Pause()).advances()
    issued = checkpoint_of(run, key=KEY)
    assert Checkpoint.from_json(issued.to_json(), key=KEY).state() == run.state


def test_a_checkpoint_in_a_log_shows_nothing_of_what_the_run_did() -> None:
    """Lines hold arguments and results; a log is not the place for them."""
    shown = f"{checkpoint_of(key=KEY)!r} {checkpoint_of()}"
    assert "run_1, paused at seq" in shown
    assert "unsigned" in shown
    assert "mail" not in shown


# ── may it be resumed, here and now ──────────────────────────────────────────

UNTIL = Micros(LATER + HOUR)
LAST = Micros(UNTIL - 1)


def test_the_right_agent_resumes_until_the_last_moment() -> None:
    """Nothing is refused without a reason."""
    checkpoint_of(expires=UNTIL).check_for("clerk", PRINT, LAST)
    checkpoint_of().check_for("clerk", PRINT, Micros(UNTIL + 1000 * HOUR))


@pytest.mark.parametrize(
    ("agent", "agent_print", "now", "reason", "detail"),
    [
        ("clerk", PRINT, UNTIL, "checkpoint_expired", "expired 0 s ago"),
        ("clerk", PRINT, Micros(UNTIL + HOUR), "checkpoint_expired", "expired 3600 s ago"),
        ("baker", "other", UNTIL, "checkpoint_expired", ""),
        ("baker", PRINT, LAST, "agent_mismatch", "'clerk', got 'baker'"),
        ("clerk", "other", LAST, "agent_mismatch", "changed since"),
    ],
)
def test_too_late_or_another_agent_is_refused_by_name(
    agent: str, agent_print: str, now: Micros, reason: str, detail: str
) -> None:
    """Expiry comes first: it makes no sense to mend the agent for a checkpoint that is over."""
    with pytest.raises(CheckpointRefused) as refusal:
        checkpoint_of(expires=UNTIL).check_for(agent, agent_print, now)
    assert refusal.value.reason == reason
    assert detail in refusal.value.detail


@pytest.mark.parametrize(
    ("ahead", "detail"),
    [(2, "at seq 10, the checkpoint at 8"), (-1, "at seq 7"), (0, "another entry at seq 8")],
)
def test_a_run_that_is_elsewhere_in_the_store_makes_its_checkpoint_stale(
    ahead: int, detail: str
) -> None:
    """Somebody resumed it first, the store was set back, or the two went apart."""
    issued = checkpoint_of()
    with pytest.raises(CheckpointRefused, match=detail) as refusal:
        issued.check_head(Seq(issued.head_seq + ahead), b"another hash")
    assert refusal.value.reason == "stale_checkpoint"
