"""The journal checker, where tests look for it."""

from midrun.verify.checks import Problem
from midrun.verify.journal import check_journal

__all__ = ["Problem", "check_journal"]
