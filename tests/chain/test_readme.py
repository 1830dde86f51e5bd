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
from tests.chain.environment import Scene

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
TUTORIAL = (ROOT / "docs" / "tutorial.md").read_text()
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text()
SESSION = (
    *("Start a local cluster", "Drain a node", "Read the status", "View the recorded events"),
    *("Replay the events", "Finish the drain", "Redrive dead letters"),
)
"""The sections of the tutorial whose commands the tests run in sequence, beginning with `make up`."""
NOT_COPIED = (".git", ".venv", ".cluster", "build", "*.egg-info", "__pycache__", ".*_cache", ".hypothesis")
MARK = "----- "


def commands(heading: str, page: str = TUTORIAL) -> list[str]:
    """Return the commands (lines with `$`) in the page's section with this heading."""
    section = page.split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]
    return re.findall(r"^\$ (.+?)(?:\s+# .*)?$", section, re.MULTILINE)


@pytest.mark.parametrize("target", re.findall(r"`?\$? ?make (?:-s )?([a-z0-9-]+)", README + TUTORIAL))
def test_a_make_target_of_the_readme_exists(target: str) -> None:
    """Check that each `make` target of the README and the tutorial exists in the Makefile."""
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Yield a copy of the project as after a clone, tracked by git; stop its local cluster afterwards."""
    build.servers()
    copy = tmp_path_factory.mktemp("readme") / "node maintenance"
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(*NOT_COPIED))
    (copy / ".venv").symlink_to(ROOT / ".venv")
    (copy / ".git" / "info").mkdir(parents=True)
    subprocess.run(["git", "init", "--quiet"], cwd=copy, check=True)
    # Here .venv is a symlink, which the pattern in .gitignore does not match.
    (copy / ".git" / "info" / "exclude").write_text(".venv\n")
    subprocess.run(["git", "add", "--all"], cwd=copy, check=True)
    yield copy
    shell(copy, "make down")


def shell(folder: Path, script: str, typed: str = "") -> subprocess.CompletedProcess[str]:
    """Run a script in a shell without profile, with only HOME and PATH in the environment; `typed` is its input."""
    environment = {name: os.environ[name] for name in ("HOME", "PATH")}
    words = ["bash", "--noprofile", "--norc", "-ec", script]
    return subprocess.run(words, cwd=folder, env=environment, input=typed, capture_output=True, text=True, timeout=200)


def git_status(folder: Path) -> str:
    """Return the output of `git status` for the directory."""
    return subprocess.run(
        ["git", "status", "--porcelain"], cwd=folder, check=True, capture_output=True, text=True
    ).stdout


def session(folder: Path, shown: Sequence[str]) -> dict[str, str]:
    """Run the commands in one shell and return what each printed; fail at the first command that fails."""
    script = "\n".join(f"echo {shlex.quote(MARK + command)}\n{command}" for command in shown)
    done = shell(folder, script, "continue\n")
    parts = [part.partition("\n") for part in done.stdout.split(MARK)[1:]]
    printed = {command: text for command, _, text in parts}
    assert done.returncode == 0, f"{parts[-1][0]}: {parts[-1][2]}{done.stderr}"
    return printed


@pytest.fixture(scope="module")
def printed(folder: Path) -> dict[str, str]:
    """Return what each command of the tutorial printed; the fixture runs all of them in order.

    The fixture also asserts that the commands leave `git status` unchanged.
    """
    before = git_status(folder)
    printed = session(folder, [command for heading in SESSION for command in commands(heading)])
    assert git_status(folder) == before
    return printed


def test_without_a_cluster_there_is_nothing_to_evaluate(folder: Path) -> None:
    """X-6: without a local cluster, `make env` prints one error and writes no output that a shell could evaluate."""
    made = shell(folder, "make -s env")
    called = shell(folder, ".venv/bin/python -m localcluster.up env")

    assert (made.stdout, called.stdout) == ("", "")
    assert called.returncode == 1
    assert called.stderr == "error: no cluster is up: `make up` starts one\n"
    assert made.returncode != 0
    assert made.stderr.startswith(called.stderr)


@pytest.mark.slow
def test_the_readmes_session_works_as_shown(printed: dict[str, str]) -> None:
    """OSV-1: the commands of "Start a local cluster" and "Drain a node" work in sequence."""
    start, evaluate = (printed[command] for command in commands("Start a local cluster"))
    stop = printed[commands("Drain a node")[-1]]

    assert "the product is at work" in start
    assert evaluate == ""
    assert "condition met" in "".join(printed.values())
    assert "Node node-1: schedulable" in stop


@pytest.mark.slow
def test_the_readmes_drain_is_blocked(printed: dict[str, str]) -> None:
    """NMO-8: the status in the tutorial shows the budget that blocks the drain."""
    *_, status = (printed[command] for command in commands("Read the status"))

    assert "budget web needs 12 healthy pods and has 12" in " ".join(status.split())


@pytest.mark.slow
def test_the_readmes_events_are_shown(printed: dict[str, str]) -> None:
    """X-6: the tutorial's commands show, export and import events."""
    tree, _, _, _, taken = (printed[command] for command in commands("View the recorded events"))

    assert "node-2" in tree
    assert "└─ node.cordoned" in tree
    assert taken.endswith(" new events\n")


