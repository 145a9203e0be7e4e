"""Write journals to `tests/journals/` that every later version must be able to read.

Only missing journals are written. A stored journal is never rewritten, because it stands for a
journal on a user's disk. A new or changed kind of entry needs a new scenario in
`tools/golden/`.

Beside each journal is its text, `.aloud.txt`, as people read it. The texts are rewritten each
time, because sentences may be improved. Review the changes: `git diff tests/journals`.

    python -m tools.make_golden
"""

from collections.abc import Sequence
from pathlib import Path

from midrun.codec.journal import decode_lines
from midrun.core.entries import Record
from tools.golden.aloud import read_aloud
from tools.golden.facts import RUN, facts_of, text_of
from tools.golden.recorded import CONVERSATIONS, record_journals
from tools.golden.scenarios import SCENARIOS

FOLDER = Path(__file__).parents[1] / "tests" / "journals"


def main() -> None:
    """Write missing journals, and all texts."""
    for name, build in SCENARIOS.items():
        if not _path(name).exists():
            _write(name, build().records)
    missing = [name for name in CONVERSATIONS if not _path(name).exists()]
    for name, records in record_journals(missing).items():
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
