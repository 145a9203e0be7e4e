"""Write journals to `tests/journals/` that every later version must be able to read.

Only new ones are written. A stored journal is never written again: it stands for what some
user has on disk. A new entry, or a changed one, needs a new scenario in `tools/golden/`.

Beside each lies what a person reads of it, `.aloud.txt`. That is written anew each time: the
words may get better. Read what changed (`git diff tests/journals`), aloud if you can.

    python -m tools.make_golden
"""

from collections.abc import Sequence
from pathlib import Path

from midrun.codec.journal import decode_lines
from midrun.core.entries import Record
from tools.golden.aloud import read_aloud
from tools.golden.facts import RUN, facts_of, text_of
from tools.golden.recorded import CONVERSATIONS, recorded
from tools.golden.scenarios import SCENARIOS

FOLDER = Path(__file__).parents[1] / "tests" / "journals"


def main() -> None:
    """Write what is not there yet, and all texts."""
    for name, tell in SCENARIOS.items():
        if not _path(name).exists():
            _write(name, tell().records)
    for name, records in recorded(n for n in CONVERSATIONS if not _path(n).exists()).items():
        if not _path(name).exists():
            _write(name, records)
    for path in sorted(FOLDER.glob("*.jsonl")):
        records = decode_lines(RUN, path.read_bytes().splitlines())
        path.with_suffix(".aloud.txt").write_text(read_aloud(records))


def _path(name: str) -> Path:
    return FOLDER / f"{name}.jsonl"


def _write(name: str, records: Sequence[Record]) -> None:
    path = _path(name)
    path.write_bytes(text_of(records))
    path.with_suffix(".facts.json").write_bytes(facts_of(records))
    print(f"wrote {path.name}: {len(records)} entries")


if __name__ == "__main__":
    main()
