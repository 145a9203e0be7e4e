"""Search all bytes of a store for a text, as a person with its files or a dump could."""

import subprocess
from base64 import b64encode
from pathlib import Path

from midrun.testing.postgres import DATABASE_USER, Postgres
from tests.support.store_choice import get_store_url


def dump_store(path: Path, postgres: Postgres | None) -> bytes:
    """Return all stored bytes: of the files of SQLite, or a dump of the schema."""
    if postgres is None:
        files = sorted(path.parent.glob("runs.db*"))
        assert files
        return b"".join(file.read_bytes() for file in files)
    schema = get_store_url(path).rpartition("search_path%3D")[2].partition("&")[0]
    command = [str(postgres.programs / "pg_dump"), "-h", str(postgres.folder)]
    command += ["-U", DATABASE_USER, "-n", schema, "--inserts", "postgres"]
    return subprocess.run(command, check=True, capture_output=True).stdout  # noqa: S603 - fixed


def find_texts(dump: bytes, text: str) -> list[str]:
    """Return the forms in which a text, or its longest word, is in a dump."""
    word = max(text.split(), key=len)
    rest = word[1:].encode()  # without the letter that the index makes small
    forms = {
        "text": text.encode(),
        "word": rest,
        "word in the index": word.lower().encode(),
        "hex": text.encode().hex().encode(),
        "word in hex": rest.hex().encode(),
        "base64": b64encode(text.encode())[3:-3],
    }
    return [name for name, form in forms.items() if form in dump]
