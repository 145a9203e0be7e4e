"""Hiding: evidence, controls and deltas without secrets, field by field.

By the names of fields, so that a new kind of evidence with an `error` is covered without a word
here. Data of tools and words of people are searched for names and shapes of secrets, words of
models for shapes only. A secret that a model wrote is hidden where it stands, and nowhere else.
"""

from collections import OrderedDict
from functools import cache
from operator import is_
from typing import Final, TypeVar, cast, get_args, get_type_hints

from msgspec import Struct
from msgspec.structs import replace

from midrun.codec.redaction import (
    MODEL_WORDS,
    PEOPLE_WORDS,
    SearchScope,
    Steps,
    drain,
    may_name_a_secret,
)
from midrun.core.controls import Approve, Wish
from midrun.core.entries import RunStarted
from midrun.core.ids import CallId, RunId
from midrun.core.state import State
from midrun.core.values import Reply, Use
from midrun.driver.delta import Delta
from midrun.driver.slices import run_in_slices
from midrun.driver.vault import Secrets, Vault

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
