"""Tests for creating and deleting maintenances on a real API server."""

from __future__ import annotations

import pytest

from console.operations.errors import Refusal
from console.operations.maintenance_actions import (
    create_maintenance,
    delete_maintenances,
    end_maintenances,
    preview_maintenance_creation,
)
from kube.client.access_reviews import whoami
from kube.maintenance import objects as m
from kube.maintenance.groups import MEDIK8S
from kube.maintenance.lookup import list_maintenances
from localcluster.access import UNPRIVILEGED
from localcluster.cluster import LocalCluster
from tests.console.commands.test_dry_run import grant_temporary_permissions
from tests.console.conftest import RunCommand


def test_empty_node_name_deletes_no_maintenance(served_cluster: LocalCluster, node_name: str) -> None:
    """NMO-14: an empty node name is an error, and does not delete the maintenances of all nodes."""
    client = served_cluster.get_client()
    client.run(create_maintenance(client.api, MEDIK8S, node_name, node_name, "stays"))

    with pytest.raises(Refusal, match=r'node ".*" not found'):
        client.run(end_maintenances(client.api, ""))

    (maintenance,) = client.run(list_maintenances(client.api, node_name))
    assert "deletionTimestamp" not in maintenance["metadata"]
    client.run(end_maintenances(client.api, node_name))


def test_deleted_maintenance_names_user_who_stopped_it(served_cluster: LocalCluster, node_name: str) -> None:
    """OSV-8: while a maintenance is being deleted, its annotation names the first user who stopped it."""
    client, path, finalizer = served_cluster.get_client(), f"{MEDIK8S.path}/{node_name}", "backup.example/keep"
    body = {"apiVersion": MEDIK8S.api_version, "kind": "NodeMaintenance", "spec": {"nodeName": node_name}}
    finalizers = [finalizer, m.FINALIZER]  # The product's finalizer keeps the maintenance unreleased.
    client.create(MEDIK8S.path, {**body, "metadata": {"name": node_name, "finalizers": finalizers}})

    client.run(end_maintenances(client.api, node_name))
    ended = client.get(path)
    client.run(delete_maintenances(client.api, [ended], "somebody-else"))

    assert m.get_ending_user(ended) == client.run(whoami(client.api))
    assert m.get_ending_user(client.get(path)) == m.get_ending_user(ended)
    client.patch(path, {"metadata": {"finalizers": None}})


def test_failed_stop_leaves_no_user_name(served_cluster: LocalCluster, run_command: RunCommand, node_name: str) -> None:
    """OSV-8: if a user may not delete the maintenance, no annotation names this user as the one who stopped it."""
    client, path = served_cluster.get_client(), f"{MEDIK8S.path}/{node_name}"
    client.run(create_maintenance(client.api, MEDIK8S, node_name, node_name, "stays"))
    rules = ("get nodes", "get nodemaintenances", "list nodemaintenances", "patch nodemaintenances")

    with grant_temporary_permissions(served_cluster, "patcher", *rules):
        result = run_command("stop", node_name, user=UNPRIVILEGED)

    maintenance = client.get(path)
    assert (result.exit_code, m.get_ending_user(maintenance), m.is_deleting(maintenance)) == (1, "", False)
    assert "cannot delete resource" in result.stderr
    assert maintenance["metadata"]["generation"] == 1
    client.run(end_maintenances(client.api, node_name))


def test_preview_refuses_name_of_existing_maintenance(served_cluster: LocalCluster, node_name: str) -> None:
    """OSV-7: the preview refuses the name of a maintenance that is for another node or is released.

    In this test, the released maintenance still exists because it has another finalizer.
    """
    client, path, finalizer = served_cluster.get_client(), f"{MEDIK8S.path}/{node_name}", "backup.example/keep"
    type_fields = {"apiVersion": MEDIK8S.api_version, "kind": "NodeMaintenance"}
    metadata = {"name": node_name, "finalizers": [finalizer]}
    created = client.create(MEDIK8S.path, {**type_fields, "metadata": metadata, "spec": {"nodeName": "elsewhere"}})

    with pytest.raises(Refusal, match=f'NodeMaintenance "{node_name}" already exists for node "elsewhere"'):
        client.run(preview_maintenance_creation(client.api, MEDIK8S, node_name))
    client.delete(path, uid=created["metadata"]["uid"])
    message = f"/{node_name} is released, but exists until these finalizers are removed: {finalizer}"
    with pytest.raises(Refusal, match=message):
        client.run(preview_maintenance_creation(client.api, MEDIK8S, node_name))

    client.patch(path, {"metadata": {"finalizers": None}})
