r"""Encryption at rest: the content of a store, as authenticated ciphertext.

A `PayloadCipher` has the keys of a process. The first one encrypts, all of them decrypt. The id
of a key is computed from the key, so two keys never have the same id.

**An entry** is encrypted as a whole, before it gets its seq and its time:

    {"at":…,"entry":{"enc":{"key":"1f…","text":"<base64>"}},"epoch":3,"seq":7,"v":1}

The hash chain is computed over this line. So `verify` checks the chain without a key, and reads
of the store check it before they decrypt. `decrypt_line` returns the line of the entry as it is
without encryption: exports and checkpoints have these lines.

**The history of a thread** is repeated in the first entry of each of its runs. It is cut into
parts that depend on the content alone (`chunks`). Each part is encrypted with AES-SIV, which
gives the same ciphertext for the same text. So runs of a thread share these parts in an
encrypted store, too. The rest of the entry is bound to the ciphertext of its parts.

**Everything else** is encrypted with AES-GCM and a random nonce. Each run and each file has its
own key, which is derived from the key of the process. So the number of random nonces under one
key stays far below the limit of 2³², and the ciphertext of one run is invalid in another run.

The names that lists select by (agent, thread, labels, owner) and the numbers of a row are not
encrypted. Neither are halts, tombstones and the audit log.
"""

import os
import re
from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from hashlib import sha256
from hmac import digest
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from midrun.codec.hash_chain import UNKEYED_CHAIN, get_chain
from midrun.codec.journal import format_line
from midrun.core.ids import SEQ_ZERO, Epoch, Micros, RunId, Seq
from midrun.errors import JournalCorrupt, JournalKeyMissing, Misconfigured, StoreEncrypted
from midrun.ports.store import RunRow, Store
from midrun.stores.chunks import cut_shared_parts

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM, AESSIV

KEY_BYTES: Final = 32
"""The bytes of a key: those of AES-256."""

KEYS_MAX: Final = 100
KEY_ID_BYTES: Final = 8
NONCE_BYTES: Final = 12
SIV_NONCE_BYTES: Final = 16
TAG_BYTES: Final = 16
DERIVED_CACHE_MAX: Final = 4096
"""Keys of runs that a process remembers; one is computed in a few microseconds."""

TASK_MARK: Final = "\ufdd0"
"""The first character of an encrypted task; Unicode reserves it for the use of programs."""

BLOB_MARK: Final = b"midrun encrypted\n"
"""The first bytes of an encrypted file or snapshot; the id of the key follows."""

_ENCRYPTED_LINE: Final = re.compile(rb'\{"at":-?\d+,"entry":\{"enc":')


class _Part(Struct, frozen=True, forbid_unknown_fields=True):
    s: bytes


