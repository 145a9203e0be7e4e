r"""Redaction: find secrets in values and texts, and replace them by placeholders.

A secret is recognised in five ways: by the name of its field (`password`, `Authorization`,
`api_key` …); by a name before it in a text (`password=…`, `"token": "…"`); by its shape
(`sk-…`, `ghp_…`, a JWT, a private key in PEM); by a function of the user; or because it was
found before. It is replaced by `[redacted:…]`, the same for the same secret within a run, so
that two equal calls still look equal.

`Redactor.redact_value` is the entry point. It walks a value (`_Search`) and searches each text
(`search_text`): `_search_names` for names before a secret, `_search_shape` for each shape in
`SHAPE_RULES`. The `SecretHider` of the driver makes the placeholders and remembers secrets.

**Cost.** A tool may return eight megabytes that were made to be expensive. Python's `re` holds
the interpreter lock during one call and needs about 5 ns for a character even where nothing
matches, `str.find` a tenth of that. So:

- A text is searched in slices of `SLICE_CHARS`. The search is a generator that yields after
  each slice; `driver.redaction` lets the event loop run in between.
- No pattern is tried at every position. A rule has a literal `needle`, and a slice without it
  is not searched. Names are found from their end: in the reversed slice a name follows its `=`
  or `:`, so the pattern starts with that one character, which `re` looks for with `memchr`.
- Every quantifier is bounded and possessive: nothing is scanned twice.
- Cutting into slices changes nothing: a pattern sees the text beyond its slice (`pos` and
  `endpos` of `re` cut nothing off), and every rule remembers where its last match ended.
- A text with too many secrets, or candidates, is hidden from that point on (`_LookLimit`).
"""

import re
from collections.abc import Callable, Generator, Iterable, Sequence
from functools import cache, lru_cache
from typing import Final, NamedTuple, Protocol, TypeAlias, TypeVar

import msgspec

from midrun.core.placeholders import PLACEHOLDER, PLACEHOLDER_PREFIX, is_declared, join_path
from midrun.core.values import Json

T = TypeVar("T")

FindSecrets: TypeAlias = Callable[[str, str], Iterable[str]]
"""A user's function: takes the name of a field, or "", and a text; returns the secret parts."""

Steps: TypeAlias = Generator[None, None, T]
"""Work that yields after every slice and returns its result. See `run_steps`."""

Span: TypeAlias = tuple[int, int]

SLICE_CHARS: Final = 8192  # the event loop cannot run while a slice is searched
JSON_MAX_CHARS: Final = 131_072
"""A longer text is not decoded, even if it is JSON: decoding cannot be cut into slices."""

RARE_CHARS: Final = 32
"""A letter is rare in a text if it is at most one of this many characters."""

HEAD_REACH_CHARS: Final = 544
"""The longest text that `Rule.head` may match, lookahead included."""

TEXT_MIN_LOOKS: Final = 4096
CHARS_PER_LOOK: Final = 64
SECRET_COST_LOOKS: Final = 6

PLAIN_MAX_CHARS: Final = 256
LEAF_COST_CHARS: Final = 32
"""The cost of a number or another leaf, in characters of text that take as long to search."""

COVER_COST_CHARS: Final = 128
"""The cost of a secret that is hidden, in the same unit."""

TEXT_MIN_CHARS: Final = 6
"""A shorter text cannot hold a name and its secret: `pin=12` has six characters."""

NAME_MAX_CHARS: Final = 40
SECRET_MAX_CHARS: Final = 4096
PEM_MAX_CHARS: Final = 16_384

# ── names ────────────────────────────────────────────────────────────────────

