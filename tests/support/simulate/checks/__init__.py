"""What must be true after a schedule: of the journal, the world, and every reply given."""


class Violation(AssertionError):
    """A rule was broken; `rule` is its name in the specification, such as I10 or W3."""

    def __init__(self, rule: str, what: str) -> None:
        super().__init__(rule, what)
        self.rule = rule
        self.text = what

    def __str__(self) -> str:
        return f"{self.rule}: {self.text}"
