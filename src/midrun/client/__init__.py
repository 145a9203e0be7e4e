"""The client: handles of runs that a server has, with the interface of `Midrun` and `Run`.

`connect` returns a `RemoteMidrun` (`midrun.py`); its runs are `RemoteRun` handles (`run.py`).
Both send requests through one `HttpTransport` (`transport.py`). Every request that changes
something carries an idempotency key, so the transport may repeat it after a timeout or a lost
reply, and the server applies it once. Refusals come back as the exception that the server
raised. `transport.follow_feed` follows the feed of a run and reconnects at the last entry
received. `decode.py` converts JSON to the values of `midrun.runs.values`: on the wire times are
RFC 3339, in Python they are microseconds.

Invariants: a control is applied at most once per request id; a feed neither skips nor repeats
an entry; the actor is the owner of the token. Start reading at `HttpTransport`.
"""

from typing import Final

from midrun.errors import Misconfigured
from midrun.runs.protocols import AnyMidrun

DEFAULT_PATIENCE_S: Final = 30.0


def connect(
    url: str, *, token: str | None = None, patience: float = DEFAULT_PATIENCE_S
) -> AnyMidrun:
    """Return a handle of a server's runs, with the methods of `Midrun`.

        async with connect("http://127.0.0.1:8000", token=token) as midrun:
            run = await midrun.get("run_3f2a")
            await run.pause()

    Args:
        url: The address of the server, with the prefix if it is mounted in another app.
        token: Authenticates the caller. Its owner is the actor of all controls.
        patience: Seconds to retry while the server does not answer. Then
            `ServerUnreachable` is raised. A repeated control is applied only once.

    Raises:
        Misconfigured: The package `midrun[client]` is not installed.
    """
    try:
        # Imported here, so that `import midrun` works without the HTTP package.
        from midrun.client.midrun import RemoteMidrun  # noqa: PLC0415 - optional dependency
    except ImportError as error:
        problem = f"Cannot import the HTTP client: {error}. Run: pip install 'midrun[client]'"
        raise Misconfigured("connect", problem) from error
    return RemoteMidrun(url, token, patience=patience)
