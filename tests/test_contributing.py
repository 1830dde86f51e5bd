"""The paths and make targets that docs/contributing.md names exist."""

from __future__ import annotations

import re

import pytest

from tests.sources import ROOT
from tests.test_package_structure import COMPONENTS

PAGE_TEXT = (ROOT / "docs" / "contributing.md").read_text()
EXAMPLE_WORDS = ("stamp", "COMPONENT", ".cluster")
"""Words in paths that need not exist: an example step, a placeholder for a component, and the output of `make up`."""
NAMED_PATHS = re.findall(r"`((?:[a-z0-9_.]+/)+[\w.-]*|[\w-]+\.(?:md|toml))`", PAGE_TEXT)
PATHS = sorted({path for path in NAMED_PATHS if not any(word in path for word in EXAMPLE_WORDS)})
TARGETS = sorted(set(re.findall(r"`?make ([a-z][\w-]*)", PAGE_TEXT)))


@pytest.mark.parametrize("path", PATHS)
def test_path_named_by_page_exists(path: str) -> None:
    """Check that each path that docs/contributing.md names exists."""
    assert (ROOT / path).exists()


@pytest.mark.parametrize("target", TARGETS)
def test_make_target_named_by_page_exists(target: str) -> None:
    """Check that each make target that docs/contributing.md names exists in the Makefile."""
    assert re.search(rf"^{re.escape(target)}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


def test_page_names_every_package() -> None:
    """docs/contributing.md names every package of the product, except those of the components."""
    folders = {
        path.parent
        for package in ("functions", "eventing", "kube", "console")
        for path in (ROOT / package).rglob("*.py")
    }
    subfolders = {folder.relative_to(ROOT).as_posix() for folder in folders if folder.parent != ROOT}

    components = {f"{parent}/{component}" for parent in ("functions", "kube") for component in COMPONENTS}

    assert {folder for folder in subfolders if f"`{folder}/`" not in PAGE_TEXT} <= components
