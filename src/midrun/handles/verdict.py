"""Verdicts of `verify`: whether a stored journal keeps the promises."""

from midrun.core.ids import RunId
from midrun.core.values import Value
from midrun.verify.problems import Problem


class Verdict(Value, kw_only=True):
    """What was found; truthy when nothing was."""

    run_id: RunId
    entries: int
    problems: tuple[Problem, ...] = ()

    def __bool__(self) -> bool:
        return not self.problems

    def __str__(self) -> str:
        if not self.problems:
            return f"run {self.run_id}: {self.entries} entries, clean"
        found = "\n".join(f"  {problem}" for problem in self.problems)
        return f"run {self.run_id}: {len(self.problems)} problems in {self.entries}\n{found}"
