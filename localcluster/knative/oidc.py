"""Switches Knative's `authentication-oidc` on and off at run time; when it is on, each sender must authenticate.

Knative's ingress, filter and dispatcher verify tokens with the API server's public keys. In a cluster they fetch these
keys from `kubernetes.default.svc` with their own accounts. Here they fetch them anonymously from the API server's
address.
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
from localcluster.knative import install
from localcluster.processes import await_ready
from localcluster.errors import LocalClusterError

SECONDS, TIMES = 20, 4
"""The timeout for all components to follow a change of the flags, and the number of attempts."""
FLAG, DISCOVERY = "authentication-oidc", "oidc-discovery-base-url"
"""Keys of the ConfigMap config-features."""
ANYBODY_MAY_DISCOVER = {
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
SENDERS = (
    "eventing.knative.dev/v1/{}/triggers",
    *(f"sources.knative.dev/v1/{{}}/{kind}s" for kind in ("apiserversource", "pingsource", "containersource")),
    "sources.knative.dev/v1/{}/sinkbindings",
)
"""Resources whose objects get a ServiceAccount to send with."""
CHANNELS = f"/apis/messaging.knative.dev/v1/namespaces/{NAMESPACE}/inmemorychannels"
TOLD = ("K_AUDIENCE", "K_OIDC_SERVICE_ACCOUNT")
"""Variables with the audience of an adapter's tokens, and with the ServiceAccount that the tokens authenticate."""
MOUNTED = "oidc-token"
"""The volume with the token of a SinkBinding."""


def require(cluster: LocalCluster) -> None:
    """Enable authentication; return when each Knative object has an identity and its adapter is configured."""
    install.apply(cluster, [ANYBODY_MAY_DISCOVER])
    _switch(cluster, {FLAG: "enabled", DISCOVERY: cluster.url}, asked=True)


def waive(cluster: LocalCluster) -> None:
    """Disable authentication; return when Knative has removed the identities from the objects and their adapters.

    Knative leaves the EventPolicy of the Broker's channel in place, which keeps the channel not ready. Its dispatcher
    serves such a channel only until the dispatcher's next restart. So the function deletes the EventPolicies and waits
    for the channel.
    """
    _switch(cluster, {FLAG: "disabled", DISCOVERY: None}, asked=False)
    cluster.kubectl("delete", "eventpolicy", "--all", "-n", NAMESPACE)
    await_ready("the Broker's channel", lambda: all(map(is_ready, cluster.door().list(CHANNELS)["items"])), [], SECONDS)


def told(cluster: LocalCluster) -> dict[str, dict[str, str]]:
    """Return, for each Deployment in the product's namespace, the `TOLD` variables of its container."""
    return {
        item["metadata"]["name"]: {entry["name"]: entry["value"] for entry in entries(item) if entry["name"] in TOLD}
        for item in deployments(cluster)
    }


def mount(cluster: LocalCluster, directory: Path) -> None:
    """Write the token of each SinkBinding to `directory/NAME.token`; remove the file of one without a token."""
    for item in cluster.door().list(f"/apis/sources.knative.dev/v1/namespaces/{NAMESPACE}/sinkbindings")["items"]:
        file = directory / f"{item['metadata']['name']}.token"
        file.unlink(missing_ok=True)
        if secret := item["status"].get("oidcTokenSecretName"):
            data = cluster.door().get(f"/api/v1/namespaces/{NAMESPACE}/secrets/{secret}")["data"]
            write_secret(file, base64.b64decode(data["token"]).decode())


def _switch(cluster: LocalCluster, flags: dict[str, Any], *, asked: bool) -> None:
    """Set the flags; return when Knative has reconciled everything that depends on them, and retry otherwise.

    Sometimes Knative misses a Trigger that it is reconciling at that moment. Another change of the ConfigMap makes it
    reconcile the Trigger again.
    """
    for attempt in range(TIMES):
        _set(cluster, flags, attempt)
        try:
            await_ready("Knative's identities", lambda: _stands(cluster, asked=asked), [], SECONDS)
            return
        except LocalClusterError:
            if attempt == TIMES - 1:
                raise


def _set(cluster: LocalCluster, flags: dict[str, Any], attempt: int) -> None:
    where = ("configmap", "config-features", "-n", install.EVENTING.namespace)
    change = {"metadata": {"annotations": {"localcluster/attempt": str(attempt)}}, "data": flags}
    cluster.kubectl("patch", *where, "--type=merge", "-p", json.dumps(change))


def _stands(cluster: LocalCluster, *, asked: bool) -> bool:
    """Return whether the Broker, each sender, and each Deployment with the Broker's address match the flags."""
    door = cluster.door()
    broker = door.get(f"/apis/eventing.knative.dev/v1/namespaces/{NAMESPACE}/brokers/default")
    lists = [door.list(f"/apis/{path.format(f'namespaces/{NAMESPACE}')}") for path in SENDERS]
    senders = [item for found in lists for item in found["items"]]
    known = [
        "audience" in broker["status"]["address"],
        *(bool(item["status"].get("auth")) for item in senders),
        *(_is_told(item) for item in deployments(cluster) if any(entry["name"] == "K_SINK" for entry in entries(item))),
    ]
    return set(known) == {asked} and all(map(is_ready, [broker, *senders]))


def _is_told(deployment: Object) -> bool:
    volumes = deployment["spec"]["template"]["spec"].get("volumes", [])
    return any(entry["name"] in TOLD for entry in entries(deployment)) or any(
        volume["name"] == MOUNTED for volume in volumes
    )


def deployments(cluster: LocalCluster) -> list[Object]:
    """Return the Deployments in the product's namespace, including those that Knative creates for the sources."""
    return list(cluster.door().list(f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments")["items"])


def entries(deployment: Object) -> list[Object]:
    """Return the environment variables of a Deployment's first container."""
    return list(deployment["spec"]["template"]["spec"]["containers"][0].get("env", []))
