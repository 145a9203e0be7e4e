"""The vault: secrets of the runs that this process works on, in its memory and nowhere else.

The journal has `[redacted:…]` where a secret was, and so has everything that is made from it:
feeds, reports, checkpoints, and what a model is given of its own past. A tool is given the
secret itself, as long as this process knows it.
"""

import hmac
from collections import OrderedDict
from collections.abc import Iterator
from copy import deepcopy
from hashlib import sha256
from typing import Final, TypeVar

import msgspec
from msgspec.structs import replace

from midrun.codec.redaction import PLACEHOLDER, Find, Redaction, is_secret_name
from midrun.core.ids import RunId
from midrun.core.state import Call
from midrun.core.values import Json, Reply, Use

RUNS: Final = 1024
"""Of how many runs the secrets are remembered."""

EACH: Final = 256
"""How many of each run."""

SHORT: Final = 6
"""What is shorter is hidden where it was found, but not looked for everywhere else."""

OPENING: Final = "[redacted:"
"""How every placeholder begins."""

T = TypeVar("T")


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
            use = replace(use, args=secrets.revealed(use.tool, use.args))
        progress, result = secrets.filled(call.progress), secrets.filled(call.result)
        answered = secrets.filled(call.answered)
        return replace(call, use=use, progress=progress, result=result, answered=answered)

    def is_lost(self, run: RunId, args: Json) -> bool:
        """Tell whether a secret is missing that was hidden in another process."""
        if not (self.hides and has_placeholder(args)):
            return False
        return self.of(run).lacks(args)


class Secrets:
    """The secrets of one run."""

    def __init__(self, salt: bytes, find: Find | None) -> None:
        self.redaction = Redaction(self, find)
        self._salt = salt
        self._values: OrderedDict[str, str] = OrderedDict()
        self._written: OrderedDict[bytes, Json] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._values)

    # ── hiding ────────────────────────────────────────────────────────────────────────────

    def cover(self, secret: str) -> str:
        """Return what stands for `secret`, and remember it."""
        digest = hmac.digest(self._salt, secret.encode("utf-8", "surrogatepass"), "sha256")
        placeholder = f"{OPENING}{digest.hex()[:12]}]"
        _remember(self._values, placeholder, secret)
        return placeholder

    def known(self, text: str) -> str:
        """Return `text` without any secret that was found before."""
        found = [(s, p) for p, s in self._values.items() if len(s) >= SHORT and s in text]
        for secret, placeholder in sorted(found, key=lambda one: len(one[0]), reverse=True):
            text = text.replace(secret, placeholder)  # the longest first: it may hold another
        return text

    def beginning(self, text: str) -> int:
        """Return how many of the last characters of `text` may be the beginning of a secret."""
        longest = 0
        for secret in self._values.values():
            for size in range(min(len(secret) - 1, len(text)), longest, -1):
                if text.endswith(secret[:size]):
                    longest = size
                    break
        return longest

    def use(self, use: Use) -> Use:
        """Return a use as it can be journaled; what its arguments were is remembered."""
        args = self.redaction.value(use.args)
        if args is not use.args:
            _remember(self._written, _digest(use.tool, args), use.args)
        why, refused = self.redaction.said(use.why), self.redaction.value(use.refused)
        if args is use.args and why is use.why and refused is use.refused:
            return use
        return replace(use, args=args, why=why, refused=refused)

    def reply(self, reply: Reply) -> Reply:
        """Return what a model said as it can be journaled."""
        uses = tuple(self.use(use) for use in reply.uses)  # first: the rest may repeat it
        text, thinking = self.redaction.said(reply.text), self.redaction.said(reply.thinking)
        opaque = self.redaction.value(reply.opaque, prose=True)
        same = (
            text is reply.text
            and thinking is reply.thinking
            and opaque is reply.opaque
            and all(a is b for a, b in zip(uses, reply.uses, strict=True))
        )
        if same:
            return reply
        return replace(reply, uses=uses, text=text, thinking=thinking, opaque=opaque)

    # ── giving back ───────────────────────────────────────────────────────────────────────

    def revealed(self, tool: str, args: Json) -> Json:
        """Return the arguments of a call as they were written.

        A placeholder that was copied from elsewhere is only taken for its secret where one
        belongs, in a field with a secret's name: no text can be made to carry it out.
        """
        return self.filled(deepcopy(self._written.get(_digest(tool, args), args)))

    def lacks(self, args: Json) -> bool:
        """Tell whether `args` has a placeholder that nobody here knows the secret of."""
        found = (m for text in _texts(args) for m in PLACEHOLDER.findall(text))
        return any(placeholder not in self._values for placeholder in found)

    def filled(self, value: Json, name: str = "") -> Json:
        """Return `value` with its secrets, in those fields that are named for one."""
        match value:
            case str() if is_secret_name(name):
                return self._values.get(value, value)
            case dict():
                held = is_secret_name(name)
                return {k: self.filled(v, name if held else str(k)) for k, v in value.items()}
            case list():
                return [self.filled(item, name) for item in value]
            case _:
                return value


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


def _remember(kept: OrderedDict[T, Json] | OrderedDict[T, str], key: T, value: Json) -> None:
    kept[key] = value  # type: ignore[assignment]  # each has its own kind
    kept.move_to_end(key)
    if len(kept) > EACH:
        kept.popitem(last=False)
