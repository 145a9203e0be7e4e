"""Exit codes: where a run stands, as a shell reads it; `midrun --help` lists them."""

from typing import Final

CODES: Final = {"completed": 0, "failed": 1, "cancelled": 3}
"""Phase in which a run goes no further by itself → exit code."""

PAUSED: Final = 75
"""In any other: it can go on later. EX_TEMPFAIL, as sysexits.h has it."""
