"""The rights of each account on a real API server equal those that its code documents."""

from __future__ import annotations

import pytest
import yaml

from functions.app import FUNCTIONS
from localcluster.access import SERVICE_ACCOUNTS
from localcluster.cluster import LocalCluster
from tests.manifests.rendering import MANIFESTS, OVERLAYS, WITH_CERTIFICATES, of_kind, pod_specs, rendered
from tests.manifests.documented_rights import (
    DOCUMENTED,
    MAINTENANCE_GROUPS,
    NAMESPACES,
    OURS,
    Right,
    allowed,
    documented,
    reaching,
    touches,
)
from tests.proofs import proves
from tests.sources import rights_of


def granted(account: str) -> set[Right]:
    """Return the rights in the account's manifest."""
    documents = yaml.safe_load_all(rights_of(account).read_text())
    return {
        Right(group, resource, verb, item["metadata"].get("namespace", ""))
        for item in documents
        for rule in item.get("rules", [])
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def allowed_to(cluster: LocalCluster, account: str, namespace: str) -> set[Right]:
    """Return the rights that the API server reports for the account in a namespace."""
    door = cluster.door()
    return door.run(allowed(door.api.impersonating(f"system:serviceaccount:{OURS}:{account}"), namespace))


def own(cluster: LocalCluster, account: str, namespace: str) -> set[Right]:
    """Return the account's rights in a namespace, without those that every account has."""
    return allowed_to(cluster, account, namespace) - allowed_to(cluster, "nobody", namespace)


@pytest.mark.parametrize("account", DOCUMENTED)
def test_an_account_is_granted_exactly_what_its_code_says_it_touches(account: str) -> None:
    """Design rule 7: the account's manifest grants exactly the documented verbs and namespaces."""
    assert granted(account) == documented(account)


@pytest.mark.parametrize("namespace", NAMESPACES)
@pytest.mark.parametrize("account", DOCUMENTED)
def test_the_server_allows_exactly_what_the_code_says_it_touches(
    installed: LocalCluster, account: str, namespace: str
) -> None:
    """Check that the rights from all bindings together are exactly the documented ones."""
    assert own(installed, account, namespace) == reaching(documented(account), namespace)


@pytest.mark.parametrize("namespace", NAMESPACES)
def test_the_sources_may_only_look_at_maintenances_and_nodes(installed: LocalCluster, namespace: str) -> None:
    """Check that the sources' account may get, list and watch NodeMaintenances and nodes, and nothing else.

    An ApiServerSource becomes ready only with all three verbs.
    """
    kinds = [*((group, "nodemaintenances") for group in MAINTENANCE_GROUPS), ("", "nodes")]
    wanted = {Right(*kind, verb, namespace) for kind in kinds for verb in ("get", "list", "watch")}

    assert own(installed, "sources", namespace) == wanted


@proves("OSV-23")
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_secrets_are_for_the_function_that_renews_them_and_its_source(overlay: str) -> None:
    """Check that in every overlay only `renew-certificates` and its source may read Secrets, in single namespaces."""
    objects = rendered(MANIFESTS / "overlays" / overlay)
    roles = {(item["kind"], item["metadata"]["name"]): item for item in of_kind(objects, "Role", "ClusterRole")}
    bindings = of_kind(objects, "RoleBinding", "ClusterRoleBinding")
    readers = [
        (item["kind"], subject["name"])
        for item in bindings
        for subject in item["subjects"]
        if any(
            "secrets" in rule["resources"] for rule in roles[item["roleRef"]["kind"], item["roleRef"]["name"]]["rules"]
        )
    ]
    wanted = [("RoleBinding", name) for name in ("certificate-sources", "renew-certificates")]

    assert sorted(readers) == (wanted if overlay in WITH_CERTIFICATES else [])
    serving = [
        name for name, pod in pod_specs(objects).items() if pod["spec"].get("serviceAccountName") == wanted[1][1]
    ]
    assert serving == (["renew-certificates"] if overlay in WITH_CERTIFICATES else [])


@proves("OSV-23")
def test_the_server_lets_nobody_else_read_a_secret(installed: LocalCluster) -> None:
    """Check on a real API server that no other account may read Secrets.

    The account `functions`, whose one process serves all functions on this machine, is the exception.
    """
    verbs = ("get", "list", "watch")
    readers = {
        account
        for account in SERVICE_ACCOUNTS
        if any(Right("", "secrets", verb, OURS) in allowed_to(installed, account, OURS) for verb in verbs)
    }
    elsewhere = {
        (account, namespace)
        for account in readers
        for namespace in NAMESPACES
        if namespace != OURS and any(right.resource == "secrets" for right in allowed_to(installed, account, namespace))
    }

    assert readers == {"renew-certificates", "certificate-sources", "functions"}
    assert elsewhere == set()


@pytest.mark.parametrize("namespace", NAMESPACES)
def test_the_one_account_for_all_functions_may_do_what_they_may_and_no_more(
    installed: LocalCluster, namespace: str
) -> None:
    """Check that the shared account of installs with a single process has the combined rights of all functions."""
    together = set[Right]().union(*(documented(name) for name in FUNCTIONS))

    assert own(installed, "functions", namespace) == reaching(together, namespace)


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
def test_a_line_that_cannot_be_read_exactly_is_an_error(line: str) -> None:
    """Reject a `Touches:` line that cannot be parsed completely, because a right could be missed."""
    with pytest.raises(ValueError, match="not enough values"):
        touches(line)
