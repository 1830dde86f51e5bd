"""Divides the rendered manifests into objects that OLM installs, and objects that the administrator applies. Pure.

OLM installs a ClusterServiceVersion, which contains Deployments, permissions and webhooks, and further objects of
`SUPPORTED_KINDS`. It installs all of them in one namespace. So Knative's objects, Namespaces, and roles in other
namespaces remain for `kubectl apply`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Manifest = dict[str, Any]
NAMESPACE = "node-maintenance"
"""The namespace of all manifests; addresses in environment variables contain it, too."""
SUPPORTED_KINDS = frozenset(
    {
        *("ConfigMap", "NetworkPolicy", "PodDisruptionBudget", "PriorityClass", "Role", "RoleBinding"),
        *("ClusterRole", "ClusterRoleBinding", "Service"),
    }
)
"""The kinds of the product's objects that OLM accepts in a bundle as files of their own."""
CRD_KIND = "CustomResourceDefinition"
WEBHOOK_KIND = "ValidatingWebhookConfiguration"


@dataclass(frozen=True)
class BundleObjects:
    """The rendered objects, divided by the way in which they are installed.

    Attributes:
        deployments: The Deployments that the ClusterServiceVersion contains.
        rules: The rules of each ServiceAccount's cluster roles; the ClusterServiceVersion contains both.
        webhooks: The webhook configurations that the ClusterServiceVersion describes.
        crds: The CustomResourceDefinitions, which are files of the bundle.
        files: The other files of the bundle.
        remaining: The objects that OLM cannot install.
    """

    deployments: tuple[Manifest, ...]
    rules: dict[str, list[Manifest]]
    webhooks: tuple[Manifest, ...]
    crds: tuple[Manifest, ...]
    files: tuple[Manifest, ...]
    remaining: tuple[Manifest, ...]


def divide_objects(objects: Sequence[Manifest]) -> BundleObjects:
    """Divide the rendered objects by the way in which they are installed."""
    rules, rbac = _collect_account_rules(objects)
    webhooks = _filter_by_kind(objects, WEBHOOK_KIND)
    crds = _filter_by_kind(objects, CRD_KIND)
    deployments = _filter_by_kind(objects, "Deployment")
    # OLM creates the ServiceAccounts, roles and bindings, and a Service for each webhook.
    services = _list_webhook_services(webhooks)
    created = [*webhooks, *crds, *deployments, *_filter_by_kind(objects, "ServiceAccount"), *rbac]
    others = [manifest for manifest in objects if manifest not in created and _get_key(manifest) not in services]
    files = [manifest for manifest in others if _is_supported(manifest)]
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


def _get_key(manifest: Manifest) -> tuple[str, str]:
    return manifest["kind"], manifest["metadata"]["name"]


def _is_supported(manifest: Manifest) -> bool:
    """Return whether OLM accepts the object, and installs it in the namespace that it names."""
    return manifest["kind"] in SUPPORTED_KINDS and manifest["metadata"].get("namespace", NAMESPACE) == NAMESPACE


def _list_webhook_services(webhooks: Sequence[Manifest]) -> set[tuple[str, str]]:
    return {
        ("Service", webhook["clientConfig"]["service"]["name"])
        for configuration in webhooks
        for webhook in configuration["webhooks"]
    }


def _collect_account_rules(objects: Sequence[Manifest]) -> tuple[dict[str, list[Manifest]], list[Manifest]]:
    """Return the rules of each ServiceAccount's cluster roles, and these roles with their bindings.

    A role that is bound to other subjects, too, or to none, remains an object. OLM would extend a Role of the product's
    namespace to all namespaces if it were a part of the ClusterServiceVersion, so a Role remains an object, too.
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