class _Ciphertext(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The ciphertext of an entry. `text` is what is left of it without its shared parts."""

    key: str
    text: bytes
    parts: tuple[_Part, ...] = ()


class _EncryptedEntry(Struct, frozen=True, forbid_unknown_fields=True):
    enc: _Ciphertext


class _EncryptedLine(Struct, frozen=True, forbid_unknown_fields=True):
    at: Micros
    entry: _EncryptedEntry
    seq: Seq
    v: int
    epoch: Epoch | None = None


_ENCODER: Final = msgspec.json.Encoder(order="sorted")
_LINE_DECODER: Final = msgspec.json.Decoder(_EncryptedLine)


def make_key_id(key: bytes) -> str:
    """Return the id of a key, which reveals nothing of the key."""
    return digest(key, b"midrun encryption key id", "sha256")[:KEY_ID_BYTES].hex()


def make_key() -> bytes:
    """Return a new random key."""
    return os.urandom(KEY_BYTES)


def format_key(key: bytes) -> str:
    """Return a key as a line of a file of keys."""
    return b64encode(key).decode()


def parse_keys(text: str) -> tuple[bytes, ...]:
    """Return the keys in the text of a file: one for each line, as base64; # begins a comment.

    Raises:
        Misconfigured: a line is not a key.
    """
    keys: list[bytes] = []
    for number, line in enumerate(text.splitlines(), 1):
        encoded = line.partition("#")[0].strip()
        if not encoded:
            continue
        try:
            key = b64decode(encoded, validate=True)
        except NotBase64:
            key = b""
        if len(key) != KEY_BYTES:
            # The text of the line is not repeated: it may be a key with a typing error.
            problem = (
                f"Cannot read line {number}: it is not the base64 text of {KEY_BYTES} bytes. "
                "Make a key with midrun keys new"
            )
            raise Misconfigured("encryption_keys", problem)
        keys.append(key)
    return tuple(keys)


class _Key:
    """A key of this process, and the keys that are derived from it."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self.for_name = lru_cache(DERIVED_CACHE_MAX)(self._derive)

    def _derive(self, purpose: bytes, name: bytes) -> "AESGCM":
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415 - an extra

        return AESGCM(digest(self._key, b"midrun %b\n%b" % (purpose, name), "sha256"))

    def derive_siv(self, purpose: bytes) -> "AESSIV":
        """Return the cipher whose ciphertext depends on the text alone."""
        from cryptography.hazmat.primitives.ciphers.aead import AESSIV  # noqa: PLC0415 - an extra

        return AESSIV(digest(self._key, b"midrun %b\n" % purpose, "sha512"))


class PayloadCipher:
    """Encrypts and decrypts the content of a store; without keys it encrypts nothing.

    Raises:
        Misconfigured: a key does not have 32 bytes, or the package `cryptography` is missing.
    """

    def __init__(self, keys: Sequence[bytes] = ()) -> None:
        for key in keys:
            if len(key) != KEY_BYTES:
                problem = (
                    f"each key must be {KEY_BYTES} random bytes; make one with midrun keys new"
                )
                raise Misconfigured("encryption_keys", problem)
        if len(keys) > KEYS_MAX:
            raise Misconfigured("encryption_keys", f"must be at most {KEYS_MAX} keys")
        self._keys: Mapping[str, _Key] = {make_key_id(key): _Key(key) for key in keys}
        self.write_id = make_key_id(keys[0]) if keys else ""
        if keys:
            try:
                self._history = {i: key.derive_siv(b"history") for i, key in self._keys.items()}
                self._live = {i: key.derive_siv(b"live") for i, key in self._keys.items()}
            except ImportError as error:
                problem = f"install midrun[encryption] ({error})"
                raise Misconfigured("encryption_keys", problem) from error

    def __bool__(self) -> bool:
        """Tell whether new content is encrypted."""
        return bool(self.write_id)

    def __repr__(self) -> str:
        """Name the ids. A key must not get into a log."""
        return f"<cipher with keys {', '.join(self._keys) or 'none'}>"

    def check_store(self, path: str, stored_ids: Sequence[str]) -> str:
        """Return the keys of a store that this process has no key for; "" if it may write.

        Raises:
            StoreEncrypted: this process has keys, but none of the store.
        """
        if not stored_ids or not self._keys.keys().isdisjoint(stored_ids):
            return ""
        if self._keys:
            raise StoreEncrypted(path, ", ".join(stored_ids), ", ".join(self._keys))
        return ", ".join(stored_ids)

    # ── entries ───────────────────────────────────────────────────────────────────────────

    def encrypt_entry(self, run: RunId, body: bytes, *, is_first: bool = False) -> bytes:
        """Encrypt an encoded entry of `run`; the first one of a run may have a history."""
        if not self:
            return body
        text = body
        parts: tuple[_Part, ...] = ()
        # Only the first entry of a run has the history of its thread. Its shared parts are
        # encrypted without a nonce, so that equal parts stay equal and are stored once.
        if is_first and (cut := cut_shared_parts(body))[1]:
            head, shared, tail = cut
            siv = self._history[self.write_id]
            parts = tuple(_Part(siv.encrypt(part, None)) for part in shared)
            # The length tells where the parts were cut out. It is inside of the authenticated
            # text.
            text = b"%d\n%b%b" % (len(head), head, tail)
        # Bound to the hashes of the parts: an attacker cannot replace a part by one of another
        # history, although each part alone would be valid.
        sealed = self._encrypt(b"run", run.encode(), text, _bind(parts))
        return _ENCODER.encode(_EncryptedEntry(_Ciphertext(self.write_id, sealed, parts)))

    def decrypt_lines(
        self, run: RunId, lines: Iterable[bytes], *, after: Seq = SEQ_ZERO
    ) -> Iterator[bytes]:
        """Yield the consecutive lines that follow `after` as they are without encryption."""
        for seq, line in enumerate(lines, after + 1):
            yield self.decrypt_line(run, Seq(seq), line)

    def decrypt_line(self, run: RunId, seq: Seq, line: bytes) -> bytes:
        """Return a stored line as it is without encryption.

        Raises:
            JournalKeyMissing: it is encrypted with a key that this process does not have.
            JournalCorrupt: it cannot be decrypted: it was changed, or is of another run.
        """
        # A store may have plain lines from the time before it had keys.
        if _ENCRYPTED_LINE.match(line) is None:
            return line
        try:
            stored = _LINE_DECODER.decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise JournalCorrupt(run, seq, str(error)) from None
        sealed = stored.entry.enc
        if sealed.key not in self._keys:
            raise JournalKeyMissing(run, seq, sealed.key)
        body = self._decrypt(b"run", run.encode(), sealed.key, sealed.text, _bind(sealed.parts))
        if body is not None and sealed.parts:
            body = self._join_parts(sealed, body)
        if body is None:
            problem = "it cannot be decrypted: it was changed, or is of another run"
            raise JournalCorrupt(run, seq, problem)
        return format_line(body, seq=stored.seq, at=stored.at, epoch=stored.epoch)

    def _join_parts(self, sealed: _Ciphertext, text: bytes) -> bytes | None:
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415 - an extra

        siv = self._history[sealed.key]
        length, _, rest = text.partition(b"\n")
        head, tail = rest[: int(length)], rest[int(length) :]
        try:
            parts = [siv.decrypt(part.s, None) for part in sealed.parts]
        except (InvalidTag, ValueError):
            return None
        return b"".join((head, *parts, tail))

    # ── rows, files, snapshots and live text ──────────────────────────────────────────────

    def encrypt_task(self, run: RunId, task: str) -> str:
        """Encrypt the task in the row of `run`."""
        if not self or not task:
            return task
        sealed = self._encrypt(b"row", run.encode(), task.encode(), b"")
        return f"{TASK_MARK}{self.write_id}:{b64encode(sealed).decode()}"

    def decrypt_row(self, row: RunRow) -> RunRow:
        """Return `row` with its task; without the key, a note stands in place of the task.

        A list of runs can thus be read without a key. Nothing writes this task back: the row
        of a run is computed from its journal.
        """
        if not row.head.task.startswith(TASK_MARK):
            return row
        key_id, _, encoded = row.head.task.removeprefix(TASK_MARK).partition(":")
        task = f"[encrypted with key {key_id}]"
        if key_id in self._keys:
            try:
                sealed = b64decode(encoded, validate=True)
            except NotBase64:
                sealed = b""
            plain = self._decrypt(b"row", row.run.encode(), key_id, sealed, b"")
            task = "[cannot be decrypted]" if plain is None else plain.decode()
        return replace(row, head=replace(row.head, task=task))

    def encrypt_file(self, file_hash: str, body: bytes) -> bytes:
        """Encrypt the body of a file, which is stored under the hash of its plain bytes."""
        return self._encrypt_blob(b"file", file_hash.encode(), body)

    def decrypt_file(self, run: RunId, file_hash: str, stored: bytes) -> bytes:
        """Return the body of a file.

        Raises:
            JournalKeyMissing: it is encrypted with a key that this process does not have.
            JournalCorrupt: it cannot be decrypted.
        """
        # A plain file of a user may begin with the mark by chance, or on purpose. Its hash
        # tells.
        if not stored.startswith(BLOB_MARK) or sha256(stored).hexdigest() == file_hash:
            return stored  # it was stored without encryption
        key_id, _ = _split_blob(stored)
        if key_id not in self._keys:
            raise JournalKeyMissing(run, SEQ_ZERO, key_id)
        body = self._decrypt_blob(b"file", file_hash.encode(), stored)
        if body is None:
            problem = f"the file {file_hash[:12]} cannot be decrypted: it was changed"
            raise JournalCorrupt(run, SEQ_ZERO, problem)
        return body

    def encrypt_target(self, run: RunId, body: bytes) -> bytes:
        """Encrypt the body of a push target."""
        return self._encrypt_blob(b"push", run.encode(), body)

    def decrypt_target(self, run: RunId, stored: bytes) -> bytes:
        """Return the body of a push target.

        Raises:
            JournalKeyMissing: it is encrypted with a key that this process does not have.
            JournalCorrupt: it cannot be decrypted.
        """
        if not stored.startswith(BLOB_MARK):
            return stored  # it was stored without encryption
        key_id, _ = _split_blob(stored)
        if key_id not in self._keys:
            raise JournalKeyMissing(run, SEQ_ZERO, key_id)
        body = self._decrypt_blob(b"push", run.encode(), stored)
        if body is None:
            problem = "a push target cannot be decrypted: it was changed"
            raise JournalCorrupt(run, SEQ_ZERO, problem)
        return body

    def encrypt_snapshot(self, run: RunId, body: bytes) -> bytes:
        """Encrypt the body of a snapshot."""
        return self._encrypt_blob(b"snapshot", run.encode(), body)

    def decrypt_snapshot(self, run: RunId, stored: bytes) -> bytes | None:
        """Return the body of a snapshot; None if it cannot be decrypted: it is only a cache."""
        if not stored.startswith(BLOB_MARK):
            # In an encrypted store a plain snapshot is ignored. An attacker could have written
            # it, and without a chain key nothing else would show that.
            return None if self else stored
        return self._decrypt_blob(b"snapshot", run.encode(), stored)

    def encrypt_live(self, message: bytes) -> bytes:
        """Encrypt a message of the relay, as text."""
        if not self:
            return message
        # Live text is not stored, so equal texts need not have equal ciphertexts: a nonce hides
        # them.
        nonce = os.urandom(SIV_NONCE_BYTES)
        sealed = nonce + self._live[self.write_id].encrypt(message, [nonce])
        return self.write_id.encode() + b":" + b64encode(sealed)

    def decrypt_live(self, message: bytes) -> bytes | None:
        """Return a message of the relay; None if it cannot be decrypted."""
        if not self:
            return message
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415 - an extra

        key_id, _, encoded = message.partition(b":")
        siv = self._live.get(key_id.decode("ascii", "replace"))
        if siv is None:
            return None
        try:
            sealed = b64decode(encoded, validate=True)
            return siv.decrypt(sealed[SIV_NONCE_BYTES:], [sealed[:SIV_NONCE_BYTES]])
        except (NotBase64, InvalidTag, ValueError):
            return None

    def limit_live_bytes(self, limit: int) -> int:
        """Return the bytes that a message may have so that it fits into `limit` encrypted."""
        if not self:
            return limit
        return (limit - len(self.write_id) - 1) // 4 * 3 - SIV_NONCE_BYTES - TAG_BYTES

    def _encrypt_blob(self, purpose: bytes, name: bytes, body: bytes) -> bytes:
        if not self:
            return body
        key_id = bytes.fromhex(self.write_id)
        return BLOB_MARK + key_id + self._encrypt(purpose, name, body, b"")

    def _decrypt_blob(self, purpose: bytes, name: bytes, stored: bytes) -> bytes | None:
        key_id, sealed = _split_blob(stored)
        return (
            self._decrypt(purpose, name, key_id, sealed, b"") if key_id in self._keys else None
        )

    def _encrypt(self, purpose: bytes, name: bytes, text: bytes, bound: bytes) -> bytes:
        nonce = os.urandom(NONCE_BYTES)
        cipher = self._keys[self.write_id].for_name(purpose, name)
        return nonce + cipher.encrypt(nonce, text, bound)

    def _decrypt(
        self, purpose: bytes, name: bytes, key_id: str, sealed: bytes, bound: bytes
    ) -> bytes | None:
        """Return the text; None if it was changed."""
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415 - an extra

        cipher = self._keys[key_id].for_name(purpose, name)
        try:
            return cipher.decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], bound)
        except (InvalidTag, ValueError):
            return None


