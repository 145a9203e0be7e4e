"""Redaction: keep secrets out of the journal, and give them back to tools.

`codec.redaction` finds secrets in a value. This module applies it to driver inputs, controls
and deltas, and remembers each secret in the memory of this process, and nowhere else:

- **Before an entry is journaled**, each secret is replaced by a placeholder, `[redacted:…]`. It
  is a keyed hash of the secret, so that equal secrets of a run have equal placeholders. All
  that is made from the journal has the placeholder, too: feeds, reports, checkpoints, and the
  history that a model is given.
- **Before a call is made**, `SecretRegistry.restore_call` puts the secrets back into its
  arguments. After a restart the process does not know them; then the call is not made, and the
  model is told to ask again (`tool_calls.SECRETS_LOST`).
- **A secret that was found once is searched for in all later text of the run.** A value that a
  model wrote under a secret's name is not: see `RunSecrets`.
- **Live deltas** come in pieces, before a secret can be recognised: see `LiveRedactor`.

Searching a large value takes long, so the work is a generator (`Steps`) that `run_in_slices`
runs with pauses for the event loop.
"""

import hmac
from array import array
from collections import OrderedDict
from collections.abc import Iterator
from copy import deepcopy
from functools import cache
from hashlib import sha256
from operator import is_
from typing import Final, TypeVar, cast, get_args, get_type_hints

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from midrun.codec.redaction import (
    MODEL_DATA,
    MODEL_WORDS,
    PEOPLE_WORDS,
    SLICE_CHARS,
    Find,
    Redaction,
    SearchScope,
    Span,
    Steps,
    drain,
    is_secret_name,
    may_name_a_secret,
    merge_spans,
)
from midrun.core.controls import Approve, Wish
from midrun.core.entries import RunStarted
from midrun.core.ids import CallId, RunId
from midrun.core.placeholders import OPENING, PLACEHOLDER, is_declared, join_path
from midrun.core.state import Call, State
from midrun.core.values import Json, Reply, Use
from midrun.driver.delta import Delta
from midrun.driver.slices import run_in_slices

RUNS: Final = 1024
"""Runs whose secrets are remembered; the least recently used is forgotten first."""

EACH: Final = 256
"""Secrets that are remembered for each run."""

SHORT: Final = 6
"""Characters. A shorter secret is replaced where it was found, but not searched elsewhere."""

SPREAD_MAX_CHARS: Final = 16_384
"""A longer secret is replaced where it was found, but not searched elsewhere."""

SEARCHED_ONE_BY_ONE_MAX: Final = 16
"""Up to this number, each secret is searched by itself; beyond it, see `_find_candidates`."""

PIECE_CHARS: Final = 131_072
"""Characters that one `str.find` or one hash update handles between two yields."""

WORD_BYTES: Final = array("I").itemsize

K = TypeVar("K")
V = TypeVar("V")


class Vault:
    """The secrets of all runs of this process.

    `redact` is the user's own search function, or True or False to switch redaction on or off.
    Processes with the same `key` compute the same placeholder for the same secret of a run.
    """

    def __init__(self, redact: bool | Find, key: bytes) -> None:  # noqa: FBT001 - the public argument
        self.hides = redact is not False
        self.find = redact if callable(redact) else None
        self._key = key
        self._runs: OrderedDict[RunId, Secrets] = OrderedDict()

    def of(self, run: RunId) -> "Secrets":
        """Return the secrets of `run`; create an empty set for a new run."""
        found = self._runs.get(run)
        if found is None:
            salt = hmac.digest(self._key, run.encode(), "sha256")
            found = self._runs[run] = Secrets(salt, self.find)
            if len(self._runs) > RUNS:
                self._runs.popitem(last=False)
        self._runs.move_to_end(run)
        return found

    def opened(self, run: RunId, call: Call) -> Call:
        """Return `call` with its secrets in arguments, progress, result and answer.

        The call of a child run stays redacted: its task goes into the child's journal.
        """
        # Not `get_run`, which would create an entry for a run without secrets.
        secrets = self._runs.get(run)
        if not secrets or call.use.kind == "child":
            return call
        use = call.use
        if has_placeholder(use.args):
            use = replace(use, args=secrets.revealed(use))
        progress, result = secrets.filled(call.progress), secrets.filled(call.result)
        answered = secrets.filled(call.answered)
        return replace(call, use=use, progress=progress, result=result, answered=answered)

    def is_lost(self, run: RunId, args: Json) -> bool:
        """Tell whether `value` has a placeholder whose secret this process does not know."""
        if not (self.hides and has_placeholder(args)):
            return False
        return self.of(run).lacks(args)


