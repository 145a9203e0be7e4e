"""Where a server on this machine keeps the token that it made, for clients of the same user.

Tools work in the folder that the server was started in, so the file is not kept there but in
the state folder of the user. A process of the same user can still read it.
"""

import os
from hashlib import sha256
from pathlib import Path
from typing import Final

from midrun.errors import Misconfigured

TOKEN_FILE: Final = "token"  # noqa: S105 - the name of the file


def token_folder(working_folder: Path) -> Path:
    """Return the folder of the token of servers that are started in `working_folder`.

    Raises:
        Misconfigured: this account has no home folder.
    """
    place = working_folder.resolve()
    digest = sha256(os.fsencode(place)).hexdigest()[:16]
    return _state_folder() / "midrun" / f"{place.name}-{digest}"


def find_token(working_folder: Path) -> str | None:
    """Return the token of a server that was started in `working_folder`, if it made one."""
    path = token_folder(working_folder) / TOKEN_FILE
    return path.read_text().strip() if path.is_file() else None


def _state_folder() -> Path:
    given = Path(os.environ.get("XDG_STATE_HOME", ""))
    if given.is_absolute():  # the XDG specification has others ignored
        return given
    try:
        return Path.home() / ".local" / "state"
    except RuntimeError as error:
        problem = (
            "Cannot keep a token: this account has no home folder. Set MIDRUN_TOKEN, or "
            "XDG_STATE_HOME to a folder that only this account can read"
        )
        raise Misconfigured("token", problem) from error
