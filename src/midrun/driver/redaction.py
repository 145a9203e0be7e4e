"""The vault: secrets of the runs that this process works on, in its memory and nowhere else.

The journal has `[redacted:…]` where a secret was, and so has everything that is made from it:
feeds, reports, checkpoints, and what a model is given of its own past. A tool is given the
secret itself, as long as this process knows it.
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
"""Of how many runs the secrets are remembered."""

EACH: Final = 256
"""How many of each run."""

SHORT: Final = 6
"""What is shorter is hidden where it was found, but not looked for everywhere else."""

SPREAD_MAX_CHARS: Final = 16_384
"""A longer secret is hidden where it was found, but not looked for everywhere else."""

SEARCHED_ONE_BY_ONE_MAX: Final = 16
"""Up to so many secrets are searched one by one; with more, a text is read once first."""

PIECE_CHARS: Final = 131_072
WORD_BYTES: Final = array("I").itemsize

K = TypeVar("K")
V = TypeVar("V")


class Vault:
    """Hides secrets before anything is journaled, and gives them back to tools.

    `redact` is the user's own function, or whether anything is hidden at all. `key` makes what
    stands for a secret the same in every process that has it.
    """

    def __init__(self, redact: bool | Find, key: bytes) -> None:  # noqa: FBT001 - as the user said it
        self.hides = redact is not False
        self.find = redact if callable(redact) else None
        self._key = key
        self._runs: OrderedDict[RunId, Secrets] = OrderedDict()

    def of(self, run: RunId) -> "Secrets":
        """Return the secrets of a run."""
        found = self._runs.get(run)
        if found is None:
            salt = hmac.digest(self._key, run.encode(), "sha256")
            found = self._runs[run] = Secrets(salt, self.find)
            if len(self._runs) > RUNS:
                self._runs.popitem(last=False)
        self._runs.move_to_end(run)
        return found

    def opened(self, run: RunId, call: Call) -> Call:
        """Return `call` with what it was given and gave before that was journaled.

        Not for a child: its task is journaled again, as it is.
        """
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
        """Tell whether a secret is missing that was hidden in another process."""
        if not (self.hides and has_placeholder(args)):
            return False
        return self.of(run).lacks(args)


class Secrets:
    """The secrets of one run.

    `_values` has those that a tool may be given back. `_known` has those that are looked for in
    every text of the run, with their number; a value that a model wrote under a secret's name
    is not among them. Otherwise a model could hide any text from an approver by writing it
    once as a password.
    """

    def __init__(self, salt: bytes, find: Find | None) -> None:
        self.redaction = Redaction(self, find)
        self.found = 0
        self._salt = salt
        self._values: OrderedDict[str, str] = OrderedDict()
        self._known: OrderedDict[str, tuple[int, str]] = OrderedDict()
        self._written: OrderedDict[bytes, Json] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._values)

    # ── hiding ────────────────────────────────────────────────────────────────────────────

    def cover(self, secret: str, *, spread: bool = True) -> str:
        """Return the placeholder of `secret`, and remember it."""
        digest = hmac.digest(self._salt, secret.encode("utf-8", "surrogatepass"), "sha256")
        return self._remember_secret(secret, digest, spread=spread)

    def cover_text(self, secret: str, *, spread: bool = True) -> Steps[str]:
        """Return the placeholder of a secret of any length, as `cover` does."""
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
        """Tell whether a secret that is looked for everywhere may be in a short text."""
        if len(text) < SHORT or not self._known:
            return False
        return len(self._known) > SEARCHED_ONE_BY_ONE_MAX or any(
            secret in text for secret in self._known
        )

    def search(self, text: str, since: int = 0) -> Steps[str]:
        """Return `text` without the secrets that were found after the first `since`."""
        known = [(s, p) for s, (number, p) in self._known.items() if number > since]
        if len(known) > SEARCHED_ONE_BY_ONE_MAX and len(text) > SLICE_CHARS:
            known = yield from _candidates(text, known)
        placeholders: dict[str, str] = {}
        spans: list[Span] = []
        left = SLICE_CHARS * SEARCHED_ONE_BY_ONE_MAX
        for secret, placeholder in known:
            at = text.find(secret) if len(text) <= SLICE_CHARS else 0
            while 0 <= at < len(text):
                # A longer piece than a slice: `str.find` is several times faster than `re`.
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
        for start, stop in merge_spans(spans):  # a longer one may hold another
            secret = text[start:stop]
            stands = placeholders.get(secret) or self.cover(secret, spread=False)
            parts += [text[end:start], stands]
            end = stop
        return "".join([*parts, text[end:]])

    def known(self, text: str) -> str:
        """Return `text` without any secret that was found before."""
        return drain(self.search(text))

    def beginning(self, text: str) -> int:
        """Return how many of the last characters of `text` may be the beginning of a secret."""
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
        """Return a use as it can be journaled; its real arguments are remembered."""
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
        """Return a model's reply as it can be journaled."""
        uses: list[Use] = []
        for use in reply.uses:  # first: the rest may repeat it
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

    # ── giving back ───────────────────────────────────────────────────────────────────────

    def revealed(self, use: Use) -> Json:
        """Return the arguments of a call as they were written.

        A placeholder that was copied from elsewhere is only taken for its secret where one
        belongs, in a field with a secret's name or one that its tool declares secret: no text
        can be made to carry it out.
        """
        written = self._written.get(_digest(use.tool, use.args), use.args)
        return self.filled(deepcopy(written), declared=use.traits.secret)

    def lacks(self, args: Json) -> bool:
        """Tell whether `args` has a placeholder whose secret is not known here."""
        found = (m for text in _texts(args) for m in PLACEHOLDER.findall(text))
        return any(placeholder not in self._values for placeholder in found)

    def filled(
        self, value: Json, name: str = "", declared: tuple[str, ...] = (), path: str = ""
    ) -> Json:
        """Return `value` with its secrets, in those fields that are meant for one."""
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

    To look for each of 256 secrets costs 50 ms per megabyte. This reads the text once, as
    words of four bytes. Wherever a secret of seven bytes or more begins, one of its words at
    the offsets 0 to 3 is such a word of the text.
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
        # Characters beyond the end: a secret may begin with the last one of the piece.
        piece = text[start : start + SLICE_CHARS * 4 + WORD_BYTES * 2]
        data = piece.encode("utf-8", "surrogatepass")
        data += bytes(-len(data) % WORD_BYTES)
        for word in keys.intersection(array("I", data)):
            found.update(words[word])
        yield
    return list(found.items())


