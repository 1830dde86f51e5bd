"""Tests for the Roles of `renew-certificates` in other projects' namespaces, on a real API server."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone

import pytest
import yaml

from functions.certificates.renewal import renew_all
from functions.certificates.settings import Settings
from kube.certificates import component_state, objects
from kube.certificates.components import COMPONENT_LABEL, COMPONENTS
from kube.client.sync_client import SyncClient
from localcluster import access
from localcluster.cluster import LocalCluster
from tests.manifests.documented_rights import Right, read_documented_rights
from tests.manifests.rendering import MANIFESTS, filter_by_kind
from tests.manifests.test_rights import list_extra_rights
from tests.proofs import proves

NAMESPACES = {"kubevirt": "kubevirt", "cdi": "cdi", "macpool": "kubemacpool-system"}
ACCOUNT = "renew-certificates"


def read_role_file(component: str) -> str:
    return (MANIFESTS / "components" / "certificates" / component / "role.yaml").read_text()


def list_writable_secrets(component: str) -> list[str]:
    """Return the names of the Secrets that the Role permits to patch."""
    (role,) = filter_by_kind(yaml.safe_load_all(read_role_file(component)), "Role")
    rules = [rule for rule in role["rules"] if "secrets" in rule["resources"] and "patch" in rule["verbs"]]
    return [name for rule in rules for name in rule["resourceNames"]]


@pytest.fixture(params=NAMESPACES, scope="module")
def component(request: pytest.FixtureRequest, installed_cluster: LocalCluster) -> Iterator[str]:
    """Yield the name of a certificate component whose Role exists in the component's namespace."""
    name: str = request.param
    installed_cluster.kubectl("create", "namespace", NAMESPACES[name])
    installed_cluster.kubectl("apply", "--server-side", "--validate=strict", "-f", "-", input=read_role_file(name))
    yield name
    # Other tests list all bindings of the product, and the namespace is deleted asynchronously.
    installed_cluster.kubectl("delete", "-f", "-", input=read_role_file(name))
    installed_cluster.kubectl("delete", "namespace", NAMESPACES[name], "--wait=false")


@proves("OSV-23")
def test_role_file_contains_only_role_and_role_binding(component: str) -> None:
    manifests = list(yaml.safe_load_all(read_role_file(component)))

    assert [manifest["kind"] for manifest in manifests] == ["Role", "RoleBinding"]
    assert {manifest["metadata"]["namespace"] for manifest in manifests} == {NAMESPACES[component]}
    (subject,) = manifests[1]["subjects"]
    assert subject == {"kind": "ServiceAccount", "name": ACCOUNT, "namespace": access.NAMESPACE}
    assert COMPONENTS[component].ca_secret_name in list_writable_secrets(component)


@proves("OSV-20", "OSV-23")
def test_role_permits_writing_only_named_secrets(installed_cluster: LocalCluster, component: str) -> None:
    """Check that `renew-certificates` can write only the Secrets that the Role names.

    The Role names one of two labeled Secrets, and the other Secret stays unchanged.
    """
    admin, namespace = installed_cluster.get_client(), NAMESPACES[component]
    client = SyncClient(str(installed_cluster.ensure_kubeconfig(access.make_username(ACCOUNT))))
    for name in ("other", list_writable_secrets(component)[1]):
        metadata = {
            "name": name,
            "labels": {COMPONENT_LABEL: component},
            "annotations": {objects.DNS_NAMES_ANNOTATION: f"{name}.{namespace}.svc"},
        }
        admin.create(objects.build_secrets_path(namespace), {"metadata": metadata})

    errors_by_pass = [
        client.run(renew_all(client.api, Settings((namespace,)), datetime.now(timezone.utc))).errors for _ in range(2)
    ]

    client.close()
    assert [[error.status for error in errors] for errors in errors_by_pass] == [[403], [403]]
    assert component_state.get_current_key_pair(
        admin.get(objects.build_secrets_path(namespace, list_writable_secrets(component)[1]))
    )
    assert "data" not in admin.get(objects.build_secrets_path(namespace, "other"))
    expected = {right._replace(namespace=namespace) for right in read_documented_rights(ACCOUNT) if right.namespace}
    assert list_extra_rights(installed_cluster, ACCOUNT, namespace) >= expected
    readers = {
        account
        for account in access.list_service_accounts()
        if any(right.resource == "secrets" for right in list_extra_rights(installed_cluster, account, namespace))
    }
    assert readers == {ACCOUNT}
    assert Right("", "secrets", "delete", namespace) not in list_extra_rights(installed_cluster, ACCOUNT, namespace)
