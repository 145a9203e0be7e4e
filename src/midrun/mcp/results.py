"""Convert the result of an MCP tool to JSON that can be journaled and shown to a model."""

import json
from base64 import b64decode
from collections.abc import Mapping
from contextlib import suppress
from typing import Final, NoReturn, cast

import msgspec
from mcp_types import (
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    ContentBlock,
    ElicitRequest,
    ElicitRequestURLParams,
    ElicitResult,
    EmbeddedResource,
    GetPromptResult,
    ImageContent,
    InputRequiredResult,
    InputResponses,
    ReadResourceResult,
    Resource,
    ResourceLink,
    ResourceTemplate,
    TextContent,
    TextResourceContents,
)
from msgspec import Struct

from midrun.agents.builtin_tools import PauseHere
from midrun.agents.file import UNKNOWN_MEDIA_TYPE, File
from midrun.core.values import Json
from midrun.errors import Misconfigured

RESOURCE_TEXT_MAX_CHARS: Final = 65_536
"""Characters of an embedded resource that are kept. The model can read the rest with a tool."""


class ToolFailed(Exception):
    """A tool of a server reports an error. The text is for the model."""


def convert_result(result: CallToolResult) -> Json:
    """Return the structured content of a result, or its text if it has none.

    Images, audio and resources are replaced by references with their type and size. If there
    are any, the result is an object: `{"result": …, "attached": […]}`.

    Raises:
        ToolFailed: The result is an error.
    """
    text = "\n".join(block.text for block in result.content if isinstance(block, TextContent))
    if result.is_error:
        raise ToolFailed(text or "it failed, and did not say why")
    value: Json = text if result.structured_content is None else result.structured_content
    others = [block for block in result.content if not isinstance(block, TextContent)]
    attached: list[Json] = [_make_reference(block) for block in others]
    return {"result": value, "attached": attached} if attached else value


def extract_files(result: CallToolResult) -> list[File]:
    """Return the images, the audio and the binary resources of a result as files.

    Content that is not valid base64 is left out; its reference stays in the result.
    """
    files: list[File] = []
    for number, block in enumerate(result.content, start=1):
        match block:
            case ImageContent(data=data) | AudioContent(data=data):
                name, mime = f"{block.type}-{number}", block.mime_type
            case EmbeddedResource(resource=BlobResourceContents(blob=data) as inside):
                name = str(inside.uri).rpartition("/")[2] or f"resource-{number}"
                mime = inside.mime_type or UNKNOWN_MEDIA_TYPE
            case _:
                continue
        with suppress(ValueError, Misconfigured):
            files.append(File(name[-100:], mime, b64decode(data, validate=True)))
    return files


def _make_reference(block: ContentBlock) -> dict[str, Json]:
    fields: dict[str, Json]
    match block:
        case TextContent(text=text):
            fields = {"text": text}
        case ImageContent(data=data, mime_type=mime) | AudioContent(data=data, mime_type=mime):
            fields = {"mime_type": mime, "bytes": _count_decoded_bytes(data)}
        case ResourceLink(uri=uri, name=name, mime_type=mime, size=size):
            fields = {"uri": uri, "name": name, "mime_type": mime, "bytes": size}
        case EmbeddedResource(resource=inside):
            fields = {
                "uri": inside.uri,
                "mime_type": inside.mime_type,
                **_describe_contents(inside),
            }
    return {"type": block.type, **{k: v for k, v in fields.items() if v is not None}}


def _describe_contents(
    resource: TextResourceContents | BlobResourceContents,
) -> dict[str, Json]:
    if isinstance(resource, BlobResourceContents):
        return {"bytes": _count_decoded_bytes(resource.blob)}
    text = resource.text
    cut = (
        text
        if len(text) <= RESOURCE_TEXT_MAX_CHARS
        else text[: RESOURCE_TEXT_MAX_CHARS - 1] + "…"
    )
    return {"bytes": len(text.encode(errors="replace")), "text": cut}


def _count_decoded_bytes(base64: str) -> int:
    """Return the decoded size of base64 text in bytes, without decoding it."""
    # Four characters hold three bytes; up to two `=` at the end fill the last group.
    return len(base64) * 3 // 4 - base64.count("=", -2)


# Convert resources and prompts.


def convert_resource(result: ReadResourceResult) -> Json:
    """Return the parts of a resource: its texts, and the size of its other data."""
    return [
        {"uri": part.uri, "mime_type": part.mime_type, **_describe_contents(part)}
        for part in result.contents
    ]


def describe_resource(resource: Resource) -> Json:
    """Return a resource for the list that the model reads."""
    fields: dict[str, Json] = {
        "uri": resource.uri,
        "name": resource.title or resource.name,
        "description": resource.description,
        "mime_type": resource.mime_type,
        "bytes": resource.size,
    }
    return {name: value for name, value in fields.items() if value is not None}


