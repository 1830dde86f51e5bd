"""The step `label-nodes`."""

from __future__ import annotations

from eventing import events
from functions.mutex import label_nodes
from kube.mutex.objects import RULE_LABEL, RUN_LABEL
from kube.mutex.versions import VERSION_LABEL
from tests.functions.mutex.conftest import NEW, Upgrade
from tests.proofs import proves

LABEL = f"{RULE_LABEL}only.node-upgrade-mutex-operator"


@proves("MUT-35")
def test_each_node_gets_a_label_for_each_rule(upgrade: Upgrade) -> None:
    """One that is upgraded already, too; and the run's own, by which the source finds it."""
    upgrade.label(upgrade.nodes[1], {VERSION_LABEL: NEW})
    upgrade.start()
    record = upgrade.status()["record"]
    for name in upgrade.nodes:
        labels = upgrade.node(name)["metadata"]["labels"]
        assert (labels[LABEL], labels[RUN_LABEL]) == ("", record["id"])


@proves("MUT-43", "X-2")
def test_a_released_node_is_not_labelled_again(upgrade: Upgrade) -> None:
    """An event that comes late labels those that still wait, and no other."""
    released = upgrade.release()
    upgrade.label(upgrade.nodes[1], {LABEL: None})
    assert upgrade.answer("label-nodes", events.POOLS_PAUSED) == events.NODES_LABELLED
    assert LABEL not in upgrade.node(released)["metadata"]["labels"]
    assert LABEL in upgrade.node(upgrade.nodes[1])["metadata"]["labels"]


@proves("MUT-35")
def test_a_turn_begins_with_the_nodes_that_lack_a_label(upgrade: Upgrade) -> None:
    """So that of more nodes than one turn has time for the next one labels others."""
    upgrade.start()
    upgrade.label(upgrade.nodes[1], {LABEL: None})

    assert label_nodes.ungated(upgrade.status()["record"], upgrade.functions.clusters["label-nodes"]) == [
        upgrade.nodes[1]
    ]
