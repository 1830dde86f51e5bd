"""Tests for the API server's response to the creation of a NodeMaintenance, with the real webhook registered."""

from __future__ import annotations

import pytest
import requests

from kube.client.access_reviews import whoami
from kube.client.api import JSON_PATCH, get_or_none
from kube.client.api_errors import Conflict, Denied, Rejected
from kube.client.sync_client import SyncClient
from kube.maintenance import objects as m
from kube.maintenance.groups import GROUPS, KUBEVIRT, KUBEVIRT_ALPHA, MEDIK8S, ApiGroup
from kube.maintenance.objects import build_path
from localcluster.admission.webhook import Webhook
from localcluster.processes import wait_until_ready
from localcluster.readiness import CRDS_PATH
from tests.chain.test_observability import parse_documented_metrics
from tests.functions.admission.maintenances import build_maintenance, create_maintenance
from tests.proofs import proves
from tests.workload import Workload

for_every_group = pytest.mark.parametrize("group", GROUPS.values(), ids=lambda group: group.api_version.split("/")[0])
NODE_NAME_RULE_POINTER = (
    "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/nodeName/x-kubernetes-validations"
)


@proves("NMO-18", "NMO-19")
@for_every_group
def test_unknown_node_is_denied_with_message_of_medik8s_operator(client: SyncClient, group: ApiGroup) -> None:
    with pytest.raises(Denied) as denied:
        create_maintenance(client, build_maintenance("nobody", group))

    assert "denied the request: invalid nodeName, no node with name nobody found; `kubectl get nodes`" in str(
        denied.value
    )


@proves("NMO-19")
def test_admission_policy_rejects_invalid_node_name_with_message_of_webhook(client: SyncClient) -> None:
    with pytest.raises(Rejected) as rejected:
        create_maintenance(client, build_maintenance("doesNotExist"))

    assert "ValidatingAdmissionPolicy" in str(rejected.value)
    assert "invalid nodeName, no node with name doesNotExist found" in str(rejected.value)


@proves("NMO-22", "X-7")
@pytest.mark.parametrize("second_group", GROUPS.values(), ids=lambda group: group.api_version.split("/")[0])
@for_every_group
def test_second_maintenance_of_node_is_denied_across_api_groups(
    workload: Workload, client: SyncClient, group: ApiGroup, second_group: ApiGroup
) -> None:
    node = workload.take_node()
    first = create_maintenance(client, build_maintenance(node, group))

    with pytest.raises(Denied) as denied:
        create_maintenance(client, build_maintenance(node, second_group))

    name = first["metadata"]["name"]
    assert f"invalid nodeName, a NodeMaintenance for node {node} already exists: {name}" in str(denied.value)
    assert f"kubectl delete nodemaintenances.{group.api_version.partition('/')[0]} {name}" in str(denied.value)


def test_maintenance_is_accepted_after_deletion_of_previous_maintenance(workload: Workload, client: SyncClient) -> None:
    """Check that a new maintenance is accepted right after the deletion of the node's previous maintenance.

    The webhook's watch cache may be outdated for a moment, so `validate` reads the objects again before each denial.
    """
    node = workload.take_node()
    for _ in range(20):
        maintenance = create_maintenance(client, build_maintenance(node))
        client.delete(build_path(maintenance), uid=maintenance["metadata"]["uid"])


def test_create_request_with_existing_name_gets_already_exists(workload: Workload, client: SyncClient) -> None:
    """Check that a second create request with the same object name gets `AlreadyExists`, which clients can handle."""
    maintenance = create_maintenance(client, build_maintenance(workload.take_node()))

    with pytest.raises(Conflict, match="already exists"):
        create_maintenance(
            client, build_maintenance(maintenance["spec"]["nodeName"], name=maintenance["metadata"]["name"])
        )


@proves("NMO-21")
@for_every_group
def test_change_of_node_name_is_rejected_with_message_of_medik8s_operator(
    workload: Workload, client: SyncClient, group: ApiGroup
) -> None:
    maintenance = create_maintenance(client, build_maintenance(workload.take_node(), group))

    with pytest.raises(Rejected, match=r"updating spec\.NodeName isn't allowed"):
        client.patch(build_path(maintenance), {"spec": {"nodeName": "another"}})


