"""Draw docs/concepts/phases.md from the transition table; with --check, only compare.

.venv/bin/python tools/draw_table.py [--check]
"""

import sys
from collections.abc import Iterator
from pathlib import Path

from midrun.core.controls import Wish
from midrun.core.follows import FOLLOWS
from midrun.core.table import ACCEPTS, GUARDS, Input, enabled, name_of
from midrun.core.values import Phase

PAGE = Path(__file__).parent.parent / "docs" / "concepts" / "phases.md"

INTRODUCTION = """# Phases

Drawn from the transition table in `midrun.core.table` by `make docs`; a test compares.

A run is in one of ten phases.
*Pausing* and *cancelling* say that somebody asked, and what the run still waits for.
*Paused* and *cancelled* are said only when they are true.
"""


def page() -> str:
    """Return the page."""
    parts = [INTRODUCTION, *_diagram(), *_inputs(), *_guards(), *_entries()]
    return "\n".join(parts) + "\n"


def _diagram() -> Iterator[str]:
    """Yield the phases and the entries that lead from one to another; self-loops add noise."""
    arrows: dict[tuple[Phase, Phase], list[str]] = {}
    for entry, row in FOLLOWS.items():
        for phase, target in row.items():
            if target is not phase:
                arrows.setdefault((phase, target), []).append(entry.__name__)
    yield "```mermaid\nstateDiagram-v2"
    yield "    [*] --> queued: RunStarted"
    for (phase, target), names in sorted(arrows.items()):
        yield f"    {phase} --> {target}: {', '.join(sorted(names))}"
    yield "    halted --> queued: RunLifted (to where it was halted)"
    yield "    completed --> [*]\n    cancelled --> [*]\n```\n"


def _inputs() -> Iterator[str]:
    yield "## What may be asked, and when\n"
    yield "`→ phase` accepted · `= name` a no-op, it is so already · `✗ name` refused.\n"
    yield from _grid([kind for kind in ACCEPTS if issubclass(kind, Wish)])
    yield "\nThe buttons that are live in a phase:\n"
    for phase in Phase:
        yield f"- **{phase}**: {', '.join(enabled(phase)) or 'none'}"
    yield "\n## What a driver, or time, may bring\n"
    yield from _grid([kind for kind in ACCEPTS if not issubclass(kind, Wish)])


def _grid(kinds: list[type[Input]]) -> Iterator[str]:
    yield "| | " + " | ".join(Phase) + " |"
    yield "|---" * (len(Phase) + 1) + "|"
    for kind in kinds:
        cells = (str(ACCEPTS[kind][phase]) for phase in Phase)
        yield f"| **{name_of(kind)}** | " + " | ".join(cells) + " |"


def _guards() -> Iterator[str]:
    yield "\n## Refusals that depend on more than the phase\n"
    for kind, names in GUARDS.items():
        yield f"- **{name_of(kind)}**: {', '.join(f'`{name}`' for name in names)}"
    yield (
        "\nA control may also be refused as `request_id_reused` or `stale_revision`;"
        " what a driver brings, as `fenced` or `lease_lost`."
    )


def _entries() -> Iterator[str]:
    yield "\n## Which entries may stand in a journal\n"
    yield "| entry | in these phases |"
    yield "|---|---|"
    for entry, row in FOLLOWS.items():
        ways = (p if p is t else f"{p} → {t}" for p, t in row.items())
        yield f"| `{entry.__name__}` | {', '.join(ways)} |"


def main(argv: list[str]) -> int:
    """Write the page, or compare it."""
    if "--check" not in argv:
        PAGE.parent.mkdir(parents=True, exist_ok=True)
        PAGE.write_text(page())
    elif not PAGE.exists() or PAGE.read_text() != page():
        print(f"{PAGE} is out of date; run `make docs`")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
