"""Paths and syntax trees of the functions' source files, for tests that read them."""

from __future__ import annotations

import ast
import gc
from pathlib import Path

from functions.app import FUNCTIONS

ROOT = Path(__file__).parents[1]


def list_steps(component: str) -> set[str]:
    """Return the names of the functions that belong to a component."""
    return {name for name, function in FUNCTIONS.items() if f".{component}." in function.step.__module__}


OPT_IN_PACKAGES = ("mutex", "virtualization", "cpu_labels", "node_conditions", "notifications")
OPT_IN_STEPS = {step for package in OPT_IN_PACKAGES for step in list_steps(package)}
"""The names of the functions in components that a default install does not include."""


def get_source_path(step: str) -> Path:
    """Return the path of the module that contains this function."""
    return ROOT / f"{FUNCTIONS[step].step.__module__.replace('.', '/')}.py"


def get_rbac_path(account: str) -> Path:
    """Return the path of the ServiceAccount's RBAC manifest, in the base or in the account's component."""
    base_path = ROOT / "manifests" / "base" / "rbac" / f"{account}.yaml"
    if base_path.exists():
        return base_path
    (path,) = (ROOT / "manifests" / "components").glob(f"*/rights/{account}.yaml")
    return path


def get_test_path(step: str) -> Path:
    """Return the path of the function's test module."""
    source = get_source_path(step).relative_to(ROOT)
    return ROOT / "tests" / source.with_name(f"test_{source.name}")


def parse_source(path: Path) -> ast.Module:
    """Parse a Python file.

    The garbage collector is disabled during the parsing. Otherwise, its callbacks (Hypothesis has one) could let
    another thread format a traceback, which also parses source code, and CPython 3.11 would raise `SystemError`.
    """
    source = path.read_text()
    gc.disable()
    try:
        return ast.parse(source)
    finally:
        gc.enable()
