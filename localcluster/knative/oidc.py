"""Enables and disables Knative's `authentication-oidc` at run time; while it is enabled, each sender must authenticate.

Knative's ingress, filter and dispatcher verify tokens with the API server's public keys. In a real cluster, they fetch
these keys from `kubernetes.default.svc` with their own ServiceAccounts. On a local cluster, they fetch the keys
anonymously from the API server's address.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

from kube.paths import Object
from kube.pods import is_ready
from localcluster.access import NAMESPACE, write_secret
from localcluster.cluster import LocalCluster
from localcluster.errors import LocalClusterError
from localcluster.knative import install
from localcluster.processes import wait_until_ready

TIMEOUT_SECONDS, MAX_ATTEMPTS = 20, 4
"""Seconds within which Knative must apply a change of the flags, and the number of attempts."""
OIDC_FLAG, DISCOVERY_URL_KEY = "authentication-oidc", "oidc-discovery-base-url"
"""Keys of the ConfigMap config-features."""
DISCOVERY_BINDING = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "ClusterRoleBinding",
    "metadata": {"name": "issuer-discovery-for-anybody"},
    "roleRef": {
        "apiGroup": "rbac.authorization.k8s.io",
        "kind": "ClusterRole",
        "name": "system:service-account-issuer-discovery",
    },
    "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:unauthenticated"}],
}
SENDER_PATHS = (
    "eventing.knative.dev/v1/{}/triggers",
    *(f"sources.knative.dev/v1/{{}}/{kind}s" for kind in ("apiserversource", "pingsource", "containersource")),
    "sources.knative.dev/v1/{}/sinkbindings",
)
"""API paths of the resources that send events; Knative creates a ServiceAccount for each of their objects."""
CHANNELS_PATH = f"/apis/messaging.knative.dev/v1/namespaces/{NAMESPACE}/inmemorychannels"
OIDC_VARIABLES = ("K_AUDIENCE", "K_OIDC_SERVICE_ACCOUNT")
"""Environment variables with the audience of an adapter's tokens, and with the ServiceAccount of the tokens."""
TOKEN_VOLUME = "oidc-token"  # noqa: S105 - a volume name, not a token
"""The volume that contains a SinkBinding's token."""


def enable(cluster: LocalCluster) -> None:
    """Enable authentication; return when each Knative object has an identity, and its adapter uses this identity."""
    install.apply_manifests(cluster, [DISCOVERY_BINDING])
    _set_flags_and_wait(cluster, {OIDC_FLAG: "enabled", DISCOVERY_URL_KEY: cluster.url}, enabled=True)


def disable(cluster: LocalCluster) -> None:
    """Disable authentication; return when Knative has removed the identities from the objects and their adapters.

    Knative does not delete the EventPolicy of the Broker's channel, so the channel does not become ready. The
    dispatcher serves such a channel only until the dispatcher restarts. So this function deletes the EventPolicies, and
    waits until the channel is ready.
    """
    _set_flags_and_wait(cluster, {OIDC_FLAG: "disabled", DISCOVERY_URL_KEY: None}, enabled=False)
    cluster.kubectl("delete", "eventpolicy", "--all", "-n", NAMESPACE)
    wait_until_ready(
        "the Broker's channel",
        lambda: all(map(is_ready, cluster.get_client().list(CHANNELS_PATH)["items"])),
        [],
        TIMEOUT_SECONDS,
    )


def read_oidc_variables(cluster: LocalCluster) -> dict[str, dict[str, str]]:
    """Return the `OIDC_VARIABLES` of the first container of each Deployment in the product's namespace."""
    return {
        item["metadata"]["name"]: {
            entry["name"]: entry["value"] for entry in list_variables(item) if entry["name"] in OIDC_VARIABLES
        }
        for item in list_deployments(cluster)
    }


def write_tokens(cluster: LocalCluster, directory: Path) -> None:
    """Write each SinkBinding's token to `directory/NAME.token`; remove the file if the SinkBinding has no token."""
    for item in cluster.get_client().list(f"/apis/sources.knative.dev/v1/namespaces/{NAMESPACE}/sinkbindings")["items"]:
        file = directory / f"{item['metadata']['name']}.token"
        file.unlink(missing_ok=True)
        if secret := item["status"].get("oidcTokenSecretName"):
            data = cluster.get_client().get(f"/api/v1/namespaces/{NAMESPACE}/secrets/{secret}")["data"]
            write_secret(file, base64.b64decode(data["token"]).decode())


def _set_flags_and_wait(cluster: LocalCluster, flags: dict[str, Any], *, enabled: bool) -> None:
    """Set the flags; return when Knative has reconciled everything that depends on them. Retry after a timeout.

    Knative sometimes misses a flag change for a Trigger that it is reconciling. Another change of the ConfigMap makes
    Knative reconcile the Trigger again.
    """
    for attempt in range(MAX_ATTEMPTS):
        _patch_flags(cluster, flags, attempt)
        try:
            wait_until_ready(
                "Knative's OIDC identities", lambda: _is_reconciled(cluster, enabled=enabled), [], TIMEOUT_SECONDS
            )
            return
        except LocalClusterError:
            if attempt == MAX_ATTEMPTS - 1:
                raise


def _patch_flags(cluster: LocalCluster, flags: dict[str, Any], attempt: int) -> None:
    config_map = ("configmap", "config-features", "-n", install.EVENTING.namespace)
    change = {"metadata": {"annotations": {"localcluster/attempt": str(attempt)}}, "data": flags}
    cluster.kubectl("patch", *config_map, "--type=merge", "-p", json.dumps(change))


def _is_reconciled(cluster: LocalCluster, *, enabled: bool) -> bool:
    """Return whether the Broker, each sender, and each Deployment with a sink have identities only if `enabled`."""
    client = cluster.get_client()
    broker = client.get(f"/apis/eventing.knative.dev/v1/namespaces/{NAMESPACE}/brokers/default")
    lists = [client.list(f"/apis/{path.format(f'namespaces/{NAMESPACE}')}") for path in SENDER_PATHS]
    senders = [item for response in lists for item in response["items"]]
    is_enabled = [
        "audience" in broker["status"]["address"],
        *(bool(item["status"].get("auth")) for item in senders),
        *(
            _has_oidc_settings(item)
            for item in list_deployments(cluster)
            if any(entry["name"] == "K_SINK" for entry in list_variables(item))
        ),
    ]
    return set(is_enabled) == {enabled} and all(map(is_ready, [broker, *senders]))


def _has_oidc_settings(deployment: Object) -> bool:
    volumes = deployment["spec"]["template"]["spec"].get("volumes", [])
    return any(entry["name"] in OIDC_VARIABLES for entry in list_variables(deployment)) or any(
        volume["name"] == TOKEN_VOLUME for volume in volumes
    )


def list_deployments(cluster: LocalCluster) -> list[Object]:
    """Return the Deployments in the product's namespace, including the source adapters that Knative deploys."""
    return list(cluster.get_client().list(f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments")["items"])


def list_variables(deployment: Object) -> list[Object]:
    """Return the environment variables of a Deployment's first container."""
    return list(deployment["spec"]["template"]["spec"]["containers"][0].get("env", []))
