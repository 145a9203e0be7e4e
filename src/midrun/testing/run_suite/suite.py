"""The whole run suite as one class."""

from midrun.testing.run_suite.asks import Asking
from midrun.testing.run_suite.controls import Steering
from midrun.testing.run_suite.conversation import Thinking
from midrun.testing.run_suite.decisions import Deciding
from midrun.testing.run_suite.views import Looking


class RunSuite(Steering, Deciding, Thinking, Looking, Asking):
    """The contract of `Midrun` and `Run`. Override the `opened` fixture."""
