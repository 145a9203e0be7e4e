"""The audit log of a store: actions of people that no journal records.

The journals record all controls and decisions about runs. The audit log has the rest: sign-ins,
refusals, exports, halts set and lifted, deletions. It is append-only. `midrun.runs.audit` joins
both for an export.

Each line is linked to all lines before it by the hash chain of the store. The end of the log is
stored a second time beside it, so that a missing end is noticed, too.
"""

from collections.abc import Sequence
from typing import Final, Protocol, runtime_checkable

from msgspec import Struct

from midrun.core.ids import Micros

AUDIT_TEXT_MAX_CHARS: Final = 500
"""The maximum length of each text of an audit entry; longer texts are cut."""


class AuditEntry(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One action of a person: the time, the action, its actor, its target and its outcome.

    `run` and `seq` name the entry of a journal, if it comes from one. `outcome` is `done`, or
    the reason of a refusal. An empty actor is a caller that was not recognised.
    """

    at: Micros = Micros(0)  # stamped by the store
    action: str
    actor: str = ""
    role: str = ""
    run: str = ""
    seq: int = 0
    target: str = ""
    outcome: str = "done"
    reason: str = ""
    address: str = ""
    tenant: str = ""  # whose operators may read the entry; operators of no tenant read all


class AuditLine(Struct, frozen=True, kw_only=True):
    """A stored line of the audit log. `number` counts from 1 without gaps."""

    number: int
    at: Micros
    tenant: str
    body: bytes  # the rest of the entry, as JSON
    hash: bytes


class AuditEnd(Struct, frozen=True, kw_only=True):
    """The end of the audit log: number and hash of its last line; 0 and b"" if it is empty.

    `seal` proves the other fields, if the store has a chain key.
    """

    number: int = 0
    hash: bytes = b""
    seal: bytes = b""


@runtime_checkable
class HasAuditLog(Protocol):
    """A store that has an audit log."""

    async def append_audit(self, entry: AuditEntry) -> None:
        """Append an entry; the store stamps its time. An acknowledged entry is durable."""
        ...

    async def list_audit(
        self, *, since: Micros, until: Micros, after: int, limit: int, tenant: str | None = None
    ) -> Sequence[tuple[int, AuditEntry]]:
        """Return entries from `since` until before `until`, each with its number, oldest first.

        Only entries with a number above `after` are returned, at most `limit`; with a tenant,
        only its entries.
        """
        ...

    async def read_audit_lines(self, *, after: int, limit: int) -> Sequence[AuditLine]:
        """Return the stored lines with a number above `after`, not verified."""
        ...

    async def read_audit_end(self) -> AuditEnd:
        """Return the end that is stored beside the log, not verified."""
        ...
