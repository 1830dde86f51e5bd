"""The paths and make targets that docs/contributing.md names exist."""

from __future__ import annotations

import re

import pytest

from tests.sources import ROOT
from tests.test_package_structure import WINGS

PAGE = (ROOT / "docs" / "contributing.md").read_text()
EXAMPLES = ("stamp", "WING", ".cluster")
"""Words in paths that need not exist: an example step, a placeholder for a component, and the output of `make up`."""
NAMED = re.findall(r"`((?:[a-z0-9_.]+/)+[\w.-]*|[\w-]+\.(?:md|toml))`", PAGE)
PATHS = sorted({path for path in NAMED if not any(word in path for word in EXAMPLES)})
TARGETS = sorted(set(re.findall(r"`?make ([a-z][\w-]*)", PAGE)))


@pytest.mark.parametrize("path", PATHS)
def test_a_path_that_the_page_names_is_there(path: str) -> None:
    """Check that each path that docs/contributing.md names exists."""
    assert (ROOT / path).exists()


@pytest.mark.parametrize("target", TARGETS)
def test_a_target_that_the_page_names_is_there(target: str) -> None:
    """Check that each make target that docs/contributing.md names exists in the Makefile."""
    assert re.search(rf"^{re.escape(target)}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


def test_the_page_names_every_room() -> None:
    """docs/contributing.md names every package of the product, except those of the components."""
    folders = {
        path.parent for room in ("functions", "eventing", "kube", "console") for path in (ROOT / room).rglob("*.py")
    }
    inner = {folder.relative_to(ROOT).as_posix() for folder in folders if folder.parent != ROOT}

    wings = {f"{room}/{wing}" for room in ("functions", "kube") for wing in WINGS}

    assert {folder for folder in inner if f"`{folder}/`" not in PAGE} <= wings
