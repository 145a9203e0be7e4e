"""The stage, and the use of a tool, as tests of the runtime name them."""

from midrun.models import Use
from midrun.testing.controllable_tools import ControllableTools

__all__ = ["ControllableTools", "Use"]