SECRET_NAME_ENDINGS: Final = (
    "access key",
    "access token",
    "account key",
    "api key",
    "api token",
    "authorization",
    "auth token",
    "bearer token",
    "card number",
    "connection string",
    "cookie",
    "cookies",
    "credential",
    "credentials",
    "csrf token",
    "encryption key",
    "hmac key",
    "id token",
    "master key",
    "passcode",
    "passphrase",
    "passwd",
    "password",
    "private key",
    "refresh token",
    "secret",
    "secret key",
    "secrets",
    "session id",
    "session token",
    "signing key",
    "ssh key",
)
"""Ends of the names of secrets, in any spelling: `apiKey`, `X-Api-Key`, `OPENAI_API_KEY`."""

SECRET_NAME_LAST_WORDS: Final = (
    "auth",
    "cvv",
    "dsn",
    "jwt",
    "otp",
    "otp code",
    "pat",
    "pin",
    "pin code",
)
"""Last words of the names of secrets: `user_pin` and `userPin`, but not `spin`."""

SECRET_WHOLE_NAMES: Final = ("bearer", "pwd", "token")
"""Names that mean a secret only as the whole name: `next_page_token` does not."""

# Names are compared without separators and case: `X-Api-Key` becomes `xapikey`. The last words
# need their boundaries, which `_NAME_SEGMENTS` finds: `userPin` is `user` and `Pin`.
_JOINED_ENDINGS: Final = tuple(name.replace(" ", "") for name in SECRET_NAME_ENDINGS)
_JOINED_WORDS: Final = frozenset(name.replace(" ", "") for name in SECRET_NAME_LAST_WORDS)
_NOT_ALPHANUMERIC: Final = re.compile(r"[^a-z0-9]")
_NAME_SEGMENTS: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")


@lru_cache(maxsize=4096)
def is_secret_name(name: str) -> bool:
    """Tell whether a field of this name holds a secret."""
    plain = _NOT_ALPHANUMERIC.sub("", name.lower())
    if plain in SECRET_WHOLE_NAMES or plain.endswith(_JOINED_ENDINGS):
        return True
    last = [part.lower() for part in _NAME_SEGMENTS.findall(name)[-2:]]
    return bool(last) and not _JOINED_WORDS.isdisjoint({last[-1], "".join(last)})


def may_contain_secret_name(text: str) -> bool:
    """Tell whether the name of a secret may be in `text`, a part of some JSON."""
    plain = _NOT_ALPHANUMERIC.sub("", text.lower())
    # An escaped letter could hide one: "pass\u0077ord".
    names = (*_JOINED_ENDINGS, *SECRET_WHOLE_NAMES)
    if "\\u" in text or any(name in plain for name in names):
        return True
    return not _JOINED_WORDS.isdisjoint(part.lower() for part in _NAME_SEGMENTS.findall(text))


@cache
def compile_pattern(pattern: str) -> "re.Pattern[str]":
    """Compile a pattern on first use: most commands redact nothing."""
    return re.compile(pattern)


# ── a name before a secret, in a text ────────────────────────────────────────


def _build_prefix_tree_pattern(words: Iterable[str]) -> str:
    """Return a pattern of all `words` that tries each beginning once."""
    branches: dict[str, list[str]] = {}
    for word in words:
        branches.setdefault(word[:1], []).append(word[1:])
    parts: list[str] = []
    for first, rest in sorted(branches.items(), reverse=True):  # the empty one last
        letter = "[-_]?" if first == " " else f"[{first}{first.upper()}]" if first else ""
        parts.append(letter + (_build_prefix_tree_pattern(rest) if any(rest) else ""))
    return parts[0] if len(parts) == 1 else f"(?:{'|'.join(parts)})"


_ALL_NAMES: Final = (*SECRET_NAME_ENDINGS, *SECRET_NAME_LAST_WORDS, *SECRET_WHOLE_NAMES)


@cache
def _compile_name_pattern(mark: str) -> "re.Pattern[str]":
    """Return the pattern for a name and the `mark` after it, in reversed text.

    Group 1 is the name, reversed. `is_secret_name` decides about a match. The pattern begins
    with a literal, which `re` finds quickly, and has nothing before the last letter of the name
    but one class of characters. It is compiled on first use: most commands redact nothing.
    """
    return re.compile(
        rf"""{mark}[\s\]"'\\]{{0,8}}+"""
        rf"""({_build_prefix_tree_pattern(name[::-1] for name in _ALL_NAMES)}"""
        rf"""[\w-]{{0,{NAME_MAX_CHARS}}}+)"""
    )


