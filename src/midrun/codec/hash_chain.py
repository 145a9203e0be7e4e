r"""The hash chain: each line of a journal is linked to all lines before it.

`link[0]` is computed from the id of the run, so that lines cannot be moved to another run.
`link[n]` is computed from `link[n-1]` and the stored bytes of line n:

                     link[0]                                     link[n]
    without a key    sha256("midrun journal\n" + run id)         sha256(link[n-1] + line[n])
    with a key       hmac(key, link[0] without a key)            hmac(key, link[n-1] + line[n])

Without a key, the chain detects accidental changes. An attacker with write access to the
database can compute a new chain. With a key that is not stored in the database, the attacker
cannot: the first forged line does not fit its link. Neither form detects that the end of a
journal was cut off. For that, compare with a head hash that was handed out before.
"""

from collections.abc import Iterable
from hashlib import sha256
from hmac import compare_digest, digest
from typing import Final, Protocol, runtime_checkable

import msgspec
from msgspec import Struct

from midrun.codec.journal import hash_run_id
from midrun.core.entries import Record, RunImported
from midrun.core.ids import SEQ_ZERO, RunId, Seq
from midrun.errors import JournalCorrupt, Misconfigured

KEY_MIN_BYTES: Final = 16
"""The shortest key. An empty one, from an unset variable for example, would prove nothing."""

SEAL_BYTES: Final = 32

AUDIT_CHAIN: Final = RunId("audit log")
"""The name from which the audit log's first link is computed; no run can have it."""


class HashChain(Struct, frozen=True, gc=False):
    """Computes the links of one store. All processes that share the store have the same key.

    Raises:
        Misconfigured: the key is too short.
    """

    key: bytes | None = None

    def __post_init__(self) -> None:
        if self.key is not None and len(self.key) < KEY_MIN_BYTES:
            problem = f"must have at least {KEY_MIN_BYTES} random bytes, got {len(self.key)}"
            raise Misconfigured("chain_key", problem)

    @property
    def key_id(self) -> str:
        """The id of the key, which reveals nothing of the key; empty without a key."""
        return (
            "" if self.key is None else digest(self.key, b"midrun chain", "sha256").hex()[:16]
        )

    def make_first_link(self, run: RunId) -> bytes:
        """Return the link before the first line of `run`."""
        link = hash_run_id(run)
        return link if self.key is None else digest(self.key, link, "sha256")

    def make_next_link(self, previous: bytes, data: bytes) -> bytes:
        """Return the link of the line `data`, which follows the line with link `previous`."""
        if self.key is None:
            return sha256(previous + data).digest()  # as `hash_line`, without the call
        return digest(self.key, previous + data, "sha256")

    def compute_head(self, run: RunId, lines: Iterable[bytes]) -> bytes:
        """Return the link of the last line; `lines` are the whole journal of `run`."""
        link = self.make_first_link(run)
        for data in lines:
            link = self.make_next_link(link, data)
        return link

    def verify_lines(
        self,
        run: RunId,
        pairs: Iterable[tuple[bytes, bytes]],
        *,
        after: Seq = SEQ_ZERO,
        previous: bytes | None = None,
    ) -> list[bytes]:
        """Return the lines of `pairs`, which are stored lines with their stored links.

        `previous` is the link of the entry at `after`, up to which the caller trusts the
        journal. It may be left out if `after` is the start.

        Raises:
            JournalCorrupt: a line does not fit its link; it names the first such seq.
        """
        link = self.make_first_link(run) if previous is None else previous
        lines: list[bytes] = []
        for data, stored in pairs:
            link = self.make_next_link(link, data)
            # Each link is computed from the computed link before it, not from the stored one.
            # So a changed line breaks the chain at its own seq, and every later line is refused
            # as well.
            if link != stored:
                seq = after + len(lines) + 1
                raise JournalCorrupt(run, seq, "the chain of hashes is broken")
            lines.append(data)
        return lines

    def make_audit_link(
        self, previous: bytes, number: int, at: int, tenant: str, body: bytes
    ) -> bytes:
        """Return the link of a line of the audit log; `previous` is b"" for the first line."""
        # JSON has no line break, so no other columns and body have the same bytes.
        columns = msgspec.json.encode((number, at, tenant))
        link = previous or self.make_first_link(AUDIT_CHAIN)
        return self.make_next_link(link, columns + b"\n" + body)

    def seal_audit_end(self, number: int, link: bytes) -> bytes:
        """Return the seal of the end of the audit log; b"" without a key."""
        return b"" if self.key is None else self._seal(link, b"audit %d" % number)

    def seal_snapshot(self, link: bytes, body: bytes) -> bytes:
        """Return the stored form of a snapshot taken at `link`; with a key, it has a seal.

        A snapshot is not in the chain. Without a seal, an attacker could replace the state that
        a worker starts from instead of the journal.
        """
        return body if self.key is None else self._seal(link, body) + body

    def open_snapshot(self, link: bytes, stored: bytes) -> bytes | None:
        """Return the snapshot that was sealed at `link`; None if the seal does not fit."""
        if self.key is None:
            return stored
        seal, body = stored[:SEAL_BYTES], stored[SEAL_BYTES:]
        # In constant time: the time of a comparison must not help to guess a seal.
        return body if compare_digest(seal, self._seal(link, body)) else None

    def _seal(self, link: bytes, body: bytes) -> bytes:
        assert self.key is not None
        # The link binds the snapshot to its place: one of another run or seq does not fit.
        return digest(self.key, b"midrun snapshot\n" + link + sha256(body).digest(), "sha256")

    def __repr__(self) -> str:
        """Name the id of the key. The key itself must not get into a log."""
        return f"<chain with key {self.key_id}>" if self.key_id else "<chain without a key>"


UNKEYED_CHAIN: Final = HashChain()
"""The chain without a key. Checkpoints use it, because the receiver of a checkpoint does not
have the key of the store; a checkpoint has a signature of its own."""


def check_import_head(run: RunId, record: Record, link: bytes) -> None:
    """Check that a `RunImported` entry names `link` as the head of the lines before it.

    Raises:
        JournalCorrupt: it names another head.
    """
    if isinstance(record.entry, RunImported) and record.entry.head != link.hex():
        problem = "the import names another head than that of the lines before it"
        raise JournalCorrupt(run, record.seq, problem)


@runtime_checkable
class HasChain(Protocol):
    """A store with a hash chain of its own."""

    chain: HashChain


def get_chain(store: object) -> HashChain:
    """Return the hash chain of `store`; the one without a key if it has none."""
    return store.chain if isinstance(store, HasChain) else UNKEYED_CHAIN
