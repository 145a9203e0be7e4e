"""Pages: the runs list, the page of a run, and the files that both are made of.

They hold no data, so whoever can reach the server can have them. What they show they ask for
themselves, under `/v1`, with the credential of the person who looks. The same page is served
for every run, whether there is one or not.
"""

import re
from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import Final

from msgspec import Struct
from starlette.responses import Response

MEDIA: Final = {
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
    "txt": "text/plain; charset=utf-8",
}

LIST: Final = "index.html"
RUN: Final = "run.html"

_RUN_PATH: Final = re.compile(r"/runs/[A-Za-z0-9_-]{1,64}")


class File(Struct, frozen=True):
    """One of our files, as it is sent."""

    body: bytes
    media: str

    @property
    def tag(self) -> str:
        """What names this content, and no other."""
        return f'"{sha256(self.body).hexdigest()[:32]}"'


@cache
def ours() -> Mapping[str, File]:
    """Return the files that come with the package, by name.

    They are read once. What a path names is looked up here, never on the disk.
    """
    folder = files("midrun.server").joinpath("static")
    return {
        file.name: File(file.read_bytes(), MEDIA[kind])
        for file in folder.iterdir()
        if (kind := file.name.rpartition(".")[2]) in MEDIA
    }


def found(method: str, path: str, known: str) -> Response | None:
    """Return the page or the file at `path`; None if the path is not one of ours.

    `known` is what the browser has already, as `If-None-Match` says it.
    """
    name = _name(path)
    if name is None or method not in {"GET", "HEAD"}:
        return None
    file = ours().get(name)
    if file is None:
        return Response("There is no such file.\n", 404, media_type="text/plain")
    # Asked for each time, sent once: a new version must not meet half of an old one.
    headers = {"Cache-Control": "no-cache", "ETag": file.tag}
    if file.tag in known:
        return Response(status_code=304, headers=headers)
    return Response(file.body, headers=headers, media_type=file.media)


def _name(path: str) -> str | None:
    if path == "/":
        return LIST
    if _RUN_PATH.fullmatch(path):
        return RUN
    folder, _, name = path.rpartition("/")
    return name if folder == "/static" else None
