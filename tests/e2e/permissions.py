"""Helper that compares a function's actual permissions (`kubectl auth can-i --list`) with its docstring."""

from __future__ import annotations

from contextlib import closing

from kube.client.sync_client import SyncClient
from localcluster.knative.fake_kubelet import write_account_kubeconfig
from tests.e2e.environment import E2eEnvironment
from tests.manifests.documented_rights import (
    NAMESPACES,
    OWN_NAMESPACE,
    filter_by_namespace,
    list_allowed_rights,
    read_documented_rights,
)


def assert_permissions_as_documented(environment: E2eEnvironment, function: str) -> None:
    """Assert that the function's ServiceAccount has exactly the permissions in its `Touches:` lines, in each namespace.

    Permissions that every account has are ignored.
    """
    with (
        closing(_create_client(environment, function)) as function_client,
        closing(_create_client(environment, "default")) as default_client,
    ):
        for namespace in NAMESPACES:
            granted_rights = function_client.run(
                list_allowed_rights(function_client.api, namespace)
            ) - default_client.run(list_allowed_rights(default_client.api, namespace))
            assert granted_rights == filter_by_namespace(read_documented_rights(function), namespace), (
                function,
                namespace,
            )


def _create_client(environment: E2eEnvironment, service_account: str) -> SyncClient:
    """Return an API client that uses the ServiceAccount's token."""
    return SyncClient(str(write_account_kubeconfig(environment.cluster, OWN_NAMESPACE, service_account)))
