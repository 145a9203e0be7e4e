"""Import the history of a conversation from the message formats of other libraries.

Accepted are lists of messages of OpenAI (chat completions and responses), of Anthropic, and of
Pydantic AI (objects, or their JSON). The formats are recognized message by message, by their
fields; no package of a provider is imported. A call and its result become one call of the
history. System messages are left out: the agent has its own instructions. So is thinking, which
only the provider that signed it accepts.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from midrun.codec.safe_repr import safe_repr
from midrun.codec.strict_json import normalize_json, parse_json
from midrun.core.ids import CallId
from midrun.core.values import CallResult, Json, Message
from midrun.errors import Misconfigured, NotJson, TooLarge

SYSTEM_ROLES: Final = frozenset({"system", "developer"})
TEXT_TYPES: Final = frozenset({"text", "input_text", "output_text", "refusal"})
SKIPPED_TYPES: Final = frozenset({"thinking", "redacted_thinking", "reasoning"})
NO_RESULT: Final = "the imported history has no result of this call"

FORMATS: Final = "a list of messages of OpenAI, Anthropic or Pydantic AI"


@dataclass(frozen=True)
class _Part:
    """A part of a message: a text, a call, or the result of a call."""

    role: str  # user or assistant; "tool" for a result
    text: str = ""
    call_id: str = ""
    tool: str = ""
    args: Json = None
    result: Json = None


def import_history(messages: object) -> tuple[Message, ...]:
    """Return the messages as the history of a new run, oldest first.

    Raises:
        Misconfigured: It is no such list, or a message has a part that is not text, a call or
            a result.
    """
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Iterable):
        problem = f"must be {FORMATS}, got {safe_repr(messages, 80)}"
        raise Misconfigured("history", problem)
    history: list[Message] = []
    for number, message in enumerate(messages):
        try:
            for part in _iter_parts(message):
                _add_part(history, part)
        except (NotJson, TooLarge, ValueError, TypeError) as error:
            raise Misconfigured(f"history[{number}]", f"Cannot import it: {error}") from error
    return tuple(history)


def _add_part(history: list[Message], part: _Part) -> None:
    if part.role == "tool":
        _add_result(history, part)
        return
    last = history[-1] if history else None
    if part.tool:
        call = CallResult(
            call=CallId(part.call_id), tool=part.tool, args=part.args, problem=NO_RESULT
        )
        if last is None or last.role != "assistant":
            history.append(Message(role="assistant", text="", made=(call,)))
        else:
            history[-1] = replace(last, made=(*last.made, call))
    elif part.role == "assistant":
        # The text of a new reply, unless the reply before it has made its calls only.
        history.append(Message(role="assistant", text=part.text))
    else:
        history.append(Message(role="user", text=part.text))


def _add_result(history: list[Message], part: _Part) -> None:
    """Give the newest call with this id its result."""
    for index in range(len(history) - 1, -1, -1):
        made = history[index].made
        for place, call in enumerate(made):
            if call.call == part.call_id and call.problem == NO_RESULT:
                done = replace(call, result=part.result, problem="")
                made = (*made[:place], done, *made[place + 1 :])
                history[index] = replace(history[index], made=made)
                return
    raise ValueError(f"it has the result of a call {part.call_id!r} that it did not make")


def _iter_parts(message: object) -> Iterator[_Part]:
    parts = _get(message, "parts")
    if isinstance(parts, list | tuple):  # Pydantic AI
        for part in parts:
            yield from _read_pydantic_part(part)
        return
    kind, role = _get(message, "type"), _get(message, "role")
    if kind in {"function_call", "function_call_output"}:  # OpenAI responses
        yield from _read_response_item(message)
    elif kind in SKIPPED_TYPES or role in SYSTEM_ROLES:
        return
    elif role == "tool":  # OpenAI chat
        text = "".join(p.text for p in _read_content("tool", _get(message, "content")))
        yield _Part("tool", call_id=str(_get(message, "tool_call_id")), result=text)
    elif role in {"user", "assistant"}:
        yield from _read_content(str(role), _get(message, "content"))
        calls = _get(message, "tool_calls")
        for call in calls if isinstance(calls, list) else []:
            yield _read_call(_get(call, "id"), _get(call, "function"))
    else:
        raise ValueError(f"it is no message of a known format: {safe_repr(message, 80)}")


def _read_response_item(item: object) -> Iterator[_Part]:
    if _get(item, "type") == "function_call":
        yield _read_call(_get(item, "call_id"), item)
    else:
        output = normalize_json(_get(item, "output"))
        yield _Part("tool", call_id=str(_get(item, "call_id")), result=output)


def _read_call(call_id: object, function: object) -> _Part:
    args = _get(function, "arguments")
    parsed = parse_json(args or "{}") if isinstance(args, str) else normalize_json(args)
    return _Part(
        "assistant", call_id=str(call_id), tool=str(_get(function, "name")), args=parsed
    )


def _read_content(role: str, content: object) -> Iterator[_Part]:
    """Read the content of a message: a text, or a list of blocks."""
    if content is None:
        return
    if isinstance(content, str):
        yield _Part(role, text=content)
        return
    if not isinstance(content, list | tuple):
        raise TypeError(f"its content is {safe_repr(content, 80)}")
    texts: list[str] = []
    others: list[_Part] = []
    for block in content:
        kind = _get(block, "type")
        if isinstance(block, str) or kind in TEXT_TYPES:
            text = block if isinstance(block, str) else _get(block, "text")
            texts.append(str(text or ""))
        elif kind == "tool_use":  # Anthropic
            args, id_ = normalize_json(_get(block, "input")), str(_get(block, "id"))
            name = str(_get(block, "name"))
            others.append(_Part("assistant", call_id=id_, tool=name, args=args))
        elif kind == "tool_result":
            text = "".join(p.text for p in _read_content("tool", _get(block, "content")))
            others.append(_Part("tool", call_id=str(_get(block, "tool_use_id")), result=text))
        elif kind not in SKIPPED_TYPES:
            raise ValueError(f"a part of the type {kind!r} cannot be imported, only text")
    if text := "".join(texts):
        yield _Part(role, text=text)
    yield from others


def _read_pydantic_part(part: object) -> Iterator[_Part]:
    kind, content = _get(part, "part_kind"), _get(part, "content")
    match kind:
        case "system-prompt" | "thinking" | "compaction":
            return
        case "user-prompt":
            yield from _read_content("user", content)
        case "text":
            yield _Part("assistant", text=str(content))
        case "tool-call":
            args = _get(part, "args")
            parsed = parse_json(args or "{}") if isinstance(args, str) else normalize_json(args)
            id_, name = str(_get(part, "tool_call_id")), str(_get(part, "tool_name"))
            yield _Part("assistant", call_id=id_, tool=name, args=parsed)
        case "tool-return" | "retry-prompt" if _get(part, "tool_name"):
            id_ = str(_get(part, "tool_call_id"))
            yield _Part("tool", call_id=id_, result=normalize_json(content))
        case "retry-prompt":
            yield from _read_content("user", content)
        case _:
            raise ValueError(f"a part of the kind {kind!r} cannot be imported, only text")


def _get(value: object, name: str) -> object:
    """Return a field of a message, which is a dict or an object of an SDK; None without it."""
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)
