"""Puts off what importing a package costs: its `__init__` runs when somebody first asks it for a name."""

from __future__ import annotations

import sys
import threading
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import Any

FILLING = threading.RLock()
"""One package is filled at a time; what asks for a name meanwhile waits, and finds it."""


def postpone(package: str) -> None:
    """Have `package` imported, but for its own code: modules below it can be imported, and nothing else is.

    Its code runs at the first name that is asked of it and is not there (PEP 562), so that it lacks nothing. A package
    that is imported already stays as it is. Raises `ModuleNotFoundError` when it is not installed.
    """
    if package in sys.modules:
        return
    spec = find_spec(package)
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError(f"No module named {package!r}", name=package)
    module = module_from_spec(spec)
    vars(module)["__getattr__"] = _Filling(module)
    above, _, name = package.rpartition(".")
    if above:
        setattr(sys.modules[above], name, module)
    sys.modules[package] = module


class _Filling:
    """The `__getattr__` of a module whose code has not run yet."""

    def __init__(self, module: ModuleType) -> None:
        self._module, self._begun = module, False

    def __call__(self, name: str) -> Any:
        """Run the code, once, and give what the name then stands for; `AttributeError` where it is nothing."""
        module, spec = self._module, self._module.__spec__
        with FILLING:
            if not self._begun and spec and spec.loader:
                self._begun = True  # before it runs, since it may look at itself
                try:
                    spec.loader.exec_module(module)
                except BaseException:
                    self._begun = False
                    raise
        if name in vars(module):
            return vars(module)[name]
        raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")
