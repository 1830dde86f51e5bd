"""Tests that the commands and statements of the README and the tutorial are true."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import yaml

from localcluster.programs import build
from tests.chain.environment import EventChainEnvironment

ROOT = Path(__file__).parents[2]
README_TEXT = (ROOT / "README.md").read_text()
TUTORIAL = (ROOT / "docs" / "tutorial.md").read_text()
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text()
SESSION_HEADINGS = (
    *("Start a local cluster", "Drain a node", "Read the status", "View the recorded events"),
    *("Replay the events", "Finish the drain", "Redrive dead letters"),
)
"""The sections of the tutorial whose commands the tests run in sequence, beginning with `make up`."""
IGNORED_PATTERNS = (".git", ".venv", ".cluster", "build", "*.egg-info", "__pycache__", ".*_cache", ".hypothesis")
OUTPUT_MARK = "----- "


def list_commands(heading: str, page: str = TUTORIAL) -> list[str]:
    """Return the commands (lines that start with `$`) in the section with this heading."""
    section = page.split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]
    return re.findall(r"^\$ (.+?)(?:\s+# .*)?$", section, re.MULTILINE)


def test_every_make_target_in_readme_and_tutorial_exists() -> None:
    """Check that each `make` target in the README and the tutorial exists in the Makefile."""
    targets = set(re.findall(r"`?\$? ?make (?:-s )?([a-z0-9-]+)", README_TEXT + TUTORIAL))
    makefile = (ROOT / "Makefile").read_text()

    assert targets
    assert {target for target in targets if not re.search(rf"^{target}:", makefile, re.MULTILINE)} == set()


@pytest.fixture(scope="module")
def project_copy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Yield a copy of the project, tracked by git as after a clone; stop its local cluster afterwards."""
    build.ensure_programs()
    copy = tmp_path_factory.mktemp("readme") / "node maintenance"
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(*IGNORED_PATTERNS))
    (copy / ".venv").symlink_to(ROOT / ".venv")
    (copy / ".git" / "info").mkdir(parents=True)
    subprocess.run(["git", "init", "--quiet"], cwd=copy, check=True)
    # Here, .venv is a symbolic link, which the pattern in .gitignore does not match.
    (copy / ".git" / "info" / "exclude").write_text(".venv\n")
    subprocess.run(["git", "add", "--all"], cwd=copy, check=True)
    yield copy
    run_in_shell(copy, "make down")


