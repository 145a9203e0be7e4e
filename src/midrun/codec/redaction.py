"""Redaction: what in a value is secret, and what stands in its place.

A secret is known by the name of the field that holds it (`password`, `Authorization`,
`api_key` …), by a function of the user's own that finds it, or because it was found before. In
its place stands `[redacted:…]`, the same for the same secret within a run, so that two equal
calls still look equal.
"""

import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Final, Protocol, TypeAlias

import msgspec

from midrun.core.values import Json

Find: TypeAlias = Callable[[str, str], Iterable[str]]
"""Finds secrets: given the name of a field, or "", and a text, it returns parts of the text."""

PLACEHOLDER: Final = re.compile(r"\[redacted:[0-9a-f]{12}\]")

ENDINGS: Final = (
    "accesskey",
    "accesstoken",
    "apikey",
    "apitoken",
    "authorization",
    "authtoken",
    "bearertoken",
    "cookie",
    "cookies",
    "credential",
    "credentials",
    "csrftoken",
    "encryptionkey",
    "idtoken",
    "passphrase",
    "passwd",
    "password",
    "privatekey",
    "refreshtoken",
    "secret",
    "secretkey",
    "secrets",
    "sessiontoken",
    "signingkey",
)
"""How the names of fields end that hold secrets, without case, dashes and underscores."""

WHOLE: Final = frozenset({"bearer", "pwd", "token"})
"""Names that mean a secret only on their own: a `next_page_token` is none."""

SIGNS: Final = (
    "key",
    "token",
    "secret",
    "passw",
    "passphrase",
    "pwd",
    "authorization",
    "bearer",
    "basic ",
    "cookie",
    "credential",
    "://",
)
"""What a text has in it, in small letters, if it is worth a closer look."""

LEAST: Final = 9
"""Characters of a name and a secret that is told with it: `pwd=` …"""

_NAME: Final = re.compile(r"""([\w-]{1,40})["']?\s{0,3}[:=]\s{0,3}["']?""")
_TOLD: Final = re.compile(
    r"""(?:(?:bearer|basic)\s{1,3})?([^\s"'<>,;&)\]}]{6,4096})""", re.IGNORECASE
)
_SCHEME: Final = re.compile(r"\b(?:bearer|basic)\s{1,3}([\w.~+/=-]{8,4096})", re.IGNORECASE)
_USERINFO: Final = re.compile(r"://[^\s/:@]{0,256}:([^\s/@]{1,256})@")
_LETTERS: Final = re.compile(r"[^a-z0-9]")


class Cover(Protocol):
    """What hides the secrets of one run."""

    def cover(self, secret: str) -> str:
        """Return what stands for `secret`."""
        ...

    def known(self, text: str) -> str:
        """Return `text` without what was covered before."""
        ...


@lru_cache(maxsize=4096)
def is_secret_name(name: str) -> bool:
    """Tell whether a field of this name holds a secret."""
    plain = _LETTERS.sub("", name.lower())
    return plain in WHOLE or plain.endswith(ENDINGS)


def may_name_a_secret(text: str) -> bool:
    """Tell whether a name of a secret may be in `text`, a part of some JSON."""
    plain = _LETTERS.sub("", text.lower())
    # An escaped letter could hide one: "pass\u0077ord".
    return "\\u" in text or any(name in plain for name in (*ENDINGS, *WHOLE))


def is_suspicious(text: str) -> bool:
    """Tell whether there may be a secret in `text`, by its words alone."""
    small = text.lower()
    return any(sign in small for sign in SIGNS)


class Redaction:
    """Hides secrets in values and texts. Without any in it, a value is returned as it is."""

    def __init__(self, cover: Cover, find: Find | None) -> None:
        self._cover = cover
        self._find = find

    def value(self, value: Json, *, prose: bool = False) -> Json:
        """Return data without its secrets; with `prose`, its texts are what somebody said."""
        if not value:
            return value
        try:
            return self._walked(value, "", prose=prose)
        except RecursionError:  # nobody could store it either
            return self._cover.cover("too deep to be looked at")

    def said(self, text: str) -> str:
        """Return what somebody wrote or said without its secrets.

        In prose a word after *password* is mostly just a word, so names are no sign here.
        """
        return self._cover.known(self._found("", text)) if text else text

    def _walked(self, value: Json, name: str, *, prose: bool) -> Json:
        match value:
            case str():
                return self._leaf(value, name, prose=prose)
            case dict():
                held = is_secret_name(name)  # then whatever is inside is secret, too
                found = {
                    key: self._walked(inner, name if held else str(key), prose=prose)
                    for key, inner in value.items()
                }
                same = all(found[key] is inner for key, inner in value.items())
                return value if same else found
            case list() | tuple():
                items = [self._walked(item, name, prose=prose) for item in value]
                same = all(a is b for a, b in zip(items, value, strict=True))
                return value if same else items
            case _:
                return value

    def _leaf(self, text: str, name: str, *, prose: bool) -> str:
        if not text or (text[0] == "[" and PLACEHOLDER.fullmatch(text)):
            return text
        if is_secret_name(name):
            return self._cover.cover(text)
        shown = text
        if len(text) >= LEAST and is_suspicious(text):
            data = text[0] in "{["
            shown = self._json(text, prose=prose) if data else ""
            if not shown:  # data that cannot be read is no prose, either
                shown = text if prose and not data else self._pairs(text)
        shown = self._cover.known(self._found(name, shown))
        return text if shown == text else shown

    def _json(self, text: str, *, prose: bool) -> str:
        """Return a text that is JSON without the secrets in it; "" if it is none."""
        try:
            inner = msgspec.json.decode(text)
        except (msgspec.MsgspecError, RecursionError):
            return ""
        hidden = self._walked(inner, "", prose=prose)
        return text if hidden is inner else msgspec.json.encode(hidden).decode()

    def _pairs(self, text: str) -> str:
        """Hide what follows a secret's name, as in a header, a query or a configuration."""
        parts: list[str] = []
        end = 0
        for name in _NAME.finditer(text):
            if name.start() < end or not is_secret_name(name[1]):
                continue
            if (told := _TOLD.match(text, name.end())) is not None:
                # "password: secret" may be prose; quoted, after "=", or with a digit it is not.
                if name[0][-1] not in "='\"" and not any(map(str.isdigit, told[1])):
                    continue
                parts += [text[end : told.start(1)], self._covered(told[1])]
                end = told.end()
        text = "".join([*parts, text[end:]])
        text = _SCHEME.sub(self._group, text)
        return _USERINFO.sub(self._group, text)

    def _group(self, match: re.Match[str]) -> str:
        start, end = match.start(1) - match.start(), match.end(1) - match.start()
        return match[0][:start] + self._covered(match[1]) + match[0][end:]

    def _covered(self, told: str) -> str:
        return told if told.startswith("[redacted:") else self._cover.cover(told)

    def _found(self, name: str, text: str) -> str:
        if self._find is None or not text:
            return text
        try:
            parts = sorted(set(self._find(name, text)), key=len, reverse=True)
            for part in parts:
                if part and not PLACEHOLDER.fullmatch(part):
                    text = text.replace(part, self._cover.cover(part))
        except Exception:  # noqa: BLE001 - the user's code: what it could not judge is not shown
            return self._cover.cover(text)
        return text
