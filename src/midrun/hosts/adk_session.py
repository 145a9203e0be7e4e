"""The transcript of a run as events and state of a session of Google ADK."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias, cast

from google.adk.agents import LlmAgent
from google.adk.events import Event
from google.genai import types
from pydantic import ValidationError

from midrun.agents.file import is_media_type
from midrun.core.transcript import CallResult, Turn
from midrun.core.values import Json
from midrun.hosts.hosted_agent import OUTPUT_NAME, format_file
from midrun.models.prompt_texts import (
    INTERRUPTED_NOTE,
    WRITTEN_BY_PERSON_NOTE,
    format_file_name,
    format_result,
    mark_runtime_text,
)

State: TypeAlias = dict[str, Json]

RESULT_KEY: Final = "adk_response"
"""Marks a journaled result that is more than a value: media, or actions of the tool."""

HISTORY_ID: Final = "history"
"""The invocation of the events of earlier calls. The framework does not resume them."""


class AdkConversation:
    """The transcript as events and state of a session, and the agent that is asked next."""

    def __init__(
        self, root: LlmAgent, turns: Sequence[Turn], files: Mapping[str, bytes] | None = None
    ) -> None:
        self._files = files or {}  # bodies of the files of the turns, by hash
        self._root = root.root_agent
        self.agent = root
        self.events: list[Event] = []
        self.state: State = {}
        self._ids: set[str] = set()
        for turn in turns:
            match turn.role:
                case "assistant":
                    self._add_reply(turn)
                case "runtime":
                    self.add_text(mark_runtime_text(turn.text, turn.kind, turn.by))
                case "user":
                    parts = [types.Part(text=turn.text), *self._load_files(turn)]
                    self.add_event("user", parts, author="user")

    def add_text(self, text: str) -> None:
        """Add a text in the role of the user."""
        self.add_event("user", [types.Part(text=text)], author="user")

    def _load_files(self, carrier: Turn | CallResult) -> list[types.Part]:
        """Return files as parts: media as they are, a text, or a name."""
        parts = []
        for file in carrier.files:
            data = self._files.get(file.hash)
            if data is not None and is_media_type(file.media_type):
                media_type = file.media_type.partition(";")[0]
                parts.append(types.Part(text=format_file_name(file)))
                parts.append(types.Part.from_bytes(data=data, mime_type=media_type))
            else:
                parts.append(types.Part(text=format_file(file, data)))
        return parts

    def _add_files(self, uses: Sequence[CallResult]) -> None:
        if parts := [part for use in uses for part in self._load_files(use)]:
            self.add_event("user", parts, author="user")

    def add_event(self, role: str, parts: list[types.Part], author: str = "") -> None:
        """Add an event of the agent, or of `author`."""
        content = types.Content(role=role, parts=parts)
        event = Event(
            author=author or self.agent.name, invocation_id=HISTORY_ID, content=content
        )
        self.events.append(event)

    def apply_reply(self, turn: Turn) -> None:
        """Change the state as this reply and its calls did, and follow a transfer."""
        stored = turn.opaque if isinstance(turn.opaque, dict) else {}
        self.state |= cast("State", stored.get("state") or {})
        for made in turn.uses:
            found = made.result if isinstance(made.result, dict) else {}
            if RESULT_KEY in found:
                self.state |= cast("State", found.get("state") or {})

    def _add_reply(self, turn: Turn) -> None:
        is_retry = bool(turn.uses) and turn.uses[0].tool == OUTPUT_NAME
        uses = () if is_retry else turn.uses
        parts = _load_parts(turn.opaque)
        asked = [part.function_call.name for part in parts if part.function_call]
        if asked != [use.tool for use in uses]:
            # The stored form has other calls than the journal: build the reply from that.
            parts = [types.Part(text=turn.text)] if turn.text.strip() else []
            names = (types.FunctionCall(name=use.tool) for use in uses)
            parts += [types.Part(function_call=call) for call in names]
        elif not parts and turn.text.strip():
            parts = [types.Part(text=turn.text)]
        results, made = [], iter(uses)
        for part in parts:
            if part.function_call:
                use = next(made)
                id_ = self._make_id(part.function_call.id, use)
                part.function_call.id = id_
                part.function_call.args = cast("dict[str, Any]", use.args or {})  # type: ignore[explicit-any]
                results.append(types.Part(function_response=_load_response(use, id_)))
        if parts:
            self.add_event("model", parts)
        if results:
            self.add_event("user", results)
        self._add_files(uses)
        self.apply_reply(turn)
        self._follow_transfer(uses)
        if is_retry:
            self.add_text(turn.uses[0].problem)
        if turn.interrupted:
            self.add_text(mark_runtime_text(INTERRUPTED_NOTE))
        elif turn.kind == "person":
            by = turn.by or "a person"
            self.add_text(mark_runtime_text(WRITTEN_BY_PERSON_NOTE.format(by=by)))

    def _follow_transfer(self, uses: Sequence[CallResult]) -> None:
        agent = self._root.find_agent(find_transfer(uses))
        if isinstance(agent, LlmAgent):
            self.agent = agent

    def _make_id(self, own_id: str | None, use: CallResult) -> str:
        """Return the id of a call; a provider may use the same one in several replies."""
        id_ = own_id or use.call
        id_ = f"{id_}-{use.call}" if id_ in self._ids else id_
        self._ids.add(id_)
        return id_


def _load_parts(stored: Json) -> list[types.Part]:
    """Return the parts of a stored reply; none if this version cannot read it."""
    content = stored.get("content") if isinstance(stored, dict) else None
    try:
        return types.Content.model_validate(content).parts or [] if content else []
    except ValidationError:
        return []


def _load_response(made: CallResult, id_: str) -> types.FunctionResponse:
    found = made.result
    if not made.problem and isinstance(found, dict) and RESULT_KEY in found:
        response = types.FunctionResponse.model_validate(found[RESULT_KEY])
        return response.model_copy(update={"id": id_, "name": made.tool})
    if made.problem:
        given: dict[str, object] = {"error": format_result(made)}
    else:
        given = (
            cast("dict[str, object]", found) if isinstance(found, dict) else {"result": found}
        )
    return types.FunctionResponse(id=id_, name=made.tool, response=given)


def find_transfer(uses: Sequence[CallResult]) -> str:
    """Return the name of the agent to which these calls transferred, or ""."""
    results = (use.result for use in uses if isinstance(use.result, dict))
    names = [found.get("transfer") for found in results if RESULT_KEY in found]
    return str(next((name for name in reversed(names) if name), ""))
