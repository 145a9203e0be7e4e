"""What AG-UI clients send. Fields that we have no use for are passed over."""

from collections.abc import Iterable
from typing import Annotated, Final, Literal

from msgspec import Meta, Struct, field

from midrun.core.values import Json
from midrun.server.schemas import ID_MAX

CONTEXT_MARK: Final = "\n\nContext from the client:\n"
"""What stands between the words of a person and the context that their client adds."""

Id = Annotated[str, Meta(max_length=ID_MAX)]


class Given(Struct, frozen=True, kw_only=True, rename="camel"):
    """Base of what clients send; other fields may be there."""


class Said(Given, frozen=True, kw_only=True):
    """One message of the client's history."""

    id: str = ""
    role: str = ""
    content: Json = None

    @property
    def text(self) -> str:
        """Its text; `other_parts` names the rest."""
        if isinstance(self.content, str):
            return self.content
        parts = self.content if isinstance(self.content, list) else []
        return "\n".join(
            str(part["text"]) for part in parts if isinstance(part, dict) and "text" in part
        )

    @property
    def other_parts(self) -> tuple[str, ...]:
        """The types of its parts that are not text: images, audio, files."""
        parts = self.content if isinstance(self.content, list) else []
        kinds = (part.get("type", "") for part in parts if isinstance(part, dict))
        return tuple(str(kind) for kind in kinds if kind != "text")


class ContextItem(Given, frozen=True, kw_only=True):
    """Something that the client's application wants the agent to know."""

    description: str = ""
    value: Json = None

    @property
    def line(self) -> str:
        """It as the agent reads it."""
        return f"- {self.description}: {self.value}"


class FrontendTool(Given, frozen=True, kw_only=True):
    """A tool that would run in the client; only its name is of use here."""

    name: str = ""


class Resumption(Given, frozen=True, kw_only=True):
    """What became of an interrupt that the client was shown."""

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
        """Whether the client speaks 1.0 or later; older ones do not say what they speak."""
        return self.protocol_version.partition(".")[0] not in {"", "0"}

    @property
    def newest(self) -> Said | None:
        """The person's newest message; None if the agent has answered it already."""
        for said in reversed(self.messages):
            if said.role in {"assistant", "tool"}:
                return None
            if said.role == "user":
                return said
        return None

    @property
    def wish(self) -> str:
        """The text of the person's newest message; "" if there is nothing new."""
        return self.newest.text.strip() if self.newest is not None else ""

    def list_new_context(self, known: Iterable[str] = ()) -> tuple[ContextItem, ...]:
        """Return the context that none of the `known` texts contains."""
        texts = tuple(known)
        return tuple(c for c in self.context if not any(c.line in text for text in texts))

    def add_context(self, known: Iterable[str] = ()) -> str:
        """Return the wish, followed by the context that the agent does not know yet."""
        lines = "\n".join(item.line for item in self.list_new_context(known))
        return f"{self.wish}{CONTEXT_MARK}{lines}" if self.wish and lines else self.wish


class ConnectInput(Given, frozen=True, kw_only=True):
    """A request for what a thread has so far."""

    thread_id: Id
    run_id: Id = ""
    protocol_version: str = ""
    state: Json = None


class StopInput(Given, frozen=True, kw_only=True):
    """A request to stop; which segment the client means makes no difference to us."""

    run_id: str = ""
