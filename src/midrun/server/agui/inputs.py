"""Requests of AG-UI clients. Unknown fields are ignored, as the protocol allows."""

from collections.abc import Iterable
from typing import Annotated, Final, Literal

from msgspec import Meta, Struct, field

from midrun.core.values import Json
from midrun.server.schemas import ID_MAX

CONTEXT_MARK: Final = "\n\nContext from the client:\n"
"""The separator between the user's text and the context that the client adds."""

Id = Annotated[str, Meta(max_length=ID_MAX)]


class Given(Struct, frozen=True, kw_only=True, rename="camel"):
    """Base of all inputs; unknown fields are allowed."""


class Said(Given, frozen=True, kw_only=True):
    """One message of the client's history."""

    id: str = ""
    role: str = ""
    content: Json = None

    @property
    def text(self) -> str:
        """The text of the message; `other_parts` lists its other parts."""
        if isinstance(self.content, str):
            return self.content
        parts = self.content if isinstance(self.content, list) else []
        return "\n".join(
            str(part["text"]) for part in parts if isinstance(part, dict) and "text" in part
        )

    @property
    def other_parts(self) -> tuple[str, ...]:
        """The types of the parts that are not text: images, audio, files."""
        parts = self.content if isinstance(self.content, list) else []
        kinds = (part.get("type", "") for part in parts if isinstance(part, dict))
        return tuple(str(kind) for kind in kinds if kind != "text")


class ContextItem(Given, frozen=True, kw_only=True):
    """A fact that the client's application gives to the agent."""

    description: str = ""
    value: Json = None

    @property
    def line(self) -> str:
        """The fact as one line of the agent's input."""
        return f"- {self.description}: {self.value}"


class FrontendTool(Given, frozen=True, kw_only=True):
    """A tool that would run in the client; it is not used.

    The stream tells the client so, with the event `midrun.unused`.
    """

    name: str = ""


class Resumption(Given, frozen=True, kw_only=True):
    """The client's decision about an interrupt."""

    interrupt_id: str
    status: Literal["resolved", "cancelled"] = "resolved"
    payload: Json = None


class RunAgentInput(Given, frozen=True, kw_only=True):
    """A request for one segment."""

    thread_id: Id
    run_id: Id
    protocol_version: str = ""
    messages: tuple[Said, ...] = ()
    resume: tuple[Resumption, ...] = field(default=())
    context: tuple[ContextItem, ...] = ()
    tools: tuple[FrontendTool, ...] = ()
    state: Json = None

    @property
    def current(self) -> bool:
        """Whether the client speaks 1.0 or later; older clients send no version."""
        return self.protocol_version.partition(".")[0] not in {"", "0"}

    @property
    def newest(self) -> Said | None:
        """The user's newest message; None if the agent has answered it already."""
        for message in reversed(self.messages):
            if message.role in {"assistant", "tool"}:
                return None
            if message.role == "user":
                return message
        return None

    @property
    def wish(self) -> str:
        """The text of the user's newest message; "" if there is no new one."""
        return self.newest.text.strip() if self.newest is not None else ""

    def list_new_context(self, known: Iterable[str] = ()) -> tuple[ContextItem, ...]:
        """Return the context that none of the `known` texts contains."""
        texts = tuple(known)
        return tuple(c for c in self.context if not any(c.line in text for text in texts))

    def add_context(self, known: Iterable[str] = ()) -> str:
        """Return the user's text, followed by the context that is new to the agent."""
        lines = "\n".join(item.line for item in self.list_new_context(known))
        return f"{self.wish}{CONTEXT_MARK}{lines}" if self.wish and lines else self.wish


class ConnectInput(Given, frozen=True, kw_only=True):
    """A request to replay a thread and follow its run."""

    thread_id: Id
    run_id: Id = ""
    protocol_version: str = ""
    state: Json = None


class StopInput(Given, frozen=True, kw_only=True):
    """A request to stop; the segment that it names is not used."""

    run_id: str = ""
