"""Midrun: pause, redirect, resume and cancel for Python agents that are already running."""

__all__: list[str] = []