def describe_template(template: ResourceTemplate) -> Json:
    """Return the address of a family of resources for the list that the model reads."""
    fields: dict[str, Json] = {
        "uri_template": template.uri_template,
        "name": template.title or template.name,
        "description": template.description,
        "mime_type": template.mime_type,
    }
    return {name: value for name, value in fields.items() if value is not None}


class PromptText(Struct, frozen=True, kw_only=True):
    """A prompt of an MCP server, as the arguments of `Midrun.start`.

    `task` is the last message of the user. `history` has the messages before it.
    """

    task: str
    history: tuple[dict[str, str], ...] = ()


def convert_prompt(name: str, result: GetPromptResult) -> PromptText:
    """Return the messages of a prompt as a task and its history.

    Raises:
        Misconfigured: The last message is not the user's, or a message is not text.
    """
    messages: list[dict[str, str]] = []
    for message in result.messages:
        match message.content:
            case TextContent(text=text):
                pass
            case EmbeddedResource(resource=TextResourceContents(text=text)):
                pass
            case other:
                problem = (
                    f"Cannot use it: it has a part of type {other.type}. Use a text prompt"
                )
                raise Misconfigured(f"prompt {name}", problem)
        if messages and messages[-1]["role"] == message.role:
            messages[-1]["content"] += f"\n\n{text}"
        else:
            messages.append({"role": message.role, "content": text})
    if not messages or messages[-1]["role"] != "user":
        problem = "Cannot start a run with it: its last message is not one of the user"
        raise Misconfigured(f"prompt {name}", problem)
    return PromptText(task=messages[-1]["content"], history=tuple(messages[:-1]))


# Convert questions of an MCP server to asks, and their answers to protocol responses.
#
# Since the protocol of 2026-07-28, a server that needs input ends the call with an
# `InputRequiredResult`. It has the questions (`input_requests`) and an opaque `request_state`.
# No connection stays open. The client makes the same call again, with the answers and the
# state.
#
# So an answer may take days, and no process has to survive until it comes: the requests and the
# state are stored in the journal as the continuation of an ask
# (`agents.builtin_tools.PauseHere`). A result with several requests becomes several asks, one
# after the other. The server is called again when all of them are answered.

YES_WORDS: Final = frozenset({"yes", "true"})
NO_WORDS: Final = frozenset({"no", "false"})

Schema = Mapping[str, Json]


class Continuation(Struct, frozen=True, kw_only=True):
    """The stored state of a call that waits for answers; `requests[0]` is being asked."""

    request_state: str | None
    requests: list[tuple[str, Json]]
    responses: dict[str, Json]


class QuestionDecision(Struct, frozen=True, kw_only=True):
    """The decision of a person on a question, as stored in `Call.answered`."""

    continuation: Continuation
    choice: str
    value: Json


def ask_for_input(result: InputRequiredResult) -> NoReturn:
    """Ask a person for the input that the server needs.

    Raises:
        PauseHere: This is how a tool asks.
        ToolFailed: The server asks for a model reply (sampling) or for folders (roots), which
            midrun does not support.
    """
    requests: list[tuple[str, Json]] = []
    for key, request in (result.input_requests or {}).items():
        if not isinstance(request, ElicitRequest):
            raise ToolFailed(
                f"Cannot complete the call: the server asks for {request.method}, which "
                "midrun does not offer."
            )
        requests.append(
            (key, request.model_dump(by_alias=True, mode="json", exclude_none=True))
        )
    _ask_first(
        Continuation(request_state=result.request_state, requests=requests, responses={})
    )


def read_responses(answered: Json) -> tuple[InputResponses | None, str | None]:
    """Return the responses, and the server's state, to send with the next request.

    Both are None for a call that has not asked anything yet.

    Raises:
        PauseHere: The answer does not match its form, or another question is still open.
    """
    if answered is None:
        return None, None
    decision = msgspec.convert(answered, QuestionDecision)
    continuation = decision.continuation
    (key, request), *others = continuation.requests
    try:
        response = _make_response(ElicitRequest.model_validate(request), decision)
    except ValueError as problem:
        _ask_first(continuation, f"Cannot use the last answer: {problem}. ")
    responses = {**continuation.responses, key: response}
    if others:
        _ask_first(msgspec.structs.replace(continuation, requests=others, responses=responses))
    results = {key: ElicitResult.model_validate(each) for key, each in responses.items()}
    return cast("InputResponses", results), continuation.request_state


