"""Where the project is, for tests that start processes in it."""

from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
JOURNALS: Final = ROOT / "tests" / "journals"
