"""The ServiceAccounts on a real API server: each has its own rights and no others."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from localcluster.cluster import LocalCluster
from tests.sources import OPT_IN, rights_of

ROOT = Path(__file__).parents[2]
RIGHTS = sorted([*ROOT.glob("manifests/base/rbac/*.yaml"), *ROOT.glob("manifests/components/*/rights/*.yaml")])
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
    *sorted(OPT_IN),
)


def allowed(installed: LocalCluster, account: str, verb: str, resource: str, *options: str) -> bool:
    kind, _, subresource = resource.partition("/")
    user = f"--as=system:serviceaccount:node-maintenance:{account}"
    asked = ("auth", "can-i", verb, kind, f"--subresource={subresource}", user, *options)
    return installed.kubectl(*asked, check=False).stdout.strip() == "yes"


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_function_finds_its_account_and_rights_in_the_file_of_its_name(function: str) -> None:
    documents = list(yaml.safe_load_all(rights_of(function).read_text()))

    assert [item["metadata"]["name"] for item in documents if item["kind"] == "ServiceAccount"] == [function]
    assert all(item["metadata"]["labels"] == {"nodemaintenance.dev/function": function} for item in documents)


@pytest.mark.parametrize("file", RIGHTS, ids=lambda file: file.stem)
def test_no_account_may_use_wildcards_or_delete_pods(file: Path) -> None:
    """NMO-6: no account may delete pods, so pods leave only through the eviction subresource."""
    rules = [rule for item in yaml.safe_load_all(file.read_text()) for rule in item.get("rules", [])]

    for rule in rules:
        assert "*" not in [*rule["apiGroups"], *rule["resources"], *rule["verbs"]]
        assert not ("pods" in rule["resources"] and "delete" in rule["verbs"])


@pytest.mark.parametrize(
    ("account", "verb", "resource", "may"),
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
def test_an_account_may_do_its_step_and_nothing_else(
    installed: LocalCluster, account: str, verb: str, resource: str, may: bool
) -> None:
    assert allowed(installed, account, verb, resource) is may


def test_leases_and_events_are_granted_in_their_one_namespace_only(installed: LocalCluster) -> None:
    assert allowed(installed, "begin", "create", "leases", "-n", "medik8s-leases")
    assert not allowed(installed, "begin", "create", "leases", "-n", "node-maintenance")
    assert allowed(installed, "status", "create", "events", "-n", "default")
    assert not allowed(installed, "status", "create", "events", "-n", "kube-system")


def test_the_local_account_joins_every_binding_of_the_functions(installed: LocalCluster) -> None:
    kinds = "clusterrolebindings,rolebindings"
    selector = "nodemaintenance.dev/function"
    listed = installed.kubectl("get", kinds, "-A", "-l", selector, "-o", "yaml").stdout

    bindings = yaml.safe_load(listed)["items"]

    assert bindings
    for binding in bindings:
        assert "functions" in [subject["name"] for subject in binding["subjects"]]
