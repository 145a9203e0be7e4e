"""Convert the result of an MCP tool to JSON that can be journaled and shown to a model."""

from typing import Final

from mcp_types import (
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
)

from midrun.core.values import Json

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
