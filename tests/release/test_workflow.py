"""Tests that the workflow that publishes a release is valid, and that its commands exist."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from localcluster.programs import build
from release.versions import ROOT
from tests.proofs import proves

WORKFLOW = ROOT / ".github" / "workflows" / "release.yaml"


def run_actionlint(file: Path) -> subprocess.CompletedProcess[str]:
    """Run actionlint, which knows the workflow schema and the types of all expressions, without other linters."""
    program = build.ensure_programs(build.ACTIONLINT) / "actionlint"
    command = [str(program), "-no-color", "-shellcheck=", "-pyflakes=", str(file)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def workflow() -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load(WORKFLOW.read_text())
    return document


def list_scripts(workflow: dict[str, Any]) -> list[str]:
    return [step["run"] for job in workflow["jobs"].values() for step in job["steps"] if "run" in step]


@pytest.mark.distribution
@proves("NMO-26")
def test_actionlint_accepts_workflow() -> None:
    """NMO-26: actionlint reports no error in the workflow that publishes a release."""
    result = run_actionlint(WORKFLOW)

    assert (result.returncode, result.stdout) == (0, "")


@pytest.mark.distribution
@pytest.mark.parametrize(
    ("text", "replacement", "message"),
    [
        ("runs-on: ubuntu-24.04", "run-on: ubuntu-24.04", '"runs-on" section is missing in job "image"'),
        ("github.ref_type == 'tag'", "github.reftype == 'tag'", 'property "reftype" is not defined'),
        ("timeout-minutes: 30", "timeout-minutes: long", "or float number literal"),
    ],
)
def test_actionlint_rejects_invalid_workflow(tmp_path: Path, text: str, replacement: str, message: str) -> None:
    """Check that actionlint finds unknown keys, names and values, so that the test of the real workflow can fail."""
    file = tmp_path / "release.yaml"
    file.write_text(WORKFLOW.read_text().replace(text, replacement))

    result = run_actionlint(file)

    assert result.returncode == 1
    assert message in result.stdout


def test_workflow_scripts_are_valid_bash(workflow: dict[str, Any]) -> None:
    """Check the syntax of each script with bash, the runner's shell."""
    for script in list_scripts(workflow):
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)


def test_workflow_runs_existing_make_targets(workflow: dict[str, Any]) -> None:
    """Check that each make target in the workflow exists."""
    targets = set(re.findall(r"\bmake ([a-z-]+)", "\n".join(list_scripts(workflow))))

    assert targets == {"image", "release-files", "container-push"}
    makefile = (ROOT / "Makefile").read_text()
    defined = {name for line in re.findall(r"^([a-z0-9 -]+):", makefile, re.MULTILINE) for name in line.split()}
    assert targets <= defined


@proves("NMO-26")
def test_branches_and_tags_are_published(workflow: dict[str, Any]) -> None:
    """NMO-26: images are published for each commit on main and on release branches, and for each tag."""
    # YAML 1.1 parses the key `on` as a boolean.
    trigger = {str(key): value for key, value in workflow.items()}["True"]["push"]

    assert trigger == {"branches": ["main", "release-0.*"], "tags": ["v*"]}
    assert workflow["jobs"]["image"]["if"] == "github.ref_type == 'branch'"
    assert workflow["jobs"]["release"]["if"] == "github.ref_type == 'tag'"
