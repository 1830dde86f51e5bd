"""Parses the line `Touches:` of each function's docstring as RBAC rights."""

from __future__ import annotations

import ast
import re
from typing import NamedTuple

from functions.app import FUNCTIONS
from kube.client.api import Api
from kube.maintenance.groups import GROUPS
from tests.sources import ROOT, source_of

OURS = "node-maintenance"
NAMESPACES = (OURS, "medik8s-leases", "default", "kube-system", "node-upgrade-mutex-operator")
REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews"
"""Path of the review that `kubectl auth can-i --list` creates and prints."""
VERBS = "get|list|watch|create|patch|delete"
CLAUSE = rf"[a-z]+(?:/[a-z]+)? (?:{VERBS})(?:, (?:{VERBS}))*(?: in [a-z0-9-]+)?"
TOUCHES = re.compile(rf"^Touches: (nothing in the cluster|{CLAUSE}(?:;\s{CLAUSE})*)\.", re.MULTILINE)
MAINTENANCE_GROUPS = tuple(version.partition("/")[0] for version in GROUPS)
GROUPS_OF = {
    "nodemaintenances": MAINTENANCE_GROUPS,
    "nodemaintenances/status": MAINTENANCE_GROUPS,
    "poddisruptionbudgets": ("policy",),
    "daemonsets": ("apps",),
    "leases": ("coordination.k8s.io",),
    "triggers": ("eventing.knative.dev",),
    "brokers": ("eventing.knative.dev",),
    "subjectaccessreviews": ("authorization.k8s.io",),
    "validatingwebhookconfigurations": ("admissionregistration.k8s.io",),
    "mutatingwebhookconfigurations": ("admissionregistration.k8s.io",),
    "apiservices": ("apiregistration.k8s.io",),
    "customresourcedefinitions": ("apiextensions.k8s.io",),
    **{
        f"{kind}{part}": ("openshift-optional.skrzypek.io",)
        for kind in ("mutexrules", "mutextargets", "mutexrunconfigs")
        for part in ("", "/status")
    },
    "machineconfigpools": ("machineconfiguration.openshift.io",),
    "clusterversions": ("config.openshift.io",),
    "jobs": ("batch",),
    **dict.fromkeys(("virtualmachines", "virtualmachineinstances"), ("kubevirt.io",)),
    **dict.fromkeys(("virtualmachineinstancemigrations", "kubevirts"), ("kubevirt.io",)),
    "hyperconvergeds": ("hco.kubevirt.io",),
}
"""Resource → API groups; resources of the core group are not listed."""
DOCUMENTED = {
    **{name: source_of(name) for name in FUNCTIONS},
    "podsource": ROOT / "eventing" / "podsource" / "watcher.py",
}


class Right(NamedTuple):
    """One permitted verb on a resource, in one namespace, or cluster-wide if the namespace is ""."""

    group: str
    resource: str
    verb: str
    namespace: str


def touches(documentation: str) -> set[Right]:
    """Return the rights in a docstring's line `Touches:`. Raises `ValueError` if it is missing or malformed."""
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


async def allowed(api: Api, namespace: str) -> set[Right]:
    """Return the caller's rights in a namespace, as the API server reports them."""
    said = (await api.create(REVIEWS, {"spec": {"namespace": namespace}}))["status"]
    assert not said["incomplete"]
    return {
        Right(group, resource, verb, namespace)
        for rule in said["resourceRules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def reaching(rights: set[Right], namespace: str) -> set[Right]:
    """Return the rights that apply in a namespace."""
    return {right._replace(namespace=namespace) for right in rights if right.namespace in ("", namespace)}
