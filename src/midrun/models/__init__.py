"""Models: `ScriptedModel` for tests and demos, and those of providers, by name.

Importing this imports no provider's package.
"""

from midrun.models.registry import model_named, model_of
from midrun.models.scripted import ScriptedModel, Use

__all__ = ["ScriptedModel", "Use", "model_named", "model_of"]
