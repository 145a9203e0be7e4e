"""Static pages: the list of runs, the page of a run, and their files.

They hold no data and need no credential. The scripts fetch their data under `/v1`, with the
viewer's session. The same page is served for every run id, whether the run exists or not.
"""

import re
from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import Final

from msgspec import Struct
from starlette.responses import Response

MEDIA_TYPES: Final = {
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
    "txt": "text/plain; charset=utf-8",
}

LIST_PAGE: Final = "index.html"
RUN_PAGE: Final = "run.html"

_RUN_PATH: Final = re.compile(r"/runs/[A-Za-z0-9_-]{1,64}")


class StaticFile(Struct, frozen=True):
    """A static file and its media type."""

    body: bytes
    media: str

    @property
    def etag(self) -> str:
        """The ETag: a hash of the content."""
        return f'"{sha256(self.body).hexdigest()[:32]}"'


@cache
def read_static_files() -> Mapping[str, StaticFile]:
    """Return the static files of the package, by name.

    They are read once. A request looks its file up here and never on the disk, so no path can
    reach another file.
    """
    folder = files("midrun.server").joinpath("static")
    return {
        file.name: StaticFile(file.read_bytes(), MEDIA_TYPES[kind])
        for file in folder.iterdir()
        if (kind := file.name.rpartition(".")[2]) in MEDIA_TYPES
    }


def find_page(method: str, path: str, cached_etag: str) -> Response | None:
    """Return the page or file at `path`; None for other paths.

    `cached_etag` is the `If-None-Match` header: the ETag that the browser has cached.
    """
    name = _find_file_name(path)
    if name is None or method not in {"GET", "HEAD"}:
        return None
    file = read_static_files().get(name)
    if file is None:
        return Response("There is no such file.\n", 404, media_type="text/plain")
    # "no-cache": the browser asks each time, and mostly gets a 304. A page must not mix cached
    # files of an old version with files of a new one.
    headers = {"Cache-Control": "no-cache", "ETag": file.etag}
    if file.etag in cached_etag:
        return Response(status_code=304, headers=headers)
    return Response(file.body, headers=headers, media_type=file.media)


def _find_file_name(path: str) -> str | None:
    if path == "/":
        return LIST_PAGE
    if _RUN_PATH.fullmatch(path):
        return RUN_PAGE
    # One level only: `/static/a/b` is no file, and `..` is a name that no file has.
    folder, _, name = path.rpartition("/")
    return name if folder == "/static" else None
