"""What tests of thought share: the stores of the runtime's tests, verified afterwards."""

from tests.unit.runs.conftest import opened, path

__all__ = ["opened", "path"]
