"""Models: all providers of pydantic-ai, and `ScriptedModel` for tests and demos.

A model implements the port `midrun.ports.model.Model`: given a `Prompt` (instructions,
transcript, tools) it streams pieces and ends with one `Finished`, which has the complete reply
and the tokens it used. `registry.py` finds a model by name. `ProviderModel` (`provider.py`)
wraps a model of pydantic-ai and computes costs: `messages.py` converts the transcript to its
messages, and its stream to pieces and a reply.

Invariants: a reply counts only if the provider said that it is complete; a wait and a reply
have upper bounds; a model never retries by itself, because retries are journaled by the worker.
Importing this package imports no provider's package. Start reading at `ProviderModel.stream`.
"""

from midrun.core.values import ModelSettings
from midrun.models.registry import model_named, model_of
from midrun.models.scripted import ScriptedModel, Use

__all__ = ["ModelSettings", "ScriptedModel", "Use", "model_named", "model_of"]
