"""Helpers that grant permissions for a test and check whether the API server enforces them yet."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from kube.client.sync_client import Cluster
from localcluster.processes import await_ready


def allow(admin: Cluster, name: str, rules: Iterable[str], subject: dict[str, str], user: str) -> None:
    """Grant a subject these cluster-wide permissions, and wait until the API server allows them to `user`."""
    split = [rule.split() for rule in rules]
    role = [{"apiGroups": ["*"], "resources": [resource], "verbs": [verb]} for verb, resource in split]
    rbac, about = "rbac.authorization.k8s.io", {"metadata": {"name": name}}
    reference = {"apiGroup": rbac, "kind": "ClusterRole", "name": name}
    admin.create(f"/apis/{rbac}/v1/clusterroles", {**about, "rules": role})
    binding = {**about, "roleRef": reference, "subjects": [subject]}
    admin.create(f"/apis/{rbac}/v1/clusterrolebindings", binding)
    for verb, resource in split:
        await_ready(f"the right to {verb} {resource}", partial(may, admin, user, verb, resource), [], 10)


def may(admin: Cluster, user: str, verb: str, resource: str) -> bool:
    """Return whether a user has this cluster-wide permission in every API group."""
    kind, _, part = resource.partition("/")
    asked = {"verb": verb, "group": "*", "resource": kind, **({"subresource": part} if part else {})}
    reviews = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    api = admin.api.impersonating(user)
    return bool(admin.run(api.create(reviews, {"spec": {"resourceAttributes": asked}}))["status"]["allowed"])
