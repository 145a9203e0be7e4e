"""What a tool may know and say about the call it serves."""

from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass, field

from midrun.codec.strict_json import checked
from midrun.core.values import Json
from midrun.errors import Misconfigured


class _Finished:
    """Something to await that is over already."""

    def __await__(self) -> Generator[None, None, None]:
        yield from ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """The first parameter of a tool that asks for it.

    `key` is the same for every attempt at this call, in every process: send it to the far end
    as its idempotency key. An undo or a release has a key of its own; `original` is the key of
    the call that it takes back, by which the far end knows what that was. `epoch` grows with
    each holder of the run: a far end that remembers the highest can refuse a late one.
    `attempt` counts from 1. `progress` is what an earlier attempt saved last, and None where
    none did; it does not change while the tool runs. `answered` is what a person decided on
    the question of an earlier attempt: see `agents.pausing.PauseHere`.

    In an async tool `save` and `note` are awaited. In a blocking one, which runs in a process
    of its own, they are simply called: the work is done when they return.
    """

    key: str
    run_id: str
    epoch: int
    attempt: int
    progress: Json = None
    original: str = field(default="", repr=False)
    answered: Json = field(default=None, repr=False)
    saver: Callable[[Json], Awaitable[None] | None] = field(repr=False)
    noter: Callable[[str], Awaitable[None] | None] = field(repr=False)

    def save(self, progress: Json) -> Awaitable[None]:
        """Save how far the tool is; it is durable when this is over.

        A tool that has saved once may be stopped by a pause, and is started again with
        `progress` as it was saved last.

        Raises:
            NotJson, TooLarge: `progress` cannot be stored; nothing was saved.
            Misconfigured: it is None, which means that there is no progress.
        """
        plain = checked(progress, "progress")
        if plain is None:
            raise Misconfigured(
                "call.save", "None says that nothing is done yet; save a number or an object"
            )
        return self.saver(plain) or _Finished()

    def note(self, text: str) -> Awaitable[None]:
        """Show a line about how the call is getting on to whoever watches; it is not stored.

        Raises:
            Misconfigured: `text` is not a string.
            NotJson: it has a lone surrogate in it.
        """
        plain = checked(text, "text")
        if not isinstance(plain, str):
            raise Misconfigured("call.note", "a note is one string; use save for data")
        return self.noter(plain) or _Finished()
