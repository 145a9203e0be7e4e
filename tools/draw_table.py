"""Draw docs/concepts/phases.md and its picture from the transition table.

.venv/bin/python -m tools.draw_table
"""

from collections.abc import Iterator
from pathlib import Path

from midrun.core.controls import ControlBase
from midrun.core.transitions import (
    ENTRY_TABLE,
    GUARD_REFUSALS,
    INPUT_TABLE,
    Input,
    get_input_name,
    list_phase_controls,
)
from midrun.core.values import Phase
from tools.draw_phases import picture

PAGE = Path(__file__).parent.parent / "docs" / "concepts" / "phases.md"
PICTURE = PAGE.with_suffix(".svg")

INTRODUCTION = """# Phases

Drawn from the transition table in `midrun.core.transitions` by `make docs`; a test compares.

A run is in one of ten phases.
*Pausing* and *cancelling* say that somebody asked, and what the run still waits for.
*Paused* and *cancelled* are said only when they are true.

![The phases of a run, and what leads from one to another](phases.svg)

A run that goes on while something is asked goes back to *waiting*.
One whose cancel has nothing to do is *cancelled* at once.
The tables below have every case.
"""


def page() -> str:
    """Return the page."""
    parts = [INTRODUCTION, *_inputs(), *_guards(), *_entries()]
    return "\n".join(parts) + "\n"


def _inputs() -> Iterator[str]:
    yield "## What may be asked, and when\n"
    yield "`→ phase` accepted · `= name` a no-op, it is so already · `✗ name` refused.\n"
    yield from _grid([kind for kind in INPUT_TABLE if issubclass(kind, ControlBase)])
    yield "\nThe buttons that are live in a phase:\n"
    for phase in Phase:
        yield f"- **{phase}**: {', '.join(list_phase_controls(phase)) or 'none'}"
    yield "\n## What a driver, or time, may bring\n"
    yield from _grid([kind for kind in INPUT_TABLE if not issubclass(kind, ControlBase)])


def _grid(kinds: list[type[Input]]) -> Iterator[str]:
    yield "| | " + " | ".join(Phase) + " |"
    yield "|---" * (len(Phase) + 1) + "|"
    for kind in kinds:
        cells = (str(INPUT_TABLE[kind][phase]) for phase in Phase)
        yield f"| **{get_input_name(kind)}** | " + " | ".join(cells) + " |"


def _guards() -> Iterator[str]:
    yield "\n## Refusals that depend on more than the phase\n"
    for kind, names in GUARD_REFUSALS.items():
        yield f"- **{get_input_name(kind)}**: {', '.join(f'`{name}`' for name in names)}"
    yield (
        "\nA control may also be refused as `request_id_reused` or `stale_revision`;"
        " what a driver brings, as `fenced` or `lease_lost`."
    )


def _entries() -> Iterator[str]:
    yield "\n## Which entries may stand in a journal\n"
    yield "| entry | in these phases |"
    yield "|---|---|"
    for entry, row in ENTRY_TABLE.items():
        ways = (p if p is t else f"{p} → {t}" for p, t in row.items())
        yield f"| `{entry.__name__}` | {', '.join(ways)} |"


if __name__ == "__main__":
    PAGE.write_text(page())
    PICTURE.write_text(picture())
