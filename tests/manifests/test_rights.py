"""Tests that each ServiceAccount's permissions on a real API server equal those that its code documents."""

from __future__ import annotations

import pytest
import yaml

from functions.app import FUNCTIONS
from localcluster.access import list_service_accounts
from localcluster.cluster import LocalCluster
from tests.manifests.documented_rights import (
    MAINTENANCE_GROUPS,
    NAMESPACES,
    OWN_NAMESPACE,
    SOURCE_BY_ACCOUNT,
    Right,
    filter_by_namespace,
    list_allowed_rights,
    parse_touches,
    read_documented_rights,
)
from tests.manifests.rendering import (
    CERTIFICATES_OVERLAYS,
    MANIFESTS,
    OVERLAYS,
    filter_by_kind,
    get_pod_templates,
    render,
)
from tests.proofs import proves
from tests.sources import get_rbac_path


def list_granted_rights(account: str) -> set[Right]:
    """Return the permissions that the ServiceAccount's manifest grants."""
    documents = yaml.safe_load_all(get_rbac_path(account).read_text())
    return {
        Right(group, resource, verb, manifest["metadata"].get("namespace", ""))
        for manifest in documents
        for rule in manifest.get("rules", [])
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def list_permissions_of_account(cluster: LocalCluster, account: str, namespace: str) -> set[Right]:
    """Return the ServiceAccount's permissions in a namespace, as the API server reports them."""
    client = cluster.get_client()
    return client.run(
        list_allowed_rights(
            client.api.with_impersonation(f"system:serviceaccount:{OWN_NAMESPACE}:{account}"), namespace
        )
    )


def list_extra_rights(cluster: LocalCluster, account: str, namespace: str) -> set[Right]:
    """Return the ServiceAccount's permissions in a namespace, except those that every account has."""
    return list_permissions_of_account(cluster, account, namespace) - list_permissions_of_account(
        cluster, "nobody", namespace
    )


def test_manifest_grants_documented_permissions() -> None:
    """Design rule 7: the ServiceAccount's manifest grants exactly the documented verbs per namespace."""
    differences = {
        account: list_granted_rights(account) ^ read_documented_rights(account) for account in SOURCE_BY_ACCOUNT
    }

    assert differences
    assert {account: rights for account, rights in differences.items() if rights} == {}


def test_api_server_allows_exactly_documented_permissions(installed_cluster: LocalCluster) -> None:
    """Check that all bindings together grant each ServiceAccount exactly the documented permissions."""
    documented_rights = {account: read_documented_rights(account) for account in SOURCE_BY_ACCOUNT}
    differences = {
        (account, namespace): list_extra_rights(installed_cluster, account, namespace)
        ^ filter_by_namespace(rights, namespace)
        for account, rights in documented_rights.items()
        for namespace in NAMESPACES
    }

    assert differences
    assert {place: rights for place, rights in differences.items() if rights} == {}


@pytest.mark.parametrize("namespace", NAMESPACES)
def test_service_account_of_sources_may_only_read_maintenances_and_nodes(
    installed_cluster: LocalCluster, namespace: str
) -> None:
    """Check that the event sources' account may only get, list and watch NodeMaintenances and nodes.

    An ApiServerSource becomes ready only with all three verbs.
    """
    resources = [*((group, "nodemaintenances") for group in MAINTENANCE_GROUPS), ("", "nodes")]
    expected = {Right(*resource, verb, namespace) for resource in resources for verb in ("get", "list", "watch")}

    assert list_extra_rights(installed_cluster, "sources", namespace) == expected


@proves("OSV-23")
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_only_renew_certificates_and_its_source_may_read_secrets(overlay: str) -> None:
    """Check that only `renew-certificates` and its event source may read Secrets, and only through RoleBindings."""
    objects = render(MANIFESTS / "overlays" / overlay)
    roles = {(role["kind"], role["metadata"]["name"]): role for role in filter_by_kind(objects, "Role", "ClusterRole")}
    bindings = filter_by_kind(objects, "RoleBinding", "ClusterRoleBinding")
    readers = [
        (binding["kind"], subject["name"])
        for binding in bindings
        for subject in binding["subjects"]
        if any(
            "secrets" in rule["resources"]
            for rule in roles[binding["roleRef"]["kind"], binding["roleRef"]["name"]]["rules"]
        )
    ]
    expected = [("RoleBinding", name) for name in ("certificate-sources", "renew-certificates")]

    assert sorted(readers) == (expected if overlay in CERTIFICATES_OVERLAYS else [])
    workloads_with_account = [
        name
        for name, pod in get_pod_templates(objects).items()
        if pod["spec"].get("serviceAccountName") == expected[1][1]
    ]
    assert workloads_with_account == (["renew-certificates"] if overlay in CERTIFICATES_OVERLAYS else [])


@proves("OSV-23")
def test_api_server_denies_secrets_to_other_service_accounts(installed_cluster: LocalCluster) -> None:
    """Check on a real API server that only `renew-certificates` and its event source may read Secrets.

    The exception is the ServiceAccount `functions` of the process that serves all functions in these tests.
    """
    verbs = ("get", "list", "watch")
    readers = {
        account
        for account in list_service_accounts()
        if any(
            Right("", "secrets", verb, OWN_NAMESPACE)
            in list_permissions_of_account(installed_cluster, account, OWN_NAMESPACE)
            for verb in verbs
        )
    }
    readers_elsewhere = {
        (account, namespace)
        for account in readers
        for namespace in NAMESPACES
        if namespace != OWN_NAMESPACE
        and any(
            right.resource == "secrets" for right in list_permissions_of_account(installed_cluster, account, namespace)
        )
    }

    assert readers == {"renew-certificates", "certificate-sources", "functions"}
    assert readers_elsewhere == set()


@pytest.mark.parametrize("namespace", NAMESPACES)
def test_shared_service_account_has_permissions_of_all_functions(
    installed_cluster: LocalCluster, namespace: str
) -> None:
    """Check that the ServiceAccount shared by all functions has exactly the permissions of all functions."""
    combined_rights = set[Right]().union(*(read_documented_rights(name) for name in FUNCTIONS))

    assert list_extra_rights(installed_cluster, "functions", namespace) == filter_by_namespace(
        combined_rights, namespace
    )


@pytest.mark.parametrize(
    "line",
    [
        "Touches: nodes get, patch and pods list.",
        "Touches: nodes *.",
        "Touches: nodes update.",
        "Touches: nodes get in namespace default.",
        "Touches: nodes get, pods list.",
        "Touches nodes get.",
        "",
    ],
)
def test_invalid_touches_line_is_rejected(line: str) -> None:
    """Check that a `Touches:` line that cannot be parsed completely is rejected, so that no permission is missed."""
    with pytest.raises(ValueError, match="not enough values"):
        parse_touches(line)
