"""The end of a turn of a graph of `create_agent` as a reply for the loop of Midrun."""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Final, cast

import msgspec
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage, messages_to_dict
from msgspec import Struct
from msgspec.structs import replace

from midrun.codec.strict_json import normalize_json
from midrun.core.values import Json, Reply, RequestedCall
from midrun.errors import ModelFailed, NotJson, TooLarge
from midrun.hosts.hosted_agent import OUTPUT_NAME, OUTPUT_WITH_CALLS_TEXT
from midrun.hosts.langchain_calls import make_message_spend
from midrun.hosts.langchain_messages import Values, get_text
from midrun.models.prompt_texts import CONTINUE_NOTE
from midrun.ports.model import Finished

TOOLS_NODE: Final = "tools"

CONTROL_KEYS: Final = frozenset({"messages", "structured_response", "jump_to"})
"""Keys of the state that belong to the loop; the others belong to the user."""

FINISH_KEYS: Final = frozenset({"finish_reason", "stop_reason", "done_reason", "status"})
"""Keys in the metadata of a reply, one of which says that the provider completed it."""


class TurnEnd(Struct, frozen=True):
    """The state of the graph after a turn, and the nodes that follow."""

    values: Values
    following: tuple[str, ...]


def dump_state(values: Mapping[str, object]) -> dict[str, Json]:
    """Return the user's part of the state as JSON.

    Raises:
        NotImplementedError: It is not JSON.
    """
    try:
        return {
            key: normalize_json(value, key)
            for key, value in values.items()
            if key not in CONTROL_KEYS
        }
    except (NotJson, TooLarge) as error:
        problem = f"Cannot store the state of the agent: {error}. Keep JSON in its state."
        raise NotImplementedError(problem) from error


def make_finished(model: str, end: TurnEnd, known_ids: AbstractSet[str]) -> Finished:
    """Return the reply: with calls, to be continued, or as the answer."""
    values = end.values
    messages = cast("list[BaseMessage]", values["messages"])
    added = [m for m in messages if m.id not in known_ids]
    reply = next((m for m in reversed(added) if isinstance(m, AIMessage)), None)
    if reply is None:  # a tool with `return_direct`, or a hook that ended the agent
        return Finished(reply=Reply(text=get_text(messages[-1]) if messages else ""))
    check_complete(model, reply)
    refused = {m.tool_call_id: get_text(m) for m in added if isinstance(m, ToolMessage)}
    is_over = not end.following
    value = values.get("structured_response") if is_over else None
    uses = () if is_over else _make_uses(reply, refused, has_calls=TOOLS_NODE in end.following)
    text, data = get_text(reply), _dump_value(value)
    if data is not None and (reply.tool_calls or not text):
        text = msgspec.json.encode(data).decode()
    if not is_over and not uses:
        # A hook sent the agent back to its model. A text alone would be the answer.
        later = [get_text(m) for m in added[added.index(reply) + 1 :]]
        said = "\n".join(later) or CONTINUE_NOTE
        uses = (RequestedCall(tool=OUTPUT_NAME, refused=said),)
    kept = [m for m in added[: added.index(reply) + 1] if not isinstance(m, ToolMessage)]
    opaque: dict[str, Json] = {"messages": normalize_json(messages_to_dict(kept))}
    if state := dump_state(values):
        opaque["state"] = state
    usage = reply.usage_metadata
    return Finished(
        reply=Reply(
            text=text,
            uses=uses,
            opaque=opaque,
            prompt_tokens=usage["input_tokens"] if usage else 0,
            value=data,
        ),
        spent=make_message_spend(reply),
    )


def _make_uses(
    reply: AIMessage, refused: Mapping[str, str], *, has_calls: bool
) -> tuple[RequestedCall, ...]:
    """Return the calls; those that the graph has answered itself are refused with its text."""
    wanted = [
        RequestedCall(
            tool=call["name"],
            args=normalize_json(call["args"], "args"),
            tool_call_id=call["id"] or "",
            refused=refused.get(call["id"] or "", ""),
        )
        for call in reply.tool_calls
    ]
    invalid = [
        RequestedCall(
            tool=call["name"] or "", refused=f"the arguments are not JSON: {call['error']}"
        )
        for call in reply.invalid_tool_calls
    ]
    if has_calls:  # an output beside calls would end the agent; see `hosted_agent`
        wanted = [
            replace(use, refused=OUTPUT_WITH_CALLS_TEXT)
            if use.refused.startswith("Returning structured response")
            else use
            for use in wanted
        ]
    return (*wanted, *invalid)


def _dump_value(value: object) -> Json:
    if value is None:
        return None
    dump = getattr(value, "model_dump", None)
    return normalize_json(dump(mode="json") if dump else msgspec.to_builtins(value), "output")


def check_complete(model: str, reply: AIMessage) -> None:
    """Raise `ModelFailed` if the provider did not complete the reply."""
    # A server that shuts down may end the stream cleanly, without a reason. A model without a
    # name (a test model) sends none and is trusted.
    facts = reply.response_metadata
    if facts.get("model_name") and not FINISH_KEYS.intersection(facts):
        detail = "the reply ended before it was whole"
        raise ModelFailed(model, "broken_stream", detail, transient=True)
