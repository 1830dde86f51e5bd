"""Tests that the paths and make targets in docs/contributing.md exist."""

from __future__ import annotations

import re

from tests.sources import ROOT
from tests.test_package_structure import COMPONENTS

PAGE_TEXT = (ROOT / "docs" / "contributing.md").read_text()
EXAMPLE_WORDS = ("announce", "COMPONENT", ".cluster")
"""Parts of paths that need not exist: an example function, a placeholder for a component, the output of `make up`."""
NAMED_PATHS = re.findall(r"`((?:[a-z0-9_.]+/)+[\w.-]*|[\w-]+\.(?:md|toml))`", PAGE_TEXT)
PATHS = sorted({path for path in NAMED_PATHS if not any(word in path for word in EXAMPLE_WORDS)})
TARGETS = sorted(set(re.findall(r"`?make ([a-z][\w-]*)", PAGE_TEXT)))


def test_every_path_in_contributing_page_exists() -> None:
    """Check that each path named in docs/contributing.md exists."""
    assert PATHS
    assert {path for path in PATHS if not (ROOT / path).exists()} == set()


def test_every_make_target_in_contributing_page_exists() -> None:
    """Check that each make target named in docs/contributing.md exists in the Makefile."""
    makefile = (ROOT / "Makefile").read_text()

    assert TARGETS
    assert {name for name in TARGETS if not re.search(rf"^{re.escape(name)}:", makefile, re.MULTILINE)} == set()


def test_contributing_page_names_every_package() -> None:
    """Check that docs/contributing.md names every package of the product, except those of components."""
    packages = {
        path.parent
        for package in ("functions", "eventing", "kube", "console")
        for path in (ROOT / package).rglob("*.py")
    }
    subpackages = {package.relative_to(ROOT).as_posix() for package in packages if package.parent != ROOT}

    components = {f"{parent}/{component}" for parent in ("functions", "kube") for component in COMPONENTS}

    assert {package for package in subpackages if f"`{package}/`" not in PAGE_TEXT} <= components
