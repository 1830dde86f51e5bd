"""Knative's `authentication-oidc`, switched on and off while it runs: whoever posts then says who it is.

Its ingress, filter and dispatcher check tokens by the keys that the API server publishes. In a cluster they ask
`kubernetes.default.svc` as themselves; here they are given the API server's address, where they ask as anybody.
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
from localcluster.trouble import LocalClusterError

SECONDS, TIMES = 20, 4
"""How long it is waited for all to follow a change of the flags, and how often that is made known."""
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
"""Who gets an account to send under."""
CHANNELS = f"/apis/messaging.knative.dev/v1/namespaces/{NAMESPACE}/inmemorychannels"
TOLD = ("K_AUDIENCE", "K_OIDC_SERVICE_ACCOUNT")
"""Variables that tell an adapter of Knative's for whom its tokens are, and in whose name."""
MOUNTED = "oidc-token"
"""The volume with the token of a SinkBinding."""


def require(cluster: LocalCluster) -> None:
    """Have Knative ask for identities; return when all our objects have one, and their programs are told to say it."""
    install.apply(cluster, [ANYBODY_MAY_DISCOVER])
    _switch(cluster, {FLAG: "enabled", DISCOVERY: cluster.url}, asked=True)


def waive(cluster: LocalCluster) -> None:
    """Have Knative ask nobody; return when it has taken back what it told our objects and their programs.

    It leaves the EventPolicy of the Broker's channel behind, by which the channel stays not ready: its dispatcher
    serves it until it is started anew, and never again.
    """
    _switch(cluster, {FLAG: "disabled", DISCOVERY: None}, asked=False)
    cluster.kubectl("delete", "eventpolicy", "--all", "-n", NAMESPACE)
    await_ready("the Broker's channel", lambda: all(map(is_ready, cluster.door().list(CHANNELS)["items"])), [], SECONDS)


def told(cluster: LocalCluster) -> dict[str, dict[str, str]]:
    """Give, for each of our Deployments, what its container is told of `TOLD`."""
    return {
        item["metadata"]["name"]: {entry["name"]: entry["value"] for entry in entries(item) if entry["name"] in TOLD}
        for item in deployments(cluster)
    }


def mount(cluster: LocalCluster, directory: Path) -> None:
    """Write the token of each SinkBinding to `directory/NAME.token`, and take away that of one that has none."""
    for item in cluster.door().list(f"/apis/sources.knative.dev/v1/namespaces/{NAMESPACE}/sinkbindings")["items"]:
        file = directory / f"{item['metadata']['name']}.token"
        file.unlink(missing_ok=True)
        if secret := item["status"].get("oidcTokenSecretName"):
            data = cluster.door().get(f"/api/v1/namespaces/{NAMESPACE}/secrets/{secret}")["data"]
            write_secret(file, base64.b64decode(data["token"]).decode())


def _switch(cluster: LocalCluster, flags: dict[str, Any], *, asked: bool) -> None:
    """Set flags; return when Knative has done all that follows. Where it leaves an object behind, it is told again.

    Now and then a Trigger that is reconciled just then stays as it was, until the ConfigMap changes once more.
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
    """Tell whether the Broker, each sender, and each program that has the Broker's address are as they then are."""
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
    """Give the Deployments of our namespace, ours and those that Knative made of our sources."""
    return list(cluster.door().list(f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments")["items"])


def entries(deployment: Object) -> list[Object]:
    """Give the variables of its first container."""
    return list(deployment["spec"]["template"]["spec"]["containers"][0].get("env", []))
