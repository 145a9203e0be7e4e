r"""Checkpoints: a parked run as portable JSON, to be resumed elsewhere.

A checkpoint is the run's journal, line by line as it was stored, in an envelope that says what
it is of. There is no second representation: to resume is to fold the lines. It holds data and
nothing else; reading one makes no object that a journal could not hold. A run that has begun
child runs takes theirs along, and their children's, or what they did would be done again.

    {"agent":"clerk","agent_print":"5f2c","head_hash":"9e1b…","head_seq":7,
     "issued_at":1763251200000000,"kid":"77ab…","lines":["{\"at\":…}",…],"mac":"04cd…",
     "phase":"paused","run":"run_1","signed":true,"v":1}

**With a key** it is signed: `mac` is the HMAC-SHA-256 of everything else in canonical form. It
is checked before anything in the envelope is believed. White space and the order of keys do
not count, so a checkpoint survives a database that keeps JSON in its own layout.
**Without one** it says `"signed": false`. The chain of hashes then finds accidents, not
intentions: whoever can write the text can write a journal, the agent's fingerprint and the
expiry to go with it. Keep unsigned checkpoints where you would keep the database.

Key and signature go together. An unsigned checkpoint is refused where a key is given, or
leaving the signature off would be all it takes to forge one. A signed one is refused where no
key is given: a process that forgot its key must not go on as if it had checked.

A checkpoint can be resumed twice. Only a store that has the run can refuse that
(`check_head`); without a store nobody can know.
"""

from collections.abc import Iterable
from hmac import compare_digest, digest
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from midrun.codec.hash_chain import KEY_MIN, PLAIN, Chain, check_import
from midrun.codec.journal import decode_line, line_of
from midrun.codec.safe_repr import safe_repr, safe_str
from midrun.codec.strict_json import Limits, parse
from midrun.core.child_runs import children_of
from midrun.core.evolve import fold
from midrun.core.ids import SECOND, Micros, RunId, Seq
from midrun.core.state import State
from midrun.core.values import DRIVABLE, RESTS, TERMINAL, Phase
from midrun.errors import (
    CheckpointRefused,
    JournalCorrupt,
    JournalTooNew,
    Misconfigured,
    NotJson,
    TooLarge,
)

VERSION: Final = 1
LIMITS: Final = Limits(depth=4, size=64 * 1024 * 1024)
"""An envelope holds a list of texts, and one for each child run; nothing is deeper."""

PARKED: Final = RESTS - TERMINAL

_ENCODER: Final = msgspec.json.Encoder(order="sorted")

_Id = Annotated[RunId, Meta(pattern=r"^[A-Za-z0-9_-]{1,64}\Z")]


