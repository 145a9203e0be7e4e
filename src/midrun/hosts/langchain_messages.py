"""The transcript of a run as messages and state of a graph of `create_agent`."""

from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from typing import Final, Self, TypeAlias, cast

from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    HumanMessage,
    RemoveMessage,
    ToolMessage,
    messages_from_dict,
)
from langgraph.graph.message import Messages, add_messages

from midrun.core.transcript import CallResult, Turn
from midrun.core.values import FileRef, Json
from midrun.hosts.hosted_agent import OUTPUT_NAME, format_file
from midrun.models.history_cache import HistoryCache
from midrun.models.prompt_texts import (
    INTERRUPTED_NOTE,
    WRITTEN_BY_PERSON_NOTE,
    format_result,
    mark_runtime_text,
)

Values: TypeAlias = dict[str, object]

RESULT_KEY: Final = "langchain_message"
"""Marks a journaled result that is more than a text: content blocks, or an update of state."""


def get_text(message: BaseMessage) -> str:
    """Return the text of a message, without other content."""
    return str(message.text)  # a plain `str`: it is one of a subclass


class GraphConversation:
    """The transcript as messages and state of the graph.

    `state` is the state after the last reply that stored it, `updates` are those that tools
    made later. `results` are the updates of the `tools` node for the last reply, one for each
    call; `messages` end before them. `ids` are the ids of all messages: they tell the messages
    that a step adds from the others.
    """

    def __init__(self) -> None:
        self.messages: list[BaseMessage] = []
        self.results: list[Values] = []
        self.updates: list[Values] = []
        self.state: Values = {}
        self.has_replies = False
        self.ids: set[str] = set()
        self.files: Mapping[str, bytes] = {}  # bodies of the files of the turns, by hash

    def fork(self) -> Self:
        """Return a copy that can be changed."""
        copied = copy(self)
        copied.messages, copied.updates = [*self.messages], [*self.updates]
        copied.results = [dict(result) for result in self.results]
        copied.ids = self.ids.copy()
        return copied

    def add_turns(self, turns: Iterable[Turn]) -> None:
        """Add turns of the transcript, oldest first."""
        for turn in turns:
            self.flush_results()
            match turn.role:
                case "assistant":
                    self._add_reply(turn)
                case "runtime":
                    self.add_text(mark_runtime_text(turn.text, turn.kind, turn.by))
                case "user" if turn.files:
                    self.flush_results()
                    texts = [{"type": "text", "text": turn.text}]
                    self._add(HumanMessage([*texts, *map(self._make_block, turn.files)]))
                case "user":
                    self.add_text(turn.text)

    def _make_block(self, file: FileRef) -> dict[str, str]:
        """Return a file as a content block of LangChain: an image, a text, or its name."""
        data = self.files.get(file.hash)
        if data is not None and file.media_type.startswith("image/"):
            encoded = b64encode(data).decode()
            return {"type": "image", "base64": encoded, "mime_type": file.media_type}
        return {"type": "text", "text": format_file(file, data)}

    def add_text(self, text: str) -> None:
        """Add a message in the role of the user."""
        self.flush_results()
        self._add(HumanMessage(text))

    def flush_results(self) -> None:
        """Take the results of an earlier reply into the messages and the updates."""
        for result in self.results:
            self.messages += cast("list[BaseMessage]", result.pop("messages"))
            self.updates += [result] if result else []
        self.results = []

    def _add(self, message: BaseMessage) -> None:
        self._identify(message)
        self.messages.append(message)

    def _identify(self, message: BaseMessage) -> None:
        """Give a message an id of its own; an id of the provider is kept."""
        if message.id is None or message.id in self.ids:
            message.id = f"midrun-{len(self.ids)}"
        self.ids.add(message.id)

    def _set_results(self, results: list[Values]) -> None:
        for result in results:
            for message in cast("list[BaseMessage]", result["messages"]):
                self._identify(message)
        self.results = results

    def _add_reply(self, turn: Turn) -> None:
        stored = turn.opaque if isinstance(turn.opaque, dict) else {}
        self.has_replies = True
        if "state" in stored:
            self.state, self.updates = cast("Values", stored["state"]), []
        replies, results = _load_turn(turn)
        for reply in replies:
            self._add(reply)
        self._set_results(results)
        if turn.uses and turn.uses[0].tool == OUTPUT_NAME:
            self.add_text(turn.uses[0].problem)
        elif turn.uses and not results:
            self._add_uses(turn.uses)
        if turn.interrupted:
            self.add_text(mark_runtime_text(INTERRUPTED_NOTE))
        elif turn.kind == "person":
            self.add_text(
                mark_runtime_text(WRITTEN_BY_PERSON_NOTE.format(by=turn.by or "a person"))
            )

    def _add_uses(self, uses: Sequence[CallResult]) -> None:
        """Add calls whose message is not stored, such as those of a person."""
        calls = [
            {"name": u.tool, "args": u.args or {}, "id": u.call, "type": "tool_call"}
            for u in uses
        ]
        last = self.messages[-1]
        self.messages[-1] = last.model_copy(update={"tool_calls": calls})
        self._set_results([_load_result(u, u.call) for u in uses])


