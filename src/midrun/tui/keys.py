"""Key bindings of the bar, for each mode."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, TypeAlias

from prompt_toolkit.filters import Condition
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

from midrun.tui.controller import Hand, Mode, decide, fork, redirect, take_over

Actions: TypeAlias = Mapping[str, Callable[[], None]]
"""Key, or sequence of keys separated by blanks → action."""

DECIDING: Final = "yenut123456789"


def bindings(hand: Hand, focus: Callable[[], None]) -> KeyBindings:
    """Return the key bindings of the bar, its dialogs and the composer.

    `focus` is called after each action, before the next key is handled. Otherwise text typed
    or pasted right after the key that opens the composer would be taken for commands.
    """
    keys = KeyBindings()

    def make_handler(action: Callable[[], None]) -> Callable[[KeyPressEvent], None]:
        def handle(_: KeyPressEvent) -> None:
            action()
            focus()

        return handle

    for mode, actions in _modes(hand).items():
        live = Condition(partial(_is_in, hand, mode))
        for key, action in actions.items():
            keys.add(*key.split(), filter=live)(make_handler(action))
    keys.add("c-c")(make_handler(hand.interrupt))
    return keys


def _is_in(hand: Hand, mode: Mode) -> bool:
    return hand.mode is mode


def _modes(hand: Hand) -> dict[Mode, Actions]:
    return {
        Mode.BAR: {
            "p": hand.press,
            "r": partial(redirect, hand),
            "s": hand.ask_aside,
            "c": hand.cancel,
            "a": hand.look_at_asks,
            "w": hand.withdraw,
            "t": partial(take_over, hand),
            "f": partial(fork, hand),
            "d": hand.detach,
            "c-d": hand.say_how_to_leave,
            "c-z": hand.say_how_to_leave,
            "?": hand.help,
        },
        Mode.COMPOSE: {
            "enter": hand.send,
            "escape enter": partial(hand.send, now=True),
            "escape": hand.discard,
            "tab": hand.toggle,
        },
        Mode.CONFIRM: {
            "y": partial(hand.confirmed, "all"),
            "k": partial(hand.confirmed, "in_flight"),
            "n": hand.back,
            "escape": hand.back,
        },
        Mode.ASKS: {
            **{key: partial(decide, hand, key) for key in DECIDING},
            "tab": hand.next_ask,
            "escape": hand.back,
        },
        Mode.HELP: {"?": hand.back, "escape": hand.back},
    }