class ChildJournal(
    Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """A child run in the checkpoint of the run that began it, or of that one's parent.

    One without lines was about to be begun, and never was.
    """

    run: _Id
    head_hash: str = ""
    lines: tuple[str, ...] = ()

    @property
    def journal(self) -> tuple[bytes, ...]:
        """The stored lines, byte for byte, as `Store.adopt` takes them."""
        return tuple(line.encode() for line in self.lines)

    def state(self) -> State:
        """Return what the child's journal means.

        Raises:
            CheckpointRefused: `checkpoint_invalid`, the lines are no such journal.
        """
        lines = self.journal
        if PLAIN.head(self.run, lines).hex() != self.head_hash:
            raise _invalid(f"the lines of child run {self.run} do not fit their head")
        return _folded(self.run, lines)


class Checkpoint(
    Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """A parked run. Get one from an outcome, from `run.checkpoint()` or with `from_json`.

    One that `from_json` returned is whole: its signature holds if there is a key, and its lines
    are a journal of `run` that ends at the head and in the phase it names.
    """

    run: _Id
    agent: str
    agent_print: str
    phase: Phase
    head_seq: Seq
    head_hash: str
    issued_at: Micros
    expires_at: Micros | None = None
    lines: tuple[str, ...]
    children: tuple[ChildJournal, ...] = ()  # all that it has begun, and theirs
    signed: bool
    kid: str = ""  # which key signed it; tells keys apart, and gives nothing away
    mac: str = ""
    v: int

    @classmethod
    def of(  # noqa: PLR0913 - what a checkpoint says, one by one
        cls,
        run: RunId,
        pairs: Iterable[tuple[bytes, bytes]],
        *,
        agent: str,
        agent_print: str,
        phase: Phase,
        now: Micros,
        expires: Micros | None = None,
        key: bytes | None = None,
        chain: Chain = PLAIN,
        children: Iterable[tuple[RunId, Iterable[tuple[bytes, bytes]]]] = (),
    ) -> "Checkpoint":
        """Return the checkpoint of a run in `phase`; with `key` it is signed.

        `pairs` is the run's whole journal as `Store.lines` gives it, and `chain` how that store
        makes its hashes, against which it is held: signing a journal that was changed would
        make it look right for ever. The checkpoint names its head as it is without a key.
        `children` are the journals of all its child runs, and of theirs, in the same way.

        Raises:
            CheckpointRefused: `checkpoint_invalid`, the run is not parked.
            JournalCorrupt: the stored lines are not what was written.
            Misconfigured: the key is too short.
        """
        stored = chain.verified(run, pairs)
        unsigned = cls(
            run=run,
            agent=agent,
            agent_print=agent_print,
            phase=_parked(phase),
            head_seq=Seq(len(stored)),
            head_hash=PLAIN.head(run, stored).hex(),
            issued_at=now,
            expires_at=expires,
            lines=tuple(line.decode() for line in stored),
            children=tuple(_child(run_, chain.verified(run_, of)) for run_, of in children),
            signed=key is not None,
            kid="" if key is None else key_id(key),
            v=VERSION,
        )
        if key is None:
            return unsigned
        return replace(unsigned, mac=_mac(key, _ENCODER.encode(unsigned)))

    def to_json(self) -> str:
        """Return the checkpoint as one line of JSON.

        Raises:
            TooLarge: no `from_json` would take it.
        """
        text = _ENCODER.encode(self)
        if len(text) > LIMITS.size:
            raise TooLarge("$", len(text), LIMITS.size)
        return text.decode()

    @classmethod
    def from_json(cls, text: str | bytes, *, key: bytes | None = None) -> "Checkpoint":
        """Return the checkpoint that `text` is, if it is what was issued.

        Whether it may be resumed, here and now, is for `check_head` and `check_for` to say.

        Raises:
            CheckpointRefused: `checkpoint_invalid`, with what is wrong in words.
            Misconfigured: the key is too short.
        """
        envelope = _parsed(text)
        _check_signature(envelope, key)
        checkpoint = _shaped(envelope)
        checkpoint.family()
        return checkpoint

    @property
    def journal(self) -> tuple[bytes, ...]:
        """The stored lines, byte for byte, as `Store.adopt` takes them."""
        return tuple(line.encode() for line in self.lines)

    def state(self) -> State:
        """Return what the run's journal means: the state to go on from.

        Raises:
            CheckpointRefused: `checkpoint_invalid`, the lines are no such journal.
        """
        lines = self.journal
        if (len(lines), PLAIN.head(self.run, lines).hex()) != (self.head_seq, self.head_hash):
            raise _invalid("the lines are not the journal whose head it names")
        state = _folded(self.run, lines)
        if (state.phase, state.started.agent) != (self.phase, self.agent):
            found = f"run of {state.started.agent!r} that is {state.phase}"
            raise _invalid(f"the journal is that of a {found}")
        return state

    def family(self) -> tuple[tuple[ChildJournal, State], ...]:
        """Return the child runs that were begun, with what their journals mean.

        Raises:
            CheckpointRefused: `checkpoint_invalid`: one is missing, at work, or none of its.
        """
        brought = {child.run: child for child in self.children}
        if len(brought) < len(self.children):
            raise _invalid("a child run is in it twice")
        found: list[tuple[ChildJournal, State]] = []
        wanted = list(children_of(self.state()))
        while wanted:
            run = wanted.pop(0)
            if (child := brought.pop(run, None)) is None:
                raise _invalid(f"child run {run} is not in it")
            if not child.lines:
                continue
            state = child.state()
            if state.phase in DRIVABLE:
                raise _invalid(f"child run {run} is {state.phase}; all of a family is parked")
            wanted += children_of(state)
            found.append((child, state))
        if brought:
            raise _invalid(f"run {min(brought)} is none of its children")
        return tuple(found)

    def check_signed(self, key: bytes) -> None:
        """Refuse unless this very checkpoint was signed with `key`, however it was read.

        Raises:
            CheckpointRefused: `checkpoint_invalid`, it was not.
        """
        _check_signature(msgspec.to_builtins(self), key)

    def check_head(self, seq: Seq, head_hash: bytes) -> None:
        """Refuse unless a store that has the run has it exactly as far as this checkpoint.

        Raises:
            CheckpointRefused: `stale_checkpoint`, with where the run stands in the store.
        """
        if (seq, head_hash.hex()) == (self.head_seq, self.head_hash):
            return
        where = f"the run is at seq {seq}, the checkpoint at {self.head_seq}"
        if seq == self.head_seq:
            where = f"the run has another entry at seq {seq}"
        raise CheckpointRefused("stale_checkpoint", where)

    def check_for(self, agent: str, agent_print: str, now: Micros) -> None:
        """Refuse unless this agent may resume the run at `now`.

        Comes after `check_head`, so that the first reason told is the one that matters most.

        Raises:
            CheckpointRefused: `checkpoint_expired` or `agent_mismatch`, in this order.
        """
        if self.expires_at is not None and self.expires_at <= now:
            late = (now - self.expires_at) // SECOND
            raise CheckpointRefused("checkpoint_expired", f"it was good until {late} s ago")
        if agent != self.agent:
            raise CheckpointRefused("agent_mismatch", f"it is of {self.agent!r}, not {agent!r}")
        if agent_print != self.agent_print:
            changed = f"the tools, prompt or version of {agent!r} have changed since"
            raise CheckpointRefused("agent_mismatch", changed)

    def __repr__(self) -> str:
        """Say what it is of; what the run did has no place in a log by accident."""
        seal = f"signed with {self.kid}" if self.signed else "unsigned"
        return f"<checkpoint of run {self.run}, {self.phase} at seq {self.head_seq}, {seal}>"


def key_id(key: bytes) -> str:
    """Return the name of `key` in the checkpoints it signs, to find the right one by.

    Raises:
        Misconfigured: the key is too short.
    """
    if len(key) < KEY_MIN:
        raise Misconfigured("key", f"{len(key)} bytes; use at least {KEY_MIN} random ones")
    return digest(key, b"midrun key id", "sha256").hex()[:16]


def _mac(key: bytes, canonical: bytes) -> str:
    return digest(key, b"midrun checkpoint\n" + canonical, "sha256").hex()


def _invalid(detail: str) -> CheckpointRefused:
    return CheckpointRefused("checkpoint_invalid", detail)


def _parsed(text: str | bytes) -> dict[object, object]:
    try:
        envelope = parse(text, LIMITS)
    except NotJson as refusal:
        raise _invalid(f"{refusal.path}: {refusal.problem}") from None
    except TooLarge as refusal:
        raise _invalid(f"{refusal.size} bytes, the limit is {refusal.limit}") from None
    if not isinstance(envelope, dict):
        raise _invalid("not a JSON object")
    return envelope


def _check_signature(envelope: dict[object, object], key: bytes | None) -> None:
    """Refuse what was not signed with `key`, before a single field of it is believed."""
    signed = envelope.get("signed") is True
    if key is None:
        if signed:
            raise _invalid("it is signed; give the key to check it with")
        return
    expected = key_id(key)
    if not signed:
        raise _invalid("it is not signed, and there is a key to check it with")
    if envelope.get("kid") != expected:
        raise _invalid(f"it was signed with another key than {expected}")
    mac = envelope.get("mac")
    rest = {name: value for name, value in envelope.items() if name != "mac"}
    made = _mac(key, _ENCODER.encode(rest))
    if not isinstance(mac, str) or not compare_digest(made.encode(), mac.encode()):
        raise _invalid("it was changed after it was signed")


def _shaped(envelope: dict[object, object]) -> Checkpoint:
    version = envelope.get("v")
    if isinstance(version, int) and version > VERSION:
        raise _invalid(f"a newer midrun wrote it (format {version}); upgrade this process")
    try:
        checkpoint = msgspec.convert(envelope, Checkpoint)
    except msgspec.ValidationError as error:
        raise _invalid(safe_str(error)) from None
    if checkpoint.v != VERSION:
        raise _invalid(f"there is no format {checkpoint.v}")
    if {checkpoint.signed} != {bool(checkpoint.kid), bool(checkpoint.mac)}:
        raise _invalid("it does not say clearly whether it is signed")
    _parked(checkpoint.phase)
    return checkpoint


def _parked(phase: Phase) -> Phase:
    if phase not in PARKED:
        raise _invalid(f"the run is {phase}; a checkpoint is of one that is parked")
    return phase


def _child(run: RunId, stored: list[bytes]) -> ChildJournal:
    head = PLAIN.head(run, stored).hex() if stored else ""
    return ChildJournal(run=run, head_hash=head, lines=tuple(map(bytes.decode, stored)))


def _folded(run: RunId, lines: Iterable[bytes]) -> State:
    """Return the fold of lines that anybody may have written."""
    state, link = State(run=run), PLAIN.first(run)
    for data in lines:
        where = f"line {state.seq + 1}"
        try:
            state = _followed(state, data, link)
        except JournalTooNew as refusal:
            raise _invalid(f"{where}: a newer midrun wrote {safe_str(refusal.kind)}") from None
        except JournalCorrupt as refusal:
            raise _invalid(f"{where}: {safe_str(refusal.problem)}") from None
        except Exception as error:  # a fold relies on what only a sound journal has
            raise _invalid(f"{where} cannot stand there: {safe_repr(error)}") from error
        link = PLAIN.next(link, data)
    if state.spec is None:
        raise _invalid("it has no lines")
    return state


def _followed(state: State, data: bytes, link: bytes) -> State:
    record = decode_line(data, run=state.run, seq=Seq(state.seq + 1))
    if line_of(record) != data:
        raise JournalCorrupt(state.run, record.seq, "it is not canonical")
    if record.at < state.at:
        raise JournalCorrupt(state.run, record.seq, "it is older than the one before it")
    check_import(state.run, record, link)
    return fold(state.run, [record], state)
