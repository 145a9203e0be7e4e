"""What AG-UI clients send. Fields that we have no use for are passed over."""

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from midrun.core.values import Json
from midrun.server.bodies import ID_MAX

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
        """What it says; pictures and the like are left out."""
        if isinstance(self.content, str):
            return self.content
        parts = self.content if isinstance(self.content, list) else []
        return "\n".join(
            str(part["text"]) for part in parts if isinstance(part, dict) and "text" in part
        )


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

    @property
    def current(self) -> bool:
        """Whether the client speaks 1.0 or later; older ones do not say what they speak."""
        return self.protocol_version.partition(".")[0] not in {"", "0"}

    @property
    def wish(self) -> str:
        """What the person said last."""
        return next((said.text for said in reversed(self.messages) if said.role == "user"), "")


class ConnectInput(Given, frozen=True, kw_only=True):
    """A request for what a thread has so far."""

    thread_id: Id
    run_id: Id = ""
    protocol_version: str = ""


class StopInput(Given, frozen=True, kw_only=True):
    """A request to stop; which segment the client means makes no difference to us."""

    run_id: str = ""
