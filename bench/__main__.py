"""`python -m bench [NAME …] [--markdown]`: print the cost of midrun next to raw limits.

A name is a module of this package; without names, all of them are measured. Each has a function
`figures()`, which is listed here, and can also be run alone: `python -m bench.durable_step`.
`python -m bench.peers` measures other libraries.
"""

import sys
from collections.abc import Callable, Sequence
from typing import Final

from bench import (
    concurrency,
    core,
    deletion,
    durable_step,
    hosted_step,
    http,
    page,
    postgres,
    redaction,
    startup,
    stores,
)
from bench.figures import Figure, print_figures

BENCHES: Final[dict[str, Callable[[], Sequence[Figure]]]] = {
    "durable_step": durable_step.figures,
    "hosted_step": hosted_step.figures,
    "startup": startup.figures,
    "concurrency": concurrency.figures,
    "postgres": postgres.figures,
    "stores": stores.figures,
    "deletion": deletion.figures,
    "core": core.figures,
    "redaction": redaction.figures,
    "http": http.figures,
    "page": page.figures,
}


def main() -> int:
    """Measure and print; return 1 if a bound is missed."""
    names = [name for name in sys.argv[1:] if not name.startswith("-")] or [*BENCHES]
    return print_figures([figure for name in names for figure in BENCHES[name]()])


if __name__ == "__main__":
    sys.exit(main())
