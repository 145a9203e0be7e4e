"""Paths of the project, for tests that start processes or read files."""

import os
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
JOURNALS: Final = ROOT / "tests" / "journals"

PATH_WITH_MIDRUN: Final = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
"""A search path with this `midrun`, so that hints contain the short name."""
