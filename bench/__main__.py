"""`python -m bench`: print the cost of midrun next to the raw limits of the machine.

Each module that measures something has a function `figures()`, which is listed here.
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
    """Measure and print everything; return 1 if a bound is missed."""
    measured = [figure for bench in BENCHES for figure in bench()]
    print(table(measured))
    return 0 if all(figure.holds for figure in measured) else 1


if __name__ == "__main__":
    sys.exit(main())
