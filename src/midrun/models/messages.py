"""Convert a run's transcript to messages of pydantic-ai, and a reply to stored JSON.

Providers sign parts of their replies (thinking, for example) and refuse changed ones, so a
reply is stored in the provider's own form and sent back unchanged. The source of each text
stays visible to the model: texts of the runtime are marked, results of tools are sent in the
role of the tool, and an interrupted reply is followed by a note instead of being continued in
place. Each call is followed directly by its result, as providers require.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import Final, Self, TypeAlias

import msgspec
import pydantic_ai
from pydantic import TypeAdapter, ValidationError
from pydantic_ai.messages import (
    AgentStreamEvent,
    BinaryContent,
    InstructionPart,
    ModelMessage,
    ModelRequest,
    ModelRequestPart,
    ModelResponse,
    ModelResponsePart,
    NativeToolCallPart,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ThinkingPart,
    ThinkingPartDelta,
    ToolCallPart,
    ToolCallPartDelta,
    ToolReturnPart,
    UserContent,
    UserPromptPart,
)
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.native_tools import NATIVE_TOOL_TYPES, AbstractNativeTool
from pydantic_ai.tools import ToolDefinition
from pydantic_core import PydanticSerializationError

from midrun.agents.file import is_media_type, is_text_type
from midrun.codec.strict_json import normalize_json, parse_json
from midrun.core.transcript import CallResult, Turn
from midrun.core.values import FileRef, Json, Reply, RequestedCall
from midrun.errors import Misconfigured, ModelFailed, NotJson, TooLarge
from midrun.models.history_cache import HistoryCache
from midrun.models.prompt_texts import (
    CONTINUE_NOTE,
    INTERRUPTED_NOTE,
    WRITTEN_BY_PERSON_NOTE,
    format_file_name,
    format_result,
    format_unread_file,
    mark_runtime_text,
)
from midrun.ports.model import Piece, Prompt

OMITTED_FIELDS: Final = {"usage", "timestamp"}
"""Fields of a response that are not stored with it, because the journal has its own."""

ProposedCall: TypeAlias = ToolCallPart[object]

RESPONSE_ADAPTER: Final = TypeAdapter(ModelResponse)


def make_messages(prompt: Prompt) -> list[ModelMessage]:
    """Return the transcript as messages."""
    if prompt.files or prompt.transcript.has_files:  # not cached: see `HistoryCache.open`
        builder = MessageBuilder()
        builder.files = prompt.files
        builder.add_turns(prompt.transcript)
    else:
        builder = HISTORIES.open(prompt.run_id, prompt.transcript)
    return finish_messages(prompt, builder)


def finish_messages(prompt: Prompt, builder: "MessageBuilder") -> list[ModelMessage]:
    """Return the messages of a prompt. The last message is never the assistant's.

    Some providers refuse a request that ends with a reply of the assistant, and others continue
    that reply in place.
    """
    if prompt.runtime_request:
        builder.add_runtime_text(prompt.runtime_request)
    elif not builder.messages or isinstance(builder.messages[-1], ModelResponse):
        builder.add_runtime_text(CONTINUE_NOTE)
    return builder.messages


def make_parameters(prompt: Prompt) -> ModelRequestParameters:
    """Return the parts of a request besides the messages: instructions and tools."""
    varies = not prompt.has_fixed_instructions
    part = InstructionPart(content=prompt.instructions, dynamic=varies)
    instructions = [part] if prompt.instructions else []
    return ModelRequestParameters(
        instruction_parts=instructions,
        native_tools=[make_native_tool(each) for each in prompt.provider_tools],
        function_tools=[
            ToolDefinition(
                name=tool.name,
                description=tool.description,
                parameters_json_schema=msgspec.convert(tool.schema, dict[str, object]),
            )
            for tool in prompt.tools
        ],
    )


def make_native_tool(tool: object) -> AbstractNativeTool:
    """Return a tool that the provider executes, from its name or as it is.

    Raises:
        Misconfigured: There is no tool of this name, or it needs options.
    """
    if isinstance(tool, AbstractNativeTool):
        return tool
    kind = NATIVE_TOOL_TYPES.get(str(tool))
    try:
        if kind is not None:
            return kind()
    except TypeError as error:
        problem = f"Cannot use {tool!r} by its name: {error}. Pass the native tool itself."
        raise Misconfigured("provider_tools", problem) from error
    known = ", ".join(sorted(NATIVE_TOOL_TYPES))
    raise Misconfigured("provider_tools", f"must be of {known}; got {tool!r}")


def dump_response(response: ModelResponse) -> Json:
    """Return the provider's own message as JSON to store; None if it is not plain JSON."""
    try:
        message = RESPONSE_ADAPTER.dump_python(
            response, mode="json", exclude_none=True, exclude=OMITTED_FIELDS
        )
        # The version is only for a person who has to find out why a message is unreadable.
        return normalize_json({"pydantic_ai": pydantic_ai.__version__, "message": message})
    except (PydanticSerializationError, NotJson, TooLarge):
        return None


