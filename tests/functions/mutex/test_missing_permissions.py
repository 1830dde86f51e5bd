"""Tests that a condition reports a step's missing permission, and that a later tick resumes the run (MUT-1)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from eventing import events
from kube.client.sync_client import SyncClient
from kube.mutex.objects import get_condition
from localcluster.cluster import LocalCluster
from localcluster.processes import wait_until_ready
from tests.functions.mutex.conftest import BEFORE_JOBS, UpgradeScenario
from tests.proofs import proves

CLUSTER_ROLES_PATH = "/apis/rbac.authorization.k8s.io/v1/clusterroles"
ACCESS_REVIEWS_PATH = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
REVOKED_PERMISSIONS = (
    ("detect-upgrade", "clusterversions", "get", "UpgradeChecked"),
    ("detect-upgrade", "nodes", "list", "UpgradeChecked"),
    ("claim-pools", "machineconfigpools", "patch", "TargetPoolsPaused"),
    ("pause-pools", "machineconfigpools", "patch", "TargetPoolsPaused"),
    ("label-nodes", "nodes", "patch", "MutexRulesApplied"),
    ("edit-pools", "machineconfigpools", "patch", "MCPUpdated"),
)
"""Step, resource, revoked verb, and type of the condition that reports the error."""
TRIGGER_BY_STEP = {
    "detect-upgrade": events.RUN_VALIDATED,
    "claim-pools": events.UPGRADE_DETECTED,
    "pause-pools": events.POOLS_CLAIMED,
    "label-nodes": events.POOLS_PAUSED,
    "edit-pools": events.NODES_LABELLED,
}


@contextmanager
def revoke_permission(
    upgrade: UpgradeScenario, local_cluster: LocalCluster, step: str, resource: str, verb: str
) -> Iterator[None]:
    """Revoke a permission of the step's role in the `with` block; wait until the API server applies each change."""
    path, client = f"{CLUSTER_ROLES_PATH}/nodemaintenance-{step}", upgrade.functions.clusters[step]
    rules = upgrade.administrator_client.get(path)["rules"]
    [group] = [group for rule in rules if resource in rule["resources"] for group in rule["apiGroups"]]
    attributes = {"group": group, "resource": resource, "verb": verb}
    remaining_rules = [
        {**rule, "verbs": [granted for granted in rule["verbs"] if granted != verb]}
        if resource in rule["resources"]
        else rule
        for rule in rules
    ]
    try:
        upgrade.administrator_client.patch(path, {"rules": [rule for rule in remaining_rules if rule["verbs"]]})
        wait_until_ready(
            f"revoked permission of {step}",
            partial(has_access_review_result, client, attributes, False),
            local_cluster.servers,
        )
        yield
    finally:
        upgrade.administrator_client.patch(path, {"rules": rules})
        wait_until_ready(
            f"restored permission of {step}",
            partial(has_access_review_result, client, attributes, True),
            local_cluster.servers,
        )


def has_access_review_result(client: SyncClient, attributes: dict[str, str], allowed: bool) -> bool:
    """Return whether a SelfSubjectAccessReview of the client has the result `allowed`."""
    review = client.create(ACCESS_REVIEWS_PATH, {"spec": {"resourceAttributes": attributes}})
    return bool(review["status"]["allowed"]) is allowed


@proves("MUT-1", "MUT-33")
@pytest.mark.parametrize(("step", "resource", "verb", "condition_type"), REVOKED_PERMISSIONS)
def test_missing_permission_is_reported_and_run_continues_later(
    upgrade: UpgradeScenario, idle_cluster: LocalCluster, step: str, resource: str, verb: str, condition_type: str
) -> None:
    """Check that a condition names the verb that a step may not use, and that the step succeeds once it is permitted.

    Without the permission, the step emits no event for the next step. Later steps do nothing even if they get an event.
    """
    upgrade.check_rule_and_target()
    earlier_steps = BEFORE_JOBS[: BEFORE_JOBS.index(step)]
    upgrade.run_steps(*earlier_steps)
    with revoke_permission(upgrade, idle_cluster, step, resource, verb):
        assert upgrade.run_step(step, TRIGGER_BY_STEP[step]) == ""
        condition = get_condition(upgrade.read_object(upgrade.run_config), condition_type)
        assert condition["status"] == "False"
        assert f"cannot {verb} resource" in condition["message"]
        if step != "detect-upgrade":  # `claim-pools` itself checks the versions.
            later_steps = BEFORE_JOBS[BEFORE_JOBS.index(step) + 1 :]
            later_replies = [upgrade.run_step(later_step, TRIGGER_BY_STEP[later_step]) for later_step in later_steps]
            assert later_replies == [""] * len(later_steps)
    tick_events = {reply.get_type() for reply in upgrade.resync_by_tick()}
    assert TRIGGER_BY_STEP[step] in tick_events
    assert upgrade.run_step(step, TRIGGER_BY_STEP[step]) != ""
