"""Handles: what a program holds of runs, here or over HTTP, and what it gets back."""