def load_response(stored: Json) -> ModelResponse | None:
    """Return the message that `dump_response` stored; None if this version cannot read it."""
    if not isinstance(stored, dict):
        return None
    try:
        return RESPONSE_ADAPTER.validate_python(stored.get("message"))
    except ValidationError:
        return None


class MessageBuilder:
    """Builds the list of messages. Parts between two replies are joined to one request."""

    def __init__(self) -> None:
        self.files: Mapping[str, bytes] = {}  # bodies of the files of the turns, by hash
        self.messages: list[ModelMessage] = []
        self._parts: list[ModelRequestPart] = []  # of the last request in `messages`
        self._ids: set[str] = set()  # tool call ids used so far

    def fork(self) -> Self:
        """Return a copy. The last request is copied as well, because parts are added to it."""
        copied = copy(self)
        messages = [*self.messages]
        parts = [*self._parts]
        if messages and isinstance(last := messages[-1], ModelRequest):
            messages[-1] = replace(last, parts=parts)
        vars(copied).update(messages=messages, _parts=parts, _ids=self._ids.copy())
        return copied

    def add_turns(self, turns: Iterable[Turn]) -> None:
        """Add turns of the transcript, oldest first."""
        for turn in turns:
            match turn.role:
                case "assistant":
                    self.add_assistant_turn(turn)
                case "runtime":
                    self.add_runtime_text(turn.text, turn.kind, turn.by)
                    if turn.files:  # of a call whose outcome came late
                        self.add_request_part(UserPromptPart(self.make_contents(turn.files)))
                case "user":
                    files = self.make_contents(turn.files)
                    self.add_request_part(
                        UserPromptPart([turn.text, *files] if files else turn.text)
                    )

    def make_contents(self, files: Sequence[FileRef]) -> list[UserContent]:
        """Return files as contents: text as text, media as they are, others by name only.

        No model reads an archive, say. Its provider decides whether it takes an image or a PDF.
        """
        contents: list[UserContent] = []
        for file in files:
            data = self.files.get(file.hash)
            if data is None:
                contents.append(format_unread_file(file))
            elif is_text_type(file.media_type):
                text = data.decode(errors="replace")
                contents.append(f"{format_file_name(file)}\n{text}")
            elif is_media_type(file.media_type):
                media_type = file.media_type.partition(";")[0]
                contents += [format_file_name(file), BinaryContent(data, media_type=media_type)]
            else:
                contents.append(format_unread_file(file))
        return contents

    def load_turn(self, turn: Turn) -> ModelResponse | None:
        """Return the stored message of a reply; None if it is not readable."""
        return load_response(turn.opaque)

    def add_request_part(self, part: ModelRequestPart) -> None:
        """Add a part to the last request; start one if the last message is a reply."""
        if not self.messages or isinstance(self.messages[-1], ModelResponse):
            self._parts = []
            self.messages.append(ModelRequest(parts=self._parts))
        self._parts.append(part)

    def add_runtime_text(self, text: str, kind: str = "", by: str = "") -> None:
        """Add a text of the runtime, in the role of the user and marked as the runtime's."""
        self.add_request_part(UserPromptPart(mark_runtime_text(text, kind, by)))

    def add_assistant_turn(self, turn: Turn) -> None:
        """Add a reply, the result of each of its calls, and a note if it was interrupted."""
        response, calls = self._make_response(turn)
        if response is None:
            return
        self.messages.append(response)
        for call, result in zip(calls, turn.uses, strict=True):
            self.add_result(call, result)
        if turn.interrupted:
            self.add_runtime_text(INTERRUPTED_NOTE)
        elif turn.kind == "person":
            self.add_runtime_text(WRITTEN_BY_PERSON_NOTE.format(by=turn.by or "a person"))

    def add_result(self, call: ProposedCall, result: CallResult) -> None:
        """Add the result of a call, always as text, and the files that it returned.

        A provider may give a meaning of its own to a structured result.
        """
        text = format_result(result)
        files = self.make_contents(result.files)
        content: str | list[UserContent] = [text, *files] if files else text
        self.add_request_part(ToolReturnPart(call.tool_name, content, call.tool_call_id))

    def _make_response(self, turn: Turn) -> tuple[ModelResponse | None, list[ProposedCall]]:
        """Return the reply, and its calls with the arguments they were made with.

        The reply is None if it has no parts.
        """
        response = self.load_turn(turn)
        # The stored form may be unreadable for this version of pydantic-ai, or have other calls
        # than the journal. Then build the reply from the journal.
        if response is None or not _has_same_calls(response, turn.uses):
            response = ModelResponse(parts=_make_parts(turn))
        uses = iter(turn.uses)
        parts = [
            self._make_call_part(part, next(uses)) if isinstance(part, ToolCallPart) else part
            for part in response.parts
        ]
        calls = [part for part in parts if isinstance(part, ToolCallPart)]
        return (replace(response, parts=parts) if parts else None), calls

    def _make_call_part(self, part: ProposedCall, made: CallResult) -> ProposedCall:
        """Return the call with a unique id and the arguments that it was made with."""
        id_ = part.tool_call_id
        # A provider may use the same ids in every reply; within one request they must differ.
        if id_ in self._ids:
            id_ = f"{id_}-{made.call}"
        self._ids.add(id_)
        # A person may have edited the arguments before the call was made.
        args = made.args
        if not isinstance(args, dict) or args == part.args_as_dict():
            return part if id_ == part.tool_call_id else replace(part, tool_call_id=id_)
        return replace(part, tool_call_id=id_, args=args)


