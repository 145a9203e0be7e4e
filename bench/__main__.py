"""`python -m bench`: print what midrun costs next to what the machine can do, in one run.

A module of this package that measures something has `figures()`; it is listed here.
"""

import sys
from collections.abc import Callable, Sequence
from typing import Final

from bench import codec, core, http, page, postgres, redaction, runtime, stores
from bench.figures import Figure, table

BENCHES: Final[Sequence[Callable[[], Sequence[Figure]]]] = (
    stores.figures,
    codec.figures,
    core.figures,
    redaction.figures,
    runtime.figures,
    postgres.figures,
    http.figures,
    page.figures,
)


def main() -> int:
    """Measure everything, print it, and tell whether all bounds hold."""
    measured = [figure for bench in BENCHES for figure in bench()]
    print(table(measured))
    return 0 if all(figure.holds for figure in measured) else 1


if __name__ == "__main__":
    sys.exit(main())
