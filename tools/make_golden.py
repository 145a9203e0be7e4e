"""Write journals to `tests/journals/` that every later version must be able to read.

Only new ones are written. A stored journal is never written again: it stands for what some
user has on disk. A new entry, or a changed one, needs a new scenario in `tools/golden/`.

    python -m tools.make_golden
"""

from pathlib import Path

from tools.golden.facts import facts_of, text_of
from tools.golden.scenarios import SCENARIOS

FOLDER = Path(__file__).parents[1] / "tests" / "journals"


def main() -> None:
    """Write what is not there yet."""
    for name, tell in SCENARIOS.items():
        path = FOLDER / f"{name}.jsonl"
        if path.exists():
            continue
        run = tell()
        path.write_bytes(text_of(run.records))
        path.with_suffix(".facts.json").write_bytes(facts_of(run.records))
        print(f"wrote {path.name}: {len(run.records)} entries, {run.state.phase}")


if __name__ == "__main__":
    main()