class Secrets:
    """The secrets of one run.

    `_secret_by_placeholder` maps placeholders to the secrets that a tool may be given back.
    `_searched_secrets` has the secrets that are searched for in every text of the run, each
    with the number at which it was found. A value that a model wrote under a secret's name is
    not among them (`everywhere=False`): otherwise a model could hide any text from an approver,
    by writing it once as a password. `found_count` counts the secrets in `_searched_secrets`
    that were ever found.
    """

    def __init__(self, salt: bytes, find: Find | None) -> None:
        self.redaction = Redaction(self, find)
        self.found = 0
        self._salt = salt
        self._values: OrderedDict[str, str] = OrderedDict()  # placeholder: secret
        self._known: OrderedDict[str, tuple[int, str]] = OrderedDict()  # secret: number, place
        self._written: OrderedDict[bytes, Json] = OrderedDict()  # digest: original arguments

    def __bool__(self) -> bool:
        return bool(self._values)

    # ── replacing secrets ─────────────────────────────────────────────────────────────────

    def cover(self, secret: str, *, spread: bool = True) -> str:
        """Return the placeholder of `secret`, and remember the secret.

        With `everywhere`, it is also replaced in all later text of the run.
        """
        digest = hmac.digest(self._salt, secret.encode("utf-8", "surrogatepass"), "sha256")
        return self._remember_secret(secret, digest, spread=spread)

    def cover_text(self, secret: str, *, spread: bool = True) -> Steps[str]:
        """Return the placeholder of a secret of any length, in steps."""
        if len(secret) <= PIECE_CHARS:
            return self.cover(secret, spread=spread)
        mac = hmac.new(self._salt, digestmod="sha256")
        for start in range(0, len(secret), PIECE_CHARS):
            mac.update(secret[start : start + PIECE_CHARS].encode("utf-8", "surrogatepass"))
            yield
        return self._remember_secret(secret, mac.digest(), spread=spread)

    def _remember_secret(self, secret: str, digest: bytes, *, spread: bool) -> str:
        placeholder = f"{OPENING}{digest.hex()[:12]}]"
        _remember(self._values, placeholder, secret)
        if spread and SHORT <= len(secret) <= SPREAD_MAX_CHARS:
            if secret not in self._known:
                self.found += 1
            number, _ = self._known.get(secret, (self.found, ""))
            _remember(self._known, secret, (number, placeholder))
        return placeholder

    def may_be_in(self, text: str) -> bool:
        """Tell whether a known secret may be in a short text; False is certain."""
        if len(text) < SHORT or not self._known:
            return False
        return len(self._known) > SEARCHED_ONE_BY_ONE_MAX or any(
            secret in text for secret in self._known
        )

    def search(self, text: str, since: int = 0) -> Steps[str]:
        """Replace the known secrets in `text`, except the first `since` that were found."""
        known = [(s, p) for s, (number, p) in self._known.items() if number > since]
        if len(known) > SEARCHED_ONE_BY_ONE_MAX and len(text) > SLICE_CHARS:
            known = yield from _candidates(text, known)
        placeholders: dict[str, str] = {}
        spans: list[Span] = []
        left = SLICE_CHARS * SEARCHED_ONE_BY_ONE_MAX  # characters until the next yield
        for secret, placeholder in known:
            at = text.find(secret) if len(text) <= SLICE_CHARS else 0
            while 0 <= at < len(text):
                # Pieces are longer than slices: `str.find` is several times faster than `re`.
                # Each search reaches beyond its piece, for a secret that crosses the border.
                piece = min(at + PIECE_CHARS, len(text))
                left -= piece - at
                found = text.find(secret, at, piece + len(secret) - 1)
                if found >= 0:
                    placeholders[secret] = placeholder
                    spans.append((found, found + len(secret)))
                at = piece if found < 0 else found + len(secret)
                if left < 0:
                    left = SLICE_CHARS * SEARCHED_ONE_BY_ONE_MAX
                    yield
        if not spans:
            return text
        parts, end = [], 0
        # Secrets may overlap, or one may hold another. Overlapping spans are merged, and the
        # merged text is a secret of its own, which gets a placeholder here.
        for start, stop in merge_spans(spans):
            secret = text[start:stop]
            placeholder = placeholders.get(secret) or self.cover(secret, spread=False)
            parts += [text[end:start], placeholder]
            end = stop
        return "".join([*parts, text[end:]])

    def known(self, text: str) -> str:
        """Replace all known secrets in `text`, in one go."""
        return drain(self.search(text))

    def beginning(self, text: str) -> int:
        """Return how many characters at the end of `text` may begin a known secret."""
        longest = 0
        for secret in self._known:
            at = text.find(secret[0], max(0, len(text) - len(secret) + 1))
            while at >= 0 and len(text) - at > longest:
                if secret.startswith(text[at:]):
                    longest = len(text) - at
                    break
                at = text.find(secret[0], at + 1)
        return longest

    def use(self, use: Use, *, by_model: bool) -> Steps[Use]:
        """Redact a requested call, and remember its original arguments."""
        # A secret that a model wrote is replaced in place only; see the class.
        scope = SearchScope(spread=not by_model, declared=use.traits.secret)
        words = MODEL_WORDS if by_model else PEOPLE_WORDS
        args = yield from self.redaction.value(use.args, scope)
        if args is not use.args:
            _remember(self._written, _digest(use.tool, args), use.args)
        why = yield from self.redaction.value(use.why, words)
        refused = yield from self.redaction.value(use.refused, scope)
        if args is use.args and why is use.why and refused is use.refused:
            return use
        return replace(use, args=args, why=why, refused=refused)

    def reply(self, reply: Reply) -> Steps[Reply]:
        """Redact the reply of a model."""
        uses: list[Use] = []
        for use in reply.uses:  # before the text, which may repeat a secret from an argument
            shown = yield from self.use(use, by_model=True)
            uses.append(shown)
        text = yield from self.redaction.value(reply.text, MODEL_WORDS)
        thinking = yield from self.redaction.value(reply.thinking, MODEL_WORDS)
        opaque = yield from self.redaction.value(reply.opaque, MODEL_DATA)
        same = (
            text is reply.text
            and thinking is reply.thinking
            and opaque is reply.opaque
            and all(a is b for a, b in zip(uses, reply.uses, strict=True))
        )
        if same:
            return reply
        return replace(reply, uses=tuple(uses), text=text, thinking=thinking, opaque=opaque)

    # ── restoring secrets ─────────────────────────────────────────────────────────────────

    def revealed(self, use: Use) -> Json:
        """Return the original arguments of a call.

        A model may also copy a placeholder from its history into new arguments. That is
        replaced by its secret only in a field for secrets: one with a secret's name, or one
        that the tool declares secret. Otherwise a prompt injection could make the model send
        the secret away in a message or a URL.
        """
        # The redacted arguments identify the call: equal secrets have equal placeholders. A
        # copy is returned, as the tool may change it.
        written = self._written.get(_digest(use.tool, use.args), use.args)
        return self.filled(deepcopy(written), declared=use.traits.secret)

    def lacks(self, args: Json) -> bool:
        """Tell whether `value` has a placeholder whose secret is not known."""
        found = (m for text in _texts(args) for m in PLACEHOLDER.findall(text))
        return any(placeholder not in self._values for placeholder in found)

    def filled(
        self, value: Json, name: str = "", declared: tuple[str, ...] = (), path: str = ""
    ) -> Json:
        """Return `value` with placeholders replaced by secrets in fields for secrets."""
        match value:
            case str() if is_secret_name(name) or is_declared(path, declared):
                return self._values.get(value, value)
            case dict():
                held = is_secret_name(name)
                return {
                    k: self.filled(
                        v, name if held else str(k), declared, join_path(path, str(k))
                    )
                    for k, v in value.items()
                }
            case list():
                return [self.filled(item, name, declared, path) for item in value]
            case _:
                return value