NAME_REACH_CHARS: Final = 2 * NAME_MAX_CHARS
"""Maximum distance, in characters, between the start of a name and its `=`."""

# A value after the mark: in double quotes, in single quotes, in escaped quotes (JSON in a JSON
# text), or bare, perhaps with an opening quote whose end was cut off.
_NAMED_VALUE: Final = rf"""(?xi)
    [=>]?\s{{0,3}}+
    (?: "((?:[^"\\\r\n]|\\.){{1,{SECRET_MAX_CHARS}}}+)"
      | '((?:[^'\\\r\n]|\\.){{1,{SECRET_MAX_CHARS}}}+)'
      | \\{{1,4}}+"([^"\\\r\n]{{1,{SECRET_MAX_CHARS}}}+)\\{{1,4}}+"
      | (\\{{0,4}}+["'])?
        ((?:(?:bearer|basic)\s{{1,3}}+)? [^\s"'<>,;&)\]}}]{{4,{SECRET_MAX_CHARS}}}+)
    )"""
_SCHEME_PREFIX: Final = r"(?i)(?:bearer|basic)\s{1,3}"
_REFERENCE: Final = r"\$[A-Za-z_{(]|\{\{"
"""`$TOKEN` and `{{ token }}` refer to a secret and do not contain it."""

PLAIN_MIN_CHARS: Final = 6
"""A value without quotes and without a digit is a word if it is shorter."""


def _find_named_secret(text: str, at: int) -> Span | None:
    """Return the secret whose name ends with the `:` or `=` right before `at`."""
    if (value := compile_pattern(_NAMED_VALUE).match(text, at)) is None:
        return None
    group = value.lastindex or 0
    start, end = value.span(group)
    if compile_pattern(_REFERENCE).match(text, start, end):
        return None
    if group == 5:  # noqa: PLR2004 - the last: without a closing quote
        has_digit = any(map(str.isdigit, value[5]))
        # "password: secret" may be prose; with "=", a quote or a digit it is not.
        is_assignment = text[at - 1] == "=" or value[4] is not None
        if not has_digit and (not is_assignment or end - start < PLAIN_MIN_CHARS):
            return None
    # "Authorization: Bearer abc": the scheme stays readable, only "abc" is hidden.
    scheme = compile_pattern(_SCHEME_PREFIX).match(text, start, end)
    if scheme is not None and scheme.end() < end:
        start = scheme.end()
    return start, end


# ── shapes ───────────────────────────────────────────────────────────────────


def _accept_any(_: str, __: "re.Match[str]") -> bool:
    return True


class ShapeRule(NamedTuple):
    """A shape of secrets: `head` matches the beginning, group 1 of `whole` is the secret.

    `head` sees at most `HEAD_REACH_CHARS`, so that a slice is not searched far beyond its end.
    Both are patterns, which `compile_pattern` compiles on first use.
    """

    needles: tuple[bytes, ...]
    head: str
    whole: str
    is_secret: Callable[[str, "re.Match[str]"], bool] = _accept_any
    first_letter: bytes = (
        b""  # one letter, which `head` begins with and which is rare in most texts
    )

    def may_match(self, data: bytes) -> bool:
        """Tell whether a slice needs a search with `head`.

        If the first letter of `head` is rare, `re` skips from one to the next, which is faster
        than a search for the needles. If it is frequent, `head` would be tried at each of them,
        so the needles are searched first.
        """
        if self.first_letter and (count := data.count(self.first_letter)) * RARE_CHARS <= len(
            data
        ):
            return count > 0
        for needle in self.needles:  # noqa: SIM110 - `any` with a generator takes twice as long
            if needle in data:
                return True
        return False


