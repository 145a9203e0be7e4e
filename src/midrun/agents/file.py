"""`File`: a file with its bytes, as people and tools give it to a run.

The journal holds a `FileRef` in its place, and the store holds the bytes beside the journal.
"""

import mimetypes
import re
from base64 import b64decode
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Final, Self, cast

import msgspec

from midrun.codec.safe_repr import safe_repr
from midrun.core.values import FileLimits, FileRef
from midrun.errors import FileRefused, Misconfigured

FILE_NAME_MAX_CHARS: Final = 200
UNKNOWN_MEDIA_TYPE: Final = "application/octet-stream"

_MEDIA_TYPE: Final = re.compile(
    r"[a-z0-9!#$&^_.+-]{1,60}/[a-z0-9!#$&^_.+-]{1,80}(; ?[\x21-\x7e]{1,60})?"
)
_MEDIA_PREFIXES: Final = ("image/", "audio/", "video/", "application/pdf")
_TEXT_TYPES: Final = frozenset(
    {"application/json", "application/xml", "application/x-ndjson", "image/svg+xml"}
)


@dataclass(frozen=True)
class File:
    """A file for a run, from a run, or as the result of a tool.

        await midrun.start(agent, "What is in it?", files=[File.from_path("receipt.png")])

    Attributes:
        name: The name of the file, which people and models see. It is not a path.
        media_type: The type of its content, such as `image/png` or `text/markdown`.
        data: Its bytes.

    Raises:
        Misconfigured: A value has the wrong type or form.
    """

    name: str
    media_type: str
    data: bytes = field(repr=False)

    def __post_init__(self) -> None:
        check_file_name("name", self.name)
        # A caller without a type checker may pass anything.
        media_type, data = cast("object", self.media_type), cast("object", self.data)
        if not isinstance(media_type, str) or not _MEDIA_TYPE.fullmatch(media_type):
            problem = f"must be a media type such as image/png, got {safe_repr(media_type, 80)}"
            raise Misconfigured("media_type", problem)
        if not isinstance(data, bytes):
            problem = f"must be bytes, got {type(data).__name__}. Encode text: text.encode()."
            raise Misconfigured("data", problem)

    @classmethod
    def from_path(cls, path: str | Path, *, media_type: str | None = None) -> Self:
        """Read a file; its media type is guessed from its name unless it is given.

        Raises:
            FileRefused: The file cannot be read.
        """
        path = Path(path)
        try:
            data = path.read_bytes()
        except OSError as error:
            problem = f"Cannot read the file {path}: {error.strerror}. Check the path."
            raise FileRefused(problem) from error
        guessed = mimetypes.guess_type(path.name)[0] or UNKNOWN_MEDIA_TYPE
        return cls(path.name[-FILE_NAME_MAX_CHARS:], media_type or guessed, data)

    @cached_property
    def ref(self) -> FileRef:
        """The reference that the journal holds in place of the file."""
        digest = sha256(self.data).hexdigest()
        return FileRef(
            name=self.name, media_type=self.media_type, size=len(self.data), hash=digest
        )


def parse_data_url(name: str, media_type: str, url: str) -> File:
    """Return the file in a `data:` URL with base64, as chat clients send it.

    Raises:
        ValueError: It is another URL, or its data is not base64.
        Misconfigured: The name or the media type is malformed.
    """
    head, comma, data = url.partition(",")
    if not head.startswith("data:") or not head.endswith(";base64") or not comma:
        raise ValueError("Expected data:TYPE;base64,DATA")
    declared = head.removeprefix("data:").removesuffix(";base64")
    return File(name, media_type or declared, b64decode(data, validate=True))


def check_file_name(argument: str, name: object) -> str:
    """Return `name` if it can name a file or an artifact.

    Raises:
        Misconfigured: It is empty, too long, or has a control character.
    """
    if not isinstance(name, str) or not name.strip():
        raise Misconfigured(argument, f"must be a str that is not empty, got {name!r}")
    if len(name) > FILE_NAME_MAX_CHARS:
        problem = f"must have at most {FILE_NAME_MAX_CHARS} characters, got {len(name)}"
        raise Misconfigured(argument, problem)
    if not name.isprintable():
        raise Misconfigured(argument, "must not have control characters or line breaks")
    return name


def is_text_type(media_type: str) -> bool:
    """Tell whether files of this media type are text."""
    plain = media_type.partition(";")[0]
    return plain.startswith("text/") or plain in _TEXT_TYPES or plain.endswith("+json")


def is_media_type(media_type: str) -> bool:
    """Tell whether some model can read binary files of this media type."""
    return media_type.startswith(_MEDIA_PREFIXES)


def split_files(value: object) -> tuple[object, tuple[File, ...]]:
    """Split the value that a tool returned into its data and its files.

    A tool returns a file, or a list of files and data. A single item of data that is left in
    the list is the result itself.
    """
    if isinstance(value, File):
        return None, (value,)
    if not isinstance(value, list | tuple) or not any(isinstance(v, File) for v in value):
        return value, ()
    files = tuple(item for item in value if isinstance(item, File))
    rest = [item for item in value if not isinstance(item, File)]
    if len(rest) > 1:
        return rest, files
    return (rest[0] if rest else None), files


def make_result_file(name: str, value: object) -> File | None:
    """Return the result of a tool, text or JSON, as a file; None if it has no result."""
    guessed = mimetypes.guess_type(name)[0] or "text/plain"
    if isinstance(value, str):
        return File(name, guessed, value.encode())
    if value is None:
        return None
    return File(name, guessed, msgspec.json.format(msgspec.json.encode(value)))


def check_files(files: object) -> tuple[File, ...]:
    """Return `files` as a tuple if all of them are `File`s.

    Raises:
        Misconfigured: They are not.
    """
    if files is None:
        return ()
    if isinstance(files, Iterable) and not isinstance(files, str | bytes):
        found = tuple(files)
        if all(isinstance(file, File) for file in found):
            return found
    problem = (
        f"must be a list of midrun.File, got {safe_repr(files, 80)}. Use File.from_path(…)."
    )
    raise Misconfigured("files", problem)


def check_file_limits(limits: object) -> FileLimits | None:
    """Return `limits` as the journal holds them: None for the usual ones.

    Raises:
        Misconfigured: They are not limits, or one of them is negative.
    """
    if limits is None:
        return None
    if not isinstance(limits, FileLimits):
        problem = f"must be a FileLimits, got {safe_repr(limits, 80)}"
        raise Misconfigured("file_limits", problem)
    for name in limits.__struct_fields__:
        bound = getattr(limits, name)
        if isinstance(bound, bool) or not isinstance(bound, int) or not 0 <= bound < 2**53:
            raise Misconfigured(f"file_limits.{name}", f"must be an int >= 0, got {bound!r}")
    return None if limits == FileLimits() else limits


def list_refs(files: Sequence[File]) -> tuple[FileRef, ...]:
    """Return the references of `files`."""
    return tuple(file.ref for file in files)


def map_bodies(files: Iterable[File]) -> dict[str, bytes]:
    """Return the bytes of `files` by hash, as a store takes them."""
    return {file.ref.hash: file.data for file in files}
