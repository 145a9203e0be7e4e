"""Generate docs/concepts/phases.md and its picture from the transition table.

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

In which phases can a run be, and which controls does each accept? A run is in one of ten
phases. The picture has the transitions between them, and the tables below it have every control
in every phase. `make docs` generates this page from the transition table in
`midrun.core.transitions`; a test compares them.

| phase | meaning |
|---|---|
| queued | ready to run; no worker has taken it yet |
| running | a worker drives it |
| pausing | a pause was requested; a call is still in flight |
| paused | nothing runs; it continues after a resume |
| waiting | it waits for an answer or an approval of a person |
| cancelling | a cancel was requested; calls are being stopped and undone |
| cancelled | ended by a cancel |
| completed | ended with a result |
| failed | stopped by an error; it can be resumed |
| halted | stopped by an operator; it continues when the halt is lifted |

*Pausing* and *cancelling* are requests. *Paused* and *cancelled* are facts: nothing runs.

![The phases of a run and the transitions between them](phases.svg)

A run that is resumed while an ask is open goes back to *waiting*. A cancel with nothing to
stop or undo leads to *cancelled* at once. The tables below have all cases.
"""


def page() -> str:
    """Return the page."""
    parts = [INTRODUCTION, *_inputs(), *_guards(), *_entries()]
    return "\n".join(parts) + "\n"


def _inputs() -> Iterator[str]:
    yield "## Controls\n"
    yield "`→ phase`: accepted. `= name`: a no-op with this name. `✗ name`: refused.\n"
    yield from _grid([kind for kind in INPUT_TABLE if issubclass(kind, ControlBase)])
    yield "\nThe controls that a phase accepts:\n"
    for phase in Phase:
        yield f"- **{phase}**: {', '.join(list_phase_controls(phase)) or 'none'}"
    yield "\n## Driver inputs and timers\n"
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
        "\nA control may also be refused as `request_id_reused` or `stale_revision`,"
        " a driver input as `fenced` or `lease_lost`."
    )


def _entries() -> Iterator[str]:
    yield "\n## Entries by phase\n"
    yield "| entry | phases in which it may be appended |"
    yield "|---|---|"
    for entry, row in ENTRY_TABLE.items():
        ways = (p if p is t else f"{p} → {t}" for p, t in row.items())
        yield f"| `{entry.__name__}` | {', '.join(ways)} |"


if __name__ == "__main__":
    PAGE.write_text(page())
    PICTURE.write_text(picture())
