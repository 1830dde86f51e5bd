"""Tests for listing a node's maintenances on a real API server, including API groups whose list request fails."""

from __future__ import annotations

import itertools
from http import HTTPStatus

import pytest

from kube.client.api_errors import Denied, NotFound, Unavailable
from kube.client.sync_client import SyncClient
from kube.maintenance.groups import GROUPS, KUBEVIRT_ALPHA
from kube.maintenance.lookup import (
    collect_group_lists,
    find_orphan_uids,
    list_maintenances,
    list_undeleted_maintenances,
)
from kube.paths import Object
from localcluster.access import make_username
from localcluster.cluster import LocalCluster
from tests.kube import samples
from tests.proofs import proves
from tests.workload import Workload

DENIED_ERROR, UNAVAILABLE_ERROR = Denied(HTTPStatus.FORBIDDEN, "may not"), Unavailable(0, "no response")


def create_maintenance_in_every_group(workload: Workload, node: str) -> list[Object]:
    return [workload.create_maintenance(node, group) for group in GROUPS.values()]


def get_uids(maintenances: list[Object]) -> set[str]:
    return {maintenance["metadata"]["uid"] for maintenance in maintenances}


@proves("X-7")
@pytest.mark.usefixtures("legacy_crd")
def test_crd_without_field_selectors_is_listed_and_filtered(
    installed_cluster: LocalCluster, admin_client: SyncClient
) -> None:
    """X-7: if the API server rejects the field selector for an API group, the list has only the node's objects."""
    workload = Workload(installed_cluster, admin_client)
    matching = create_maintenance_in_every_group(workload, "one-node")
    other_maintenances = create_maintenance_in_every_group(workload, "other-node")

    listed_maintenances = admin_client.run(list_maintenances(admin_client.api, "one-node"))

    for maintenance in (*matching, *other_maintenances):
        workload.delete(f"{GROUPS[maintenance['apiVersion']].path}/{maintenance['metadata']['name']}")
    assert get_uids(listed_maintenances) == get_uids(matching)
    assert {maintenance["apiVersion"] for maintenance in listed_maintenances} == set(GROUPS)


def test_api_group_that_is_not_installed_is_ignored(installed_cluster: LocalCluster, admin_client: SyncClient) -> None:
    """C7: an API group that is not installed has no objects, because the oldest API group is optional."""
    maintenance = Workload(installed_cluster, admin_client).create_maintenance("a-node")

    listed_maintenances = admin_client.run(list_undeleted_maintenances(admin_client.api, "a-node"))

    admin_client.run(
        admin_client.api.request(
            "DELETE", f"{GROUPS[maintenance['apiVersion']].path}/{maintenance['metadata']['name']}"
        )
    )
    with pytest.raises(NotFound):
        admin_client.list(KUBEVIRT_ALPHA.path)
    assert [listed["metadata"]["uid"] for listed in listed_maintenances] == [maintenance["metadata"]["uid"]]


@pytest.mark.parametrize("position", range(3))
def test_forbidden_api_group_does_not_affect_other_api_groups(position: int, caplog: pytest.LogCaptureFixture) -> None:
    """X-6, X-7: an API group that the account may not list is logged and has the result None; others are listed."""
    results: list[list[Object] | BaseException] = [[], [], []]
    results[position] = DENIED_ERROR

    lists = collect_group_lists(results)

    assert [items is None for items in lists] == [number == position for number in range(3)]
    assert "may not" in caplog.text


@pytest.mark.parametrize("order", sorted(set(itertools.permutations([0, 1, 2]))))
def test_lookup_raises_if_api_group_is_unavailable(order: tuple[int, ...]) -> None:
    """X-6: if one API group does not respond, the lookup raises an error instead of returning a partial list."""
    results: list[list[Object] | BaseException] = [[], DENIED_ERROR, UNAVAILABLE_ERROR]

    with pytest.raises(Unavailable):
        collect_group_lists([results[number] for number in order])


def test_denied_is_raised_if_all_api_groups_are_forbidden(installed_cluster: LocalCluster) -> None:
    """X-6: an account without any permission gets the error `Denied` instead of an empty list."""
    client = SyncClient(str(installed_cluster.ensure_kubeconfig(make_username("record"))))

    with pytest.raises(Denied, match="cannot list resource"):
        client.run(list_undeleted_maintenances(client.api, "a-node"))
    client.close()


def test_pod_of_deleted_daemonset_is_found_as_orphan(installed_cluster: LocalCluster, admin_client: SyncClient) -> None:
    """NMO-7: only a DaemonSet pod whose DaemonSet does not exist is an orphan."""
    workload = Workload(installed_cluster, admin_client)
    owned_pod = workload.create_daemonset("agent", "node-1")
    orphan = samples.make_pod("orphan", namespace=workload.namespace, owner="DaemonSet")

    assert admin_client.run(find_orphan_uids(admin_client.api, [owned_pod, orphan, samples.make_pod("bare")])) == {
        orphan["metadata"]["uid"]
    }
