"""Imports a package lazily: its `__init__` runs on the first access to one of its names."""

from __future__ import annotations

import sys
import threading
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import Any

LOAD_LOCK = threading.RLock()
"""Lock that allows only one package to load at a time, so that concurrent accesses find it completely loaded."""


def defer_import(package: str) -> None:
    """Register `package` as imported without running its `__init__`, so that its submodules can be imported alone.

    Its `__init__` runs on the first access to a missing attribute (PEP 562). A package that is already imported is not
    changed. Raises `ModuleNotFoundError` if the package is not installed.
    """
    if package in sys.modules:
        return
    spec = find_spec(package)
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError(f"No module named {package!r}", name=package)
    module = module_from_spec(spec)
    vars(module)["__getattr__"] = _LazyLoader(module)
    parent, _, name = package.rpartition(".")
    if parent:
        setattr(sys.modules[parent], name, module)
    sys.modules[package] = module


class _LazyLoader:
    """The `__getattr__` function of a lazily imported package."""

    def __init__(self, module: ModuleType) -> None:
        self._module, self._is_loaded = module, False

    def __call__(self, name: str) -> Any:
        """Run the package's code once, and return its attribute `name`.

        Raises `AttributeError` if the package has no such attribute.
        """
        module, spec = self._module, self._module.__spec__
        with LOAD_LOCK:
            if not self._is_loaded and spec and spec.loader:
                self._is_loaded = True  # set first, because `exec_module` may access the module's attributes
                try:
                    spec.loader.exec_module(module)
                except BaseException:
                    self._is_loaded = False
                    raise
        if name in vars(module):
            return vars(module)[name]
        raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")
