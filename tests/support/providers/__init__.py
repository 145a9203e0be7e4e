"""Providers to test against: real sockets, scripted answers and faults, and what they saw.

`async with Provider(Answer(Text("Hello ", "world")), Denied(429)) as provider` listens on
loopback and speaks OpenAI chat, OpenAI responses and Anthropic messages, by path. The n-th
request gets the n-th answer. Tests wait for facts (`request`, `closed_midway`, `Gate.reached`)
and never for time.
"""

from tests.support.providers.script import (
    Answer,
    Call,
    Cut,
    Denied,
    Ended,
    Endless,
    Garbled,
    Gate,
    Text,
    Thinking,
    Usage,
)
from tests.support.providers.server import Exchange, Provider

__all__ = [
    "Answer",
    "Call",
    "Cut",
    "Denied",
    "Ended",
    "Endless",
    "Exchange",
    "Garbled",
    "Gate",
    "Provider",
    "Text",
    "Thinking",
    "Usage",
]
