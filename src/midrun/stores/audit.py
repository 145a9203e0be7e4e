"""Lines of the audit log: their stored form, and the links between them.

A store reads the end of its log, makes the next line with `make_audit_line`, and adds both in
one transaction. The number of a line is the primary key: of two writers that have read the same
end, one is refused and reads again. So the numbers have no gaps.
"""

import msgspec
from msgspec.structs import replace

from midrun.codec.hash_chain import HashChain
from midrun.core.ids import Micros
from midrun.ports.audit import AUDIT_TEXT_MAX_CHARS, AuditEnd, AuditEntry, AuditLine


def encode_audit(entry: AuditEntry) -> bytes:
    """Return the body of an audit entry, without its time; cut texts that are too long."""
    texts = {
        name: value[:AUDIT_TEXT_MAX_CHARS].encode("utf-8", "replace").decode()
        for name in entry.__struct_fields__
        if isinstance(value := getattr(entry, name), str)
    }
    return msgspec.json.encode(replace(entry, at=Micros(0), **texts))


def build_audit(at: Micros, body: bytes) -> AuditEntry:
    """Build an audit entry from its columns."""
    return replace(msgspec.json.decode(body, type=AuditEntry), at=at)


def make_audit_line(
    chain: HashChain, end: AuditEnd, at: Micros, tenant: str, body: bytes
) -> tuple[AuditLine, AuditEnd]:
    """Return the line after `end`, and the end after that line."""
    number = end.number + 1
    link = chain.make_audit_link(end.hash, number, at, tenant, body)
    seal = chain.seal_audit_end(number, link)
    line = AuditLine(number=number, at=at, tenant=tenant, body=body, hash=link)
    return line, AuditEnd(number=number, hash=link, seal=seal)


def find_audit_end(
    chain: HashChain, stored: AuditEnd, last: tuple[int, bytes] | None
) -> AuditEnd:
    """Return the end after which the next line is added; `last` is the last line.

    It is the stored end, unless that was changed. Then the log continues after the highest
    number that is known, and one number is left out. The new end is valid again, so without the
    gap no verification could find the change.
    """
    seal = chain.seal_audit_end(stored.number, stored.hash) if stored.number else b""
    if seal == stored.seal and (last is None or stored.number >= last[0]):
        return stored
    number, link = max((stored.number, stored.hash), last or (0, b""))
    return AuditEnd(number=number + 1, hash=link)
