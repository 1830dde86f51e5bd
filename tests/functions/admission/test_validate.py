"""Tests of the API server's response to the creation of a NodeMaintenance, with the real webhook registered."""

from __future__ import annotations

import pytest
import requests

from kube.client.api import JSON_PATCH, absent_ok
from kube.client.api_errors import Conflict, Denied, Rejected
from kube.client.sync_client import Cluster
from kube.maintenance.groups import GROUPS, KUBEVIRT, KUBEVIRT_ALPHA, MEDIK8S, Group
from kube.maintenance.objects import path
from localcluster.admission.webhook import Webhook
from localcluster.processes import await_ready
from localcluster.readiness import CRDS
from tests.chain.test_observability import ADMISSION, documented
from tests.chain.test_observability import PAGE as OBSERVABILITY
from tests.functions.admission.maintenances import create, named
from tests.proofs import proves
from tests.workload import Workload

every_group = pytest.mark.parametrize("group", GROUPS.values(), ids=lambda group: group.api_version.split("/")[0])
RULE = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/nodeName/x-kubernetes-validations"


@proves("NMO-18", "NMO-19")
@every_group
def test_an_unknown_node_is_refused_in_the_operators_words(door: Cluster, group: Group) -> None:
    with pytest.raises(Denied) as refused:
        create(door, named("nobody", group))

    assert "denied the request: invalid nodeName, no node with name nobody found; `kubectl get nodes`" in str(
        refused.value
    )


@proves("NMO-19")
def test_a_name_that_no_node_can_have_is_refused_by_the_policy_in_the_same_words(door: Cluster) -> None:
    with pytest.raises(Rejected) as refused:
        create(door, named("doesNotExist"))

    assert "ValidatingAdmissionPolicy" in str(refused.value)
    assert "invalid nodeName, no node with name doesNotExist found" in str(refused.value)


@proves("NMO-22", "X-7")
@pytest.mark.parametrize("second", GROUPS.values(), ids=lambda group: group.api_version.split("/")[0])
@every_group
def test_a_second_maintenance_of_a_node_is_refused_across_the_groups(
    work: Workload, door: Cluster, group: Group, second: Group
) -> None:
    node = work.node()
    first = create(door, named(node, group))

    with pytest.raises(Denied) as refused:
        create(door, named(node, second))

    name = first["metadata"]["name"]
    assert f"invalid nodeName, a NodeMaintenance for node {node} already exists: {name}" in str(refused.value)
    assert f"kubectl delete nodemaintenances.{group.api_version.partition('/')[0]} {name}" in str(refused.value)


def test_the_node_is_free_as_soon_as_its_maintenance_is_gone(work: Workload, door: Cluster) -> None:
    """Check that a new maintenance is accepted right after the deletion of the previous one.

    The webhook's watch cache may be outdated for a moment, so `validate` reads the objects again before it denies one.
    """
    node = work.node()
    for _ in range(20):
        item = create(door, named(node))
        door.delete(path(item), uid=item["metadata"]["uid"])


def test_the_very_name_is_answered_by_the_server_itself(work: Workload, door: Cluster) -> None:
    """Check that a second create of the same object gets `AlreadyExists`, which clients know how to handle."""
    item = create(door, named(work.node()))

    with pytest.raises(Conflict, match="already exists"):
        create(door, named(item["spec"]["nodeName"], name=item["metadata"]["name"]))


@proves("NMO-21")
@every_group
def test_the_node_name_stays_in_the_operators_words(work: Workload, door: Cluster, group: Group) -> None:
    item = create(door, named(work.node(), group))

    with pytest.raises(Rejected, match=r"updating spec\.NodeName isn't allowed"):
        door.patch(path(item), {"spec": {"nodeName": "another"}})


@proves("NMO-21")
def test_the_policy_says_the_same_for_a_schema_that_does_not(work: Workload, door: Cluster) -> None:
    """Check that the policy keeps `spec.nodeName` immutable if the CRD's schema has no such rule.

    Another product that serves the same kind may install a CRD without that rule.
    """
    item = create(door, named(work.node(), KUBEVIRT_ALPHA))
    found = door.get(f"{CRDS}/nodemaintenances.kubevirt.io")["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    kept = found["properties"]["spec"]["properties"]["nodeName"]["x-kubernetes-validations"]

    def refused_by_policy() -> bool:
        with pytest.raises(Rejected, match=r"updating spec\.NodeName isn't allowed") as refused:
            door.patch(path(item), {"spec": {"nodeName": "another"}})
        return "ValidatingAdmissionPolicy" in str(refused.value)

    door.patch(f"{CRDS}/nodemaintenances.kubevirt.io", [{"op": "remove", "path": RULE}], JSON_PATCH)
    try:
        await_ready("the schema without the rule", refused_by_policy, [])
    finally:
        back = [{"op": "add", "path": RULE, "value": kept}]
        door.patch(f"{CRDS}/nodemaintenances.kubevirt.io", back, JSON_PATCH)


@proves("NMO-18")
def test_a_finalizer_comes_off_whatever_the_object_says(work: Workload, door: Cluster) -> None:
    """Check that the finalizer of a maintenance can be removed after its node was deleted.

    The webhook is registered for CREATE only, so it does not check the removal.
    """
    node = work.node()
    item = create(door, {**named(node), "metadata": {"name": "held", "finalizers": ["example.com/hold"]}})
    door.delete(f"/api/v1/nodes/{node}", uid=work.read_node(node)["metadata"]["uid"])
    door.delete(path(item), uid=item["metadata"]["uid"])

    door.patch(path(item), {"metadata": {"finalizers": None}})

    assert door.run(absent_ok(door.api.get(path(item)))) is None


@proves("NMO-18")
def test_a_dry_run_is_answered_and_nothing_is_kept(work: Workload, door: Cluster) -> None:
    node = work.node()

    created = door.dry_run().create(MEDIK8S.path, named(node))
    with pytest.raises(Denied, match="no node with name nobody found"):
        door.dry_run().create(MEDIK8S.path, named("nobody"))

    create(door, named(node, KUBEVIRT))
    assert created["spec"]["nodeName"] == node


def test_its_metrics_are_those_of_the_page(work: Workload, door: Cluster, webhook: Webhook) -> None:
    """Check that the webhook serves, over HTTPS, exactly the metrics that docs/observability.md names."""
    create(door, named(work.node()))

    page = requests.get(f"{webhook.url}/metrics", verify=str(webhook.ca_file), timeout=10).text

    families = {line.split()[2] for line in page.splitlines() if line.startswith("# TYPE nodemaintenance_")}
    offered = {name for name in families if not name.endswith("_created")}
    assert offered == {name for name in documented(OBSERVABILITY) if name.startswith(ADMISSION)}
