"""The platform: the facilities of the operating system that Midrun uses, by name.

All code that depends on the operating system asks `platform.CURRENT`, and never `sys.platform`.
So the paths for macOS can be tested on Linux: a test replaces `CURRENT`, and the worker hands
its name to its zygotes.

What a platform lacks is replaced: a parent-death signal by a pipe that ends with the zygote, a
process descriptor by a look at the parent's id, anonymous memory by a temporary file. Abstract
sockets have no replacement: without them, the leases of a killed worker end by the clock.
"""

import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from msgspec import Struct

from midrun.errors import Misconfigured


class Platform(Struct, frozen=True, kw_only=True):
    """The facilities of one operating system.

    Attributes:
        name: Its name for people.
        can_drive_runs: It has fork, process groups and Unix sockets.
        has_parent_death_signal: The kernel kills a process when its parent dies.
        has_pidfd: A descriptor shows the end of a process.
        has_memfd: Two processes can share an anonymous file.
        has_abstract_sockets: The name of a socket vanishes with its last process.
        tool_variables: Environment variables of all processes of tools.
    """

    name: str
    can_drive_runs: bool = True
    has_parent_death_signal: bool = False
    has_pidfd: bool = False
    has_memfd: bool = False
    has_abstract_sockets: bool = False
    tool_variables: Mapping[str, str] = {}


LINUX: Final = Platform(
    name="Linux",
    has_parent_death_signal=True,
    has_pidfd=True,
    has_memfd=True,
    has_abstract_sockets=True,
)
MACOS: Final = Platform(
    name="macOS",
    # The runtime of Objective-C ends a forked process that uses one of its classes for the
    # first time. Modules use such classes unasked, to find a proxy for example.
    tool_variables={"OBJC_DISABLE_INITIALIZE_FORK_SAFETY": "YES"},
)
WINDOWS: Final = Platform(name="Windows", can_drive_runs=False)

PLATFORMS: Final = {each.name: each for each in (LINUX, MACOS, WINDOWS)}


def detect_platform(system: str = sys.platform) -> Platform:
    """Return the platform of this process; any other Unix is treated as the portable one."""
    known = {"linux": LINUX, "darwin": MACOS, "win32": WINDOWS, "cygwin": WINDOWS}
    return known.get(system, Platform(name=system))


CURRENT: Platform = detect_platform()
"""The platform of this process. Read it as `platform.CURRENT`: tests replace it."""


def check_platform(name: str) -> None:
    """Refuse to create the object `name` on a platform that cannot drive runs.

    Raises:
        Misconfigured: The text names what works there.
    """
    if not CURRENT.can_drive_runs:
        problem = (
            f"Cannot drive or store runs on {CURRENT.name}: it lacks fork, process groups and "
            "Unix sockets. Use WSL 2, or control a server with midrun.connect(url)."
        )
        raise Misconfigured(name, problem)


def choose_boot_clock(platform: Platform) -> Callable[[], float]:
    """Return a clock that also counts seconds while the machine sleeps."""
    # A worker must notice after a sleep that its leases have expired. The monotonic clock stops
    # during a sleep on Linux, and continues on macOS.
    if platform is LINUX and hasattr(time, "CLOCK_BOOTTIME"):
        return partial(time.clock_gettime, time.CLOCK_BOOTTIME)
    return time.monotonic


read_boot_clock: Final = choose_boot_clock(CURRENT)
"""Return seconds since some point in the past, also those in which the machine sleeps."""