HISTORIES: Final = HistoryCache(MessageBuilder)


def _has_same_calls(response: ModelResponse, uses: Sequence[CallResult]) -> bool:
    asked = [part.tool_name for part in response.parts if isinstance(part, ToolCallPart)]
    return asked == [made.tool for made in uses]


def _make_parts(turn: Turn) -> list[ModelResponsePart]:
    """Return the parts of a reply whose provider's form is not stored.

    Thinking is left out: providers refuse thinking without their signature.
    """
    parts: list[ModelResponsePart] = [TextPart(turn.text)] if turn.text.strip() else []
    for made in turn.uses:
        args = made.args if isinstance(made.args, dict) else {}
        parts.append(ToolCallPart(made.tool, args, tool_call_id=made.call))
    return parts


# Convert the stream of a provider to pieces, and its end to a reply.


class PieceConverter:
    """Converts stream events to pieces; numbers calls in the order in which they start."""

    def __init__(self) -> None:
        self._calls: dict[int, tuple[str, int]] = {}  # part index → name of the tool, number

    def convert(self, streamed_part: AgentStreamEvent) -> Iterator[Piece]:
        """Yield the piece that a watcher of the reply sees for an event; none for others."""
        match streamed_part:
            case PartStartEvent(index=index, part=ToolCallPart(tool_name=tool, args=args)):
                # Later deltas of this part have its index, but not the name of the tool.
                self._calls[index] = (tool, len(self._calls))
                yield self._make_args_piece(index, args)
            case PartDeltaEvent(index=index, delta=ToolCallPartDelta(args_delta=args)):
                if args and index in self._calls:
                    yield self._make_args_piece(index, args)
            case (
                PartStartEvent(part=TextPart(content=text))
                | PartDeltaEvent(delta=TextPartDelta(content_delta=text))
            ) if text:
                yield Piece(kind="text", text=replace_surrogates(text))
            case (
                PartStartEvent(part=ThinkingPart(content=text))
                | PartDeltaEvent(delta=ThinkingPartDelta(content_delta=text))
            ) if text:
                yield Piece(kind="thinking", text=replace_surrogates(text))
            case _:
                pass

    def _make_args_piece(self, index: int, args: Json) -> Piece:
        tool, call = self._calls[index]
        text = args if isinstance(args, str) else msgspec.json.encode(args).decode()
        return Piece(
            kind="args", text=replace_surrogates(text) if args else "", tool=tool, call=call
        )


