"""Fixtures with git repositories in which tests release versions."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from release.repository import run_git
from release.versions import ROOT

CHANGELOG = """\
# Changelog

## 1.2.3 - not released yet

- A node is drained faster.

## 1.2.2 - 2026-01-31

## 1.2.1 - 2026-01-30

- The first release.
"""
GENERATOR = """\
from pathlib import Path

for name in ("bundle/manifests/a.yaml", "catalog/c.yaml", "bundle.Dockerfile", "deploy/olm.yaml"):
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).write_text(Path("pyproject.toml").read_text())
"""
"""A replacement for the module that generates OLM's files from the manifests."""


def commit_files(repository: Path) -> None:
    """Create a git repository from all files in a directory, with one commit on the branch `main`."""
    run_git(repository, "init", "--quiet", "--initial-branch=main")
    run_git(repository, "config", "user.name", "Maintainer")
    run_git(repository, "config", "user.email", "maintainer@example.com")
    run_git(repository, "add", "--all")
    run_git(repository, "commit", "--quiet", "--message", "Begin")


@pytest.fixture
def small_repository(tmp_path: Path) -> Path:
    """Create a repository with only the files that a release changes."""
    repository = tmp_path / "repository"
    (repository / "release").mkdir(parents=True)
    (repository / "pyproject.toml").write_text('[project]\nname = "p"\nversion = "1.2.2" # kept\n')
    (repository / "CHANGELOG.md").write_text(CHANGELOG)
    (repository / ".gitignore").write_text("/build/\n__pycache__/\n")
    (repository / "release" / "__init__.py").touch()
    (repository / "release" / "olm.py").write_text(GENERATOR)
    chart = repository / "charts" / "drain"
    chart.mkdir(parents=True)
    (chart / "Chart.yaml").write_text("apiVersion: v2\nname: drain\nversion: 1.2.2\nappVersion: 1.2.2\n")
    commit_files(repository)
    return repository


@pytest.fixture
def project_repository(tmp_path: Path) -> Path:
    """Create a repository with this project's files, and with a section for version 9.8.7 in its changelog."""
    repository = tmp_path / "project"
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = (
        subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.rstrip("\0").split("\0")
    )
    for name in names:
        if (ROOT / name).is_file() and not name.startswith(("tests/", "docs/screenshots/")):
            (repository / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, repository / name)
    changelog = repository / "CHANGELOG.md"
    section = "## 9.8.7 - not released yet\n\n- A node is drained faster.\n\n"
    changelog.write_text(changelog.read_text().replace("## ", f"{section}## ", 1))
    commit_files(repository)
    return repository
