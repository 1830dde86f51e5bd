"""Tests of maintenances that users, other controllers or missing permissions disturb: the next ticks repair them."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from eventing import events
from kube.maintenance import objects as m
from kube.maintenance.groups import DRAIN_TAINTS, KUBEVIRT, MEDIK8S
from kube.nodes import LABEL, NODES, in_maintenance, node_path
from kube.paths import Object
from tests.chain.admission_policies import policy
from tests.chain.journal_reading import recording
from tests.chain.environment import Scene
from tests.proofs import proves

GROUPS_OF_PAIRS = (MEDIK8S.api_version, KUBEVIRT.api_version)
UNDER_WAY = 7.0
"""Seconds after a status write during which a tick leaves a maintenance alone, since it is in progress."""


def is_open(node: Object | None) -> bool:
    """Return whether the node is schedulable and has neither the product's label nor a drain taint."""
    assert node is not None
    spec, labels = node["spec"], node["metadata"]["labels"]
    keys = {taint["key"] for taint in spec.get("taints") or []}
    return not (spec.get("unschedulable") or LABEL in labels or keys & DRAIN_TAINTS)


def blocked(item: Object) -> bool:
    """Return whether a pod of the maintenance is blocked."""
    return bool((item.get("status") or {}).get("blockedPods"))


def has_phase(item: Object) -> bool:
    return bool(m.phase(item))


def ours(scene: Scene, item: Object) -> Counter[str]:
    """Return event type → number of the product's events about a maintenance."""
    types = (entry.event.get_type() for entry in recording(scene, item["metadata"]["uid"]))
    return Counter(kind for kind in types if kind in events.MEANINGS)


def replace(scene: Scene, path: str) -> None:
    """Replace the maintenance as `kubectl replace -f` does with the user's file."""
    item = scene.admin.get(path)
    body = {key: item[key] for key in ("apiVersion", "kind", "spec")} | {"metadata": {"name": item["metadata"]["name"]}}
    scene.cluster.kubectl("replace", "-f", "-", input=json.dumps(body))


@pytest.mark.slow
@proves("X-7", "NMO-14")
def test_pairs_deleted_with_one_command_give_their_nodes_back(scene: Scene) -> None:
    """X-7: deleting two maintenances per node with one command restores every node, in any order of the deletions."""
    nodes = [scene.node() for _ in range(4)]
    first = [scene.maintain(node) for node in nodes]
    for path in first:
        scene.reaches(path)
    second = [scene.maintain(node, group=group) for node, group in zip(nodes, 2 * GROUPS_OF_PAIRS, strict=True)]
    for path in second:
        scene.reaches(path, has_phase)
    before = len(scene.our_writes())

    words = [f"nodemaintenances.{path.split('/')[2]}/{path.rsplit('/', 1)[1]}" for path in (*first, *second)]
    scene.cluster.kubectl("delete", *words, "--timeout=10s")

    for node in nodes:
        scene.until("/api/v1/nodes", node, is_open, seconds=2)
    assert len(scene.our_writes()) - before <= 25 * len(nodes)  # some successors have begun before their deletion


@pytest.mark.slow
@pytest.mark.abreast
@proves("X-6", "X-3")
def test_a_right_that_is_given_later_is_enough(scene: Scene) -> None:
    """X-6, X-3: a maintenance whose begin was forbidden reports the reason; a tick begins it once it is permitted."""
    node = scene.node()
    scene.pods(node, 2)
    with policy_against_our_writes(scene, name := f"refused-{node}"):
        path = scene.maintain(node, name=name)
        status = scene.reaches(path, has_phase)["status"]
        assert (status["phase"], "not yet" in status["lastError"]) == ("Failed", True)

    done = scene.reaches(path, seconds=2 * UNDER_WAY + 15)

    assert "lastError" not in done["status"]
    assert ours(scene, done)[events.MAINTENANCE_FOUND] <= 4
    scene.delete(path)
    scene.gone(path)


@contextmanager
def policy_against_our_writes(scene: Scene, name: str) -> Iterator[None]:
    """Reject updates of the maintenance with this name while the block runs, except those of its status."""
    rule = {
        "apiGroups": [MEDIK8S.api_version.split("/")[0]],
        "apiVersions": ["*"],
        "operations": ["UPDATE"],
        "resources": ["nodemaintenances"],
    }
    expression = f"object.metadata.name != '{name}'"
    path = f"{MEDIK8S.path}/{name}"
    body = {"apiVersion": MEDIK8S.api_version, "kind": "NodeMaintenance", "spec": {"nodeName": "nowhere"}}
    scene.admin.create(MEDIK8S.path, {**body, "metadata": {"name": name}})

    def attempt() -> object:
        return scene.admin.patch(path, {"spec": {"reason": "tried"}})

    with policy(scene, name, rule, expression, "not yet", attempt):
        scene.delete(path)
        scene.gone(path)
        yield