def _bind(parts: Iterable[_Part]) -> bytes:
    """Return the data that binds the rest of an entry to the ciphertext of its parts."""
    return b"".join(sha256(part.s).digest() for part in parts)


def _split_blob(stored: bytes) -> tuple[str, bytes]:
    """Return the id of the key and the ciphertext of an encrypted file or snapshot."""
    start = len(BLOB_MARK) + KEY_ID_BYTES
    return stored[len(BLOB_MARK) : start].hex(), stored[start:]


UNENCRYPTED: Final = PayloadCipher()
"""The cipher of a store that is not encrypted."""


@runtime_checkable
class HasCipher(Protocol):
    """A store that can encrypt its content."""

    cipher: PayloadCipher


def get_cipher(store: object) -> PayloadCipher:
    """Return the cipher of `store`; the one without keys if it has none."""
    return store.cipher if isinstance(store, HasCipher) else UNENCRYPTED


async def read_decrypted_lines(
    store: Store, run: RunId, *, after: Seq = SEQ_ZERO, limit: int | None = None
) -> list[tuple[bytes, bytes]]:
    """Return lines as they are without encryption, with their stored hashes, not verified.

    Raises:
        RunNotFound: no such run.
        JournalKeyMissing, JournalCorrupt: a line cannot be decrypted.
    """
    pairs, cipher = await store.read_lines(run, after=after, limit=limit), get_cipher(store)
    lines = cipher.decrypt_lines(run, (line for line, _ in pairs), after=after)
    return [(line, link) for line, (_, link) in zip(lines, pairs, strict=True)]


async def read_unkeyed_lines(
    store: Store, run: RunId, *, limit: int
) -> tuple[tuple[bytes, bytes], ...]:
    """Return the first lines of a journal as another store would have them, for a checkpoint.

    They are verified, then decrypted, and their hashes are those of a store without keys.

    Raises:
        RunNotFound: no such run.
        JournalKeyMissing, JournalCorrupt: a line was changed, or cannot be decrypted.
    """
    lines = get_chain(store).verify_lines(run, await store.read_lines(run, limit=limit))
    link = UNKEYED_CHAIN.make_first_link(run)
    pairs: list[tuple[bytes, bytes]] = []
    for line in get_cipher(store).decrypt_lines(run, lines):
        link = UNKEYED_CHAIN.make_next_link(link, line)
        pairs.append((line, link))
    return tuple(pairs)