def _make_rule(
    needles: str,
    head: str,
    rest: str,
    is_right: Callable[[str, "re.Match[str]"], bool] = _accept_any,
    first: bytes = b"",
) -> ShapeRule:
    """Return the rule for a secret that is a match of `head` followed by one of `rest`."""
    words = tuple(needle.encode() for needle in needles.split("|"))
    return ShapeRule(words, head, f"({head}{rest})", is_right, first)


def _has_digit(_: str, match: "re.Match[str]") -> bool:
    return any(map(str.isdigit, match[1]))


def _is_random_text(text: str, match: "re.Match[str]") -> bool:
    """Tell whether a match is a credential and not a word, as in "Basic understanding"."""
    inner = match[1][1:]
    return _has_digit(text, match) or (not inner.islower() and not inner.isupper())


def _is_after_curl(text: str, match: "re.Match[str]") -> bool:
    return "curl" in text[max(0, match.start() - 256) : match.start()]


_USERINFO: Final = r"://[^\s/:@]{0,256}+:([^\s/@]{1,256}+)@"
_CURL_USER: Final = (
    r"-(?:u|-user|-proxy-user)(?:(?<=\s-u)|(?<=-user))[ =]{0,3}+[\"']?"
    r"[^\s:\"']{1,256}+:([^\s\"']{1,256}+)"
)

# Each pattern begins with a literal, or a class of two letters, so that `re` finds candidates
# quickly. For the same reason the lookbehind (no letter before the literal) comes after it.
SHAPE_RULES: Final = (
    _make_rule("sk-", r"sk-(?<![\w-]sk-)(?=[\w-]{16})", r"[\w-]{16,512}+", _has_digit),
    _make_rule("gh", r"gh[pousr]_(?<!\w....)(?=[A-Za-z0-9]{16})", r"[A-Za-z0-9]{16,512}+"),
    _make_rule("github_pat_", r"github_pat_(?=\w{16})", r"\w{16,512}+"),
    _make_rule(
        "xox",
        r"x(?=ox[abeoprs]-[A-Za-z0-9-]{10})(?<!\w.)",
        r"[A-Za-z0-9-]{14,512}+",
        first=b"x",
    ),
    _make_rule(
        "AKIA|ASIA|AIza",
        r"A(?=(?:KIA|SIA)[A-Z0-9]{16}(?!\w)|Iza[\w-]{35}(?![\w-]))(?<!\w.)",
        r"[\w-]{19,38}+",
        first=b"A",
    ),
    _make_rule(
        "eyJ",
        r"eyJ(?<![\w-]...)(?=[\w-]{6})",
        rf"[\w-]{{6,{SECRET_MAX_CHARS}}}+(?:\.[\w-]{{1,{SECRET_MAX_CHARS}}}+){{1,4}}+",
    ),
    _make_rule(
        "-----BEGIN ",
        r"-----BEGIN [A-Z0-9 ]{0,32}PRIVATE KEY(?: BLOCK)?-----",
        rf"(?:[^-]|-(?!----END)){{0,{PEM_MAX_CHARS}}}+(?:-----END[A-Z0-9 ]{{0,64}}+-----)?",
    ),
    ShapeRule((b"://",), _USERINFO, _USERINFO),
    ShapeRule(
        (b"earer", b"asic"),
        r"[bB](?<![A-Za-z].)(?:earer|asic)\s{1,3}+(?=[\w.~+/=-]{8})",
        rf"[bB](?:earer|asic)\s{{1,3}}+([\w.~+/=-]{{8,{SECRET_MAX_CHARS}}}+)",
        _is_random_text,
    ),
    ShapeRule((b"-u",), _CURL_USER, _CURL_USER, _is_after_curl),
)


# "gh" is in many words; `may_hold_secret` tests for it first, together with the marks.
_NEEDLES: Final = tuple(
    needle.decode() for rule in SHAPE_RULES for needle in rule.needles if needle != b"gh"
)