@pytest.mark.slow
def test_the_readmes_replays_work_as_shown(printed: dict[str, str]) -> None:
    """X-2: the tutorial's replays during a drain find no difference, and `redrive` finds no dead letter."""
    whole, part, one = (printed[command] for command in commands("Replay the events"))
    _, drained, stop = (printed[command] for command in commands("Finish the drain"))
    listed, redriven = (printed[command] for command in commands("Redrive dead letters"))

    assert " 0 different; a dry run: no write was kept" in whole
    assert "no longer exists" not in whole
    assert "evict" in part
    assert " 0 different" in part
    assert "taint" in one
    assert "1 event, 1 answer: " in one
    assert "condition met" in drained
    assert "Node node-2: schedulable" in stop
    assert listed == "No dead letters.\n"
    assert redriven == "0 of 0 redriven\n"


def test_the_readmes_replay_is_that_of_the_tutorial() -> None:
    """Check that the tutorial, whose commands are run, contains each command of the README's "Replay an event"."""
    tried = {command for heading in SESSION for command in commands(heading)}

    assert [command for command in commands("Replay an event", README) if command not in tried] == []


def test_the_readmes_object_is_taken(scene: Scene) -> None:
    """NMO-1: the NodeMaintenance in the tutorial is valid."""
    (text,) = re.findall(r"```yaml\n(.*?)```", TUTORIAL, re.DOTALL)

    assert yaml.safe_load(text)["kind"] == "NodeMaintenance"
    scene.cluster.kubectl("create", "--dry-run=server", "-f", "-", input=text)


def test_the_readmes_install_is_whole(folder: Path, scene: Scene) -> None:
    """NMO-24: the overlay of docs/install.md renders the CRDs, the RBAC, the Triggers and sources, and the image."""
    deploy, functest, _ = commands("Install on a cluster", README)
    script, *_ = re.findall(r"(mkdir -p mine .*?\nEND\n)", (ROOT / "docs" / "install.md").read_text(), re.DOTALL)
    assert shell(folder, script).returncode == 0

    rendered = scene.cluster.kubectl("kustomize", folder / deploy.removeprefix("make deploy OVERLAY=")).stdout

    kinds = {document["kind"] for document in yaml.safe_load_all(rendered)}
    assert {"CustomResourceDefinition", "ServiceAccount", "ClusterRole", "Broker", "Trigger", "PingSource"} <= kinds
    assert "image: registry.example/nodemaintenance:v1\n" in rendered
    assert "image: nodemaintenance\n" not in rendered
    assert functest.startswith("make cluster-functest NODE=")


@pytest.mark.parametrize("row", re.findall(r"^\| (`[a-z]+/` .*) \|$", ARCHITECTURE, re.MULTILINE))
def test_a_room_of_the_readme_is_there(row: str) -> None:
    """Check that the directories and subdirectories in the table of docs/architecture.md exist."""
    room, *inside = re.findall(r"`([a-z]+/)`", row)

    assert (ROOT / room).is_dir()
    assert all((ROOT / room / folder).is_dir() for folder in inside)


STATUS = TUTORIAL.split("## Read the status")[1].split("\n## ")[0]


@pytest.mark.parametrize("field", re.findall(r"`([A-Za-z]+)`", STATUS))
def test_a_status_word_of_the_readme_is_known(field: str) -> None:
    """Check that each word in the tutorial's status table is in the CRD or in the code that computes the status."""
    known = (ROOT / "manifests/base/crds/nodemaintenance.medik8s.io.yaml").read_text()
    rules = "".join(path.read_text() for path in sorted((ROOT / "kube" / "maintenance").glob("*.py")))

    assert re.search(rf"\b{field}\b", known + rules)
