"""The transcript of a run as messages and state of an agent of Strands."""

import copy
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias, cast

from strands import Agent
from strands.types.content import ContentBlock, Message, Messages
from strands.types.session import decode_bytes_values

from midrun.core.transcript import CallResult, Turn
from midrun.core.values import FileRef, Json
from midrun.hosts.hosted_agent import OUTPUT_NAME, format_file
from midrun.models.prompt_texts import (
    INTERRUPTED_NOTE,
    WRITTEN_BY_PERSON_NOTE,
    format_file_name,
    format_result,
    mark_runtime_text,
)

State: TypeAlias = dict[str, Json]
Blocks: TypeAlias = list[dict[str, Any]]  # type: ignore[explicit-any]  # content of a message

RESULT_KEY: Final = "strands_result"
"""Marks a journaled result that is more than a text: content blocks, or a change of state."""

IMAGE_TYPES: Final = {f"image/{name}": name for name in ("png", "jpeg", "gif", "webp")}
"""The formats of Strands for images, by media type."""

PDF_TYPE: Final = "application/pdf"


class StrandsConversation:
    """The transcript as messages and state of the agent."""

    def __init__(
        self, agent: Agent, turns: Sequence[Turn], files: Mapping[str, bytes] | None = None
    ) -> None:
        self._files = files or {}  # bodies of the files of the turns, by hash
        self.messages: Messages = copy.deepcopy(agent.messages)
        self.state: State = agent.state.get()
        self._ids: set[str] = set()
        for turn in turns:
            match turn.role:
                case "assistant":
                    self._add_reply(turn)
                case "runtime":
                    self.add_text(mark_runtime_text(turn.text, turn.kind, turn.by))
                case "user":
                    self._add_blocks("user", [{"text": turn.text}, *self._load_files(turn)])

    def add_text(self, text: str) -> None:
        """Add a text in the role of the user."""
        self._add_blocks("user", [{"text": text}])

    def add_call(self, turn: Turn | None, name: str, args: object, id_: str) -> None:
        """Add the reply `turn` with this call as its only one."""
        blocks = load_blocks(turn.opaque) if turn else []
        use = {"toolUse": {"name": name, "input": args, "toolUseId": id_}}
        self._add_blocks("assistant", [*(b for b in blocks if "toolUse" not in b), use])

    def _load_files(self, carrier: Turn | CallResult) -> Blocks:
        """Return files as content blocks: an image, a PDF, a text, or a name."""
        return [block for file in carrier.files for block in self._make_blocks(file)]

    def _make_blocks(self, file: FileRef) -> Blocks:
        data = self._files.get(file.hash)
        if data is not None and file.media_type in IMAGE_TYPES:
            image = {"format": IMAGE_TYPES[file.media_type], "source": {"bytes": data}}
            return [{"text": format_file_name(file)}, {"image": image}]
        if data is not None and file.media_type == PDF_TYPE:
            # Providers accept only some characters in the name of a document.
            name = re.sub(r"[^A-Za-z0-9 ()\[\]-]+", "-", file.name)
            return [{"document": {"format": "pdf", "name": name, "source": {"bytes": data}}}]
        return [{"text": format_file(file, data)}]

    def apply_changes(self, uses: Sequence[CallResult]) -> None:
        """Change the state as these calls did."""
        for made in uses:
            found = made.result if isinstance(made.result, dict) else {}
            self.change_state(found.get("state") if RESULT_KEY in found else None)

    def change_state(self, changes: Json) -> None:
        """Change the state as one call did; None: it did not."""
        if isinstance(changes, dict):
            self.state |= cast("State", copy.deepcopy(changes.get("set") or {}))
            for key in cast("list[str]", changes.get("deleted") or []):
                self.state.pop(key, None)

    def _add_blocks(self, role: str, blocks: Blocks) -> None:
        """Add content; to the last message if it has the same role.

        Providers want the roles to alternate, and the results before other content.
        """
        if blocks and self.messages and self.messages[-1]["role"] == role:
            self.messages[-1]["content"] += cast("list[ContentBlock]", blocks)
        elif blocks:
            self.messages.append(cast("Message", {"role": role, "content": blocks}))

    def _add_reply(self, turn: Turn) -> None:
        stored = turn.opaque if isinstance(turn.opaque, dict) else {}
        if isinstance(stored.get("state"), dict):
            self.state = cast("State", copy.deepcopy(stored["state"]))  # it is changed below
        is_retry = bool(turn.uses) and turn.uses[0].tool == OUTPUT_NAME
        uses = () if is_retry else turn.uses
        blocks = load_blocks(stored)
        if [b["toolUse"]["name"] for b in blocks if "toolUse" in b] != [u.tool for u in uses]:
            # The stored form has other calls than the journal: build the reply from that.
            empty = [{"toolUse": {"name": use.tool}} for use in uses]
            blocks = [*([{"text": turn.text}] if turn.text.strip() else []), *empty]
        elif not blocks and turn.text.strip():
            blocks = [{"text": turn.text}]
        results: Blocks = []
        made = iter(uses)
        for block in blocks:
            if "toolUse" in block:
                use = next(made)
                block["toolUse"] |= {
                    "input": use.args or {},
                    "toolUseId": self._make_id(block, use),
                }
                results.append(_load_result(use, block["toolUse"]["toolUseId"]))
        self._add_blocks("assistant", blocks)
        files = [block for use in uses for block in self._load_files(use)]
        self._add_blocks("user", [*results, *files])
        self.apply_changes(uses)
        if is_retry:
            self.add_text(turn.uses[0].problem)
        if turn.interrupted:
            self.add_text(mark_runtime_text(INTERRUPTED_NOTE))
        elif turn.kind == "person":
            by = turn.by or "a person"
            self.add_text(mark_runtime_text(WRITTEN_BY_PERSON_NOTE.format(by=by)))

    def _make_id(self, block: Mapping[str, Any], use: CallResult) -> str:  # type: ignore[explicit-any]
        """Return the id of a call; a provider may use the same one in several replies."""
        id_ = str(block["toolUse"].get("toolUseId") or use.call)
        id_ = f"{id_}-{use.call}" if id_ in self._ids else id_
        self._ids.add(id_)
        return id_


def load_blocks(stored: Json) -> Blocks:
    """Return the content of a stored reply; nothing if there is none."""
    blocks = stored.get("content") if isinstance(stored, dict) else None
    return cast("Blocks", decode_bytes_values(copy.deepcopy(blocks))) if blocks else []


def _load_result(made: CallResult, id_: str) -> dict[str, Any]:  # type: ignore[explicit-any]
    found = made.result
    status, content = "error" if made.problem else "success", [{"text": format_result(made)}]
    if not made.problem and isinstance(found, dict):
        if RESULT_KEY in found:
            content = decode_bytes_values(copy.deepcopy(found[RESULT_KEY]))
        elif found.keys() >= {"status", "content"}:  # as Strands takes it from a function
            status, content = str(found["status"]), cast("Any", copy.deepcopy(found["content"]))  # type: ignore[explicit-any]
    return {"toolResult": {"toolUseId": id_, "status": status, "content": content}}