HISTORIES: Final = HistoryCache(GraphConversation)


def _load_turn(turn: Turn) -> tuple[list[BaseMessage], list[Values]]:
    """Return the messages of a reply, and the results of its calls if they fit."""
    stored = turn.opaque if isinstance(turn.opaque, dict) else {}
    messages = _load_messages(stored.get("messages")) or [AIMessage(turn.text)]
    results: list[Values] = []
    for number, message in enumerate(messages):
        if isinstance(message, AIMessage) and (uses := _match_uses(message, turn.uses)):
            calls = [
                {"name": u.tool, "args": u.args or {}, "id": i, "type": "tool_call"}
                for u, i in uses
            ]
            messages[number] = message.model_copy(update={"tool_calls": calls})
            results = [_load_result(u, i) for u, i in uses]
    return messages, results


def _match_uses(message: AIMessage, uses: Sequence[CallResult]) -> list[tuple[CallResult, str]]:
    """Return the journaled calls with the ids of the message; none if they do not fit."""
    if [call["name"] for call in message.tool_calls] != [use.tool for use in uses]:
        return []
    ids = [call["id"] or use.call for call, use in zip(message.tool_calls, uses, strict=True)]
    return list(zip(uses, ids, strict=True))


def _load_messages(stored: Json) -> list[BaseMessage]:
    if not isinstance(stored, list):
        return []
    try:
        return messages_from_dict(stored)
    except (KeyError, TypeError, ValueError):  # of another version of LangChain
        return []


def _load_result(made: CallResult, id_: str) -> Values:
    """Return the update of the `tools` node for one call."""
    found = made.result
    if not made.problem and isinstance(found, dict) and RESULT_KEY in found:
        (message,) = _load_messages([found[RESULT_KEY]])
        return {**cast("Values", found.get("update") or {}), "messages": [message]}
    status = "error" if made.problem else "success"
    text = format_result(made)
    return {"messages": [ToolMessage(text, tool_call_id=id_, name=made.tool, status=status)]}


def combine_messages(
    conversation: GraphConversation, added: Sequence[BaseMessage]
) -> list[BaseMessage]:
    """Return the messages with those that the node has added, as its channel does it."""
    # The function of the channel looks at the whole history. Nearly always the node only adds
    # messages. It replaces them if it has repaired a call of the model that is not valid.
    if not any(isinstance(m, RemoveMessage) or m.id in conversation.ids for m in added):
        return [*conversation.messages, *added]
    combined = add_messages(cast("Messages", conversation.messages), cast("Messages", added))
    return cast("list[BaseMessage]", combined)
