"""Whose turn it is: what waits for a person, in words that are true for whoever looks."""

from msgspec.structs import replace

from midrun.core.signs import Sign
from midrun.core.state import Ask
from midrun.core.values import Actor


def may_decide(actor: Actor, starter: str, ask: Ask) -> bool:
    """Say whether pressing the button would do; the core decides when it is pressed.

    `starter` is who started the run: some asks are not theirs to settle.
    """
    own = ask.four_eyes and actor.name == starter
    addressed = ask.audience in {"", actor.role, f"user:{actor.name}"}
    return actor.role != "viewer" and addressed and not own


def to_whom(sign: Sign, *, theirs: bool) -> Sign:
    """Return the sign as it is for whoever looks: what it waits for is `theirs` to decide."""
    if sign.look != "waiting" or not sign.word.endswith("a person"):
        return sign
    word = "Waiting for you" if theirs else "Waiting for somebody else"
    return replace(sign, word=word, said=f"{word}: {sign.note}")
