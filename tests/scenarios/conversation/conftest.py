"""Fixtures for a store whose journals are verified after each test."""

from tests.unit.runs.conftest import opened, path

__all__ = ["opened", "path"]
