"""What the README shows is so."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
import yaml

from eventing import events
from eventing.journal.store import Journal
from localcluster import build
from tests.chain.recordings import recording
from tests.chain.scene import Scene

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def commands(heading: str) -> list[str]:
    """The `$` lines in the section under that heading."""
    section = README.split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]
    return re.findall(r"^\$ (.+?)(?:\s+# .*)?$", section, re.MULTILINE)


def run(scene: Scene, command: str, session: str | None = None) -> str:
    """Run a README command in a shell as its reader would, who types `session`; give what it prints."""
    path = os.pathsep.join([str(Path(sys.executable).parent), str(build.servers()), os.environ["PATH"]])
    environment = {**os.environ, "KUBECONFIG": str(scene.cluster.kubeconfig), "PATH": path}
    done = subprocess.run(
        ["bash", "-c", command], cwd=ROOT, env=environment, input=session, capture_output=True, text=True, timeout=90
    )
    assert done.returncode == 0, f"{command}: {done.stderr or done.stdout}"
    return done.stdout


@pytest.mark.parametrize("target", [command.split()[1] for command in re.findall(r"`?\$? ?(make [a-z0-9]+)", README)])
def test_a_make_target_of_the_readme_exists(target: str) -> None:
    """Each `make` target that the README names is one of the Makefile's."""
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


def test_the_readmes_session_works_as_shown(scene: Scene) -> None:
    """OSV-1: the commands of "Try it yourself", one after the other, after `make up`."""
    shown = commands("Try it yourself")
    assert shown[0] == "make up"
    assert shown[1].startswith("export KUBECONFIG=$PWD/.cluster/kubeconfig ")

    said = [run(scene, command) for command in shown[2:]]

    assert "condition met" in "".join(said)
    assert not scene.spec("node-1").get("unschedulable")
    run(scene, "kubectl delete deployment web")


def test_the_readmes_object_is_taken(scene: Scene) -> None:
    """NMO-1: the NodeMaintenance in the README is valid."""
    (text,) = re.findall(r"```yaml\n(.*?)```", README, re.DOTALL)

    assert yaml.safe_load(text)["kind"] == "NodeMaintenance"
    scene.cluster.kubectl("create", "--dry-run=server", "-f", "-", input=text)


def test_the_readmes_replays_work_as_shown(scene: Scene, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """X-2: the replay commands, with the name and an id of a real maintenance."""
    path = scene.maintain_with_pods(scene.node(), 1)
    uid, name = scene.admin.get(path)["metadata"]["uid"], path.rpartition("/")[2]
    event = next(entry.event for entry in recording(scene, uid) if entry.event.get_type() == events.NODE_CORDONED)
    monkeypatch.setenv("JOURNAL", str(scene.product.journal))
    monkeypatch.setenv("FUNCTIONS", scene.product.functions_url)
    monkeypatch.setenv("BROKER", scene.product.broker_url)

    *replays, list_letters, redrive = (
        command.replace("node-1", name).replace("--id ID", f"--id {event.get_id()}")
        for command in commands("Replay an event")
    )
    whole, part, one = (run(scene, command, "continue\n") for command in replays)
    with closing(Journal(tmp_path / "journal.db")):  # others leave letters in ours that nobody ever takes
        monkeypatch.setenv("JOURNAL", str(tmp_path / "journal.db"))
    listed, redriven = run(scene, list_letters), run(scene, redrive)

    assert " 0 different" in whole
    assert "evict" in part
    assert " 0 different" in part
    assert "taint" in one
    assert event.get_id() in one
    assert listed == "No dead letters.\n"
    assert redriven == "0 of 0 redriven\n"
    scene.delete(path)
    scene.gone(path)


def test_the_readmes_events_are_shown(scene: Scene, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """X-6: the commands that show, export and import, with the name of a real maintenance."""
    path = scene.maintain_with_pods(scene.node(), 1)
    uid, name = scene.admin.get(path)["metadata"]["uid"], path.rpartition("/")[2]
    recording(scene, uid)
    monkeypatch.setenv("JOURNAL", str(scene.product.journal))
    files = {"node-1.jsonl": f"{tmp_path}/export.jsonl", "copy.db": f"{tmp_path}/copy.db", "node-1": name}

    def said(command: str) -> str:
        for word, real in files.items():
            command = command.replace(word, real)
        return run(scene, command)

    tree, _, _, taken = (said(command) for command in commands("See what happened"))

    assert name in tree
    assert "└─ node.cordoned" in tree
    assert taken.endswith(" new events\n")
    scene.delete(path)
    scene.gone(path)


def test_the_readmes_install_is_whole(scene: Scene) -> None:
    """NMO-24: what `kubectl apply -k` would send renders, and holds the CRDs, the rights and the flow."""
    (command,) = commands("Install on a cluster")

    rendered = run(scene, command.replace("apply -k", "kustomize"))

    kinds = {document["kind"] for document in yaml.safe_load_all(rendered)}
    assert {"CustomResourceDefinition", "ServiceAccount", "ClusterRole", "Broker", "Trigger", "PingSource"} <= kinds


@pytest.mark.parametrize("room", re.findall(r"^\| `([a-z]+/)` \|", README, re.MULTILINE))
def test_a_room_of_the_readme_is_there(room: str) -> None:
    """The folders in the README's table exist."""
    assert (ROOT / room).is_dir()


@pytest.mark.parametrize("field", re.findall(r"`([A-Za-z]+)`", README.split("## Read the status")[1].split("\n## ")[0]))
def test_a_status_word_of_the_readme_is_known(field: str) -> None:
    """Fields, phases and conditions in the README's table are those of the CRD and the status rules."""
    known = (ROOT / "manifests/base/crds/nodemaintenance.medik8s.io.yaml").read_text()
    rules = "".join(file.read_text() for file in (ROOT / "kube" / "maintenance").glob("*.py"))

    assert re.search(rf"\b{field}\b", known + rules)
