r"""`Checkpoint`: a parked run as portable JSON, to be resumed in another process or store.

A checkpoint is the journal of a run, line by line as it was stored, in an envelope with its
run, agent, phase and head. There is no second representation of a run: to resume is to fold the
lines. It contains data only; decoding one creates no object that a journal could not hold. It
also contains the journals of all child runs, because a child that is missing would be started
again and repeat its effects.

    {"agent":"clerk","agent_print":"5f2c","head_hash":"9e1b…","head_seq":7,
     "issued_at":1763251200000000,"kid":"77ab…","lines":["{\"at\":…}",…],"mac":"04cd…",
     "phase":"paused","run":"run_1","signed":true,"v":1}

**With a key** it is signed: `mac` is the HMAC-SHA-256 of all other fields in canonical form. It
is checked before any field is used. White space and the order of keys do not count, so a
checkpoint can be stored in a database that changes the layout of JSON.
**Without a key** it has `"signed": false`. The hash chain then detects accidental damage, but
not forgery: a writer of the text can also write a journal, a fingerprint and an expiry that
match. Protect unsigned checkpoints like the database itself.

Key and signature go together. An unsigned checkpoint is refused if a key is given; otherwise a
forger would only have to remove the signature. A signed checkpoint is refused if no key is
given; otherwise a process with a missing key would continue without the check.

A checkpoint can be resumed twice. Only a store that has the run can detect it (`check_head`).
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
"""The limits of an envelope: a list of lines, and one list for each child run (depth 4)."""

PARKED: Final = RESTS - TERMINAL

_ENCODER: Final = msgspec.json.Encoder(order="sorted")

_Id = Annotated[RunId, Meta(pattern=r"^[A-Za-z0-9_-]{1,64}\Z")]


class ChildJournal(
    Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """The journal of a child run, in the checkpoint of its root run.

    Without lines: the parent had journaled the call, but the child run was never created.
    """

    run: _Id
    head_hash: str = ""
    lines: tuple[str, ...] = ()

    @property
    def journal(self) -> tuple[bytes, ...]:
        """The stored lines, byte for byte, as `Store.adopt` takes them."""
        return tuple(line.encode() for line in self.lines)

    def state(self) -> State:
        """Fold the journal of the child run to its state.

        Raises:
            CheckpointRefused: `checkpoint_invalid`: the lines are not a valid journal.
        """
        lines = self.journal
        if PLAIN.head(self.run, lines).hex() != self.head_hash:
            raise _invalid(f"the lines of child run {self.run} do not match their head_hash")
        return _folded(self.run, lines)


class Checkpoint(
    Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """A parked run as portable data. Immutable.

    Get one from an outcome, from `run.checkpoint()` or from text:

        text = outcome.checkpoint.to_json()
        ...
        outcome = await agent.resume(Checkpoint.from_json(text), answer="yes")

    A checkpoint from `from_json` is verified: the signature is valid if a key was given, and
    the lines are a valid journal that ends at `head_seq` and in `phase`.
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
    children: tuple[ChildJournal, ...] = ()  # all child runs, and their child runs
    signed: bool
    kid: str = ""  # the id of the signing key, from which the key cannot be computed
    mac: str = ""
    v: int

    @classmethod
    def of(  # noqa: PLR0913 - one keyword per field
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
        """Make the checkpoint of a run in `phase`; sign it if `key` is given.

        `pairs` is the whole journal as `Store.lines` returns it, each line with its hash.
        `chain` computes the hashes of that store. The lines are checked against it first: a
        signature over a changed journal would make it look authentic. `children` are the
        journals of all child runs. `head_hash` is computed without the store's key, so that
        another store can check it.

        Raises:
            CheckpointRefused: `checkpoint_invalid`: the run is not parked.
            JournalCorrupt: A stored line was changed.
            Misconfigured: The key is too short.
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
        """Encode the checkpoint as one line of JSON.

        Raises:
            TooLarge: It is larger than 64 MiB, which `from_json` would refuse.
        """
        text = _ENCODER.encode(self)
        if len(text) > LIMITS.size:
            raise TooLarge("$", len(text), LIMITS.size)
        return text.decode()

    @classmethod
    def from_json(cls, text: str | bytes, *, key: bytes | None = None) -> "Checkpoint":
        """Decode a checkpoint, and check its signature and its journals.

        It does not check whether the run has advanced or the checkpoint has expired; `resume`
        does.

        Args:
            text: The JSON text.
            key: The signing key, as in `Midrun(key=…)`. Required for a signed checkpoint.

        Raises:
            CheckpointRefused: `checkpoint_invalid`, with the reason in `detail`.
            Misconfigured: The key is too short.
        """
        # The order matters: nothing but JSON syntax is looked at before the signature. The
        # limits of size and depth hold for unsigned input, too.
        envelope = _parsed(text)
        _check_signature(envelope, key)
        checkpoint = _shaped(envelope)
        checkpoint.family()  # folds all journals, and raises if one is not valid
        return checkpoint

    @property
    def journal(self) -> tuple[bytes, ...]:
        """The stored lines, byte for byte, as `Store.adopt` takes them."""
        return tuple(line.encode() for line in self.lines)

    def state(self) -> State:
        """Fold the journal to the state of the run.

        Raises:
            CheckpointRefused: `checkpoint_invalid`: the lines are not a valid journal.
        """
        lines = self.journal
        if (len(lines), PLAIN.head(self.run, lines).hex()) != (self.head_seq, self.head_hash):
            raise _invalid("the lines do not match head_seq and head_hash")
        state = _folded(self.run, lines)
        if (state.phase, state.started.agent) != (self.phase, self.agent):
            actual = f"{state.phase} run of agent {state.started.agent!r}"
            raise _invalid(f"the lines are the journal of a {actual}")
        return state

    def family(self) -> tuple[tuple[ChildJournal, State], ...]:
        """Return the child runs that were created, each with its state.

        Raises:
            CheckpointRefused: `checkpoint_invalid`: a child run is missing, is not parked, or
                does not belong to this run.
        """
        unvisited = {child.run: child for child in self.children}
        if len(unvisited) < len(self.children):
            raise _invalid("it contains a child run twice")
        members: list[tuple[ChildJournal, State]] = []
        # Follow the children that the journals name. Each must be present once; none may be
        # left at the end, or a forger could import journals of unrelated runs.
        queue = list(children_of(self.state()))
        while queue:
            run = queue.pop(0)
            if (child := unvisited.pop(run, None)) is None:
                raise _invalid(f"child run {run} is missing")
            if not child.lines:
                continue
            state = child.state()
            if state.phase in DRIVABLE:
                raise _invalid(f"child run {run} is {state.phase}, and not parked")
            queue += children_of(state)
            members.append((child, state))
        if unvisited:
            raise _invalid(f"run {min(unvisited)} is not one of its child runs")
        return tuple(members)

    def check_signed(self, key: bytes) -> None:
        """Check that this checkpoint was signed with `key`.

        `from_json` checks it, too. This is for a checkpoint that was decoded in another way.

        Raises:
            CheckpointRefused: `checkpoint_invalid`: it was not.
        """
        _check_signature(msgspec.to_builtins(self), key)

    def check_head(self, seq: Seq, head_hash: bytes) -> None:
        """Check that the run in the store has not advanced since this checkpoint.

        `seq` and `head_hash` are those of the newest entry in the store.

        Raises:
            CheckpointRefused: `stale_checkpoint`, with the seq in the store.
        """
        if (seq, head_hash.hex()) == (self.head_seq, self.head_hash):
            return
        problem = f"the run is at seq {seq}, the checkpoint at {self.head_seq}"
        if seq == self.head_seq:
            problem = f"the run has another entry at seq {seq}"
        raise CheckpointRefused("stale_checkpoint", problem)

    def check_for(self, agent: str, agent_print: str, now: Micros) -> None:
        """Check that this agent may resume the run at `now`.

        Call it after `check_head`: a stale checkpoint is reported first.

        Raises:
            CheckpointRefused: `checkpoint_expired` or `agent_mismatch`, in this order.
        """
        if self.expires_at is not None and self.expires_at <= now:
            late = (now - self.expires_at) // SECOND
            raise CheckpointRefused("checkpoint_expired", f"it expired {late} s ago")
        if agent != self.agent:
            problem = f"it is of agent {self.agent!r}, got {agent!r}"
            raise CheckpointRefused("agent_mismatch", problem)
        if agent_print != self.agent_print:
            problem = f"the tools, instructions or model of agent {agent!r} have changed since"
            raise CheckpointRefused("agent_mismatch", problem)

    def __repr__(self) -> str:
        """Name the run only: the journal may be private and must not end up in a log."""
        seal = f"signed with {self.kid}" if self.signed else "unsigned"
        return f"<checkpoint of run {self.run}, {self.phase} at seq {self.head_seq}, {seal}>"


def key_id(key: bytes) -> str:
    """Return the id of a signing key, as checkpoints name it.

    Raises:
        Misconfigured: The key is too short.
    """
    if len(key) < KEY_MIN:
        problem = f"must have at least {KEY_MIN} random bytes, got {len(key)}"
        raise Misconfigured("key", problem)
    # An HMAC over a fixed text. The text differs from the prefix of `_compute_mac`, so that the
    # id cannot be used as a signature.
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
    """Check the signature of an envelope, before any other field of it is used."""
    signed = envelope.get("signed") is True
    if key is None:
        if signed:
            raise _invalid("it is signed, and no key is given to check the signature")
        return
    expected_kid = key_id(key)
    if not signed:
        raise _invalid("it is not signed, and a key is given")
    if envelope.get("kid") != expected_kid:
        raise _invalid(f"it was signed with another key than {expected_kid}")
    mac = envelope.get("mac")
    rest = {name: value for name, value in envelope.items() if name != "mac"}
    expected_mac = _mac(key, _ENCODER.encode(rest))
    # Constant time: the duration must not tell a forger how many characters are right.
    if not isinstance(mac, str) or not compare_digest(expected_mac.encode(), mac.encode()):
        raise _invalid("it was changed after it was signed")


def _shaped(envelope: dict[object, object]) -> Checkpoint:
    # Before the conversion: a newer format may have fields that would be refused as unknown,
    # with a less helpful text.
    version = envelope.get("v")
    if isinstance(version, int) and version > VERSION:
        raise _invalid(f"a newer version of midrun wrote it (format {version}); upgrade midrun")
    try:
        checkpoint = msgspec.convert(envelope, Checkpoint)
    except msgspec.ValidationError as error:
        raise _invalid(safe_str(error)) from None
    if checkpoint.v != VERSION:
        raise _invalid(f"format {checkpoint.v} does not exist")
    # `signed`, `kid` and `mac` must agree: all present, or all absent.
    if {checkpoint.signed} != {bool(checkpoint.kid), bool(checkpoint.mac)}:
        raise _invalid("signed, kid and mac contradict each other")
    _parked(checkpoint.phase)
    return checkpoint


def _parked(phase: Phase) -> Phase:
    if phase not in PARKED:
        raise _invalid(f"the run is {phase}; only a parked run has checkpoints")
    return phase


def _child(run: RunId, stored: list[bytes]) -> ChildJournal:
    head = PLAIN.head(run, stored).hex() if stored else ""
    return ChildJournal(run=run, head_hash=head, lines=tuple(map(bytes.decode, stored)))


def _folded(run: RunId, lines: Iterable[bytes]) -> State:
    """Fold lines from an untrusted source to a state."""
    state, chain_hash = State(run=run), PLAIN.first(run)
    for data in lines:
        where = f"line {state.seq + 1}"
        try:
            state = _followed(state, data, chain_hash)
        except JournalTooNew as refusal:
            kind = safe_str(refusal.kind)
            raise _invalid(f"{where}: a newer version of midrun wrote {kind}") from None
        except JournalCorrupt as refusal:
            raise _invalid(f"{where}: {safe_str(refusal.problem)}") from None
        except Exception as error:
            # `evolve` assumes that `decide` made the entries. Entries in an impossible order
            # may make it raise anything, such as an IndexError.
            raise _invalid(f"{where} is not possible there: {safe_repr(error)}") from error
        chain_hash = PLAIN.next(chain_hash, data)
    if state.spec is None:
        raise _invalid("it has no lines")
    return state


def _followed(state: State, data: bytes, chain_hash: bytes) -> State:
    record = decode_line(data, run=state.run, seq=Seq(state.seq + 1))
    # The same entry could be written in several ways, with other hashes. Only one is allowed.
    if line_of(record) != data:
        raise JournalCorrupt(state.run, record.seq, "it is not canonical")
    if record.at < state.at:
        raise JournalCorrupt(state.run, record.seq, "it is older than the one before it")
    check_import(state.run, record, chain_hash)
    return fold(state.run, [record], state)
