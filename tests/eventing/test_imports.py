"""What a function's process loads: nothing that only the journal's database or the command line needs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.sources import ROOT
from tests.test_layout import ROOMS, imported

LOADED = "import sys, functions.app; print(*sorted(sys.modules))"


def loaded() -> set[str]:
    """The modules of a fresh interpreter that has imported the functions."""
    done = subprocess.run([sys.executable, "-c", LOADED], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def source_of(module: str) -> Path:
    path = ROOT / module.replace(".", "/")
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def test_functions_load_neither_the_database_nor_the_command_line() -> None:
    """A function starts in less than a second: SQLAlchemy alone would take half of that. Flask itself loads click."""
    modules = loaded()
    ours = {module for module in modules if module.split(".")[0] in ROOMS}

    assert {"functions.app", "functions.record", "eventing.journal.entries", "eventing.deadletters"} <= ours
    assert {module.split(".")[0] for module in modules} & {"sqlalchemy", "rich", "psycopg", "isodate"} == set()
    assert [module for module in sorted(ours) if imported(source_of(module)) & {"click", "rich"}] == []
    assert {module for module in ours if module.startswith(("eventing.local", "eventing.replay", "console"))} == set()