def make_reply(model: str, response: ModelResponse) -> Reply:
    """Return the reply at the end of a stream.

    Raises:
        ModelFailed: The stream ended without an error, but the reply is not complete.
    """
    _check_finish(model, response)
    texts = [part.content for part in response.parts if isinstance(part, TextPart)]
    thoughts = [part.content for part in response.parts if isinstance(part, ThinkingPart)]
    uses = [_make_use(part) for part in response.parts if isinstance(part, ToolCallPart)]
    # The provider cut the reply at its maximum length. The last call may lack arguments, and
    # what is there may still be valid JSON: refuse it, and let the model ask again.
    if uses and response.finish_reason == "length" and _ends_in_a_call(response):
        uses[-1] = RequestedCall(
            tool=uses[-1].tool, refused="the reply was too long: it ends in this call"
        )
    return Reply(
        text=replace_surrogates("".join(texts)),
        thinking=replace_surrogates("\n\n".join(text for text in thoughts if text)),
        uses=tuple(uses),
        opaque=dump_response(response),
        prompt_tokens=response.usage.input_tokens,
        ungated=tuple(
            part.tool_name for part in response.parts if isinstance(part, NativeToolCallPart)
        ),
    )


def replace_surrogates(text: str) -> str:
    """Return `text` with lone surrogates replaced, which UTF-8 cannot encode."""
    return text if text.isascii() else text.encode(errors="replace").decode()


def _check_finish(model: str, response: ModelResponse) -> None:
    if response.finish_reason == "content_filter":
        raise ModelFailed(model, "refused", "the provider would not answer this")
    if response.finish_reason == "error":
        raise ModelFailed(model, "server_error", "the provider gave the reply up", True)  # noqa: FBT003 - an error's fields are positional
    # A server that shuts down may end the stream cleanly, without a finish reason, and
    # pydantic-ai then assumes one. `provider_details` has the reason only if it was sent. A
    # model without a URL (a test model) sends none and is trusted.
    over_the_network = bool(response.provider_url)
    stated = (response.provider_details or {}).get("finish_reason")
    if response.state != "complete" or (over_the_network and not stated):
        detail = "the reply ended before it was whole"
        raise ModelFailed(model, "broken_stream", detail, True)  # noqa: FBT003 - as above


def _ends_in_a_call(response: ModelResponse) -> bool:
    return isinstance(response.parts[-1], ToolCallPart)


def _make_use(part: ToolCallPart[object]) -> RequestedCall:
    # Arguments that are not valid JSON do not fail the reply: the call is refused, and the
    # model reads why.
    try:
        args = (
            parse_json(part.args or "{}")
            if not isinstance(part.args, dict)
            else normalize_json(part.args)
        )
    except (NotJson, TooLarge) as error:
        return RequestedCall(
            tool=part.tool_name, refused=f"the arguments are not acceptable JSON: {error}"
        )
    if not isinstance(args, dict):
        return RequestedCall(tool=part.tool_name, refused="the arguments are not a JSON object")
    return RequestedCall(tool=part.tool_name, args=args)
