"""Where the code of a step is, for tests that read it."""

from __future__ import annotations

from pathlib import Path

from functions.app import FUNCTIONS

ROOT = Path(__file__).parents[1]


def source_of(step: str) -> Path:
    """The module that a step's function stands in."""
    return ROOT / f"{FUNCTIONS[step].step.__module__.replace('.', '/')}.py"


def mirror_of(step: str) -> Path:
    """The module of its tests, which mirrors it."""
    source = source_of(step).relative_to(ROOT)
    return ROOT / "tests" / source.with_name(f"test_{source.name}")