def may_hold_secret(text: str) -> bool:
    """Tell whether a short text needs a search."""
    if len(text) < TEXT_MIN_CHARS:
        return False
    return "=" in text or ":" in text or has_needle(text)


def has_needle(text: str) -> bool:
    """Tell whether a short text may have a secret by its shape, whatever name it has."""
    if "gh" in text:
        return True
    for needle in _NEEDLES:  # noqa: SIM110 - `any` with a generator takes twice as long
        if needle in text:
            return True
    return False


# ── the search ───────────────────────────────────────────────────────────────


class SecretHider(Protocol):
    """Remembers the secrets of one run and makes their placeholders."""

    @property
    def found_count(self) -> int:
        """The number of known secrets that are hidden everywhere. It only grows."""
        ...

    def may_contain_secret(self, text: str) -> bool:
        """Tell whether a short text may contain one of these secrets."""
        ...

    def redact(self, secret: str, *, everywhere: bool = True) -> str:
        """Return the placeholder of `secret`; with `everywhere`, hide it in all other texts."""
        ...

    def redact_in_steps(self, secret: str, *, everywhere: bool = True) -> Steps[str]:
        """Return the placeholder of a secret of any length, in steps."""
        ...

    def redact_known(self, text: str, since: int = 0) -> Steps[str]:
        """Return `text` without the known secrets, except for the first `since` of them."""
        ...


class SearchScope(NamedTuple):
    """Options of a search.

    `names`: text after the name of a secret is a secret. `everywhere`: a found secret is also
    hidden in all other texts of the run. `json`: a text may be JSON and is decoded. `declared`:
    paths of fields that the tool declares secret; their values are always hidden everywhere.
    """

    names: bool = True
    everywhere: bool = True
    json: bool = True
    declared: tuple[str, ...] = ()


TOOL_DATA_SCOPE: Final = SearchScope()
"""For results and errors of tools, and for answers of people."""

PERSON_TEXT_SCOPE: Final = SearchScope(json=False)

MODEL_TEXT_SCOPE: Final = SearchScope(names=False, everywhere=False, json=False)
"""For text of a model. Names are ignored, so that an agent can write about configuration."""

MODEL_DATA_SCOPE: Final = SearchScope(names=False, everywhere=False)
"""For the provider's own message: text, and arguments of calls as JSON text."""


