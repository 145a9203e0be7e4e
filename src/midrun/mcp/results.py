"""What a tool of an MCP server returned, as JSON that can be journaled and shown to a model."""

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

TEXT_MAX: Final = 65_536
"""Characters of an embedded resource: more is for the tool that reads it to hand out."""


class ToolFailed(Exception):
    """A tool in another process says that it failed. The text is for the model."""


def json_of(result: CallToolResult) -> Json:
    """Return the structured content, or the text where there is none.

    Images, sounds and resources become references: what they are, and how many bytes. With
    any of them the result is an object, `{"result": …, "attached": […]}`.

    Raises:
        ToolFailed: the result is an error.
    """
    text = "\n".join(block.text for block in result.content if isinstance(block, TextContent))
    if result.is_error:
        raise ToolFailed(text or "it failed, and did not say why")
    value: Json = text if result.structured_content is None else result.structured_content
    others = [block for block in result.content if not isinstance(block, TextContent)]
    attached: list[Json] = [_reference(block) for block in others]
    return {"result": value, "attached": attached} if attached else value


def _reference(block: ContentBlock) -> dict[str, Json]:
    found: dict[str, Json]
    match block:
        case TextContent(text=text):
            found = {"text": text}
        case ImageContent(data=data, mime_type=mime) | AudioContent(data=data, mime_type=mime):
            found = {"mime_type": mime, "bytes": _size(data)}
        case ResourceLink(uri=uri, name=name, mime_type=mime, size=size):
            found = {"uri": uri, "name": name, "mime_type": mime, "bytes": size}
        case EmbeddedResource(resource=inside):
            found = {"uri": inside.uri, "mime_type": inside.mime_type, **_contents(inside)}
    return {"type": block.type, **{k: v for k, v in found.items() if v is not None}}


def _contents(resource: TextResourceContents | BlobResourceContents) -> dict[str, Json]:
    if isinstance(resource, BlobResourceContents):
        return {"bytes": _size(resource.blob)}
    text = resource.text
    cut = text if len(text) <= TEXT_MAX else text[: TEXT_MAX - 1] + "…"
    return {"bytes": len(text.encode(errors="replace")), "text": cut}


def _size(base64: str) -> int:
    """Return how many bytes this decodes to, without decoding it."""
    return len(base64) * 3 // 4 - base64.count("=", -2)