@pytest.mark.slow
@pytest.mark.abreast
@proves("NMO-11", "X-3")
def test_a_maintenance_replaced_amid_its_drain_goes_on(scene: Scene) -> None:
    """X-3, NMO-11: a tick restores finalizer, owner and counts after `kubectl replace`, and the drain continues."""
    node, namespace = scene.node(), scene.namespace()
    scene.pods(node, 3, namespace=namespace, labels={"app": "x"})
    scene.budget(namespace, {"app": "x"}, allowed=1, minAvailable=2)
    path = scene.maintain(node)
    scene.reaches(path, blocked)

    replace(scene, path)
    replaced = scene.admin.get(path)
    healed = scene.reaches(path, m.has_begun, seconds=UNDER_WAY + 15)
    scene.admin.run(
        scene.admin.api.request("DELETE", f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets/budget")
    )
    done = scene.reaches(path, seconds=UNDER_WAY + 15)["status"]

    assert not m.has_begun(replaced)
    assert m.is_owned(healed)
    assert (done["evictionPods"], done["totalpods"], done["drainProgress"]) == (3, 3, 100)
    assert ours(scene, healed)[events.MAINTENANCE_FOUND] <= 2
    scene.delete(path)
    scene.gone(path)
    assert is_open(scene.admin.get(node_path(node)))


@pytest.mark.slow
@proves("X-5", "X-3")
def test_one_replaced_and_deleted_at_once_leaves_nothing_behind(scene: Scene) -> None:
    """X-5, X-3: one tick restores the node and the lease of a maintenance that was deleted without its finalizer."""
    node = scene.node()
    path = scene.maintain(node)
    scene.reaches(path)

    replace(scene, path)
    scene.cluster.kubectl("delete", "nm", path.rsplit("/", 1)[1])
    scene.tick()

    assert is_open(scene.admin.get(node_path(node)))
    before = len(scene.our_writes())
    scene.tick()
    assert len(scene.our_writes()) == before


def test_a_node_uncordoned_by_hand_is_cordoned_again(scene: Scene) -> None:
    """Design, guard: a node that was uncordoned by hand is cordoned again, and an Event on the node records it."""
    node = scene.node()
    path = scene.maintain(node)
    scene.reaches(path)

    scene.cluster.kubectl("uncordon", node)
    scene.until("/api/v1/nodes", node, lambda item: bool(item["spec"].get("unschedulable")), seconds=10)

    assert "NodeCordonedAgain" in scene.cluster.kubectl("describe", "node", node).stdout
    scene.delete(path)
    scene.gone(path)


@pytest.mark.slow
@pytest.mark.abreast
def test_a_controller_that_takes_the_label_off_is_no_endless_quarrel(scene: Scene) -> None:
    """Rule 9: if another controller keeps removing the product's label, the product stops after a few writes."""
    node = scene.node()
    path = scene.maintain(node)
    item = scene.reaches(path)
    stripped: list[str] = []
    done = threading.Event()

    with scene.aside(lambda: strip(scene, node, stripped, done)):
        before = len(scene.our_writes())
        for _ in range(2):
            scene.tick()  # `tick` returns once no event is left, which flapping alone would prevent
        writes = [entry for entry in scene.our_writes()[before:] if entry["objectRef"].get("name") == node]
        done.set()
        scene.until("/api/v1/nodes", node, lambda found: in_maintenance(found, MEDIK8S.drain_taint), seconds=20)

    assert len(stripped) >= 2
    assert len(writes) <= 6
    assert ours(scene, item)[events.NODE_DRIFTED] <= 6
    scene.delete(path)
    scene.gone(path)


def strip(scene: Scene, node: str, stripped: list[str], done: threading.Event) -> None:
    """Remove the product's label from the node whenever it is set, until `done`."""
    for change in scene.cluster.watch(NODES, fields=f"metadata.name={node}", seconds=30):
        if done.is_set():
            return
        label = change.object["metadata"]["labels"].get(LABEL)
        if label:
            scene.admin.patch(node_path(node), {"metadata": {"labels": {LABEL: None}}})
            stripped.append(label)
