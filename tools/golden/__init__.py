"""Golden journals: the scenarios that make them, and the facts that must not change."""
