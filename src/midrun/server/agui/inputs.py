"""Requests of AG-UI clients. Unknown fields are ignored, as the protocol allows."""

from collections.abc import Iterable
from typing import Annotated, Final, Literal

from msgspec import Meta, Struct, field

from midrun.core.values import Json
from midrun.server.schemas import ID_MAX_CHARS

CONTEXT_SEPARATOR: Final = "\n\nContext from the client:\n"
"""The separator between the user's text and the context that the client adds."""

Id = Annotated[str, Meta(max_length=ID_MAX_CHARS)]


class AguiInput(Struct, frozen=True, kw_only=True, rename="camel"):
    """Base of all inputs; unknown fields are allowed."""


class ClientMessage(AguiInput, frozen=True, kw_only=True):
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


class ContextItem(AguiInput, frozen=True, kw_only=True):
    """A fact that the client's application gives to the agent."""

    description: str = ""
    value: Json = None

    @property
    def line(self) -> str:
        """The fact as one line of the agent's input."""
        return f"- {self.description}: {self.value}"


class FrontendTool(AguiInput, frozen=True, kw_only=True):
    """A tool that would run in the client; it is not used.

    The stream tells the client so, with the event `midrun.unused`.
    """

    name: str = ""


class Resumption(AguiInput, frozen=True, kw_only=True):
    """The client's decision about an interrupt."""

    interrupt_id: str
    status: Literal["resolved", "cancelled"] = "resolved"
    payload: Json = None


class RunAgentInput(AguiInput, frozen=True, kw_only=True):
    """A request for one segment."""

    thread_id: Id
    run_id: Id
    protocol_version: str = ""
    messages: tuple[ClientMessage, ...] = ()
    resume: tuple[Resumption, ...] = field(default=())
    context: tuple[ContextItem, ...] = ()
    tools: tuple[FrontendTool, ...] = ()
    state: Json = None

    @property
    def is_current_version(self) -> bool:
        """Whether the client speaks 1.0 or later; older clients send no version."""
        return self.protocol_version.partition(".")[0] not in {"", "0"}

    @property
    def newest_message(self) -> ClientMessage | None:
        """The user's newest message; None if the agent has answered it already."""
        for message in reversed(self.messages):
            if message.role in {"assistant", "tool"}:
                return None
            if message.role == "user":
                return message
        return None

    @property
    def user_text(self) -> str:
        """The text of the user's newest message; "" if there is no new one."""
        return self.newest_message.text.strip() if self.newest_message is not None else ""

    def list_new_context(self, known_texts: Iterable[str] = ()) -> tuple[ContextItem, ...]:
        """Return the context that none of the `known` texts contains."""
        texts = tuple(known_texts)
        return tuple(c for c in self.context if not any(c.line in text for text in texts))

    def text_with_context(self, known_texts: Iterable[str] = ()) -> str:
        """Return the user's text, followed by the context that is new to the agent."""
        lines = "\n".join(item.line for item in self.list_new_context(known_texts))
        return (
            f"{self.user_text}{CONTEXT_SEPARATOR}{lines}"
            if self.user_text and lines
            else self.user_text
        )


class ConnectInput(AguiInput, frozen=True, kw_only=True):
    """A request to replay a thread and follow its run."""

    thread_id: Id
    run_id: Id = ""
    protocol_version: str = ""
    state: Json = None


class StopInput(AguiInput, frozen=True, kw_only=True):
    """A request to stop; the segment that it names is not used."""

    run_id: str = ""
