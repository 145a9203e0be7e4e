r"""The chain: the hashes that tie each line of a journal to all before it.

`link[0]` is made of the run's id, so that lines cannot be moved from one run to another, and
`link[n]` of `link[n-1]` and line n, as it is stored:

    without a key    sha256("midrun journal\n" + run id)         sha256(link[n-1] + line[n])
    with one         hmac(key, what it is without one)           hmac(key, link[n-1] + line[n])

Without a key the chain shows that something was changed; whoever can write to the database and
knows this page can make a new one. With a key, kept where the database is not, nobody can who
does not have it: the first line that they wrote is the first that does not fit. Neither shows
that the end was cut off: compare with any head that was handed out.
"""

from collections.abc import Iterable
from hashlib import sha256
from hmac import compare_digest, digest
from typing import Final, Protocol, runtime_checkable

from msgspec import Struct

from midrun.codec.journal import chain, genesis
from midrun.core.entries import Record, RunImported
from midrun.core.ids import START, RunId, Seq
from midrun.errors import JournalCorrupt, Misconfigured

KEY_MIN: Final = 16
"""An empty key, say from an unset variable, would fit everything and prove nothing."""

SEAL: Final = 32


class Chain(Struct, frozen=True, gc=False):
    """How the links of one store are made. All processes that share it have the same key.

    Raises:
        Misconfigured: the key is too short.
    """

    key: bytes | None = None

    def __post_init__(self) -> None:
        if self.key is not None and len(self.key) < KEY_MIN:
            problem = f"{len(self.key)} bytes; use at least {KEY_MIN} random ones"
            raise Misconfigured("chain_key", problem)

    @property
    def kid(self) -> str:
        """What tells this key from others and gives nothing of it away; empty without one."""
        return (
            "" if self.key is None else digest(self.key, b"midrun chain", "sha256").hex()[:16]
        )

    def first(self, run: RunId) -> bytes:
        """Return the link before the first line of `run`."""
        link = genesis(run)
        return link if self.key is None else digest(self.key, link, "sha256")

    def next(self, previous: bytes, data: bytes) -> bytes:
        """Return the link of the line `data`, which follows the one that has `previous`."""
        if self.key is None:
            return chain(previous, data)
        return digest(self.key, previous + data, "sha256")

    def head(self, run: RunId, lines: Iterable[bytes]) -> bytes:
        """Return the link of the last of `lines`, which are the whole journal of `run`."""
        link = self.first(run)
        for data in lines:
            link = self.next(link, data)
        return link

    def verified(
        self,
        run: RunId,
        pairs: Iterable[tuple[bytes, bytes]],
        *,
        after: Seq = START,
        previous: bytes | None = None,
    ) -> list[bytes]:
        """Return the lines of `pairs`, which are stored lines with their stored links.

        `previous` is the link of the entry at `after`, from where the caller trusts the
        journal; it may be left out at the very start.

        Raises:
            JournalCorrupt: with the first seq whose line or link is not what was written.
        """
        link = self.first(run) if previous is None else previous
        lines: list[bytes] = []
        for data, stored in pairs:
            link = self.next(link, data)
            if link != stored:
                seq = after + len(lines) + 1
                raise JournalCorrupt(run, seq, "the chain of hashes is broken")
            lines.append(data)
        return lines

    def sealed(self, link: bytes, body: bytes) -> bytes:
        """Return `body`, a snapshot taken at `link`, as it is stored; with a key, sealed."""
        return body if self.key is None else self._seal(link, body) + body

    def opened(self, link: bytes, stored: bytes) -> bytes | None:
        """Return the body that was sealed at `link`; None if it was not, with this key."""
        if self.key is None:
            return stored
        seal, body = stored[:SEAL], stored[SEAL:]
        return body if compare_digest(seal, self._seal(link, body)) else None

    def _seal(self, link: bytes, body: bytes) -> bytes:
        assert self.key is not None
        return digest(self.key, b"midrun snapshot\n" + link + sha256(body).digest(), "sha256")

    def __repr__(self) -> str:
        """Say which key it has; the key itself has no place in a log."""
        return f"<chain with key {self.kid}>" if self.kid else "<chain without a key>"


PLAIN: Final = Chain()
"""Without a key: what anybody can follow. Checkpoints have it; what signs them is theirs."""


def check_import(run: RunId, record: Record, link: bytes) -> None:
    """Refuse an import that names another head than `link`, that of the lines before it.

    Raises:
        JournalCorrupt: it does.
    """
    if isinstance(record.entry, RunImported) and record.entry.head != link.hex():
        problem = "the import names another head than that of the lines before it"
        raise JournalCorrupt(run, record.seq, problem)


@runtime_checkable
class Chained(Protocol):
    """A store that says how it makes its links."""

    chain: Chain


def chain_of(store: object) -> Chain:
    """Return how the links of `store` are made."""
    return store.chain if isinstance(store, Chained) else PLAIN
