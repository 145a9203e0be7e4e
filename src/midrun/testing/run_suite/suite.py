"""The whole suite, in one class to inherit from."""

from midrun.testing.run_suite.asking import Asking
from midrun.testing.run_suite.deciding import Deciding
from midrun.testing.run_suite.looking import Looking
from midrun.testing.run_suite.steering import Steering
from midrun.testing.run_suite.thinking import Thinking


class RunSuite(Steering, Deciding, Thinking, Looking, Asking):
    """Everything that `Midrun` and `Run` promise. Give an `opened` fixture."""
