"""Helpers that grant permissions for a test, and check whether they are in effect."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from kube.client.sync_client import SyncClient
from localcluster.processes import wait_until_ready


def grant_permissions(client: SyncClient, name: str, rules: Iterable[str], subject: dict[str, str], user: str) -> None:
    """Grant a subject these cluster-wide permissions, and wait until they are in effect for `user`."""
    verbs_and_resources = [rule.split() for rule in rules]
    role_rules = [
        {"apiGroups": ["*"], "resources": [resource], "verbs": [verb]} for verb, resource in verbs_and_resources
    ]
    rbac, metadata = "rbac.authorization.k8s.io", {"metadata": {"name": name}}
    role_reference = {"apiGroup": rbac, "kind": "ClusterRole", "name": name}
    client.create(f"/apis/{rbac}/v1/clusterroles", {**metadata, "rules": role_rules})
    binding = {**metadata, "roleRef": role_reference, "subjects": [subject]}
    client.create(f"/apis/{rbac}/v1/clusterrolebindings", binding)
    for verb, resource in verbs_and_resources:
        wait_until_ready(
            f"the right to {verb} {resource}", partial(has_permission, client, user, verb, resource), [], 10
        )


def has_permission(client: SyncClient, user: str, verb: str, resource: str) -> bool:
    """Return whether a user has this cluster-wide permission in every API group."""
    kind, _, subresource = resource.partition("/")
    attributes = {"verb": verb, "group": "*", "resource": kind, **({"subresource": subresource} if subresource else {})}
    reviews = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    api = client.api.with_impersonation(user)
    return bool(client.run(api.create(reviews, {"spec": {"resourceAttributes": attributes}}))["status"]["allowed"])