def _candidates(text: str, known: list[tuple[str, str]]) -> Steps[list[tuple[str, str]]]:
    """Return those of many `known` secrets that may be in `text`.

    To search for each of 256 secrets takes 50 ms per megabyte. This reads the text once, as
    aligned words of four bytes. Wherever a secret of seven bytes or more begins, one of its
    four words at the offsets 0 to 3 is aligned with the words of the text. So a secret is a
    candidate if one of these words occurs; shorter secrets are always candidates.
    """
    words: dict[int, list[tuple[str, str]]] = {}
    found: dict[str, str] = {}
    for secret, placeholder in known:
        data = secret.encode("utf-8", "surrogatepass")
        if len(data) < WORD_BYTES * 2 - 1:
            found[secret] = placeholder
            continue
        for offset in range(WORD_BYTES):
            (word,) = array("I", data[offset : offset + WORD_BYTES])
            words.setdefault(word, []).append((secret, placeholder))
    keys = frozenset(words)
    for start in range(0, len(text), SLICE_CHARS * 4):
        # Read on beyond the end of the piece, for a secret that begins with its last character.
        piece = text[start : start + SLICE_CHARS * 4 + WORD_BYTES * 2]
        data = piece.encode("utf-8", "surrogatepass")
        data += bytes(-len(data) % WORD_BYTES)
        for word in keys.intersection(array("I", data)):
            found.update(words[word])
        yield
    return list(found.items())


