"""A newer version of the package, with one more migration, for tests of upgrades."""

import shutil
from pathlib import Path
from typing import Final

import midrun
from midrun.stores.migrations import load_migrations

MIGRATIONS: Final = {
    "postgres": "ALTER TABLE midrun_runs ADD COLUMN region text NOT NULL DEFAULT '';\n",
    "sqlite": "ALTER TABLE runs ADD COLUMN region TEXT NOT NULL DEFAULT '';\n",
}
"""Of each store, one more migration, which only adds a column."""


def make_newer_version(folder: Path) -> Path:
    """Copy the package, with one more migration of each store."""
    package = Path(midrun.__file__).parent
    ignored = shutil.ignore_patterns("__pycache__", "static")
    shutil.copytree(package, folder / "midrun", ignore=ignored)
    for store, text in MIGRATIONS.items():
        migrations = folder / "midrun" / "stores" / store / "migrations"
        (migrations / f"{find_newer_version(store):04}_region.sql").write_text(text)
    return folder


def find_newer_version(store: str) -> int:
    """Return the version of the schema after that migration."""
    return load_migrations(f"midrun.stores.{store}")[-1][0] + 1
