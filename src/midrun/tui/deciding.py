"""Deciding: what the keys of an open ask mean, and what becomes of what is typed."""

import msgspec

from midrun.agents.outcome import AskView
from midrun.codec.strict import parse
from midrun.core.values import Json
from midrun.handles.receipt import Receipt
from midrun.tui.drafts import Draft
from midrun.tui.hand import Hand, Wish
from midrun.tui.safe import json_line
from midrun.tui.sheets import options
from midrun.tui.typed import value_of

UNSURE = {"y": "yes", "n": "no", "u": "unknown"}


def decide(hand: Hand, key: str) -> None:
    """Do what `key` means for the ask that is on the sheet; most keys mean nothing."""
    ask = hand.ask
    if ask is None:
        return
    if ask.kind == "unsure":
        if key in UNSURE:
            hand.want(_answered(hand, ask, UNSURE[key]))
    elif ask.kind == "approval" or (ask.kind == "child" and key in "yn"):
        _approve(hand, ask, key)
    elif key == "t":
        hand.compose(_answer(hand, ask))
    elif key == "n" and ask.declinable:
        hand.compose(_decline(hand, ask))
    elif key.isdecimal() and 0 < int(key) <= len(options(ask)):
        hand.want(_answered(hand, ask, options(ask)[int(key) - 1]))


def _approve(hand: Hand, ask: AskView, key: str) -> None:
    if key == "y":
        hand.want(lambda: hand.run.approve(ask=ask.id, actor=hand.actor))
    elif key == "n":
        hand.compose(_decline(hand, ask))
    elif key == "e":
        hand.compose(_edit(hand, ask), json_line(msgspec.json.encode(ask.args).decode()))


def _answered(hand: Hand, ask: AskView, value: Json) -> Wish:
    return lambda: hand.run.answer(value, ask=ask.id, actor=hand.actor)


def _answer(hand: Hand, ask: AskView) -> Draft:
    async def send(text: str, _: bool) -> Receipt:  # noqa: FBT001 - as Send has it
        return await hand.run.answer(value_of(text), ask=ask.id, actor=hand.actor)

    return Draft(label="answer", send=send)


def _decline(hand: Hand, ask: AskView) -> Draft:
    async def send(text: str, _: bool) -> Receipt:  # noqa: FBT001 - as Send has it
        return await hand.run.decline(text, ask=ask.id, actor=hand.actor)

    hint = "Enter: decline, with a reason if you like · Esc: discard"
    return Draft(label="decline, because", send=send, hint=hint, blank=True)


def _edit(hand: Hand, ask: AskView) -> Draft:
    async def send(text: str, _: bool) -> Receipt:  # noqa: FBT001 - as Send has it
        return await hand.run.approve(ask=ask.id, args=parse(text), actor=hand.actor)

    hint = "Enter: approve with these arguments (JSON) · Esc: discard"
    return Draft(label="arguments", send=send, hint=hint)