def has_placeholder(value: Json) -> bool:
    """Tell whether a text in `value` has a placeholder."""
    return any(OPENING in text for text in _texts(value))


def _texts(value: Json) -> Iterator[str]:
    match value:
        case str():
            yield value
        case dict():
            for inner in value.values():
                yield from _texts(inner)
        case list():
            for inner in value:
                yield from _texts(inner)
        case _:
            return


def _digest(tool: str, args: Json) -> bytes:
    return sha256(msgspec.json.encode([tool, args], order="sorted")).digest()


def _remember(kept: OrderedDict[K, V], key: K, value: V) -> None:
    kept[key] = value
    kept.move_to_end(key)
    if len(kept) > EACH:
        kept.popitem(last=False)


# Redaction of driver inputs, controls and entries, field by field.
#
# Fields are chosen by name, so that a new kind of input with an `error` field is redacted
# without a change here. Data of tools and text of people are searched for names and shapes of
# secrets, text of models for shapes only. A secret that a model wrote is replaced where it
# stands, and nowhere else.

S = TypeVar("S", bound=Struct)
C = TypeVar("C", bound=Wish)

DATA: Final = frozenset(
    {"args", "data", "encoding_error", "error", "progress", "question", "result", "value"}
)
"""Fields with data of tools, and answers for tools."""

WORDS: Final = frozenset({"instruction", "output", "reason", "task", "text", "thinking"})
"""Fields with text of people or models."""

PARTS: Final = frozenset({"outcome"})
"""Fields that hold a struct with such fields."""

TAIL: Final = 40
"""Characters of arguments to remember, so that a name that comes in two deltas is found."""

MANY: Final = frozenset({"items"})
"""Fields that hold several such structs: the items of a plan."""

SPEAKING: Final = 512
"""Streams of calls whose held-back text is remembered."""


async def hide(vault: Vault, run: RunId, given: S) -> S:
    """Redact a driver input, a control or an entry; search a large value in slices."""
    return await run_in_slices(_hide_struct(vault.of(run), given)) if vault.hides else given


def hide_at_once(vault: Vault, run: RunId, given: S) -> S:
    """Redact a small driver input without yielding to the event loop."""
    return drain(_hide_struct(vault.of(run), given)) if vault.hides else given


def _hide_struct(secrets: Secrets, given: S) -> Steps[S]:
    changed: dict[str, object] = {}
    words = PEOPLE_WORDS if isinstance(given, Wish | RunStarted) else MODEL_WORDS
    for name in _searched(type(given)):
        before: object = getattr(given, name)
        after = yield from _hide_field(secrets, name, before, words)
        if after is not before:
            changed[name] = after
    return replace(given, **changed) if changed else given


