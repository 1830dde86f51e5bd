"""What each account may do, asked of a real API server, is what the code beside it says that it touches."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from functions.app import FUNCTIONS
from kube.groups import GROUPS
from localcluster.cluster import LocalCluster

ROOT = Path(__file__).parents[2]
OURS = "node-maintenance"
NAMESPACES = (OURS, "default", "kube-system")
VERBS = "get|list|watch|create|patch|delete"
CLAUSE = rf"[a-z]+(?:/[a-z]+)? (?:{VERBS})(?:, (?:{VERBS}))*(?: in [a-z-]+)?"
TOUCHES = re.compile(rf"^Touches: (nothing in the cluster|{CLAUSE}(?:;\s{CLAUSE})*)\.", re.MULTILINE)
MAINTENANCE_GROUPS = tuple(version.partition("/")[0] for version in GROUPS)
GROUPS_OF = {
    "nodemaintenances": MAINTENANCE_GROUPS,
    "nodemaintenances/status": MAINTENANCE_GROUPS,
    "poddisruptionbudgets": ("policy",),
    "daemonsets": ("apps",),
    "leases": ("coordination.k8s.io",),
}
"""Resource → API groups; the core group if not named."""
DOCUMENTED = {
    **{name: ROOT / "functions" / f"{name}.py" for name in FUNCTIONS},
    "podsource": ROOT / "eventing" / "podsource.py",
}


class Right(NamedTuple):
    """One thing that may be done, in one namespace or, "" there, in all and beside all."""

    group: str
    resource: str
    verb: str
    namespace: str


def touches(documentation: str) -> set[Right]:
    """The rights that the line `Touches:` of a docstring asks for; the line must be there, and be nothing but that."""
    (said,) = TOUCHES.findall(documentation)
    clauses = [] if said.startswith("nothing") else re.split(r";\s", said)
    return {right for clause in clauses for right in _rights(clause)}


def _rights(clause: str) -> set[Right]:
    what, _, namespace = clause.partition(" in ")
    resource, _, verbs = what.partition(" ")
    groups = GROUPS_OF.get(resource, ("",))
    return {Right(group, resource, verb, namespace) for group in groups for verb in verbs.split(", ")}


def documented(account: str) -> set[Right]:
    return touches(ast.get_docstring(ast.parse(DOCUMENTED[account].read_text())) or "")


def granted(account: str) -> set[Right]:
    """The rights in the account's file."""
    documents = yaml.safe_load_all((ROOT / "manifests/base/rbac" / f"{account}.yaml").read_text())
    return {
        Right(group, resource, verb, item["metadata"].get("namespace", ""))
        for item in documents
        for rule in item.get("rules", [])
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def allowed(cluster: LocalCluster, account: str, namespace: str) -> set[Right]:
    """What the server says that the account may do in a namespace (`kubectl auth can-i --list`), as data."""
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectRulesReview",
        "spec": {"namespace": namespace},
    }
    user = f"--as=system:serviceaccount:{OURS}:{account}"
    command = ("create", "--raw", "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", "-f", "-", user)
    said = json.loads(cluster.kubectl(*command, input=json.dumps(review)).stdout)["status"]
    assert not said["incomplete"]
    return {
        Right(group, resource, verb, namespace)
        for rule in said["resourceRules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def own(cluster: LocalCluster, account: str, namespace: str) -> set[Right]:
    """That, less what every account may."""
    return allowed(cluster, account, namespace) - allowed(cluster, "nobody", namespace)


def reaching(rights: set[Right], namespace: str) -> set[Right]:
    """Those of the rights that hold in a namespace."""
    return {right._replace(namespace=namespace) for right in rights if right.namespace in ("", namespace)}


@pytest.mark.parametrize("account", DOCUMENTED)
def test_an_account_is_granted_exactly_what_its_code_says_it_touches(account: str) -> None:
    """Design rule 7: no verb more, no verb less, in no namespace more."""
    assert granted(account) == documented(account)


@pytest.mark.parametrize("namespace", NAMESPACES)
@pytest.mark.parametrize("account", DOCUMENTED)
def test_the_server_allows_exactly_what_the_code_says_it_touches(
    installed: LocalCluster, account: str, namespace: str
) -> None:
    """What bindings add up to is what counts."""
    assert own(installed, account, namespace) == reaching(documented(account), namespace)


@pytest.mark.parametrize("namespace", NAMESPACES)
def test_the_sources_may_only_look_at_maintenances_and_nodes(installed: LocalCluster, namespace: str) -> None:
    """An ApiServerSource asks for get, list and watch of what it watches, before it becomes ready."""
    kinds = [*((group, "nodemaintenances") for group in MAINTENANCE_GROUPS), ("", "nodes")]
    wanted = {Right(*kind, verb, namespace) for kind in kinds for verb in ("get", "list", "watch")}

    assert own(installed, "sources", namespace) == wanted


@pytest.mark.parametrize("namespace", NAMESPACES)
def test_the_one_account_for_all_functions_may_do_what_they_may_and_no_more(
    installed: LocalCluster, namespace: str
) -> None:
    """The installs with one process for all functions."""
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
    """A loose reading would let a right slip through."""
    with pytest.raises(ValueError, match="not enough values"):
        touches(line)
