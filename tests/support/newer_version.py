"""A newer version of the package, with one more migration, for tests of upgrades."""

import shutil
from pathlib import Path
from typing import Final

import midrun
from midrun.stores.postgres.setup import load_migrations

NEWER_VERSION: Final = load_migrations()[-1][0] + 1
"""The version of its schema."""


def make_newer_version(folder: Path) -> Path:
    """Copy the package, with one more migration that only adds a column."""
    package = Path(midrun.__file__).parent
    ignored = shutil.ignore_patterns("__pycache__", "static")
    shutil.copytree(package, folder / "midrun", ignore=ignored)
    migrations = folder / "midrun" / "stores" / "postgres" / "migrations"
    text = "ALTER TABLE midrun_runs ADD COLUMN region text NOT NULL DEFAULT '';\n"
    (migrations / f"{NEWER_VERSION:04}_region.sql").write_text(text)
    return folder