@cache
def _searched(kind: type[Struct]) -> tuple[str, ...]:
    """Return the names of the fields of `kind` that may have a secret in them."""
    named, hints = DATA | WORDS | PARTS | MANY, get_type_hints(kind)
    return tuple(
        name
        for name in kind.__struct_fields__
        if name in named or {Reply, Use} & {hints[name], *get_args(hints[name])}
    )


def _hide_field(
    secrets: Secrets, name: str, value: object, words: SearchScope
) -> Steps[object]:
    if not value:
        return value
    if isinstance(value, Reply):
        return (yield from secrets.reply(value))
    if isinstance(value, Use):
        return (yield from secrets.use(value, by_model=False))
    if name in PARTS:
        return (yield from _hide_struct(secrets, cast("Struct", value)))
    if name in MANY and isinstance(value, tuple):
        parts: list[object] = []
        for part in value:
            shown = yield from _hide_struct(secrets, part)
            parts.append(shown)
        return value if all(map(is_, parts, value)) else tuple(parts)
    if name in DATA:
        return (yield from secrets.redaction.value(value))
    if name in WORDS and isinstance(value, str):
        return (yield from secrets.redaction.value(value, words))
    return value


async def hide_control(vault: Vault, state: State, control: C) -> C:
    """Redact a control, and remember the arguments that an approver edited."""
    # They need the traits of the call: its tool may declare some of them secret.
    if vault.hides and isinstance(control, Approve) and control.args is not None:
        ask = state.ask(control.ask)
        call = None if ask is None else state.call(ask.call)
        edited = Use(tool="") if call is None else call.use
        edited = Use(tool=edited.tool, args=control.args, traits=edited.traits)
        use = await run_in_slices(vault.of(state.run).use(edited, by_model=False))
        control = replace(control, args=use.args)
    return await hide(vault, state.run, control)


class Screen:
    """Redacts live deltas, which come in pieces.

    A secret cannot be recognised before it is complete, and a piece that was shown cannot be
    taken back. So more is held back than in the journal:

    - Arguments are shown up to the first word that may be the name of a secret. Once the run
      has a secret, they are not shown at all.
    - Text is held back while its end may be the beginning of a known secret.
    - With the user's own search function, which wants whole texts, the output of a model is not
      shown before it is journaled.
    - A note of a tool comes whole, and is redacted like an entry.
    """

    def __init__(self, vault: Vault) -> None:
        self._vault = vault
        self._held: OrderedDict[tuple[RunId, CallId, str], str | None] = OrderedDict()

    def passed(self, delta: Delta) -> Delta | None:
        """Return the part of `delta` that may be shown now; None if there is none.

        An `opening` delta is searched from its beginning, and the deltas after it continue.
        """
        if not self._vault.hides or not delta.text:
            return delta
        if delta.opening:
            self._held.pop((delta.run, delta.call, delta.kind), None)
        secrets = self._vault.of(delta.run)
        if delta.kind == "note":  # comes whole
            shown = drain(secrets.redaction.value(delta.text))
        elif self._vault.find is not None:
            return None
        elif delta.kind == "args":
            return delta if not secrets and self._plain(delta) else None
        else:
            shown = self._spoken(secrets, delta)
        if shown is delta.text:
            return delta
        return replace(delta, text=shown) if shown else None

    def _plain(self, delta: Delta) -> bool:
        """Tell whether the arguments so far have no word that may name a secret."""
        key = (delta.run, delta.call, "args")
        before = self._held.get(key, "")
        if before is None:  # a name was found before: nothing more of them is shown
            return False
        text = before + delta.text
        named = may_name_a_secret(text)
        self._hold(key, None if named else text[-TAIL:])
        return not named

    def _spoken(self, secrets: Secrets, delta: Delta) -> str:
        if not secrets:
            return delta.text
        key = (delta.run, delta.call, delta.kind)
        # Prepend the text that was held back with the last delta, and hold back the new end.
        text = secrets.known((self._held.pop(key, None) or "") + delta.text)
        keep = secrets.beginning(text)
        if keep:
            self._hold(key, text[-keep:])
            return text[:-keep]
        return text

    def _hold(self, key: tuple[RunId, CallId, str], text: str | None) -> None:
        self._held[key] = text
        self._held.move_to_end(key)
        if len(self._held) > SPEAKING:
            self._held.popitem(last=False)
