"""Tests that each ServiceAccount has only the permissions that it needs, on a real API server."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from localcluster.cluster import LocalCluster
from tests.sources import OPT_IN_STEPS, get_rbac_path

ROOT = Path(__file__).parents[2]
RBAC_FILES = sorted([*ROOT.glob("manifests/base/rbac/*.yaml"), *ROOT.glob("manifests/components/*/rights/*.yaml")])
FUNCTIONS = (
    "begin",
    "cordon",
    "taint",
    "evict",
    "status",
    "restore",
    "guard",
    "resync",
    "renew-certificates",
    "record",
    *sorted(OPT_IN_STEPS),
)


def is_allowed(cluster: LocalCluster, service_account: str, verb: str, resource: str, *options: str) -> bool:
    kind, _, subresource = resource.partition("/")
    user = f"--as=system:serviceaccount:node-maintenance:{service_account}"
    arguments = ("auth", "can-i", verb, kind, f"--subresource={subresource}", user, *options)
    return cluster.kubectl(*arguments, check=False).stdout.strip() == "yes"


def test_rbac_file_contains_service_account_of_function() -> None:
    """Check that a function's RBAC file contains exactly one ServiceAccount, with its name, and has only its label."""
    documents = {name: list(yaml.safe_load_all(get_rbac_path(name).read_text())) for name in FUNCTIONS}
    accounts = {
        name: [manifest["metadata"]["name"] for manifest in manifests if manifest["kind"] == "ServiceAccount"]
        for name, manifests in documents.items()
    }
    wrong_labels = {
        (name, manifest["kind"], manifest["metadata"]["name"])
        for name, manifests in documents.items()
        for manifest in manifests
        if manifest["metadata"].get("labels") != {"nodemaintenance.dev/function": name}
    }

    assert accounts
    assert {name: found for name, found in accounts.items() if found != [name]} == {}
    assert wrong_labels == set()


def test_no_role_has_wildcards_or_permission_to_delete_pods() -> None:
    """NMO-6: no ServiceAccount may delete pods, so pods leave a node only through the eviction subresource."""
    rules = [
        (file.relative_to(ROOT).as_posix(), rule)
        for file in RBAC_FILES
        for manifest in yaml.safe_load_all(file.read_text())
        for rule in manifest.get("rules", [])
    ]
    faults = {
        (file, str(rule))
        for file, rule in rules
        if "*" in [*rule["apiGroups"], *rule["resources"], *rule["verbs"]]
        or ("pods" in rule["resources"] and "delete" in rule["verbs"])
    }

    assert rules
    assert faults == set()


@pytest.mark.parametrize(
    ("account", "verb", "resource", "is_expected"),
    [
        ("evict", "create", "pods/eviction", True),
        ("evict", "delete", "pods", False),
        ("evict", "patch", "nodes", False),
        ("cordon", "patch", "nodes", True),
        ("cordon", "create", "pods/eviction", False),
        ("status", "patch", "nodemaintenances.nodemaintenance.medik8s.io/status", True),
        ("begin", "patch", "nodemaintenances.nodemaintenance.kubevirt.io", True),
        ("begin", "patch", "nodemaintenances.nodemaintenance.medik8s.io/status", False),
        ("record", "list", "nodes", False),
        ("functions", "patch", "nodes", True),
        ("functions", "delete", "pods", False),
        ("functions", "get", "secrets", False),
    ],
)
def test_service_account_has_only_permissions_that_function_needs(
    installed_cluster: LocalCluster, account: str, verb: str, resource: str, is_expected: bool
) -> None:
    assert is_allowed(installed_cluster, account, verb, resource) is is_expected


def test_permissions_for_leases_and_events_are_limited_to_one_namespace(installed_cluster: LocalCluster) -> None:
    assert is_allowed(installed_cluster, "begin", "create", "leases", "-n", "medik8s-leases")
    assert not is_allowed(installed_cluster, "begin", "create", "leases", "-n", "node-maintenance")
    assert is_allowed(installed_cluster, "status", "create", "events", "-n", "default")
    assert not is_allowed(installed_cluster, "status", "create", "events", "-n", "kube-system")


def test_shared_service_account_is_subject_of_every_function_binding(installed_cluster: LocalCluster) -> None:
    kinds = "clusterrolebindings,rolebindings"
    selector = "nodemaintenance.dev/function"
    bindings_yaml = installed_cluster.kubectl("get", kinds, "-A", "-l", selector, "-o", "yaml").stdout

    bindings = yaml.safe_load(bindings_yaml)["items"]

    assert bindings
    for binding in bindings:
        assert "functions" in [subject["name"] for subject in binding["subjects"]]