def run_in_shell(directory: Path, script: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run a script in a shell without a profile, with only HOME and PATH in its environment."""
    environment = {name: os.environ[name] for name in ("HOME", "PATH")}
    command = ["bash", "--noprofile", "--norc", "-ec", script]
    return subprocess.run(
        command, cwd=directory, env=environment, input=stdin, capture_output=True, text=True, timeout=200
    )


def read_git_status(directory: Path) -> str:
    """Return the output of `git status` for the directory."""
    return subprocess.run(
        ["git", "status", "--porcelain"], cwd=directory, check=True, capture_output=True, text=True
    ).stdout


def run_session(directory: Path, commands: Sequence[str]) -> dict[str, str]:
    """Run the commands in one shell, check that all succeed, and return a map from command to output."""
    script = "\n".join(f"echo {shlex.quote(OUTPUT_MARK + command)}\n{command}" for command in commands)
    result = run_in_shell(directory, script, "continue\n")
    outputs = [output.partition("\n") for output in result.stdout.split(OUTPUT_MARK)[1:]]
    printed = {command: text for command, _, text in outputs}
    assert result.returncode == 0, f"{outputs[-1][0]}: {outputs[-1][2]}{result.stderr}"
    return printed


@pytest.fixture(scope="module")
def output_by_command(project_copy: Path) -> dict[str, str]:
    """Run all commands of the tutorial in order, and return each command's output.

    The fixture also checks that the commands do not change the output of `git status`.
    """
    before = read_git_status(project_copy)
    printed = run_session(project_copy, [command for heading in SESSION_HEADINGS for command in list_commands(heading)])
    assert read_git_status(project_copy) == before
    return printed


def test_make_env_without_cluster_prints_one_error(project_copy: Path) -> None:
    """X-6: without a local cluster, `make env` prints one error and writes no output that a shell could evaluate."""
    result = run_in_shell(project_copy, "make -s env")
    direct_result = run_in_shell(project_copy, ".venv/bin/python -m localcluster.up env")

    assert (result.stdout, direct_result.stdout) == ("", "")
    assert direct_result.returncode == 1
    assert direct_result.stderr == "error: no cluster is running: start one with `make up`\n"
    assert result.returncode != 0
    assert result.stderr.startswith(direct_result.stderr)


@pytest.mark.slow
def test_tutorial_commands_drain_and_restore_node(output_by_command: dict[str, str]) -> None:
    """OSV-1: the commands in "Start a local cluster" and "Drain a node" work in sequence."""
    start, evaluate_output = (output_by_command[command] for command in list_commands("Start a local cluster"))
    stop_output = output_by_command[list_commands("Drain a node")[-1]]

    assert "the product is ready" in start
    assert evaluate_output == ""
    assert "condition met" in "".join(output_by_command.values())
    assert "Node node-1: schedulable" in stop_output


@pytest.mark.slow
def test_status_in_tutorial_shows_blocking_budget(output_by_command: dict[str, str]) -> None:
    """NMO-8: the status in the tutorial shows the budget that blocks the drain."""
    *_, status = (output_by_command[command] for command in list_commands("Read the status"))

    assert "budget web needs 12 healthy pods and has 12" in status
    assert '      kubectl -n default patch pdb web -p \'{"spec":{"minAvailable":11}}\'\n' in status
    assert status.endswith("    kubectl maintenance status node-2 --watch\n")
    assert max(map(len, status.splitlines())) <= 100


@pytest.mark.slow
def test_event_commands_in_tutorial_work(output_by_command: dict[str, str]) -> None:
    """X-6: the tutorial's commands show, export and import events."""
    tree, _, _, _, import_output = (output_by_command[command] for command in list_commands("View the recorded events"))

    assert "node-2" in tree
    assert "└─ node.cordoned" in tree
    assert import_output.endswith(" new events imported\n")


@pytest.mark.slow
def test_replay_commands_in_tutorial_work(output_by_command: dict[str, str]) -> None:
    """X-2: the tutorial's replays during a drain find no differences, and `redrive` finds no dead letters."""
    all_output, part_output, one_output = (output_by_command[command] for command in list_commands("Replay the events"))
    _, wait_output, stop_output = (output_by_command[command] for command in list_commands("Finish the drain"))
    deadletters_output, redrive_output = (
        output_by_command[command] for command in list_commands("Redrive dead letters")
    )

    assert " 0 different; dry run: no writes were stored" in all_output
    assert "no longer exists" not in all_output
    assert "evict" in part_output
    assert " 0 different" in part_output
    assert "taint" in one_output
    assert "1 event, 1 response: " in one_output
    assert "condition met" in wait_output
    assert "Node node-2: schedulable" in stop_output
    assert deadletters_output == "No dead letters found.\n"
    assert redrive_output == "0 of 0 redriven\n"


def test_tutorial_contains_replay_commands_of_readme() -> None:
    """Check that the tutorial, whose commands are tested, contains each command in the README's "Replay an event"."""
    tested_commands = {command for heading in SESSION_HEADINGS for command in list_commands(heading)}

    assert [
        command for command in list_commands("Replay an event", README_TEXT) if command not in tested_commands
    ] == []


def test_node_maintenance_in_tutorial_is_valid(environment: EventChainEnvironment) -> None:
    """NMO-1: the NodeMaintenance in the tutorial is valid."""
    (text,) = re.findall(r"```yaml\n(.*?)```", TUTORIAL, re.DOTALL)

    assert yaml.safe_load(text)["kind"] == "NodeMaintenance"
    environment.cluster.kubectl("create", "--dry-run=server", "-f", "-", input=text)


def test_install_overlay_renders_all_kinds(project_copy: Path, environment: EventChainEnvironment) -> None:
    """NMO-24: the overlay in docs/install.md renders CRDs, RBAC, Triggers and event sources, with the given image."""
    push, deploy, functest, _ = list_commands("Install on a cluster", README_TEXT)
    script, *_ = re.findall(r"(mkdir -p mine .*?\nEND\n)", (ROOT / "docs" / "install.md").read_text(), re.DOTALL)
    assert run_in_shell(project_copy, script).returncode == 0

    rendered = environment.cluster.kubectl("kustomize", project_copy / "mine").stdout

    kinds = {document["kind"] for document in yaml.safe_load_all(rendered)}
    assert {"CustomResourceDefinition", "ServiceAccount", "ClusterRole", "Broker", "Trigger", "PingSource"} <= kinds
    assert "image: registry.example/nodemaintenance:v0.1.0\n" in rendered
    assert "image: nodemaintenance\n" not in rendered
    assert push == "make container-build-and-push-community REGISTRY=registry.example VERSION=0.1.0"
    assert (deploy, functest) == ("make deploy", "make cluster-functest")


@pytest.mark.parametrize("row", re.findall(r"^\| (`[a-z]+/` .*) \|$", ARCHITECTURE, re.MULTILINE))
def test_directory_listed_in_architecture_page_exists(row: str) -> None:
    """Check that each directory and subdirectory in the table in docs/architecture.md exists."""
    package, *subdirectories = re.findall(r"`([a-z]+/)`", row)

    assert (ROOT / package).is_dir()
    assert all((ROOT / package / folder).is_dir() for folder in subdirectories)


STATUS_SECTION = TUTORIAL.split("## Read the status")[1].split("\n## ")[0]


@pytest.mark.parametrize("field", re.findall(r"`([A-Za-z]+)`", STATUS_SECTION))
def test_status_field_in_tutorial_exists(field: str) -> None:
    """Check that each field and value in the tutorial's status section exists in the CRD or in the code."""
    schema = (ROOT / "manifests/base/crds/nodemaintenance.medik8s.io.yaml").read_text()
    rules = "".join(path.read_text() for path in sorted((ROOT / "kube" / "maintenance").glob("*.py")))
    labels = (ROOT / "console/operations/descriptions.py").read_text()

    assert re.search(rf"\b{field}\b", schema + rules + labels)
