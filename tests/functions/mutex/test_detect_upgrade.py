"""Tests for `detect-upgrade`, which compares the versions of the control plane and the workers."""

from __future__ import annotations

import pytest

from eventing import events
from kube.client.api import JSON_PATCH
from kube.mutex.objects import build_object_path, get_condition
from kube.mutex.pools import CLUSTER_VERSIONS_PATH
from kube.mutex.versions import VERSION_LABEL
from kube.paths import Object
from localcluster.audit_log import AuditLog
from tests.functions.mutex.conftest import NEW_VERSION, OLD_VERSION, UpgradeScenario
from tests.proofs import proves


def detect_upgrade(upgrade: UpgradeScenario) -> tuple[str, dict[str, str]]:
    upgrade.check_rule_and_target()
    upgrade.run_steps("check-run")
    reply = upgrade.run_step("detect-upgrade", events.RUN_VALIDATED)
    run = upgrade.read_object(upgrade.run_config)
    condition_types = ("UpgradeChecked", "UpgradeReady", "UpgradeAvailable")
    return reply, {name: get_condition(run, name).get("status", "") for name in condition_types}


ALL_TRUE, UPGRADE_NOT_READY = ("True", "True", "True"), ("True", "False", "False")


@proves("MUT-31", "MUT-32", "C26")
@pytest.mark.parametrize(
    ("desired_version", "state", "completed_version", "expected_statuses"),
    [
        (NEW_VERSION, "Completed", "", ALL_TRUE),
        (NEW_VERSION, "Partial", "", UPGRADE_NOT_READY),
        (NEW_VERSION, "Completed", OLD_VERSION, UPGRADE_NOT_READY),
        (OLD_VERSION, "Completed", "", ("True", "True", "False")),
        ("4.9.0", "Completed", "", ("True", "True", "False")),
        ("", "Completed", OLD_VERSION, ("False", "False", "False")),
        ("soon", "Completed", "", ("False", "False", "False")),
    ],
)
def test_upgrade_is_available_if_control_plane_is_newer_than_worker(
    upgrade: UpgradeScenario,
    audit_after_setup: AuditLog,
    desired_version: str,
    state: str,
    completed_version: str,
    expected_statuses: tuple[str, str, str],
) -> None:
    """Check that an upgrade is available if the control plane is at the desired version and a worker is older.

    `detect-upgrade` writes only conditions.
    """
    upgrade.cvo.set_desired_version(desired_version, state, completed_version)
    reply, conditions = detect_upgrade(upgrade)
    assert tuple(conditions.values()) == expected_statuses
    assert (reply == events.UPGRADE_DETECTED) is (expected_statuses == ALL_TRUE)
    assert {entry["objectRef"]["resource"] for entry in audit_after_setup.list_writes_by()} <= {
        *("jobs", "mutexrules", "mutextargets", "mutexrunconfigs")
    }


def test_no_upgrade_is_available_if_workers_have_desired_version(upgrade: UpgradeScenario) -> None:
    """Check that the condition names the version that the workers have."""
    upgrade.cvo.set_desired_version(OLD_VERSION, "Completed", "")
    detect_upgrade(upgrade)
    condition = get_condition(upgrade.read_object(upgrade.run_config), "UpgradeAvailable")
    assert (condition["status"], condition["message"]) == ("False", f"all workers have version {OLD_VERSION} or newer")


@proves("MUT-50")
def test_condition_of_finished_run_announces_next_run(upgrade: UpgradeScenario) -> None:
    """Check that the condition announces that the next version starts another run, and later names that version."""
    upgrade.advance_to_jobs()
    finished = {"status": {"record": {"finishedAt": "2026-01-01T01:00:00Z"}}}
    upgrade.administrator_client.patch(f"{build_object_path(upgrade.run_config)}/status", finished)
    messages = []
    for version in (NEW_VERSION, "4.17.0"):
        upgrade.cvo.set_desired_version(version)
        detect_upgrade(upgrade)
        condition = get_condition(upgrade.read_object(upgrade.run_config), "UpgradeAvailable")
        messages.append((condition["status"], condition["message"]))
    assert messages == [
        (
            "False",
            f"the run to {NEW_VERSION} is finished; the next version starts another run, "
            "unless you delete the MutexRunConfig",
        ),
        ("True", f"workers older than 4.17.0: {', '.join(upgrade.nodes)}"),
    ]


