"""The agents of the OpenAI Agents SDK that hand off to each other, and their conversation.

A handoff is a journaled call, `transfer_to_…`, whose result names the next agent. So the agent
that speaks is read from the journal: it is the one that the latest successful handoff names,
else the hosted agent itself. No process has to remember it.

`Conversation` converts the transcript to input items of the SDK. A reply is stored in the form
in which its model gave it, and sent back unchanged, because providers sign parts of it.
"""

import json
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from inspect import isawaitable
from typing import Any, Final, TypeAlias, cast

from agents import (
    Agent,
    Handoff,
    HandoffInputData,
    RunContextWrapper,
    TResponseInputItem,
    handoff,
)
from agents.handoffs import nest_handoff_history
from agents.items import HandoffCallItem, HandoffOutputItem
from openai.types.responses import ResponseFunctionToolCall

from midrun.core.transcript import CallResult, Transcript, Turn
from midrun.core.values import Json
from midrun.errors import Misconfigured
from midrun.hosts.hosted_agent import format_file
from midrun.models.prompt_texts import (
    INTERRUPTED_NOTE,
    WRITTEN_BY_PERSON_NOTE,
    format_file_name,
    format_result,
    mark_runtime_text,
)

ForeignAgent: TypeAlias = Agent[Any]  # type: ignore[explicit-any]  # of any context
ForeignHandoff: TypeAlias = Handoff[Any, Any]  # type: ignore[explicit-any]
ForeignContext: TypeAlias = RunContextWrapper[Any]  # type: ignore[explicit-any]
Item: TypeAlias = dict[str, Json]

AGENT_KEY: Final = "agent"
"""The name of the agent that gave a reply, in the stored form of the reply."""

ITEMS_KEY: Final = "items"
"""The output items of the model, in the stored form of the reply."""

OUTPUT_RETRY_KEY: Final = "output_retry"
"""Set in the stored form of a reply that had no valid output."""

TARGET_KEY: Final = "assistant"
"""The name of the next agent, in the result of a handoff; the SDK uses the same word."""

CONTENT_KEY: Final = "openai_agents_content"
"""Marks a journaled result that is a list of texts, images and files."""


class Team:
    """The hosted agent, and all agents that it can hand off to, directly or through others."""

    def __init__(self, root: ForeignAgent) -> None:
        self.root = root
        self.agents: dict[str, ForeignAgent] = {}
        self.pure_handoffs: set[str] = set()
        """Tools of handoffs that only name an agent: they have no callback and no effect."""
        self._handoffs: dict[str, list[ForeignHandoff]] = {}
        waiting = [root]
        while waiting:
            agent = waiting.pop(0)
            if self.agents.setdefault(agent.name, agent) is not agent:
                problem = (
                    f"Cannot host two agents with the name {agent.name!r}: the journal names "
                    "the agent that has taken over. Rename one."
                )
                raise Misconfigured("host", problem)
            if agent.name not in self._handoffs:
                found = [self._read_handoff(agent, each) for each in agent.handoffs]
                self._handoffs[agent.name] = [each for each, _ in found]
                waiting += [target for _, target in found]
        self._handoff_names = frozenset(each.tool_name for each in self.list_all_handoffs())

    def _read_handoff(
        self, agent: ForeignAgent, declared: "ForeignAgent | ForeignHandoff"
    ) -> tuple[ForeignHandoff, ForeignAgent]:
        if isinstance(declared, Agent):
            made = handoff(declared)
            self.pure_handoffs.add(made.tool_name)
            return made, declared
        # There is no public way to the agent of a handoff without invoking its callback.
        reference = declared._agent_ref  # noqa: SLF001 - see above
        target = reference() if reference is not None else None
        if not isinstance(target, Agent):
            problem = (
                f"Cannot host the handoff {declared.tool_name!r} of agent {agent.name!r}: its "
                "agent is not known before it is invoked. Make it with agents.handoff(agent)."
            )
            raise Misconfigured("host", problem)
        return declared, target

    def list_handoffs(self, agent: ForeignAgent) -> list[ForeignHandoff]:
        """Return the handoffs of `agent`."""
        return self._handoffs[agent.name]

    def list_all_handoffs(self) -> list[ForeignHandoff]:
        """Return the handoffs of all agents, one for each name."""
        by_name = {each.tool_name: each for some in self._handoffs.values() for each in some}
        return list(by_name.values())

    def find_handoff(self, agent: ForeignAgent, tool: str) -> ForeignHandoff | None:
        """Return the handoff of `agent` with this tool name."""
        return next((h for h in self.list_handoffs(agent) if h.tool_name == tool), None)

    def find_target(self, made: CallResult) -> ForeignAgent | None:
        """Return the agent that has taken over with this call; None if it was no handoff."""
        if made.tool not in self._handoff_names or made.problem:
            return None
        result = made.result if isinstance(made.result, dict) else {}
        return self.agents.get(str(result.get(TARGET_KEY)))

    def find_speaker(self, turns: Sequence[Turn]) -> ForeignAgent:
        """Return the agent whose turn it is, by the journal."""
        for turn in _read_backwards(turns):
            targets = [target for made in turn.uses if (target := self.find_target(made))]
            if targets:
                return targets[0]
            if named := self.find_author(turn):
                return named
        return self.root

    def find_caller(self, turns: Sequence[Turn], tool_call_id: str) -> ForeignAgent:
        """Return the agent that asked for a call; it may have handed off in the same reply."""
        for turn in _read_backwards(turns):
            ids = [item.get("call_id") for item in load_items(turn)]
            if tool_call_id in ids and (author := self.find_author(turn)):
                return author
        return self.find_speaker(turns)

    def find_last_author(self, turns: Sequence[Turn]) -> ForeignAgent | None:
        """Return the agent that gave the last reply; None if it has handed off since."""
        for turn in _read_backwards(turns):
            if any(self.find_target(made) for made in turn.uses):
                return None
            if author := self.find_author(turn):
                return author
        return None

    def has_new_input(self, turns: Sequence[Turn]) -> bool:
        """Tell whether a person has written since the last complete reply of an agent."""
        for turn in _read_backwards(turns):
            if turn.role == "user":
                return True
            if self.find_author(turn) is not None:
                return False
        return True

    def find_author(self, turn: Turn) -> ForeignAgent | None:
        """Return the agent that gave a complete reply; None for any other turn."""
        stored = turn.opaque if isinstance(turn.opaque, dict) else {}
        return self.agents.get(str(stored.get(AGENT_KEY)))


