"""The holder socket: proves to other workers of this host that a worker is dead.

The heartbeat of a worker that was killed keeps its leases for seconds. A worker on the same
host need not wait for that, because the kernel knows that the processes are gone.

A worker binds a Unix socket to an abstract name: one that stands in no file system, and that
the kernel frees when the last process with a descriptor of the socket is gone. The worker hands
the descriptor to its zygotes, and they to the processes of their calls. So **the name is free
only when the worker, its zygotes and the processes of its blocking calls are all gone**. A
zygote that outlives its worker kills the process groups of its calls before it exits. A frozen
process keeps its descriptors, so its leases end by the clock as before.

Abstract names belong to a network namespace of one running kernel. The name of a holder ends
with a digest of both (`host_id`). A holder of another host, of another container or without
such a digest is never judged: `is_holder_gone` returns False, and its leases end by the clock.
The identifier of a namespace can be used again only after the namespace is gone, and with it
every socket in it.

Other accounts of the host can bind a name, too. That only makes a dead holder look alive.
"""

import os
import socket
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from midrun.ports import platform

HOST_ID_CHARS: Final = 16
"""Hexadecimal characters of a host id: enough that no two hosts of a store have the same."""

BOOT_ID_PATH: Final = Path("/proc/sys/kernel/random/boot_id")
NAMESPACE_PATH: Final = Path("/proc/self/ns/net")


def read_host_id() -> str:
    """Return the id of this kernel and network namespace; empty if it is unknown."""
    if not platform.CURRENT.has_abstract_sockets:
        return ""
    try:
        boot_id = BOOT_ID_PATH.read_text().strip()
        namespace = str(NAMESPACE_PATH.readlink())
    except OSError:
        return ""
    if not boot_id or not namespace:
        return ""
    return sha256(f"{boot_id} {namespace}".encode()).hexdigest()[:HOST_ID_CHARS]


class HolderSocket:
    """A socket whose name exists while a process of this worker lives.

    `holder_name` is the name for the leases of the worker. If the socket cannot be bound, the
    name has no host id, and `fd` is None. A context manager: on exit the worker declares itself
    gone, so its leases must have been given back.
    """

    def __init__(self, worker_id: str) -> None:
        self.holder_name = worker_id
        self.fd: int | None = None
        if not (host_id := read_host_id()):
            return
        name = f"{worker_id}@{host_id}"
        # A process that this one forks keeps a copy of the descriptor, and the name is not free
        # while it lives. That is safe: the leases end by the clock then.
        with suppress(OSError), socket.socket(socket.AF_UNIX) as bound:
            bound.bind(_make_address(name))
            self.holder_name, self.fd = name, bound.detach()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None


def is_holder_gone(holder_name: str) -> bool:
    """Tell whether no process of this holder is left; False if that is not certain."""
    _, separator, host_id = holder_name.rpartition("@")
    if not separator or host_id != read_host_id():
        return False
    # If the name can be bound, no process has it. It is free again at the end of the block.
    with suppress(OSError), socket.socket(socket.AF_UNIX) as probe:
        probe.bind(_make_address(holder_name))
        return True
    return False


def _make_address(holder_name: str) -> bytes:
    return b"\0midrun/" + holder_name.encode()
