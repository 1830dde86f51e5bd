"""The Roles of `renew-certificates` in the namespaces of other projects, on a real API server."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone

import pytest
import yaml

from functions.certificates.settings import Settings
from functions.certificates.renewal_pass import renewed
from kube.certificates import certificate_objects
from kube.certificates.components import COMPONENTS, LABEL
from kube.client.sync_client import Cluster
from localcluster import access
from localcluster.cluster import LocalCluster
from tests.manifests.rendering import MANIFESTS, of_kind
from tests.manifests.test_rights import own
from tests.manifests.documented_rights import Right, documented
from tests.proofs import proves

SPACES = {"kubevirt": "kubevirt", "cdi": "cdi", "macpool": "kubemacpool-system"}
ACCOUNT = "renew-certificates"


def role_file(component: str) -> str:
    return (MANIFESTS / "components" / "certificates" / component / "role.yaml").read_text()


def writable(component: str) -> list[str]:
    """Return the names of the Secrets that the Role permits to patch."""
    (role,) = of_kind(yaml.safe_load_all(role_file(component)), "Role")
    rules = [rule for rule in role["rules"] if "secrets" in rule["resources"] and "patch" in rule["verbs"]]
    return [name for rule in rules for name in rule["resourceNames"]]


@pytest.fixture(params=SPACES, scope="module")
def component(request: pytest.FixtureRequest, installed: LocalCluster) -> Iterator[str]:
    """Yield the name of a certificate component whose namespace exists with the Role."""
    name: str = request.param
    installed.kubectl("create", "namespace", SPACES[name])
    installed.kubectl("apply", "--server-side", "--validate=strict", "-f", "-", input=role_file(name))
    yield name
    installed.kubectl("delete", "namespace", SPACES[name], "--wait=false")


@proves("OSV-23")
def test_what_is_shipped_for_a_namespace_is_a_role_there_and_nothing_else(component: str) -> None:
    objects = list(yaml.safe_load_all(role_file(component)))

    assert [item["kind"] for item in objects] == ["Role", "RoleBinding"]
    assert {item["metadata"]["namespace"] for item in objects} == {SPACES[component]}
    (subject,) = objects[1]["subjects"]
    assert subject == {"kind": "ServiceAccount", "name": ACCOUNT, "namespace": access.NAMESPACE}
    assert COMPONENTS[component].authority in writable(component)


@proves("OSV-20", "OSV-23")
def test_the_role_is_enough_and_names_what_may_be_written(installed: LocalCluster, component: str) -> None:
    """Check that `renew-certificates` writes only Secrets that the Role names.

    Of two labelled Secrets the Role names one; the other one stays unchanged.
    """
    admin, space = installed.door(), SPACES[component]
    door = Cluster(str(installed.kubeconfig_for(access.service_account(ACCOUNT))))
    for name in ("other", writable(component)[1]):
        metadata = {"name": name, "labels": {LABEL: component}, "annotations": {certificate_objects.NAMES: f"{name}.{space}.svc"}}
        admin.create(certificate_objects.secrets_path(space), {"metadata": metadata})

    looks = [door.run(renewed(door.api, Settings((space,)), datetime.now(timezone.utc))).errors for _ in range(2)]

    door.close()
    assert [[error.status for error in errors] for errors in looks] == [[403], [403]]
    assert certificate_objects.current(admin.get(certificate_objects.secrets_path(space, writable(component)[1])))
    assert "data" not in admin.get(certificate_objects.secrets_path(space, "other"))
    wanted = {right._replace(namespace=space) for right in documented(ACCOUNT) if right.namespace}
    assert own(installed, ACCOUNT, space) >= wanted
    readers = {
        account
        for account in access.SERVICE_ACCOUNTS
        if any(right.resource == "secrets" for right in own(installed, account, space))
    }
    assert readers == {ACCOUNT}
    assert Right("", "secrets", "delete", space) not in own(installed, ACCOUNT, space)
