"""Helpers that grant permissions for a test, and wait until they are in effect."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path

from kube.client.access_reviews import Permission, is_allowed
from kube.client.sync_client import SyncClient
from localcluster.cluster import LocalCluster
from localcluster.knative.fake_kubelet import write_account_kubeconfig
from localcluster.processes import wait_until_ready

USERS_NAMESPACE = "default"
"""Namespace of the ServiceAccounts that tests use as users."""


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
    """Return whether a user has this cluster-wide permission for the resource in every API group."""
    kind, _, subresource = resource.partition("/")
    attributes = {"verb": verb, "group": "*", "resource": kind, **({"subresource": subresource} if subresource else {})}
    reviews = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    api = client.api.with_impersonation(user)
    return bool(client.run(api.create(reviews, {"spec": {"resourceAttributes": attributes}}))["status"]["allowed"])


def create_user(cluster: LocalCluster, name: str, *cluster_roles: str) -> Path:
    """Create a ServiceAccount that is bound only to these ClusterRoles, and return a kubeconfig with its token."""
    client, rbac = cluster.get_client(), "rbac.authorization.k8s.io"
    client.create(f"/api/v1/namespaces/{USERS_NAMESPACE}/serviceaccounts", {"metadata": {"name": name}})
    for role in cluster_roles:
        binding = {
            "metadata": {"name": f"{name}-{role}"},
            "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": role},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": USERS_NAMESPACE}],
        }
        client.create(f"/apis/{rbac}/v1/clusterrolebindings", binding)
    return write_account_kubeconfig(cluster, USERS_NAMESPACE, name)


def make_username(name: str) -> str:
    """Return the user name of a ServiceAccount that `create_user` created."""
    return f"system:serviceaccount:{USERS_NAMESPACE}:{name}"


def wait_for_permission(client: SyncClient, user: str, permission: Permission) -> None:
    """Wait until a user has this permission; the API server's authorizer applies new bindings with a delay."""
    api = client.api.with_impersonation(user)
    wait_until_ready(f"the right {permission} of {user}", lambda: client.run(is_allowed(api, permission)), [], 10)
