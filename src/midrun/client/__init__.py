"""The client: the runs of a server, with the same handles as at home."""

from typing import Final

from midrun.errors import Misconfigured
from midrun.runs.protocols import AnyMidrun

# `connect`: the way to the runs of a server.

PATIENCE_S: Final = 30.0


def connect(url: str, *, token: str | None = None, patience: float = PATIENCE_S) -> AnyMidrun:
    """Return the runs of the server at `url`, with the interface of `Midrun`.

    `token` says who you are there, and so who every control was asked by. A server that does
    not answer is waited for, for `patience` seconds, before `ServerUnreachable` is raised;
    what was asked meanwhile is applied once, however often it had to be sent.

    Raises:
        Misconfigured: the package that speaks HTTP is missing.
    """
    try:
        from midrun.client.midrun import RemoteMidrun  # noqa: PLC0415 - for those who use it
    except ImportError as error:
        raise Misconfigured("connect", f"pip install 'midrun[client]' ({error})") from error
    return RemoteMidrun(url, token, patience=patience)
