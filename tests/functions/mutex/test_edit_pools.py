"""The step `edit-pools`."""

from __future__ import annotations

from eventing import events
from kube.mutex import pools
from kube.selectors import matches
from tests.functions.mutex.conftest import Upgrade
from tests.proofs import proves


@proves("MUT-36", "MUT-37", "C24", "C25")
def test_a_labelled_node_is_the_targets_and_a_released_one_the_canarys(upgrade: Upgrade) -> None:
    """matchLabels stay; the canary's own expressions go."""
    upgrade.start()
    blue, canary = (upgrade.pool(name)["spec"]["nodeSelector"] for name in ("blue", "canary"))
    assert canary["matchLabels"] == upgrade.before["canary"]["nodeSelector"]["matchLabels"]
    assert [each["operator"] for each in canary["matchExpressions"]] == ["DoesNotExist"]
    labels = upgrade.node(upgrade.nodes[0])["metadata"]["labels"]
    assert (matches(blue, labels), matches(canary, labels)) == (True, False)
    free = {key: value for key, value in labels.items() if not key.startswith("mutexrule.")}
    assert (matches(blue, free), matches(canary, free)) == (False, True)


@proves("MUT-36")
def test_a_selector_that_somebody_wrote_is_written_again(upgrade: Upgrade) -> None:
    """And one that is as it should be is left alone."""
    upgrade.start()
    edited = upgrade.pool("canary")
    assert upgrade.answer("edit-pools", events.NODES_LABELLED) == events.POOLS_EDITED
    assert upgrade.pool("canary")["metadata"]["resourceVersion"] == edited["metadata"]["resourceVersion"]
    upgrade.admin.patch(pools.pool_path("canary"), {"spec": {"nodeSelector": {"matchExpressions": None}}})
    assert upgrade.answer("edit-pools", events.NODES_LABELLED) == events.POOLS_EDITED
    assert upgrade.pool("canary")["spec"] == edited["spec"]
