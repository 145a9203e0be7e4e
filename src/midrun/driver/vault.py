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
from hashlib import sha256
from typing import Final, TypeVar

import msgspec
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
    merge_spans,
)
from midrun.core.ids import RunId
from midrun.core.placeholders import OPENING, PLACEHOLDER, is_declared, join_path
from midrun.core.state import Call
from midrun.core.values import Json, Reply, Use

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
