"""The whole suite, in one class to inherit from."""

from midrun.testing.run_suite.asks import Asking
from midrun.testing.run_suite.controls import Steering
from midrun.testing.run_suite.conversation import Thinking
from midrun.testing.run_suite.decisions import Deciding
from midrun.testing.run_suite.views import Looking


class RunSuite(Steering, Deciding, Thinking, Looking, Asking):
    """Everything that `Midrun` and `Run` promise. Give an `opened` fixture."""