def _ask_first(continuation: Continuation, problem: str = "") -> NoReturn:
    """Ask the first open question; raise `PauseHere` with the continuation."""
    _, request = continuation.requests[0]
    params = ElicitRequest.model_validate(request).params
    data: dict[str, Json]
    if isinstance(params, ElicitRequestURLParams):
        data = {"url": params.url, "options": ["done"]}
    else:
        data = {**params.requested_schema, "options": _list_options(params.requested_schema)}
    question = problem + (params.message or "The server needs some input.")
    raise PauseHere(question, data, msgspec.to_builtins(continuation))


def _make_response(request: ElicitRequest, decision: QuestionDecision) -> Json:
    if decision.choice == "decline":
        return {"action": "decline"}
    if isinstance(request.params, ElicitRequestURLParams):
        return {"action": "accept"}
    content = _read_form(request.params.requested_schema, decision.value)
    return {"action": "accept", "content": content}


# ── forms ────────────────────────────────────────────────────────────────────


def _list_fields(schema: Schema) -> dict[str, Schema]:
    fields = schema.get("properties")
    return cast("dict[str, Schema]", fields) if isinstance(fields, dict) else {}


def _list_options(schema: Schema) -> list[Json]:
    """Return the answers to choose from, if the form has at most one field."""
    match list(_list_fields(schema).values()):
        case []:
            return ["ok"]
        case [{"type": "boolean"}]:
            return ["yes", "no"]
        case [field] if field.get("type") != "array":
            return _list_choices(field)
        case _:
            return []


def _list_choices(field: Schema) -> list[Json]:
    """Return the values that a field may have. The protocol has three forms for them."""
    enum = field.get("enum")
    if isinstance(enum, list):
        return enum
    titled = field.get("oneOf") or field.get("anyOf")
    found = titled if isinstance(titled, list) else []
    return [each["const"] for each in found if isinstance(each, dict) and "const" in each]


def _read_form(schema: Schema, value: Json) -> dict[str, Json]:
    """Convert an answer to the values of a form, with the types that its fields declare.

    A form with one field accepts the bare value; a form without fields accepts anything. Text
    is converted to the type of its field, because people type all answers as text.

    Raises:
        ValueError: The answer does not match the form. The person reads the text.
    """
    fields = _list_fields(schema)
    if not fields:
        return {}
    if len(fields) > 1 and isinstance(value, str):
        value = _parse_json(value)
    values = value if isinstance(value, dict) and value.keys() <= fields.keys() else None
    if values is None and len(fields) == 1:
        values = {next(iter(fields)): value}
    if values is None:
        raise ValueError(f"expected an object with the fields {', '.join(fields)}")
    required = schema.get("required")
    for name in required if isinstance(required, list) else ():
        if values.get(str(name)) is None:
            raise ValueError(f"{name} is required")
    return {name: _convert_field(name, fields[name], item) for name, item in values.items()}


def _parse_json(text: str) -> Json:
    try:
        return cast("Json", json.loads(text))
    except ValueError:
        return text


def _convert_field(name: str, field: Schema, value: Json) -> Json:
    if field.get("type") == "array":
        items = value.split(",") if isinstance(value, str) else value
        within = field.get("items")
        choices = _list_choices(within) if isinstance(within, dict) else []
        if not isinstance(items, list):
            raise ValueError(f"{name} must be a list, got {json.dumps(value)}")
        return [_check_choice(name, choices, str(item).strip()) for item in items]
    return _check_choice(name, _list_choices(field), _convert_scalar(name, field, value))


def _convert_scalar(name: str, field: Schema, value: Json) -> Json:
    kind = field.get("type")
    word = value.strip().lower() if isinstance(value, str) else ""
    match kind:
        case "boolean" if isinstance(value, bool) or word in YES_WORDS | NO_WORDS:
            return value if isinstance(value, bool) else word in YES_WORDS
        case "integer" | "number" if isinstance(value, int | float | str):
            number = _parse_number(value)
            if number is not None and (kind == "number" or number == int(number)):
                return int(number) if kind == "integer" else number
        case "string" if isinstance(value, str):
            return value
        case "string" if isinstance(value, int | float):
            return json.dumps(value)  # a typed 42 was parsed as a number on its way here
    raise ValueError(f"{name} must be of type {kind}, got {json.dumps(value)}")


def _parse_number(value: float | str) -> float | None:
    """Return `value` as a finite number, or None; a bool is not a number."""
    if isinstance(value, bool):
        return None
    try:
        number = value if isinstance(value, int) else float(value)
    except ValueError:
        return None
    return number if abs(number) < float("inf") else None


def _check_choice(name: str, choices: list[Json], value: Json) -> Json:
    if choices and value not in choices:
        allowed = ", ".join(json.dumps(choice) for choice in choices)
        raise ValueError(f"{name} must be one of {allowed}, got {json.dumps(value)}")
    return value
