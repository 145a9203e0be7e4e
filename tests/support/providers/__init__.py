"""Fake model providers on real sockets, with scripted answers and faults.

`async with Provider(Answer(Text("Hello ", "world")), HttpError(429)) as provider` listens on
loopback and speaks OpenAI chat, OpenAI responses, Anthropic messages and Gemini, by path. The
n-th request gets the n-th answer. Tests wait for events (`wait_for_request`,
`wait_for_disconnect`, `Gate.wait_until_reached`) and never sleep.
"""

from tests.support.providers.script import (
    Answer,
    Call,
    ConnectionCut,
    EarlyEnd,
    EndlessText,
    Gate,
    HttpError,
    MalformedChunk,
    Text,
    Thinking,
    Usage,
)
from tests.support.providers.server import Exchange, Provider

__all__ = [
    "Answer",
    "Call",
    "ConnectionCut",
    "EarlyEnd",
    "EndlessText",
    "Exchange",
    "Gate",
    "HttpError",
    "MalformedChunk",
    "Provider",
    "Text",
    "Thinking",
    "Usage",
]
