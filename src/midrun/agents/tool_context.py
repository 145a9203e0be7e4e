"""`Call`: the context that a tool gets as its first parameter, if it asks for it."""

from collections.abc import Awaitable, Callable, Generator, Sequence
from dataclasses import dataclass, field

from midrun.codec.strict_json import normalize_json
from midrun.core.transcript import Turn
from midrun.core.values import Json
from midrun.errors import Misconfigured


class _CompletedAwaitable:
    """An awaitable that completes at once, for tools that run in another process."""

    def __await__(self) -> Generator[None, None, None]:
        yield from ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """The context of a call: its idempotency key, its progress, and notes for watchers.

    A tool gets it if its first parameter is annotated with `Call`, or is called `call` and has
    no annotation:

        @tool(idempotent=True)
        async def pay(call: Call, amount: int) -> str:
            return await bank.transfer(amount, idempotency_key=call.key)

    In an async tool, await `save` and `note`. In a blocking tool, which runs in its own
    process, just call them: they return when the work is done.

    Attributes:
        key: The idempotency key: equal for every attempt at this call, in every process. Send
            it to the remote side. An undo or a release has its own key.
        run_id: The id of the run.
        epoch: Increases each time another worker takes over the run. A remote side that
            remembers the highest epoch can refuse requests from a worker that was replaced.
        attempt: The number of the attempt, from 1.
        progress: The value that an earlier attempt saved last, or None. It does not change
            while the tool runs.
        original: In an undo or a release, the key of the call that it belongs to.
        tool_call_id: In an agent made with `midrun.host`, the id of the call in its framework.
        answered: The decision of a person on a question that an earlier attempt asked with a
            continuation; see `midrun.agents.builtin_tools.PauseHere`.
        transcript: The conversation so far, as the model sees it. Empty in a blocking tool that
            runs in its own process.
    """

    key: str
    run_id: str
    epoch: int
    attempt: int
    progress: Json = None
    original: str = field(default="", repr=False)
    tool_call_id: str = field(default="", repr=False)
    answered: Json = field(default=None, repr=False)
    transcript: Sequence[Turn] = field(default=(), repr=False)
    saver: Callable[[Json], Awaitable[None] | None] = field(repr=False)
    noter: Callable[[str], Awaitable[None] | None] = field(repr=False)

    def save(self, progress: Json) -> Awaitable[None]:
        """Save the progress of the tool; it is stored durably when this completes.

        After the first `save`, a pause may abort the call at any point. The next attempt then
        starts with `call.progress` set to the value that was saved last.

        Raises:
            NotJson, TooLarge: `progress` cannot be stored; nothing was saved.
            Misconfigured: It is None, which stands for no progress.
        """
        plain = normalize_json(progress, "progress")
        if plain is None:
            raise Misconfigured(
                "call.save", "None says that nothing is done yet; save a number or an object"
            )
        # In a blocking tool `saver` has done the work when it returns, and returns None.
        return self.saver(plain) or _CompletedAwaitable()

    def note(self, text: str) -> Awaitable[None]:
        """Show a line of progress to all who watch the run; it is not stored.

        Raises:
            Misconfigured: `text` is not a str.
            NotJson: It contains a lone surrogate.
        """
        plain = normalize_json(text, "text")
        if not isinstance(plain, str):
            raise Misconfigured("call.note", "a note is one string; use save for data")
        return self.noter(plain) or _CompletedAwaitable()
