"""The runs of these tests are kept and verified as those of the runtime's own tests."""

from tests.unit.runs.conftest import opened, path

__all__ = ["opened", "path"]