def _read_backwards(turns: Sequence[Turn]) -> Iterator[Turn]:
    # A summary replaces old turns in a prompt. A handoff in them still counts.
    return turns.read_backwards() if isinstance(turns, Transcript) else reversed(turns)


def load_items(turn: Turn) -> list[Item]:
    """Return the output items of a reply as its model gave them; none if not stored."""
    stored = turn.opaque.get(ITEMS_KEY) if isinstance(turn.opaque, dict) else None
    if not isinstance(stored, list):
        return []
    return [dict(item) for item in stored if isinstance(item, dict)]


def is_output_retry(turn: Turn) -> bool:
    """Tell whether a reply had no valid output; it is journaled as a refused call."""
    return isinstance(turn.opaque, dict) and OUTPUT_RETRY_KEY in turn.opaque


# ── the conversation ─────────────────────────────────────────────────────────


class Conversation:
    """Builds the input of a model call from turns of the transcript."""

    def __init__(self, team: Team, files: Mapping[str, bytes] | None = None) -> None:
        self.items: list[Item] = []
        self._files = files or {}  # bodies of the files of the turns, by hash
        self._team = team
        self._speaker = team.root
        self._ids: set[str] = set()

    async def add_turns(self, turns: Sequence[Turn], context: ForeignContext) -> None:
        """Add turns, oldest first; a handoff may change the items before it."""
        for turn in turns:
            match turn.role:
                case "assistant":
                    outputs = self._add_reply(turn)
                    await self._apply_handoff(turn, outputs, context)
                case "runtime":
                    self.add_text(mark_runtime_text(turn.text, turn.kind, turn.by))
                case "user" if turn.files:
                    text: Item = {"type": "input_text", "text": turn.text}
                    self._add_content([text, *self._load_files(turn)])
                case "user":
                    self.add_text(turn.text)

    def add_text(self, text: str) -> None:
        """Add a message in the role of the user."""
        self.items.append({"role": "user", "content": text})

    def _add_content(self, content: list[Item]) -> None:
        self.items.append({"role": "user", "content": content})

    def _load_files(self, carrier: Turn | CallResult) -> list[Item]:
        """Return files as parts of a message: an image, a PDF, a text, or a name."""
        parts: list[Item] = []
        for file in carrier.files:
            data = self._files.get(file.hash)
            media_type = file.media_type.partition(";")[0]
            url = f"data:{media_type};base64,{b64encode(data or b'').decode()}"
            if data is not None and media_type.startswith("image/"):
                parts.append({"type": "input_text", "text": format_file_name(file)})
                parts.append({"type": "input_image", "image_url": url, "detail": "auto"})
            elif data is not None and media_type == "application/pdf":
                parts.append({"type": "input_file", "filename": file.name, "file_data": url})
            else:
                parts.append({"type": "input_text", "text": format_file(file, data)})
        return parts

    @property
    def ends_with_reply(self) -> bool:
        """Whether the last item is one that a model wrote."""
        last = self.items[-1] if self.items else {}
        return last.get("role") == "assistant" or last.get("type") == "reasoning"

    def _add_reply(self, turn: Turn) -> list[Item]:
        """Add a reply and the results of its calls; return the results."""
        items = load_items(turn)
        calls = [item for item in items if item.get("type") == "function_call"]
        is_retry = is_output_retry(turn)
        uses = () if is_retry else turn.uses
        if not items or [call.get("name") for call in calls] != [made.tool for made in uses]:
            items = [{"role": "assistant", "content": turn.text}] if turn.text else []
            calls = [
                {"type": "function_call", "call_id": made.call, "name": made.tool}
                for made in uses
            ]
            items += calls
        if _restore_arguments(calls, uses):
            # A provider refuses a reasoning item whose call has changed.
            items = [item for item in items if item.get("type") != "reasoning"]
            for item in items:
                item.pop("id", None)
        for call, made in zip(calls, uses, strict=True):
            # A provider may use the same ids in every reply; within one request they differ.
            if str(call["call_id"]) in self._ids:
                call["call_id"] = f"{call['call_id']}-{made.call}"
            self._ids.add(str(call["call_id"]))
        outputs = [
            make_output(str(call["call_id"]), made)
            for call, made in zip(calls, uses, strict=True)
        ]
        self.items += items + outputs
        if files := [part for made in uses for part in self._load_files(made)]:
            self._add_content(files)
        if is_retry:
            self.add_text(mark_runtime_text(turn.uses[0].problem))
        if turn.interrupted:
            self.add_text(mark_runtime_text(INTERRUPTED_NOTE))
        elif turn.kind == "person":
            note = WRITTEN_BY_PERSON_NOTE.format(by=turn.by or "a person")
            self.add_text(mark_runtime_text(note))
        return outputs

    async def _apply_handoff(
        self, turn: Turn, outputs: list[Item], context: ForeignContext
    ) -> None:
        """Let the filter of a handoff choose what the next agent reads of the past."""
        source = self._team.find_author(turn) or self._speaker
        for made, output in zip(turn.uses, outputs, strict=False):
            if (target := self._team.find_target(made)) is None:
                continue
            self._speaker = target
            declared = self._team.find_handoff(source, made.tool)
            if declared is None or not (declared.input_filter or declared.nest_handoff_history):
                continue
            is_own = [item.get("call_id") == output["call_id"] for item in self.items]
            call, result = (i for i, own in zip(self.items, is_own, strict=True) if own)
            past = [i for i, own in zip(self.items, is_own, strict=True) if not own]
            data = HandoffInputData(
                input_history=tuple(cast("list[TResponseInputItem]", past)),
                pre_handoff_items=(),
                new_items=(
                    HandoffCallItem(source, ResponseFunctionToolCall.model_validate(call)),
                    HandoffOutputItem(
                        agent=source,
                        raw_item=cast("TResponseInputItem", result),
                        source_agent=source,
                        target_agent=target,
                    ),
                ),
                run_context=context,
            )
            filtered = (declared.input_filter or nest_handoff_history)(data)
            self.items = _list_items(await filtered if isawaitable(filtered) else filtered)


