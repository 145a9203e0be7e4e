"""Function lookup in the zygote: import modules and find functions by "module:qualname".

The function may live in `__main__`, the script that started the worker. The zygote loads that
file under another name, so that its `if __name__ == "__main__":` part does not run.
"""

import gc
import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Final

from midrun.agents.tool_environment import DECLARE_HINT, is_missing_variable
from midrun.codec.safe_repr import safe_str
from midrun.errors import Misconfigured

# A script that runs its agent at the top level, without that guard, would do so again when the
# zygote loads it, and that run would start a zygote in turn. So the zygote marks here that it
# is importing, and every worker checks the mark before it starts anything.

MAIN_GUARD_ADVICE: Final = "put the part that runs the agent under if __name__ == '__main__':"

_modules_being_imported: list[str] = []


@contextmanager
def mark_importing(module: str) -> Iterator[None]:
    """Mark `module` as being imported for its tools."""
    _modules_being_imported.append(module)
    try:
        yield
    finally:
        _modules_being_imported.pop()


def refuse_while_importing() -> None:
    """Refuse to start a worker while this process imports tools.

    Raises:
        Misconfigured: this process is a zygote, and a module that it imports starts a worker.
    """
    if _modules_being_imported:
        raise Misconfigured(
            f"module {_modules_being_imported[-1]}",
            f"it starts a runtime while its tools are being imported; {MAIN_GUARD_ADVICE}",
        )


MAIN_ALIAS: Final = "__midrun_main__"
"""The name under which the worker's main file is loaded in the zygote.

It differs from `__main__`, so that the part of the file that runs the agent is skipped.
"""


class FunctionNotFound(Exception):
    """The function does not exist here; `kind` and `message` tell its author why."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(kind, message)
        self.kind = kind
        self.message = message


class FunctionLookup:
    """Finds functions in the modules of one zygote.

    Each module is imported once; one that failed is not tried again. `main_name` is the name of
    the worker's main module if it was started by `python -m`, `main_path` is its file. Both are
    empty if it has none, as in an interactive session.
    """

    def __init__(self, main_name: str = "", main_path: str = "") -> None:
        self._main_name = main_name
        self._main_path = main_path
        self._modules: dict[str, ModuleType | FunctionNotFound] = {}

    def is_imported(self, target: str) -> bool:
        """Tell whether `find_function` need not import anything for `target`."""
        return target.partition(":")[0] in self._modules

    def find_function(self, target: str) -> object:
        """Return the object that `target` names; import its module first if needed.

        Raises:
            FunctionNotFound: the module does not exist, cannot be imported, or lacks the name.
        """
        name, _, path = target.partition(":")
        if name not in self._modules:
            self._modules[name] = self._import_module(name)
        found: object = self._modules[name]
        if isinstance(found, FunctionNotFound):
            raise FunctionNotFound(found.kind, found.message)
        for part in path.split("."):
            try:
                found = getattr(found, part)
            except AttributeError:
                raise FunctionNotFound("AttributeError", f"{name} has no {path}") from None
        return found

    def _import_module(self, name: str) -> ModuleType | FunctionNotFound:
        try:
            with mark_importing(name):
                return (
                    self._load_main() if name == "__main__" else importlib.import_module(name)
                )
        except BaseException as error:  # noqa: BLE001 - a module may raise whatever it likes
            while isinstance(error, BaseExceptionGroup):  # a worker raises in a task group
                error = error.exceptions[0]
            why = f"{type(error).__name__}: {safe_str(error)}"
            problem = f"the process for blocking tools cannot import {name}: {why}"
            return FunctionNotFound(
                "ImportError", problem + _make_import_remedy(name, error, why)
            )
        finally:
            # All children share the memory pages of the zygote until they write to them. The
            # garbage collector writes to every object that it visits: freeze those that exist.
            gc.collect()
            gc.freeze()

    def _load_main(self) -> ModuleType:
        if not self._main_path:
            raise ImportError("the main module has no file")
        import runpy  # noqa: PLC0415 - most zygotes never load a main file

        if self._main_name:
            names = runpy.run_module(self._main_name, run_name=MAIN_ALIAS, alter_sys=True)
        else:
            names = runpy.run_path(self._main_path, run_name=MAIN_ALIAS)
        module = ModuleType(MAIN_ALIAS)
        vars(module).update(names)
        sys.modules["__main__"] = sys.modules[MAIN_ALIAS] = module
        return module


def _make_import_remedy(name: str, error: BaseException, why: str) -> str:
    """Return the remedy for a failed import, to be appended; "" if `why` has it already."""
    if is_missing_variable(error):
        return f". {DECLARE_HINT}"
    if MAIN_GUARD_ADVICE in why or isinstance(error, ImportError):
        return ""
    # The worker could import the module. So either its guard is missing, and it did something
    # that fails here; or it needs a variable that is not declared for the zygote.
    return f"; {MAIN_GUARD_ADVICE}" if name == "__main__" else f". {DECLARE_HINT}"


def get_main_module() -> tuple[str, str]:
    """Return the name and file of this process's main module, for `FunctionLookup`."""
    module = sys.modules.get("__main__")
    spec = getattr(module, "__spec__", None)
    return getattr(spec, "name", "") or "", getattr(module, "__file__", "") or ""
