"""Bridges: settings for protocols that have fewer words than we do."""

from typing import Literal

from msgspec import Struct


class Bridges(Struct, frozen=True, kw_only=True):
    """How midrun shows itself to clients that know nothing of pausing.

    `on_disconnect` is what happens to a run whose AG-UI stream was dropped and that nobody else
    watches for `grace_s` seconds: such a client has no other way to say stop, and a closed tab
    looks the same. `pause_as` is what a pause is to AG-UI: an interrupt, or an end; `auto` asks
    the client's version. `stop` is what CopilotKit's one button does.
    """

    on_disconnect: Literal["pause", "cancel", "continue"] = "pause"
    grace_s: float = 10.0
    pause_as: Literal["auto", "interrupt", "success"] = "auto"
    stop: Literal["pause", "cancel"] = "pause"
