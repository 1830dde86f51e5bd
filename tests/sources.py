"""Locations of the source files of steps, for tests that read them."""

from __future__ import annotations

from pathlib import Path

from functions.app import FUNCTIONS

ROOT = Path(__file__).parents[1]


def steps_of(wing: str) -> set[str]:
    """Return the names of a component's steps."""
    return {name for name, function in FUNCTIONS.items() if f".{wing}." in function.step.__module__}


OPT_IN = steps_of("mutex") | steps_of("virtualization") | steps_of("cpu_labels")
"""The steps of the components that a default install does not contain."""


def source_of(step: str) -> Path:
    """Return the path of the module that contains a step's function."""
    return ROOT / f"{FUNCTIONS[step].step.__module__.replace('.', '/')}.py"


def rights_of(account: str) -> Path:
    """Return the path of an account's RBAC manifest, in the base or in the account's component."""
    everywhere = ROOT / "manifests" / "base" / "rbac" / f"{account}.yaml"
    if everywhere.exists():
        return everywhere
    (found,) = (ROOT / "manifests" / "components").glob(f"*/rights/{account}.yaml")
    return found


def mirror_of(step: str) -> Path:
    """Return the path of the test module of a step."""
    source = source_of(step).relative_to(ROOT)
    return ROOT / "tests" / source.with_name(f"test_{source.name}")