def has_placeholder(value: Json) -> bool:
    """Tell whether something in `value` was hidden."""
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


# Hiding: evidence, controls and deltas without secrets, field by field.
#
# By the names of fields, so that a new kind of evidence with an `error` is covered without a
# word here. Data of tools and words of people are searched for names and shapes of secrets,
# words of models for shapes only. A secret that a model wrote is hidden where it stands, and
# nowhere else.

S = TypeVar("S", bound=Struct)
C = TypeVar("C", bound=Wish)

DATA: Final = frozenset(
    {"args", "data", "encoding_error", "error", "progress", "question", "result", "value"}
)
"""Fields with what comes from tools, and answers to them."""

WORDS: Final = frozenset({"instruction", "output", "reason", "task", "text", "thinking"})
"""Fields with what people and models say."""

PARTS: Final = frozenset({"outcome"})
"""Fields with what has such fields in turn."""

TAIL: Final = 40
"""How many characters a secret's name may have when it comes in pieces."""

MANY: Final = frozenset({"items"})
"""Fields with several of those: a plan has its items."""

SPEAKING: Final = 512
"""Of how many calls at a time it is remembered what was held back of them."""


async def hide(vault: Vault, run: RunId, given: S) -> S:
    """Return evidence, a control or an entry as it can be journaled.

    A large value is searched in slices, and everything else in this event loop has its turn
    after each.
    """
    return await run_in_slices(_hide_struct(vault.of(run), given)) if vault.hides else given


def hide_at_once(vault: Vault, run: RunId, given: S) -> S:
    """Return a small piece of evidence as it can be journaled, without letting others run."""
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
    """Return the fields of `kind` that may have a secret in them."""
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
    """Return a control as it can be journaled; edited arguments are remembered, too."""
    if vault.hides and isinstance(control, Approve) and control.args is not None:
        ask = state.ask(control.ask)
        call = None if ask is None else state.call(ask.call)
        edited = Use(tool="") if call is None else call.use
        edited = Use(tool=edited.tool, args=control.args, traits=edited.traits)
        use = await run_in_slices(vault.of(state.run).use(edited, by_model=False))
        control = replace(control, args=use.args)
    return await hide(vault, state.run, control)


class Screen:
    """Lets through what may be shown of a call while it is under way.

    What is said in pieces cannot be judged before it is whole. Arguments are shown up to the
    first word that may be a secret's name, and not at all once the run has a secret. Text is
    held back as long as it may be the beginning of a secret that is known. With a function of
    the user's own nothing that a model says is shown before it is journaled.
    """

    def __init__(self, vault: Vault) -> None:
        self._vault = vault
        self._held: OrderedDict[tuple[RunId, CallId, str], str | None] = OrderedDict()

    def passed(self, delta: Delta) -> Delta | None:
        """Return what may be shown of `delta` now; None if nothing.

        An opening is judged from its beginning again, and those that follow go on from there.
        """
        if not self._vault.hides or not delta.text:
            return delta
        if delta.opening:
            self._held.pop((delta.run, delta.call, delta.kind), None)
        secrets = self._vault.of(delta.run)
        if delta.kind == "note":
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
        """Tell whether the arguments so far have nothing in them that may be a name."""
        key = (delta.run, delta.call, "args")
        before = self._held.get(key, "")
        if before is None:
            return False
        text = before + delta.text
        named = may_name_a_secret(text)
        self._hold(key, None if named else text[-TAIL:])
        return not named

    def _spoken(self, secrets: Secrets, delta: Delta) -> str:
        if not secrets:
            return delta.text
        key = (delta.run, delta.call, delta.kind)
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
