"""The journal checker under the name that tests import."""

from midrun.verify.checks import Problem
from midrun.verify.journal import check_journal

__all__ = ["Problem", "check_journal"]