@proves("MUT-31", "MUT-36")
def test_no_upgrade_is_available_for_targets_without_nodes(upgrade: UpgradeScenario) -> None:
    """Check that no upgrade is available for targets without nodes, even if workers outside the targets are older.

    Otherwise a run would have no nodes to label, and its canary pool would select all workers.
    """
    for name in upgrade.nodes:
        upgrade.patch_node_labels(name, {"role": "green"})
    assert detect_upgrade(upgrade)[0] == ""
    condition = get_condition(upgrade.read_object(upgrade.run_config), "UpgradeAvailable")
    assert (condition["status"], condition["message"]) == ("False", "the targets contain no nodes")
    assert upgrade.resync_by_tick() == []


@proves("C23")
def test_cluster_version_with_name_cluster_is_read(upgrade: UpgradeScenario) -> None:
    """Check that `detect-upgrade` reads the ClusterVersion `cluster` if none has the usual name `version`."""
    version_path = f"{CLUSTER_VERSIONS_PATH}/version"
    cluster_version = upgrade.administrator_client.get(version_path)
    upgrade.administrator_client.delete(version_path, uid=cluster_version["metadata"]["uid"])
    try:
        upgrade.administrator_client.create(
            CLUSTER_VERSIONS_PATH, {**strip_for_recreation(cluster_version), "metadata": {"name": "cluster"}}
        )
        write_status(upgrade, "cluster", cluster_version["status"])
        assert detect_upgrade(upgrade)[0] == events.UPGRADE_DETECTED
    finally:
        upgrade.administrator_client.run(
            upgrade.administrator_client.api.request("DELETE", f"{CLUSTER_VERSIONS_PATH}/cluster")
        )
        upgrade.administrator_client.create(
            CLUSTER_VERSIONS_PATH, {**strip_for_recreation(cluster_version), "metadata": {"name": "version"}}
        )
        write_status(upgrade, "version", cluster_version["status"])


def write_status(upgrade: UpgradeScenario, name: str, status: Object) -> None:
    """Replace an object's whole status, because a merge patch would drop null fields, one of which is required."""
    json_patch = [{"op": "add", "path": "/status", "value": status}]
    upgrade.administrator_client.patch(f"{CLUSTER_VERSIONS_PATH}/{name}/status", json_patch, JSON_PATCH)


def strip_for_recreation(manifest: Object) -> Object:
    """Return an object's apiVersion, kind and spec, which are enough to create the object again."""
    return {name: manifest[name] for name in ("apiVersion", "kind", "spec")}


@proves("MUT-2")
@pytest.mark.parametrize("version", [None, "newest"])
def test_node_without_version_is_reported(upgrade: UpgradeScenario, version: str | None) -> None:
    """Check that the condition names a node that reports no valid version, and that the run does not begin."""
    upgrade.patch_node_labels(upgrade.nodes[1], {VERSION_LABEL: version})
    reply, conditions = detect_upgrade(upgrade)
    assert (reply, conditions["UpgradeChecked"]) == ("", "False")
    assert upgrade.nodes[1] in get_condition(upgrade.read_object(upgrade.run_config), "UpgradeChecked")["message"]


@proves("MUT-49", "MUT-42")
def test_run_without_record_restores_pools_before_next_run(upgrade: UpgradeScenario) -> None:
    """Check that a run that lost its record restores its pools before a new run begins.

    Otherwise the new run would record the edited selectors as the original ones. The new run has a different id, so it
    reuses no Job of the previous run.
    """
    upgrade.advance_to_jobs()
    lost_run_id = upgrade.read_status()["record"]["id"]
    upgrade.administrator_client.patch(f"{build_object_path(upgrade.run_config)}/status", {"status": {"record": None}})

    tick_events = [reply.get_type() for reply in upgrade.resync_by_tick() if not reply.get_extension("node")]
    assert tick_events == [events.RUN_RESTORE_PENDING]
    assert upgrade.run_step("detect-upgrade", events.RUN_VALIDATED) == events.RUN_RESTORE_PENDING
    assert upgrade.run_step("restore-pools", events.RUN_RESTORE_PENDING) == events.RUN_RESTORED
    upgrade.run_steps("check-run", "detect-upgrade", "claim-pools")

    record = upgrade.read_status()["record"]
    assert record["pools"]["blue"]["selector"] == upgrade.original_pool_specs["blue"]["nodeSelector"]
    assert record["canary"]["selector"] == upgrade.original_pool_specs["canary"]["nodeSelector"]
    assert record["id"] != lost_run_id