def run_steps(steps: Steps[T]) -> T:
    """Run all steps without interruption and return the result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]  # as `Steps` says


CLEAN_MAX_CHARS: Final = 4096
CLEAN_MAX_ITEMS: Final = 16
"""Sizes up to which a value is looked at without interruption; see `Redactor.is_clean`."""

_NUMBER_TYPES: Final = frozenset({bool, int, float})


class Redactor:
    """Hides secrets in values. A value without secrets is returned as the same object."""

    def __init__(self, cover: SecretHider, find: FindSecrets | None) -> None:
        self._hider = cover
        self._find_secrets = find

    def is_clean(self, value: object, scope: SearchScope = TOOL_DATA_SCOPE) -> bool:
        """Tell whether a small value certainly has no secret; False if it needs a search.

        Nearly all values are clean. A search takes thirty calls even for a short text, because
        it could be interrupted anywhere.
        """
        if not value:
            return True
        if type(value) is str:
            return self._is_clean_text(value, scope)
        if type(value) is not dict or scope.declared or len(value) > CLEAN_MAX_ITEMS:
            return False
        for key, inner in value.items():
            if inner is None or type(inner) in _NUMBER_TYPES:
                continue
            if type(inner) is not str or type(key) is not str or is_secret_name(key):
                return False
            if inner and not self._is_clean_text(inner, scope):
                return False
        return True

    def _is_clean_text(self, text: str, scope: SearchScope) -> bool:
        if len(text) > CLEAN_MAX_CHARS or self._find_secrets is not None:
            return False
        if self._hider.found_count and self._hider.may_contain_secret(text):
            return False
        if scope.names and ("=" in text or ":" in text):
            return False
        return not ((scope.json and text[0] in "{[") or has_needle(text))

    def redact_value(self, value: Json, scope: SearchScope = TOOL_DATA_SCOPE) -> Steps[Json]:
        """Return `value` with a placeholder for each of its secrets."""
        if not value:
            return value
        search = _Search(self._hider, self._find_secrets, scope)
        try:
            shown = yield from search.walk(value, "", "")
            # A secret that was found near the end may also be near the beginning, which was
            # searched before it was known. Search again for the new ones, until none is new.
            while (
                search.first_found_count is not None
                and search.first_found_count != self._hider.found_count
            ):
                search = _KnownSearch(
                    self._hider, self._find_secrets, scope, since=search.first_found_count
                )
                shown = yield from search.walk(shown, "", "")
        except RecursionError:  # such a value is too deep for the journal anyway
            return self._hider.redact("too deep to be looked at", everywhere=False)
        return shown


class _Search:
    """One walk over one value. Every method yields after about `SLICE_CHARS` of work."""

    def __init__(
        self, cover: SecretHider, find: FindSecrets | None, scope: SearchScope
    ) -> None:
        self.hider = cover
        self.find_secrets = find
        self.scope = scope
        self.chars_left = SLICE_CHARS
        self.first_found_count: int | None = (
            None  # the number of known secrets after the first text
        )

    def walk(self, value: Json, name: str, path: str) -> Steps[Json]:
        """Return `value`, the field `name` at `path`, without its secrets."""
        match value:
            case str():
                return (yield from self.walk_text(value, name, path)) if value else value
            case dict():
                return (yield from self._walk_object(value, name, path))
            case list() | tuple():
                return (yield from self._walk_array(value, name, path))
            case _:
                return value

    def _walk_object(self, value: dict[str, Json], name: str, path: str) -> Steps[Json]:
        held = is_secret_name(name)  # then all values inside are secret, too
        found: dict[str, Json] = {}
        same = True
        for key, inner in value.items():
            below = join_path(path, str(key)) if self.scope.declared else ""
            shown, inner_name = inner, name if held else str(key)
            if not self._is_plain(inner, inner_name, below):
                shown = yield from self.walk(inner, inner_name, below)
                same = same and shown is inner
            found[key] = shown
            if self.chars_left < 0:
                self.chars_left = SLICE_CHARS
                yield
        return value if same else found

    def _walk_array(self, value: Sequence[Json], name: str, path: str) -> Steps[Json]:
        found: list[Json] = []
        same = True
        for inner in value:
            shown = inner
            if not self._is_plain(inner, name, path):
                shown = yield from self.walk(inner, name, path)
                same = same and shown is inner
            found.append(shown)
            if self.chars_left < 0:
                self.chars_left = SLICE_CHARS
                yield
        return value if same else found

    def _is_plain(self, value: Json, name: str, path: str) -> bool:
        """Tell whether `value` certainly has no secret; False if it needs a search.

        Most values are numbers and short texts. A generator for each of them would cost more
        than the search itself.
        """
        self.chars_left -= LEAF_COST_CHARS
        if not isinstance(value, str):
            return not isinstance(value, dict | list | tuple)
        self.chars_left -= len(value)
        if not value:
            return True
        if self.first_found_count is None:
            self.first_found_count = self.hider.found_count
        if (
            len(value) > PLAIN_MAX_CHARS
            or self.find_secrets is not None
            or self.hider.may_contain_secret(value)
        ):
            return False
        if is_secret_name(name) or (
            self.scope.declared and is_declared(path, self.scope.declared)
        ):
            return False
        return not may_hold_secret(value)

    def walk_text(self, text: str, name: str, path: str) -> Steps[str]:
        """Return a text, the field `name` at `path`, without its secrets."""
        if text[0] == "[" and PLACEHOLDER.fullmatch(text):
            return text  # redacted before: a placeholder must not get a placeholder
        if self.scope.declared and is_declared(path, self.scope.declared):
            return (yield from self.hider.redact_in_steps(text))
        if is_secret_name(name):
            return (
                yield from self.hider.redact_in_steps(text, everywhere=self.scope.everywhere)
            )
        shown = ""
        if self.scope.json and text[0] in "{[":
            shown = yield from self._hide_in_json(text)
        if not shown:
            # Text that looks like JSON and is not (cut off, for example) is data and not
            # prose: search it for names even if the scope ignores them.
            names = self.scope.names or (self.scope.json and text[0] in "{[")
            spans = yield from search_text(text, names=names)
            shown = yield from self._cover_spans(text, spans)
        shown = yield from self._hide_custom(name, shown)
        shown = yield from self._hide_known(shown, 0)
        return text if shown == text else shown

    def _hide_known(self, text: str, since: int) -> Steps[str]:
        """Hide known secrets, also those that another search finds at the same time."""
        # `redact_known` yields: while it does, the search of another value of the same run may
        # find new secrets.
        while True:
            found = self.hider.found_count
            text = yield from self.hider.redact_known(text, since)
            if self.hider.found_count == found:
                break
            since = found
        if self.first_found_count is None:
            self.first_found_count = found
        return text

    def _hide_in_json(self, text: str) -> Steps[str]:
        """Return `text` without its secrets if it is JSON; else ""."""
        if len(text) > JSON_MAX_CHARS or not ('"' in text and text.rstrip()[-1] in "}]"):
            return ""
        try:
            inner = msgspec.json.decode(text)
        except (msgspec.MsgspecError, RecursionError):
            return ""
        hidden = yield from self.walk(inner, "", "")
        # Without secrets the text keeps its own white space and order of keys.
        return text if hidden is inner else msgspec.json.encode(hidden).decode()

    def _cover_spans(self, text: str, spans: Sequence[Span]) -> Steps[str]:
        parts: list[str] = []
        end = 0
        for start, stop in spans:
            secret = text[start:stop]
            if secret.startswith(PLACEHOLDER_PREFIX):
                continue  # "token=[redacted:…]" from an earlier result
            shown = yield from self.hider.redact_in_steps(
                secret, everywhere=self.scope.everywhere
            )
            parts += [text[end:start], shown]
            end = stop
            self.chars_left -= COVER_COST_CHARS
            if self.chars_left < 0:
                self.chars_left = SLICE_CHARS
                yield
        return "".join([*parts, text[end:]]) if parts else text

    def _hide_custom(self, name: str, text: str) -> Steps[str]:
        """Hide the secrets that the user's function finds in the whole text."""
        if self.find_secrets is None:
            return text
        try:
            # The longest first: a secret may be a part of another one.
            parts = sorted(set(self.find_secrets(name, text)), key=len, reverse=True)
            for part in parts:
                if part and not PLACEHOLDER.fullmatch(part):
                    text = text.replace(part, self.hider.redact(part))
                    self.chars_left -= len(text)
                    if self.chars_left < 0:
                        self.chars_left = SLICE_CHARS
                        yield
        except Exception:  # noqa: BLE001 - user code: hide a text that it cannot process
            return self.hider.redact(text)
        return text


