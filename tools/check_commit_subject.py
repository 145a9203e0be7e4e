"""Refuse a commit whose subject is empty, too long or ends with a period.

Git's `commit-msg` hook passes the file that holds the message: `make hooks` installs it.
"""

import sys
from pathlib import Path
from typing import Final

SUBJECT_MAX_CHARACTERS: Final = 72


def subject_fault(message: str) -> str | None:
    """Return the fault of a commit message's subject, or None."""
    lines = [line for line in message.splitlines() if not line.startswith("#")]
    subject = lines[0].strip() if lines else ""
    if not subject:
        return "Cannot commit: the subject is empty. Write an imperative sentence."
    if len(subject) > SUBJECT_MAX_CHARACTERS:
        return (
            f"Cannot commit: the subject has {len(subject)} characters, at most "
            f"{SUBJECT_MAX_CHARACTERS} are allowed. Move the details into the body."
        )
    if subject.endswith("."):
        return "Cannot commit: the subject ends with a period. Remove it."
    if len(lines) > 1 and lines[1].strip():
        return "Cannot commit: the line after the subject is not empty. Leave it blank."
    return None


if __name__ == "__main__":
    if fault := subject_fault(Path(sys.argv[1]).read_text(encoding="utf-8")):
        sys.exit(fault)