@proves("NMO-21")
def test_admission_policy_rejects_change_of_node_name_without_schema_rule(
    workload: Workload, client: SyncClient
) -> None:
    """Check that the ValidatingAdmissionPolicy keeps `spec.nodeName` immutable if the CRD's schema does not.

    Another product that serves the same kind may install a CRD without a rule for `spec.nodeName`.
    """
    maintenance = create_maintenance(client, build_maintenance(workload.take_node(), KUBEVIRT_ALPHA))
    schema = client.get(f"{CRDS_PATH}/nodemaintenances.kubevirt.io")["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    rules = schema["properties"]["spec"]["properties"]["nodeName"]["x-kubernetes-validations"]

    def is_rejected_by_policy() -> bool:
        with pytest.raises(Rejected, match=r"updating spec\.NodeName isn't allowed") as rejected:
            client.patch(build_path(maintenance), {"spec": {"nodeName": "another"}})
        return "ValidatingAdmissionPolicy" in str(rejected.value)

    client.patch(
        f"{CRDS_PATH}/nodemaintenances.kubevirt.io", [{"op": "remove", "path": NODE_NAME_RULE_POINTER}], JSON_PATCH
    )
    try:
        wait_until_ready("the CRD schema without the nodeName rule", is_rejected_by_policy, [])
    finally:
        restore_patch = [{"op": "add", "path": NODE_NAME_RULE_POINTER, "value": rules}]
        client.patch(f"{CRDS_PATH}/nodemaintenances.kubevirt.io", restore_patch, JSON_PATCH)


def test_requester_and_ender_annotations_cannot_be_forged(workload: Workload, client: SyncClient) -> None:
    """Check that no client can annotate another user as requester or ender, nor change the requester later."""
    user = client.run(whoami(client.api))
    own, foreign = {m.REQUESTER_ANNOTATION: user}, {m.REQUESTER_ANNOTATION: "mallory"}
    body = build_maintenance(workload.take_node())
    metadata = body["metadata"]

    with pytest.raises(Rejected, match=f"must name the user who creates the object, {user}"):
        create_maintenance(client, {**body, "metadata": {**metadata, "annotations": foreign}})
    path = build_path(create_maintenance(client, {**body, "metadata": {**metadata, "annotations": own}}))
    with pytest.raises(Rejected, match="must not change later"):
        client.patch(path, {"metadata": {"annotations": foreign}})
    with pytest.raises(Rejected, match="must name the user who sets it"):
        client.patch(path, {"metadata": {"annotations": {m.ENDER_ANNOTATION: "mallory"}}})
    client.patch(path, {"metadata": {"annotations": {m.ENDER_ANNOTATION: user}}})
    client.patch(path, {"metadata": {"annotations": {m.REQUESTER_ANNOTATION: None}}})
    with pytest.raises(Rejected, match="must not change later"):
        client.patch(path, {"metadata": {"annotations": own}})

    assert client.get(path)["metadata"]["annotations"][m.ENDER_ANNOTATION] == user


def test_console_account_may_annotate_proxied_user_as_requester(workload: Workload, client: SyncClient) -> None:
    """Check that only an account with the RBAC verb `assert` may annotate another user as the requester."""
    account, role = "system:serviceaccount:node-maintenance:console", "nodemaintenance-console-proxied"
    roles, bindings = (f"/apis/rbac.authorization.k8s.io/v1/{name}" for name in ("clusterroles", "clusterrolebindings"))
    rules = [
        {"apiGroups": ["nodemaintenance.medik8s.io"], "resources": ["nodemaintenances"], "verbs": ["create"]},
        {"apiGroups": ["nodemaintenance.dev"], "resources": ["requesters"], "verbs": ["assert"]},
    ]
    body = build_maintenance(workload.take_node())
    body["metadata"]["annotations"] = {m.REQUESTER_ANNOTATION: "mary"}
    proxied_api = client.api.with_impersonation(account)

    client.create(roles, {"metadata": {"name": role}, "rules": rules[:1]})
    subject = {"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": account}
    role_reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role}
    client.create(bindings, {"metadata": {"name": role}, "roleRef": role_reference, "subjects": [subject]})

    def can_create() -> bool:
        try:
            client.run(proxied_api.with_dry_run().create(MEDIK8S.path, body))
        except (Denied, Rejected) as error:
            refusals.append(error.message)
            return False
        return True

    refusals: list[str] = []
    wait_until_ready("the account's right to create", lambda: can_create() or "requested-by" in refusals[-1], [])
    client.patch(f"{roles}/{role}", {"rules": rules})
    wait_until_ready("the account's right to name users", can_create, [])

    assert "must name the user who creates the object, system:serviceaccount" in refusals[-1]


@proves("NMO-18")
def test_finalizer_can_be_removed_after_node_is_deleted(workload: Workload, client: SyncClient) -> None:
    """Check that the finalizer of a maintenance can be removed after its node was deleted.

    The webhook is registered for CREATE only, so it does not check the removal.
    """
    node = workload.take_node()
    maintenance = create_maintenance(
        client, {**build_maintenance(node), "metadata": {"name": "held", "finalizers": ["example.com/hold"]}}
    )
    client.delete(f"/api/v1/nodes/{node}", uid=workload.read_node(node)["metadata"]["uid"])
    client.delete(build_path(maintenance), uid=maintenance["metadata"]["uid"])

    client.patch(build_path(maintenance), {"metadata": {"finalizers": None}})

    assert client.run(get_or_none(client.api.get(build_path(maintenance)))) is None


@proves("NMO-18")
def test_dry_run_is_reviewed_and_stores_nothing(workload: Workload, client: SyncClient) -> None:
    node = workload.take_node()

    created = client.with_dry_run().create(MEDIK8S.path, build_maintenance(node))
    with pytest.raises(Denied, match="no node with name nobody found"):
        client.with_dry_run().create(MEDIK8S.path, build_maintenance("nobody"))

    create_maintenance(client, build_maintenance(node, KUBEVIRT))
    assert created["spec"]["nodeName"] == node


def test_webhook_metrics_match_documentation(workload: Workload, client: SyncClient, webhook: Webhook) -> None:
    """Check that the webhook serves, over HTTPS, exactly the metrics that docs/reference.md names."""
    create_maintenance(client, build_maintenance(workload.take_node()))

    page = requests.get(f"{webhook.url}/metrics", verify=str(webhook.ca_file), timeout=10).text

    families = {line.split()[2] for line in page.splitlines() if line.startswith("# TYPE nodemaintenance_")}
    exposed = {name for name in families if not name.endswith("_created")}
    assert exposed == parse_documented_metrics("the admission webhook").keys()
