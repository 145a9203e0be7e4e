"""Key bindings of the bar, for each mode."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, TypeAlias

from prompt_toolkit.filters import Condition
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

from midrun.tui.controller import (
    BarController,
    Mode,
    compose_fork,
    handle_ask_key,
    redirect_or_hand_back,
    take_over,
)

ActionsByKey: TypeAlias = Mapping[str, Callable[[], None]]
"""Key, or sequence of keys separated by blanks → action."""

ASK_DIALOG_KEYS: Final = "yenut123456789"


def build_key_bindings(controller: BarController, focus: Callable[[], None]) -> KeyBindings:
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

    for mode, actions in _actions_by_mode(controller).items():
        live = Condition(partial(_is_in_mode, controller, mode))
        for key, action in actions.items():
            keys.add(*key.split(), filter=live)(make_handler(action))
    keys.add("c-c")(make_handler(controller.interrupt))
    return keys


def _is_in_mode(controller: BarController, mode: Mode) -> bool:
    return controller.mode is mode


def _actions_by_mode(controller: BarController) -> dict[Mode, ActionsByKey]:
    return {
        Mode.BAR: {
            "p": controller.press_toggle,
            "r": partial(redirect_or_hand_back, controller),
            "s": controller.compose_side_question,
            "c": controller.open_cancel_dialog,
            "a": controller.open_asks_dialog,
            "w": controller.withdraw_newest,
            "t": partial(take_over, controller),
            "f": partial(compose_fork, controller),
            "d": controller.detach,
            "c-d": controller.explain_leaving,
            "c-z": controller.explain_leaving,
            "?": controller.open_help,
        },
        Mode.COMPOSE: {
            "enter": controller.send_draft,
            "escape enter": partial(controller.send_draft, now=True),
            "escape": controller.discard_draft,
            "tab": controller.toggle_draft_kind,
        },
        Mode.CONFIRM: {
            "y": partial(controller.cancel_run, "all"),
            "k": partial(controller.cancel_run, "in_flight"),
            "n": controller.close_dialog,
            "escape": controller.close_dialog,
        },
        Mode.ASKS: {
            **{key: partial(handle_ask_key, controller, key) for key in ASK_DIALOG_KEYS},
            "tab": controller.show_next_ask,
            "escape": controller.close_dialog,
        },
        Mode.HELP: {"?": controller.close_dialog, "escape": controller.close_dialog},
    }
