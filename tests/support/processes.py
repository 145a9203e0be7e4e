"""Paths of the project, for tests that start processes or read files."""

from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
JOURNALS: Final = ROOT / "tests" / "journals"
