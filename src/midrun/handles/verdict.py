"""Verdicts of `verify`: whether a stored journal keeps the promises."""

from midrun.core.ids import Micros, RunId, Seq
from midrun.core.values import Value
from midrun.verify.problems import Problem


class Import(Value, kw_only=True):
    """Entries 1 to `upto` came with a checkpoint: this store did not write them."""

    upto: Seq
    checkpoint: RunId  # the run that the checkpoint is of
    head: str  # the hash of entry `upto` in a chain without a key
    by: str
    at: Micros
    kid: str = ""  # the key that signed the checkpoint; empty: it was not signed

    def __str__(self) -> str:
        entries = "entry 1 was" if self.upto == 1 else f"entries 1-{self.upto} were"
        rests = (
            f"their authenticity rests on the checkpoint's signature (key {self.kid})"
            if self.kid
            else "the checkpoint was not signed, so nothing shows that they are authentic"
        )
        return f"{entries} imported from run {self.checkpoint} by {self.by}; {rests}"


class Verdict(Value, kw_only=True):
    """The problems that were found; truthy when there are none.

    A clean journal may have been imported: `imported` says which entries this store only
    copied, and by whom.
    """

    run_id: RunId
    entries: int
    problems: tuple[Problem, ...] = ()
    imported: Import | None = None

    def __bool__(self) -> bool:
        return not self.problems

    def __str__(self) -> str:
        lines = [f"  {problem}" for problem in self.problems]
        if self.imported is not None:
            lines.append(f"  {self.imported}")
        many = f"{len(self.problems)} problems in {self.entries}"
        first = many if self.problems else f"{self.entries} entries, clean"
        return "\n".join([f"run {self.run_id}: {first}", *lines])