class _KnownSearch(_Search):
    """A walk that hides only known secrets, except for the first `since` of them."""

    def __init__(
        self, cover: SecretHider, find: FindSecrets | None, scope: SearchScope, *, since: int
    ) -> None:
        super().__init__(cover, find, scope)
        self._since = since

    def walk_text(self, text: str, name: str, path: str) -> Steps[str]:
        del name, path
        if text[0] == "[" and PLACEHOLDER.fullmatch(text):
            return text
        shown = yield from self._hide_known(text, self._since)
        return text if shown == text else shown


class _LookLimit:
    """Limits the matches in one text that are examined; after that its rest is hidden.

    To examine a match (a look) takes about a microsecond, and a secret six more. The limit
    bounds the time for a text that is made of secrets. It allows a secret in every 450
    characters of a large text, and in every 120 of a text with 100,000 characters.
    """

    def __init__(self, text: str) -> None:
        self._looks_left = TEXT_MIN_LOOKS + len(text) // CHARS_PER_LOOK

    def spend(self, cost: int = 1) -> bool:
        """Take `cost` looks; return False if fewer are left."""
        self._looks_left -= cost
        return self._looks_left >= 0


def search_text(text: str, *, names: bool, slice_chars: int = SLICE_CHARS) -> Steps[list[Span]]:
    """Return the positions of secrets in `text`, in order, without overlaps."""
    spans: list[Span] = []
    looks, size = _LookLimit(text), len(text)
    # The end of the last match of each rule; the last item is for names. A match may reach into
    # the next slice, where the rule must not match a part of it again.
    ends = [0] * (len(SHAPE_RULES) + 1)
    for start in range(0, size, slice_chars):
        if start:
            yield
        end = min(start + slice_chars, size)
        found: list[Span] = []
        enough = True
        if names:
            enough = _search_names(text, (start, end), ends, found, looks)
        # Search bytes: in a str with wide characters, a search takes twice as long.
        data = text[start : end + HEAD_REACH_CHARS].encode("utf-8", "surrogatepass")
        for number, rule in enumerate(SHAPE_RULES):
            if enough and rule.may_match(data):
                enough = _search_shape(text, (start, end), number, ends, found, looks)
        spans += found
        if not enough:
            spans.append((start, size))  # hide the slice, too: not all rules have searched it
            break
    return merge_spans(spans)


