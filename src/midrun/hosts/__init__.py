"""Hosts: agents of other frameworks, and plain functions, with Midrun's controls."""

from midrun.hosts.function import FunctionRun, ModelUsage, function

__all__ = ["FunctionRun", "ModelUsage", "function"]
