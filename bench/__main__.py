"""`python -m bench [NAME …] [--markdown]`: print the cost of midrun next to raw limits.

A name is a module of this package; without names, all of them are measured. Each has a function
`figures()`, which is listed here, and can also be run alone: `python -m bench.durable_step`.
`python -m bench.peers` measures other libraries.
"""

import sys
from argparse import ArgumentParser
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
    parser = _build_parser()
    names: list[str] = parser.parse_args().names or [*BENCHES]
    if unknown := set(names) - set(BENCHES):
        parser.error(
            f"there is no bench {', '.join(sorted(unknown))}; known: {', '.join(BENCHES)}"
        )
    return print_figures([figure for name in names for figure in BENCHES[name]()])


def _build_parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="python -m bench", description="Print the cost of midrun next to raw limits."
    )
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help=f"measure only this: {', '.join(BENCHES)}; default: all",
    )
    # `print_figures` reads it from the command line, for modules that are run alone, too.
    parser.add_argument("--markdown", action="store_true", help="print a Markdown table")
    return parser


if __name__ == "__main__":
    sys.exit(main())
