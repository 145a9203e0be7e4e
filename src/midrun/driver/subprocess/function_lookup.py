"""Finding functions by name in the zygote: "module:qualname", `__main__` included."""

import gc
import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Final

from midrun.agents.tool_environment import DECLARE, is_missing_variable
from midrun.codec.safe_repr import safe_str
from midrun.errors import Misconfigured

# Whether this process is a zygote in the middle of importing what a user wrote.
#
# A script that runs its agent at the top level would do so again when the zygote loads it to
# find the tools in it, and that run would start a zygote in turn. So a runtime looks here
# first.

GUARD: Final = "put the part that runs the agent under if __name__ == '__main__':"

_imports: list[str] = []


@contextmanager
def importing(module: str) -> Iterator[None]:
    """Mark that `module` is being imported for its tools."""
    _imports.append(module)
    try:
        yield
    finally:
        _imports.pop()


def refuse_while_importing() -> None:
    """Let no runtime start here and now.

    Raises:
        Misconfigured: this is a zygote, and it only wanted to import tools.
    """
    if _imports:
        raise Misconfigured(
            f"module {_imports[-1]}",
            f"it starts a runtime while its tools are being imported; {GUARD}",
        )


MAIN: Final = "__midrun_main__"
"""The name the runtime's main file is loaded under: anything but `__main__`, so that the part
of it that runs the agent is left alone."""


class CannotFind(Exception):
    """There is no such function in this process; the texts are for whoever wrote it."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(kind, message)
        self.kind = kind
        self.message = message


class Places:
    """The modules of one zygote. Each is imported once; one that failed is not tried again.

    `main_name` is what the runtime's main module was called after `python -m`, `main_path` its
    file; both are empty where it has none, as in an interactive session.
    """

    def __init__(self, main_name: str = "", main_path: str = "") -> None:
        self._main_name = main_name
        self._main_path = main_path
        self._modules: dict[str, ModuleType | CannotFind] = {}

    def knows(self, target: str) -> bool:
        """Tell whether `find` would answer at once, without importing anything."""
        return target.partition(":")[0] in self._modules

    def find(self, target: str) -> object:
        """Return what `target` names, and import its module if that is new.

        Raises:
            CannotFind: there is no such module, it cannot be imported, or it lacks the name.
        """
        name, _, path = target.partition(":")
        if name not in self._modules:
            self._modules[name] = self._imported(name)
        found: object = self._modules[name]
        if isinstance(found, CannotFind):
            raise CannotFind(found.kind, found.message)
        for part in path.split("."):
            try:
                found = getattr(found, part)
            except AttributeError:
                raise CannotFind("AttributeError", f"{name} has no {path}") from None
        return found

    def _imported(self, name: str) -> ModuleType | CannotFind:
        try:
            with importing(name):
                return self._main() if name == "__main__" else importlib.import_module(name)
        except BaseException as error:  # noqa: BLE001 - a module may raise whatever it likes
            while isinstance(error, BaseExceptionGroup):  # a runtime raises in a task group
                error = error.exceptions[0]
            why = f"{type(error).__name__}: {safe_str(error)}"
            problem = f"the process for blocking tools cannot import {name}: {why}"
            return CannotFind("ImportError", problem + _advice(name, error, why))
        finally:
            # What is here now is shared by all children; a collection would unshare its pages.
            gc.collect()
            gc.freeze()

    def _main(self) -> ModuleType:
        if not self._main_path:
            raise ImportError("the main module has no file")
        import runpy  # noqa: PLC0415 - most zygotes never load a main file

        if self._main_name:
            names = runpy.run_module(self._main_name, run_name=MAIN, alter_sys=True)
        else:
            names = runpy.run_path(self._main_path, run_name=MAIN)
        module = ModuleType(MAIN)
        vars(module).update(names)
        sys.modules["__main__"] = sys.modules[MAIN] = module
        return module


def _advice(name: str, error: BaseException, why: str) -> str:
    """Return the remedy for a module that cannot be imported, unless `why` names it."""
    if is_missing_variable(error):
        return f". {DECLARE}"
    if GUARD in why or isinstance(error, ImportError):
        return ""
    # The app could import it: so it lacks its guard, or a variable that a library asks for.
    return f"; {GUARD}" if name == "__main__" else f". {DECLARE}"


def main_module() -> tuple[str, str]:
    """Return name and file of this process's main module, as `Places` wants them."""
    module = sys.modules.get("__main__")
    spec = getattr(module, "__spec__", None)
    return getattr(spec, "name", "") or "", getattr(module, "__file__", "") or ""
