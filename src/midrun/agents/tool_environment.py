"""The environment variables of processes that run tools.

A model decides how a tool is used, so the process of a tool starts without the secrets of the
worker. It gets the variables of `PASSED_NAMES` and `PASSED_PREFIXES`, and those that the tool
or its agent declares. Variables called `MIDRUN_*` hold the credentials that approve calls; no
process of a tool inherits them.
"""

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias, cast

from midrun.errors import Misconfigured

EnvironmentOption: TypeAlias = Literal["inherit"] | Mapping[str, str] | Iterable[str] | None
"""Names of variables to copy, a mapping of variables with their values, or "inherit"."""

PASSED_NAMES: Final = frozenset(
    {
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "TMPDIR"),
        *("LANG", "LANGUAGE", "TZ"),
        # Paths without which an interpreter may not find its libraries and certificates.
        *("VIRTUAL_ENV", "LD_LIBRARY_PATH", "SSL_CERT_FILE", "SSL_CERT_DIR"),
    }
)
PASSED_PREFIXES: Final = ("LC_", "PYTHON")
WITHHELD_PREFIX: Final = "MIDRUN_"

VARIABLE_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

DECLARE_HINT: Final = (
    "Processes of tools do not inherit the environment: name the variables that they need, as "
    'tool(env=["NAME"]) or Agent(tool_env=["NAME"]); "inherit" passes all but MIDRUN_*'
)


@dataclass(frozen=True)
class ToolEnvironment:
    """The variables declared for the process of a tool, in addition to the standard ones."""

    inherits: bool = False
    names: frozenset[str] = frozenset()
    values: frozenset[tuple[str, str]] = field(default=frozenset(), repr=False)  # secrets

    def __bool__(self) -> bool:
        return self != NOTHING_DECLARED

    def __or__(self, other: "ToolEnvironment") -> "ToolEnvironment":
        """Return the union; if both give a value to a name, that of `other` is used."""
        return ToolEnvironment(
            self.inherits or other.inherits,
            self.names | other.names,
            frozenset({**dict(self.values), **dict(other.values)}.items()),
        )

    def variables(self, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
        """Return the variables for a new process; leave out declared names that are not set."""
        return {
            **{name: value for name, value in environment.items() if self._is_passed(name)},
            **dict(self.values),
        }

    def _is_passed(self, name: str) -> bool:
        if name.startswith(WITHHELD_PREFIX):
            return False
        is_usual = name in PASSED_NAMES or name.startswith(PASSED_PREFIXES)
        return self.inherits or is_usual or name in self.names


NOTHING_DECLARED: Final = ToolEnvironment()


def declare_environment(owner: str, option: str, value: EnvironmentOption) -> ToolEnvironment:
    """Return the environment that a value of the option `env` or `tool_env` declares.

    Raises:
        Misconfigured: `value` is of another type, or has a name that is not allowed.
    """
    if value is None:
        return NOTHING_DECLARED
    if isinstance(value, str):
        if value != "inherit":
            problem = f'{option} must be a list, a dict or "inherit", got {value!r}'
            raise Misconfigured(owner, problem)
        return ToolEnvironment(inherits=True)
    names = list(value)
    for name in cast("list[object]", names):
        if not isinstance(name, str) or not VARIABLE_NAME.fullmatch(name):
            raise Misconfigured(owner, f"{option} must have names of variables, got {name!r}")
    if isinstance(value, Mapping):
        if wrong := [name for name in names if not isinstance(value[name], str)]:
            raise Misconfigured(owner, f"{option} must have str values, not for {wrong[0]}")
        if wrong := [name for name in names if not _can_be_passed(value[name])]:
            problem = f"{option} has a character for {wrong[0]} that no variable can hold"
            raise Misconfigured(owner, problem)
        return ToolEnvironment(values=frozenset(value.items()))
    if withheld := [name for name in names if name.startswith(WITHHELD_PREFIX)]:
        problem = (
            f"{option} cannot name {withheld[0]}: with MIDRUN_* a tool could approve its own "
            f"calls. If the tool needs it, give a value: {option}={{{withheld[0]!r}: …}}"
        )
        raise Misconfigured(owner, problem)
    return ToolEnvironment(names=frozenset(names))


def _can_be_passed(value: str) -> bool:
    """Tell whether the operating system can pass `value` to a new process."""
    try:
        return b"\0" not in os.fsencode(value)
    except UnicodeEncodeError:
        return False


def is_missing_variable(error: BaseException) -> bool:
    """Tell whether `error` is the KeyError that `os.environ[name]` raised."""
    frame = error.__traceback__
    if not isinstance(error, KeyError) or frame is None:
        return False
    # The innermost frame raised it. A KeyError of any other dict has no frame of `os.environ`.
    while frame.tb_next is not None:
        frame = frame.tb_next
    return frame.tb_frame.f_code is type(os.environ).__getitem__.__code__
