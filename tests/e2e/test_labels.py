"""Test of the label by which the real sources select nodes."""

from __future__ import annotations

import pytest

from kube.maintenance import objects as m
from kube.nodes import LABEL
from kube.paths import Object
from tests.e2e.environment import Stage

pytestmark = pytest.mark.e2e


def test_a_label_taken_off_by_hand_comes_back(stage: Stage) -> None:
    """Rule 10: `guard` restores a label that was removed by hand, and no maintenance ends.

    The source reports the node without its label as deleted; `guard` finds that the node still exists.
    """
    name = stage.nodes[0]
    drains = stage.drains("300ms", nodes=[name])
    drains.begin()
    drains.await_succeeded()
    uid = drains.live()[0]["metadata"]["uid"]

    stage.local.kubectl("label", "node", name, f"{LABEL}-")

    def is_labelled(node: Object | None) -> bool:
        return bool(node and node["metadata"]["labels"].get(LABEL) == uid)

    drains.work.wait_for(f"/api/v1/nodes/{name}", is_labelled)
    # The Event shows that `guard` has received the source's event.
    assert f"node {name} was unlabelled" in stage.local.kubectl("describe", "node", name).stdout
    (item,) = drains.live()
    assert (item["metadata"]["uid"], m.is_deleting(item)) == (uid, False)
    drains.end()
    assert LABEL not in drains.work.read_node(name)["metadata"]["labels"]
