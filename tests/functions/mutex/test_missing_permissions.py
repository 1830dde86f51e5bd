"""Tests of steps without a permission: a condition reports it, the run stops, and a tick continues it later (MUT-1)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from eventing import events
from kube.client.sync_client import Cluster
from kube.mutex.objects import condition
from localcluster.cluster import LocalCluster
from localcluster.processes import await_ready
from tests.functions.mutex.conftest import BEFORE_JOBS, Upgrade
from tests.proofs import proves

ROLES = "/apis/rbac.authorization.k8s.io/v1/clusterroles"
REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
REFUSED = (
    ("detect-upgrade", "clusterversions", "get", "UpgradeChecked"),
    ("detect-upgrade", "nodes", "list", "UpgradeChecked"),
    ("claim-pools", "machineconfigpools", "patch", "TargetPoolsPaused"),
    ("pause-pools", "machineconfigpools", "patch", "TargetPoolsPaused"),
    ("label-nodes", "nodes", "patch", "MutexRulesApplied"),
    ("edit-pools", "machineconfigpools", "patch", "MCPUpdated"),
)
"""Step, resource, revoked verb, and the condition that reports the rejection."""
CAUSES = {
    "detect-upgrade": events.RUN_VALIDATED,
    "claim-pools": events.UPGRADE_FOUND,
    "pause-pools": events.POOLS_CLAIMED,
    "label-nodes": events.POOLS_PAUSED,
    "edit-pools": events.NODES_LABELLED,
}


@contextmanager
def lacking(upgrade: Upgrade, quiet: LocalCluster, step: str, resource: str, verb: str) -> Iterator[None]:
    """Revoke this permission of the step's role, and restore it after the block; each time, wait for the API server."""
    where, cluster = f"{ROLES}/nodemaintenance-{step}", upgrade.functions.clusters[step]
    rules = upgrade.admin.get(where)["rules"]
    [group] = [group for rule in rules if resource in rule["resources"] for group in rule["apiGroups"]]
    asked = {"group": group, "resource": resource, "verb": verb}
    less = [
        {**rule, "verbs": [each for each in rule["verbs"] if each != verb]} if resource in rule["resources"] else rule
        for rule in rules
    ]
    try:
        upgrade.admin.patch(where, {"rules": [rule for rule in less if rule["verbs"]]})
        await_ready(f"{step} without its right", partial(is_so, cluster, asked, False), quiet.servers)
        yield
    finally:
        upgrade.admin.patch(where, {"rules": rules})
        await_ready(f"{step}'s rights", partial(is_so, cluster, asked, True), quiet.servers)


def is_so(cluster: Cluster, asked: dict[str, str], allowed: bool) -> bool:
    """Return whether an access review for the client's account has the result `allowed`."""
    answer = cluster.create(REVIEWS, {"spec": {"resourceAttributes": asked}})
    return bool(answer["status"]["allowed"]) is allowed


@proves("MUT-1", "MUT-33")
@pytest.mark.parametrize(("step", "resource", "verb", "kind"), REFUSED)
def test_what_is_refused_is_told_and_goes_on_once_the_right_is_given(
    upgrade: Upgrade, quiet: LocalCluster, step: str, resource: str, verb: str, kind: str
) -> None:
    """Check that a rejected step names the verb in its condition, and continues once it has the permission.

    No later step is triggered, and none does anything if it is.
    """
    upgrade.judge()
    before = BEFORE_JOBS[: BEFORE_JOBS.index(step)]
    upgrade.through(*before)
    with lacking(upgrade, quiet, step, resource, verb):
        assert upgrade.answer(step, CAUSES[step]) == ""
        found = condition(upgrade.again(upgrade.run), kind)
        assert found["status"] == "False"
        assert f"cannot {verb} resource" in found["message"]
        if step != "detect-upgrade":  # `claim-pools` checks the versions itself
            later = BEFORE_JOBS[BEFORE_JOBS.index(step) + 1 :]
            assert [upgrade.answer(each, CAUSES[each]) for each in later] == [""] * len(later)
    told = {reply.get_type() for reply in upgrade.told_by_a_tick()}
    assert CAUSES[step] in told
    assert upgrade.answer(step, CAUSES[step]) != ""
