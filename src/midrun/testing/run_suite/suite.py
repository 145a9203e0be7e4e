"""The whole run suite as one class."""

from midrun.testing.run_suite.asks import ControlRequestTests
from midrun.testing.run_suite.controls import ControlTests
from midrun.testing.run_suite.conversation import ConversationTests
from midrun.testing.run_suite.decisions import DecisionTests
from midrun.testing.run_suite.deletion import DeleteTests
from midrun.testing.run_suite.files import FileHandleTests
from midrun.testing.run_suite.views import ViewTests


class RunSuite(
    ControlTests,
    DecisionTests,
    ConversationTests,
    FileHandleTests,
    ViewTests,
    ControlRequestTests,
    DeleteTests,
):
    """The contract of `Midrun` and `Run`. Override the `opened` fixture."""
