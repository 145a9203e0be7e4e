r"""`Checkpoint`: a parked run as portable JSON, to be resumed in another process or store.

A checkpoint is the journal of a run, line by line as it was stored, in an envelope with its
run, agent, phase and head. There is no second representation of a run: to resume is to fold the
lines. It contains data only; decoding one creates no object that a journal could not hold. It
also contains the journals of all child runs, because a child that is missing would be started
again and repeat its effects, and the files that the journals name, up to a size.

    {"agent":"clerk","agent_fingerprint":"5f2c","head_hash":"9e1b…","head_seq":7,
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

from collections.abc import Iterable, Mapping
from hmac import compare_digest, digest
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from midrun.codec.hash_chain import KEY_MIN_BYTES, UNKEYED_CHAIN, HashChain, check_import_head
from midrun.codec.journal import decode_line, format_record
from midrun.codec.safe_repr import safe_repr, safe_str
from midrun.codec.strict_json import JsonLimits, parse_json
from midrun.core.evolve import fold
from midrun.core.ids import MICROS_PER_SECOND, Micros, RunId, Seq
from midrun.core.state import State, iter_child_ids
from midrun.core.values import DRIVABLE_PHASES, RESTING_PHASES, TERMINAL_PHASES, Phase
from midrun.errors import (
    CheckpointRefused,
    JournalCorrupt,
    JournalTooNew,
    Misconfigured,
    NotJson,
    TooLarge,
)

FORMAT_VERSION: Final = 1
ENVELOPE_LIMITS: Final = JsonLimits(max_depth=4, max_bytes=64 * 1024 * 1024)
"""The limits of an envelope: a list of lines, and one list for each child run (depth 4)."""

PARKED_PHASES: Final = RESTING_PHASES - TERMINAL_PHASES

_ENCODER: Final = msgspec.json.Encoder(order="sorted")

_CheckedRunId = Annotated[RunId, Meta(pattern=r"^[A-Za-z0-9_-]{1,64}\Z")]


class ChildJournal(
    Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """The journal of a child run, in the checkpoint of its root run.

    Without lines: the parent had journaled the call, but the child run was never created.
    """

    run: _CheckedRunId
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
        if UNKEYED_CHAIN.compute_head(self.run, lines).hex() != self.head_hash:
            raise _make_invalid_error(
                f"the lines of child run {self.run} do not match their head_hash"
            )
        return _fold_lines(self.run, lines)


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

    run: _CheckedRunId
    agent: str
    agent_fingerprint: str
    phase: Phase
    head_seq: Seq
    head_hash: str
    issued_at: Micros
    expires_at: Micros | None = None
    lines: tuple[str, ...]
    children: tuple[ChildJournal, ...] = ()  # all child runs, and their child runs
    files: tuple[tuple[str, bytes], ...] = ()  # hash and bytes of each file
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
        agent_fingerprint: str,
        phase: Phase,
        now: Micros,
        expires: Micros | None = None,
        key: bytes | None = None,
        chain: HashChain = UNKEYED_CHAIN,
        children: Iterable[tuple[RunId, Iterable[tuple[bytes, bytes]]]] = (),
        files: Mapping[str, bytes] | None = None,
    ) -> "Checkpoint":
        """Make the checkpoint of a run in `phase`; sign it if `key` is given.

        `pairs` is the whole journal as `Store.lines` returns it, each line with its hash.
        `chain` computes the hashes of that store. The lines are checked against it first: a
        signature over a changed journal would make it look authentic. `children` are the
        journals of all child runs. `files` has the bytes of their files, by hash. `head_hash`
        is computed without the store's key, so that another store can check it.

        Raises:
            CheckpointRefused: `checkpoint_invalid`: the run is not parked.
            JournalCorrupt: A stored line was changed.
            Misconfigured: The key is too short.
        """
        stored = chain.verify_lines(run, pairs)
        unsigned = cls(
            run=run,
            agent=agent,
            agent_fingerprint=agent_fingerprint,
            phase=_require_parked(phase),
            head_seq=Seq(len(stored)),
            head_hash=UNKEYED_CHAIN.compute_head(run, stored).hex(),
            issued_at=now,
            expires_at=expires,
            lines=tuple(line.decode() for line in stored),
            children=tuple(
                _make_child_journal(run_, chain.verify_lines(run_, of)) for run_, of in children
            ),
            files=tuple((files or {}).items()),
            signed=key is not None,
            kid="" if key is None else make_key_id(key),
            v=FORMAT_VERSION,
        )
        if key is None:
            return unsigned
        return replace(unsigned, mac=_compute_mac(key, _ENCODER.encode(unsigned)))

    def to_json(self) -> str:
        """Encode the checkpoint as one line of JSON.

        Raises:
            TooLarge: It is larger than 64 MiB, which `from_json` would refuse.
        """
        text = _ENCODER.encode(self)
        if len(text) > ENVELOPE_LIMITS.max_bytes:
            raise TooLarge("$", len(text), ENVELOPE_LIMITS.max_bytes)
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
        envelope = _parse_envelope(text)
        _check_signature(envelope, key)
        checkpoint = _convert_envelope(envelope)
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
        if (len(lines), UNKEYED_CHAIN.compute_head(self.run, lines).hex()) != (
            self.head_seq,
            self.head_hash,
        ):
            raise _make_invalid_error("the lines do not match head_seq and head_hash")
        state = _fold_lines(self.run, lines)
        if (state.phase, state.run_started.agent) != (self.phase, self.agent):
            actual = f"{state.phase} run of agent {state.run_started.agent!r}"
            raise _make_invalid_error(f"the lines are the journal of a {actual}")
        return state

    def family(self) -> tuple[tuple[ChildJournal, State], ...]:
        """Return the child runs that were created, each with its state.

        Raises:
            CheckpointRefused: `checkpoint_invalid`: a child run is missing, is not parked, or
                does not belong to this run.
        """
        unvisited = {child.run: child for child in self.children}
        if len(unvisited) < len(self.children):
            raise _make_invalid_error("it contains a child run twice")
        members: list[tuple[ChildJournal, State]] = []
        # Follow the children that the journals name. Each must be present once; none may be
        # left at the end, or a forger could import journals of unrelated runs.
        queue = list(iter_child_ids(self.state()))
        while queue:
            run = queue.pop(0)
            if (child := unvisited.pop(run, None)) is None:
                raise _make_invalid_error(f"child run {run} is missing")
            if not child.lines:
                continue
            state = child.state()
            if state.phase in DRIVABLE_PHASES:
                raise _make_invalid_error(f"child run {run} is {state.phase}, and not parked")
            queue += iter_child_ids(state)
            members.append((child, state))
        if unvisited:
            raise _make_invalid_error(f"run {min(unvisited)} is not one of its child runs")
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

    def check_for(self, agent: str, agent_fingerprint: str, now: Micros) -> None:
        """Check that this agent may resume the run at `now`.

        Call it after `check_head`: a stale checkpoint is reported first.

        Raises:
            CheckpointRefused: `checkpoint_expired` or `agent_mismatch`, in this order.
        """
        if self.expires_at is not None and self.expires_at <= now:
            late = (now - self.expires_at) // MICROS_PER_SECOND
            raise CheckpointRefused("checkpoint_expired", f"it expired {late} s ago")
        if agent != self.agent:
            problem = f"it is of agent {self.agent!r}, got {agent!r}"
            raise CheckpointRefused("agent_mismatch", problem)
        if agent_fingerprint != self.agent_fingerprint:
            problem = f"the tools, instructions or model of agent {agent!r} have changed since"
            raise CheckpointRefused("agent_mismatch", problem)

    def __repr__(self) -> str:
        """Name the run only: the journal may be private and must not end up in a log."""
        seal = f"signed with {self.kid}" if self.signed else "unsigned"
        return f"<checkpoint of run {self.run}, {self.phase} at seq {self.head_seq}, {seal}>"


def make_key_id(key: bytes) -> str:
    """Return the id of a signing key, as checkpoints name it.

    Raises:
        Misconfigured: The key is too short.
    """
    if len(key) < KEY_MIN_BYTES:
        problem = f"must have at least {KEY_MIN_BYTES} random bytes, got {len(key)}"
        raise Misconfigured("key", problem)
    # An HMAC over a fixed text. The text differs from the prefix of `_compute_mac`, so that the
    # id cannot be used as a signature.
    return digest(key, b"midrun key id", "sha256").hex()[:16]


def _compute_mac(key: bytes, canonical: bytes) -> str:
    return digest(key, b"midrun checkpoint\n" + canonical, "sha256").hex()


def _make_invalid_error(detail: str) -> CheckpointRefused:
    return CheckpointRefused("checkpoint_invalid", detail)


def _parse_envelope(text: str | bytes) -> dict[object, object]:
    try:
        envelope = parse_json(text, ENVELOPE_LIMITS)
    except NotJson as refusal:
        raise _make_invalid_error(f"{refusal.path}: {refusal.problem}") from None
    except TooLarge as refusal:
        raise _make_invalid_error(
            f"{refusal.size} bytes, the limit is {refusal.limit}"
        ) from None
    if not isinstance(envelope, dict):
        raise _make_invalid_error("not a JSON object")
    return envelope


def _check_signature(envelope: dict[object, object], key: bytes | None) -> None:
    """Check the signature of an envelope, before any other field of it is used."""
    signed = envelope.get("signed") is True
    if key is None:
        if signed:
            raise _make_invalid_error(
                "it is signed, and no key is given to check the signature"
            )
        return
    # An unsigned text is refused where a key is given. Otherwise an attacker could remove the
    # signature instead of forging it.
    expected_kid = make_key_id(key)
    if not signed:
        raise _make_invalid_error("it is not signed, and a key is given")
    if envelope.get("kid") != expected_kid:
        raise _make_invalid_error(f"it was signed with another key than {expected_kid}")
    mac = envelope.get("mac")
    # The signature covers the parsed values in canonical form, not the text: a database that
    # stores JSON may change white space and the order of keys. Unknown fields are covered, too.
    rest = {name: value for name, value in envelope.items() if name != "mac"}
    expected_mac = _compute_mac(key, _ENCODER.encode(rest))
    # Constant time: the duration must not tell a forger how many characters are right.
    if not isinstance(mac, str) or not compare_digest(expected_mac.encode(), mac.encode()):
        raise _make_invalid_error("it was changed after it was signed")


def _convert_envelope(envelope: dict[object, object]) -> Checkpoint:
    # Before the conversion: a newer format may have fields that would be refused as unknown,
    # with a less helpful text.
    version = envelope.get("v")
    if isinstance(version, int) and version > FORMAT_VERSION:
        raise _make_invalid_error(
            f"a newer version of midrun wrote it (format {version}); upgrade midrun"
        )
    try:
        checkpoint = msgspec.convert(envelope, Checkpoint)
    except msgspec.ValidationError as error:
        raise _make_invalid_error(safe_str(error)) from None
    if checkpoint.v != FORMAT_VERSION:
        raise _make_invalid_error(f"format {checkpoint.v} does not exist")
    # `signed`, `kid` and `mac` must agree: all present, or all absent.
    if {checkpoint.signed} != {bool(checkpoint.kid), bool(checkpoint.mac)}:
        raise _make_invalid_error("signed, kid and mac contradict each other")
    _require_parked(checkpoint.phase)
    return checkpoint


def _require_parked(phase: Phase) -> Phase:
    if phase not in PARKED_PHASES:
        raise _make_invalid_error(f"the run is {phase}; only a parked run has checkpoints")
    return phase


def _make_child_journal(run: RunId, stored: list[bytes]) -> ChildJournal:
    head = UNKEYED_CHAIN.compute_head(run, stored).hex() if stored else ""
    return ChildJournal(run=run, head_hash=head, lines=tuple(map(bytes.decode, stored)))


def _fold_lines(run: RunId, lines: Iterable[bytes]) -> State:
    """Fold lines from an untrusted source to a state."""
    state, chain_hash = State(run=run), UNKEYED_CHAIN.make_first_link(run)
    for data in lines:
        where = f"line {state.seq + 1}"
        try:
            state = _fold_line(state, data, chain_hash)
        except JournalTooNew as refusal:
            kind = safe_str(refusal.kind)
            raise _make_invalid_error(
                f"{where}: a newer version of midrun wrote {kind}"
            ) from None
        except JournalCorrupt as refusal:
            raise _make_invalid_error(f"{where}: {safe_str(refusal.problem)}") from None
        except Exception as error:
            # `evolve` assumes that `decide` made the entries. Entries in an impossible order
            # may make it raise anything, such as an IndexError.
            raise _make_invalid_error(
                f"{where} is not possible there: {safe_repr(error)}"
            ) from error
        chain_hash = UNKEYED_CHAIN.make_next_link(chain_hash, data)
    if not state.seq:
        raise _make_invalid_error("it has no lines")
    return state


def _fold_line(state: State, data: bytes, chain_hash: bytes) -> State:
    record = decode_line(data, run=state.run, seq=Seq(state.seq + 1))
    # The same entry could be written in several ways, with other hashes. Only one is allowed.
    if format_record(record) != data:
        raise JournalCorrupt(state.run, record.seq, "it is not canonical")
    if record.at < state.at:
        raise JournalCorrupt(state.run, record.seq, "it is older than the one before it")
    check_import_head(state.run, record, chain_hash)
    return fold(state.run, [record], state)
