"""Whether this process is a zygote in the middle of importing what a user wrote.

A script that runs its agent at the top level would do so again when the zygote loads it to find
the tools in it, and that run would start a zygote in turn. So a runtime looks here first.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from midrun.errors import Misconfigured

GUARD: Final = "put the part that runs the agent under if __name__ == '__main__':"

_imports: list[str] = []


@contextmanager
def importing(module: str) -> Iterator[None]:
    """Mark that `module` is being imported for its tools."""
    _imports.append(module)
    try:
        yield
    finally:
        _imports.pop()


def refuse_while_importing() -> None:
    """Let no runtime start here and now.

    Raises:
        Misconfigured: this is a zygote, and it only wanted to import tools.
    """
    if _imports:
        raise Misconfigured(
            f"module {_imports[-1]}",
            f"it starts a runtime while its tools are being imported; {GUARD}",
        )