def _restore_arguments(calls: list[Item], uses: Sequence[CallResult]) -> bool:
    """Give each call the arguments it was made with; tell whether a person had edited them."""
    is_edited = False
    for call, made in zip(calls, uses, strict=True):
        stored = call.get("arguments")
        if "arguments" in call and (made.args is None or _parse(stored) == made.args):
            continue
        is_edited |= stored is not None
        call["arguments"] = json.dumps(made.args or {})
    return is_edited


def _parse(arguments: Json) -> Json:
    try:
        parsed: Json = json.loads(str(arguments) or "{}")
    except ValueError:
        return None
    return parsed


def make_output(call_id: str, made: CallResult) -> Item:
    """Return the result of a call as an input item."""
    found = made.result
    output: Json
    if made.problem or isinstance(found, str):
        output = format_result(made)
    elif isinstance(found, dict) and CONTENT_KEY in found:
        output = found[CONTENT_KEY]
    elif isinstance(found, dict) and found.keys() == {TARGET_KEY}:
        output = json.dumps(found)  # as the SDK writes the result of a handoff
    else:
        output = str(found)  # as the SDK writes every other value
    return {"type": "function_call_output", "call_id": call_id, "output": output}


def _list_items(data: HandoffInputData) -> list[Item]:
    past = data.input_history
    before: list[Item] = (
        [{"role": "user", "content": past}]
        if isinstance(past, str)
        else [dict(cast("Item", item)) for item in past]
    )
    newer = data.new_items if data.input_items is None else data.input_items
    added = [item.to_input_item() for item in (*data.pre_handoff_items, *newer)]
    return [*before, *(cast("Item", item) for item in added)]
