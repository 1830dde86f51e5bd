"""Where the code of a step is, for tests that read it."""

from __future__ import annotations

from pathlib import Path

from functions.app import FUNCTIONS

ROOT = Path(__file__).parents[1]


def steps_of(wing: str) -> set[str]:
    """The steps of a wing."""
    return {name for name, function in FUNCTIONS.items() if f".{wing}." in function.step.__module__}


OPT_IN = steps_of("mutex") | steps_of("virtualization") | steps_of("cpu_labels")
"""The steps of the wings that a default install is without."""


def source_of(step: str) -> Path:
    """The module that a step's function stands in."""
    return ROOT / f"{FUNCTIONS[step].step.__module__.replace('.', '/')}.py"


def rights_of(account: str) -> Path:
    """The file with the rights of an account: beside all others, or in the component of its wing."""
    everywhere = ROOT / "manifests" / "base" / "rbac" / f"{account}.yaml"
    if everywhere.exists():
        return everywhere
    (found,) = (ROOT / "manifests" / "components").glob(f"*/rights/{account}.yaml")
    return found


def mirror_of(step: str) -> Path:
    """The module of its tests, which mirrors it."""
    source = source_of(step).relative_to(ROOT)
    return ROOT / "tests" / source.with_name(f"test_{source.name}")
