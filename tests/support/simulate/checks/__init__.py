"""Checks of a schedule: of its journal, of the world, and of all replies to controls."""


class Violation(AssertionError):
    """A rule was broken; `rule` is its name in the specification, such as I10 or W3."""

    def __init__(self, rule: str, text: str) -> None:
        super().__init__(rule, text)
        self.rule = rule
        self.text = text

    def __str__(self) -> str:
        return f"{self.rule}: {self.text}"
