"""Parses the line `Touches:` in a function's docstring as RBAC permissions."""

from __future__ import annotations

import ast
import re
from typing import NamedTuple

from functions.app import FUNCTIONS
from kube.client.api import Api
from kube.maintenance.groups import GROUPS
from tests.sources import ROOT, get_source_path, parse_source

OWN_NAMESPACE = "node-maintenance"
NAMESPACES = (OWN_NAMESPACE, "medik8s-leases", "default", "kube-system", "node-upgrade-mutex-operator")
RULES_REVIEWS_PATH = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews"
"""API path of the SelfSubjectRulesReview that `kubectl auth can-i --list` creates and prints."""
VERB_PATTERN = "get|list|watch|create|patch|delete|assert"
CLAUSE_PATTERN = rf"[a-z]+(?:/[a-z]+)? (?:{VERB_PATTERN})(?:, (?:{VERB_PATTERN}))*(?: in [a-z0-9-]+)?"
TOUCHES_PATTERN = re.compile(
    rf"^Touches: (nothing in the cluster|{CLAUSE_PATTERN}(?:;\s{CLAUSE_PATTERN})*)\.", re.MULTILINE
)
MAINTENANCE_GROUPS = tuple(version.partition("/")[0] for version in GROUPS)
GROUPS_BY_RESOURCE = {
    "nodemaintenances": MAINTENANCE_GROUPS,
    "nodemaintenances/status": MAINTENANCE_GROUPS,
    "requesters": ("nodemaintenance.dev",),
    "poddisruptionbudgets": ("policy",),
    "daemonsets": ("apps",),
    **dict.fromkeys(("deployments", "replicasets", "statefulsets"), ("apps",)),
    "leases": ("coordination.k8s.io",),
    "triggers": ("eventing.knative.dev",),
    "brokers": ("eventing.knative.dev",),
    "subjectaccessreviews": ("authorization.k8s.io",),
    "tokenreviews": ("authentication.k8s.io",),
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
"""Map from resource to API groups; resources of the core group are not listed."""
SOURCE_BY_ACCOUNT = {
    **{name: get_source_path(name) for name in FUNCTIONS},
    "podsource": ROOT / "eventing" / "podsource" / "watcher.py",
}


class Right(NamedTuple):
    """A permitted verb on a resource, in one namespace or, if the namespace is "", in the whole cluster."""

    group: str
    resource: str
    verb: str
    namespace: str


def parse_touches(docstring: str) -> set[Right]:
    """Return the permissions in the docstring's line `Touches:`. Raises `ValueError` if the line is malformed."""
    (line,) = TOUCHES_PATTERN.findall(docstring)
    clauses = [] if line.startswith("nothing") else re.split(r";\s", line)
    return {right for clause in clauses for right in _parse_clause(clause)}


def _parse_clause(clause: str) -> set[Right]:
    target, _, namespace = clause.partition(" in ")
    resource, _, verbs = target.partition(" ")
    groups = GROUPS_BY_RESOURCE.get(resource, ("",))
    return {Right(group, resource, verb, namespace) for group in groups for verb in verbs.split(", ")}


def read_documented_rights(account: str) -> set[Right]:
    return parse_touches(ast.get_docstring(parse_source(SOURCE_BY_ACCOUNT[account])) or "")


async def list_allowed_rights(api: Api, namespace: str) -> set[Right]:
    """Return the caller's permissions in a namespace, as the API server reports them."""
    status = (await api.create(RULES_REVIEWS_PATH, {"spec": {"namespace": namespace}}))["status"]
    assert not status["incomplete"]
    return {
        Right(group, resource, verb, namespace)
        for rule in status["resourceRules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def filter_by_namespace(rights: set[Right], namespace: str) -> set[Right]:
    """Return the permissions that apply in this namespace."""
    return {right._replace(namespace=namespace) for right in rights if right.namespace in ("", namespace)}
