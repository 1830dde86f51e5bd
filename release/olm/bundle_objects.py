"""Divides rendered manifests into objects that OLM installs, and objects that the administrator applies. Pure.

OLM installs a ClusterServiceVersion, which contains Deployments, permissions and webhooks, and separate objects of
`SUPPORTED_KINDS`, all in one namespace. So the administrator must apply Knative's objects, Namespaces, and roles in
other namespaces with kubectl.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Manifest = dict[str, Any]
NAMESPACE = "node-maintenance"
"""The namespace in all manifests; URLs in environment variables contain it, too."""
SUPPORTED_KINDS = frozenset(
    {
        *("ConfigMap", "NetworkPolicy", "PodDisruptionBudget", "PriorityClass", "Role", "RoleBinding"),
        *("ClusterRole", "ClusterRoleBinding", "Service"),
    }
)
"""The kinds among the product's objects that a bundle may contain as separate files."""
CRD_KIND = "CustomResourceDefinition"
WEBHOOK_KIND = "ValidatingWebhookConfiguration"


@dataclass(frozen=True)
class BundleObjects:
    """The rendered objects, divided by how they are installed.

    Attributes:
        deployments: The Deployments in the ClusterServiceVersion.
        rules: The rules of the ClusterRoles of each ServiceAccount, both in the ClusterServiceVersion.
        webhooks: The webhook configurations that the ClusterServiceVersion describes.
        crds: The CustomResourceDefinitions, which are separate files of the bundle.
        files: The other objects that are separate files of the bundle.
        remaining: The objects that OLM cannot install.
    """

    deployments: tuple[Manifest, ...]
    rules: dict[str, list[Manifest]]
    webhooks: tuple[Manifest, ...]
    crds: tuple[Manifest, ...]
    files: tuple[Manifest, ...]
    remaining: tuple[Manifest, ...]


def divide_objects(objects: Sequence[Manifest]) -> BundleObjects:
    """Divide the rendered objects by how they are installed."""
    rules, rbac = _collect_account_rules(objects)
    webhooks = _filter_by_kind(objects, WEBHOOK_KIND)
    crds = _filter_by_kind(objects, CRD_KIND)
    deployments = _filter_by_kind(objects, "Deployment")
    # OLM itself creates the ServiceAccounts, roles and bindings, and a Service for each webhook.
    services = _list_webhook_services(webhooks)
    created = [*webhooks, *crds, *deployments, *_filter_by_kind(objects, "ServiceAccount"), *rbac]
    others = [
        manifest for manifest in objects if manifest not in created and _get_kind_and_name(manifest) not in services
    ]
    files = [manifest for manifest in others if _is_supported_by_olm(manifest)]
    return BundleObjects(
        deployments=deployments,
        rules=rules,
        webhooks=webhooks,
        crds=crds,
        files=tuple(files),
        remaining=tuple(manifest for manifest in others if manifest not in files),
    )


def _filter_by_kind(objects: Sequence[Manifest], kind: str) -> tuple[Manifest, ...]:
    return tuple(manifest for manifest in objects if manifest["kind"] == kind)


def _get_kind_and_name(manifest: Manifest) -> tuple[str, str]:
    return manifest["kind"], manifest["metadata"]["name"]


def _is_supported_by_olm(manifest: Manifest) -> bool:
    """Return whether OLM accepts the object in a bundle, and would install it in the object's namespace."""
    return manifest["kind"] in SUPPORTED_KINDS and manifest["metadata"].get("namespace", NAMESPACE) == NAMESPACE


def _list_webhook_services(webhooks: Sequence[Manifest]) -> set[tuple[str, str]]:
    return {
        ("Service", webhook["clientConfig"]["service"]["name"])
        for configuration in webhooks
        for webhook in configuration["webhooks"]
    }


def _collect_account_rules(objects: Sequence[Manifest]) -> tuple[dict[str, list[Manifest]], list[Manifest]]:
    """Return the rules of each ServiceAccount's ClusterRoles, and these ClusterRoles with their bindings.

    A ClusterRole that is also bound to other subjects, or that has no binding, remains a separate object. A namespaced
    Role remains a separate object, too: in the ClusterServiceVersion, OLM would extend it to all namespaces.
    """
    rules: dict[str, list[Manifest]] = {
        account["metadata"]["name"]: [] for account in _filter_by_kind(objects, "ServiceAccount")
    }
    roles = {role["metadata"]["name"]: role for role in _filter_by_kind(objects, "ClusterRole")}
    collected: list[Manifest] = []
    for binding in _filter_by_kind(objects, "ClusterRoleBinding"):
        role = roles.get(binding["roleRef"]["name"])
        accounts = [subject["name"] for subject in binding["subjects"] if subject["kind"] == "ServiceAccount"]
        if role is None or len(accounts) < len(binding["subjects"]) or not rules.keys() >= set(accounts):
            continue
        for account in accounts:
            rules[account] += role["rules"]
        collected += [role, binding]
    return rules, collected
