"""The journal checker, where tests look for it."""

from midrun.verify.journal import check_journal
from midrun.verify.problems import Problem

__all__ = ["Problem", "check_journal"]
