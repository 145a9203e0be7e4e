"""The file in which `midrun serve` stores a token that it generated.

Clients of the same user on the same machine read the token from there. The file is in the
user's state folder and not in the working folder of the server, because tools run in the
working folder and could read the token by accident. It does not protect against a process of
the same user that looks for it.
"""

import os
from hashlib import sha256
from pathlib import Path
from typing import Final

from midrun.errors import Misconfigured

TOKEN_FILE_NAME: Final = "token"  # noqa: S105 - the name of the file


def find_token_folder(working_folder: Path) -> Path:
    """Return the folder with the token of servers that are started in `working_folder`.

    Raises:
        Misconfigured: This account has no home folder.
    """
    # Two folders may have the same name, so the hash of the whole path is added to it.
    path = working_folder.resolve()
    digest = sha256(os.fsencode(path)).hexdigest()[:16]
    return _find_state_folder() / "midrun" / f"{path.name}-{digest}"


def find_token(working_folder: Path) -> str | None:
    """Return the token that a server in `working_folder` stored, or None."""
    path = find_token_folder(working_folder) / TOKEN_FILE_NAME
    return path.read_text().strip() if path.is_file() else None


def _find_state_folder() -> Path:
    configured = Path(os.environ.get("XDG_STATE_HOME", ""))
    if configured.is_absolute():  # the XDG specification says to ignore a relative path
        return configured
    try:
        return Path.home() / ".local" / "state"
    except RuntimeError as error:
        problem = (
            "Cannot store a token: this account has no home folder. Set MIDRUN_TOKEN, or set "
            "XDG_STATE_HOME to a folder that only this account can read."
        )
        raise Misconfigured("token", problem) from error