def _search_names(
    text: str, where: Span, ends: list[int], found: list[Span], looks: _LookLimit
) -> bool:
    """Find secrets by the names before them; return False at the limit of looks."""
    start, end = where
    begin = max(0, start - NAME_REACH_CHARS)
    part = text[begin:end][::-1]
    stop = begin + len(part)
    names: list[re.Match[str]] = []
    for mark in "=:":
        if mark in part:
            # A ruler ("======") assigns nothing, and each of its marks would cost a try.
            ruled = part.replace(mark * 2, "\0\0") if mark * 4 in part else part
            names += _compile_name_pattern(mark).finditer(ruled)
    # The search runs from right to left. Handle the names from left to right: a secret can
    # contain a mark, and then the first name wins (`ends`).
    for name in sorted(names, key=re.Match.start, reverse=True):
        at = stop - name.start()  # right after the mark
        if not start < at <= end or at - 1 < ends[-1] or text[at : at + 1] == name[0][0]:
            continue  # another slice, inside a secret, or "==" and "::", which assign nothing
        if not looks.spend():
            return False
        if not is_secret_name(text[stop - name.end(1) : stop - name.start(1)]):
            continue
        if (span := _find_named_secret(text, at)) is not None:
            if not looks.spend(SECRET_COST_LOOKS):
                return False
            found.append(span)
            ends[-1] = span[1]
    return True


def _search_shape(
    text: str, where: Span, number: int, ends: list[int], found: list[Span], looks: _LookLimit
) -> bool:
    """Find secrets of one shape; return False at the limit of looks."""
    rule, (start, end) = SHAPE_RULES[number], where
    for head in compile_pattern(rule.head).finditer(text, start, end + HEAD_REACH_CHARS):
        at = head.start()
        if at >= end:
            break
        if at < ends[number]:
            continue
        if not looks.spend():
            return False
        whole = compile_pattern(rule.whole).match(text, at)
        if whole is not None and rule.is_secret(text, whole):
            if not looks.spend(SECRET_COST_LOOKS):
                return False
            ends[number] = whole.end()
            found.append(whole.span(1))
    return True


def merge_spans(spans: list[Span]) -> list[Span]:
    """Return `spans` in order; those that overlap become one."""
    merged: list[Span] = []
    for start, end in sorted(spans):
        if merged and start < merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged
