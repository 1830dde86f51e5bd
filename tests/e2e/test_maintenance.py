"""One maintenance on a real broker, for each API group."""

from __future__ import annotations

import pytest

from kube.groups import GROUPS
from tests.e2e.engine import Engine


@pytest.mark.parametrize("group", GROUPS)
def test_a_node_is_drained_and_given_back(engine: Engine, group: str) -> None:
    """X-7, NMO-3, 10, 14, 15: the object is created: Succeeded; deleted: the node is as before."""
    scene = engine.scene
    node = scene.node()
    pods = scene.pods(node, 3)

    path = scene.maintain(node, group=group)
    status = scene.reaches(path)["status"]

    spec = scene.spec(node)
    assert spec["unschedulable"] is True
    assert GROUPS[group].drain_taint in {taint["key"] for taint in spec["taints"]}
    assert scene.pods_on(node) == []
    assert len(scene.evictions(pods)) == 3
    assert (status["drainProgress"], status["evictionPods"], status["pendingPods"]) == (100, 3, [])
    scene.delete(path)
    scene.gone(path)
    assert not scene.spec(node).get("unschedulable")
    assert "taints" not in scene.spec(node)


def test_every_write_is_of_the_account_that_may(engine: Engine) -> None:
    """Design rule 7: each step speaks with its own function's account, and nothing of ours with another."""
    scene = engine.scene
    node = scene.node()
    pods = scene.pods(node, 2)
    path = scene.maintain(node)
    scene.reaches(path)

    writes = {(entry["user"]["username"].rsplit(":", 1)[1], entry["objectRef"]["resource"]) for entry in scene.our_writes()}
    evictors = {entry["user"]["username"] for entry in scene.evictions(pods)}

    assert evictors == {"system:serviceaccount:node-maintenance:evict"}
    assert {("cordon", "nodes"), ("taint", "nodes"), ("status", "nodemaintenances")} <= writes
    assert not [pair for pair in writes if pair[1] == "nodes" and pair[0] not in ("cordon", "taint", "restore")]
    scene.delete(path)
    scene.gone(path)
