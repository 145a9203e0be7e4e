"""The migrations of the SQL stores: numbered SQL files, which only go forward."""

import re
from functools import cache
from importlib.resources import files


@cache
def load_migrations(package: str) -> tuple[tuple[int, str], ...]:
    """Return every migration of a store's package with its number, in order."""
    folder = files(package).joinpath("migrations")
    return tuple(
        sorted(
            (int(match[1]), file.read_text("utf-8"))
            for file in folder.iterdir()
            if (match := re.fullmatch(r"(\d{4})_\w+\.sql", file.name))
        )
    )
