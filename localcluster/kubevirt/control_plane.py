"""KubeVirt's control plane on a local cluster, installed as KubeVirt's operator would install it.

virt-controller creates the VMIs, virt-launcher pods, migrations and PodDisruptionBudgets. A simulator must replace
virt-handler on each node. virt-api handles evictions: if a virt-launcher pod is evicted, KubeVirt migrates its VMI.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kube.client.api import JSON_PATCH, get_or_none
from localcluster.cluster import LocalCluster
from localcluster.kubevirt import crds
from localcluster.processes import Server, Startable, kill_all, reserve_port, wait_until_ready
from localcluster.programs import build
from localcluster.readiness import is_responding
from localcluster.servers import LOOPBACK, NO_PROXY_LOCAL_ENV, ROOT

NAMESPACE = KUBEVIRT_NAME = "kubevirt"
KUBEVIRTS_PATH = f"/apis/{crds.GROUP}/{crds.STORAGE_VERSION}/namespaces/{NAMESPACE}/kubevirts"
LEASE_PATH = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/virt-controller"
FAKE_IMAGE = "fake"
"""A placeholder image name, because no image is pulled for a pod on a fake node."""
WEBHOOKS_PATH = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
WEBHOOK_CONFIGURATION = "virt-api-validator"
EVICTION_WEBHOOK = "virt-launcher-eviction-interceptor.kubevirt.io"
WEBHOOK_REQUESTS_METRIC = "apiserver_admission_webhook_request_total{"
"""Prefix of the API server's metric that counts its calls of webhooks."""
ABSENT_POD_PATH = "/api/v1/namespaces/default/pods/absent"
EVICTION_BODY = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "absent"}}
REQUEST_HEADERS = {"username-headers": "User", "group-headers": "Group", "extra-headers-prefix": "Extra-"}


class VirtController(Startable):
    """The virt-controller process, which can be restarted. Call `install_crds` before the first start.

    Args:
        directory: The directory for the log.
    """

    def __init__(self, cluster: LocalCluster, directory: Path) -> None:
        self._cluster = cluster
        program = build.ensure_programs(build.KUBEVIRT) / "virt-controller"
        port = reserve_port()
        self._url = f"https://{LOOPBACK}:{port}/healthz"
        pki = cluster.directory / "pki"  # virt-controller accepts any certificate for this address.
        self._certificate = pki / "apiserver.crt"
        flags = {
            "kubeconfig": cluster.kubeconfig,
            "launcher-image": FAKE_IMAGE,
            "exporter-image": FAKE_IMAGE,
            "listen": LOOPBACK,
            "port": port,
            "prom-cert-file": self._certificate,
            "prom-key-file": pki / "apiserver.key",
        }
        arguments = [f"--{name}={value}" for name, value in flags.items()]
        directory.mkdir(parents=True, exist_ok=True)
        self.server = Server(
            "virt-controller", [program, *arguments], directory / "virt-controller.log", NO_PROXY_LOCAL_ENV, ROOT
        )

    def install_crds(self) -> None:
        """Apply KubeVirt's CRDs and create its namespace."""
        crds.install_crds(self._cluster, (*crds.INSTALLED_CRDS, *crds.WATCHED_CRDS))
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
        self._cluster.get_client().create("/api/v1/namespaces", body)

    def create_kubevirt(self, configuration: Mapping[str, Any] | None = None) -> None:
        """Create the KubeVirt object with this configuration, and set its phase to Deployed."""
        body = {
            "apiVersion": f"{crds.GROUP}/{crds.STORAGE_VERSION}",
            "kind": "KubeVirt",
            "metadata": {"name": KUBEVIRT_NAME},
            "spec": {"configuration": dict(configuration or {})},
        }
        self._cluster.get_client().create(KUBEVIRTS_PATH, body)
        self._cluster.get_client().patch(f"{KUBEVIRTS_PATH}/{KUBEVIRT_NAME}/status", {"status": {"phase": "Deployed"}})

    def configure(self, configuration: Mapping[str, Any]) -> None:
        """Replace the configuration in the KubeVirt object."""
        change = [{"op": "replace", "path": "/spec/configuration", "value": dict(configuration)}]
        self._cluster.get_client().patch(f"{KUBEVIRTS_PATH}/{KUBEVIRT_NAME}", change, JSON_PATCH)

    def delete_kubevirt(self) -> None:
        """Delete the KubeVirt object."""
        client, path = self._cluster.get_client(), f"{KUBEVIRTS_PATH}/{KUBEVIRT_NAME}"
        client.delete(path, uid=client.get(path)["metadata"]["uid"])

    def _start_and_wait(self) -> None:
        """Start virt-controller; return when it is healthy.

        First delete the Lease of an earlier virt-controller process, so that the new one need not wait for its expiry.
        """
        client = self._cluster.get_client()
        client.run(get_or_none(client.api.request("DELETE", LEASE_PATH)))
        self.server.start()
        wait_until_ready("virt-controller", lambda: is_responding(self._url, self._certificate), [self.server])

    def stop(self) -> None:
        """Kill virt-controller without a graceful shutdown."""
        self.server.kill()


class VirtApi(Startable):
    """The virt-api process and its admission webhook for evictions.

    Args:
        cluster: A cluster on which KubeVirt is installed.
        directory: The directory for the log.
    """

    def __init__(self, cluster: LocalCluster, directory: Path) -> None:
        self._cluster = cluster
        program = build.ensure_programs(build.KUBEVIRT) / "virt-api"
        self._url = f"https://{LOOPBACK}:{(port := reserve_port())}"
        pki = cluster.directory / "pki"  # virt-api accepts any certificate for this address.
        self._certificate, key = pki / "apiserver.crt", pki / "apiserver.key"
        flags = {
            "kubeconfig": cluster.kubeconfig,
            "listen": LOOPBACK,
            "port": port,
            **dict.fromkeys(("tls-cert-file", "handler-cert-file"), self._certificate),
            **dict.fromkeys(("tls-key-file", "handler-key-file"), key),
        }
        arguments = [f"--{name}={value}" for name, value in flags.items()]
        directory.mkdir(parents=True, exist_ok=True)
        self.server = Server("virt-api", [program, *arguments], directory / "virt-api.log", NO_PROXY_LOCAL_ENV, ROOT)

    def _start_and_wait(self) -> None:
        """Start virt-api; return when the API server calls its webhook."""
        ca_bundle = self._cluster.certificate
        headers = {
            f"requestheader-{name}": json.dumps([f"X-Remote-{suffix}"]) for name, suffix in REQUEST_HEADERS.items()
        }
        data = {"client-ca-file": ca_bundle, "requestheader-client-ca-file": ca_bundle, **headers}
        self._apply_config_map("kube-system", "extension-apiserver-authentication", data)
        self._apply_config_map(NAMESPACE, "kubevirt-ca", {"ca-bundle": ca_bundle})
        self.server.start()
        wait_until_ready("virt-api", lambda: is_responding(f"{self._url}/healthz", self._certificate), [self.server])
        self._cluster.get_client().create(WEBHOOKS_PATH, self._build_webhook_configuration(ca_bundle))
        wait_until_ready("virt-api's webhook", self._is_webhook_called, [self.server])

    def stop(self) -> None:
        """Unregister the webhook, and kill virt-api without a graceful shutdown."""
        client = self._cluster.get_client()
        client.run(get_or_none(client.api.request("DELETE", f"{WEBHOOKS_PATH}/{WEBHOOK_CONFIGURATION}")))
        self.server.kill()

    def _is_webhook_called(self) -> bool:
        """Try to evict an absent pod; return whether the API server called the webhook, which it does with a delay."""
        client, before = self._cluster.get_client(), self._count_webhook_calls()
        client.run(get_or_none(client.api.create(f"{ABSENT_POD_PATH}/eviction", EVICTION_BODY)))
        return self._count_webhook_calls() > before

    def _count_webhook_calls(self) -> float:
        lines = self._cluster.kubectl("get", "--raw", "/metrics").stdout.splitlines()
        return sum(
            float(line.rpartition(" ")[2])
            for line in lines
            if line.startswith(WEBHOOK_REQUESTS_METRIC) and EVICTION_WEBHOOK in line
        )

    def _apply_config_map(self, namespace: str, name: str, data: dict[str, str]) -> None:
        """Create or update a ConfigMap."""
        body = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": name, "namespace": namespace},
            "data": data,
        }
        self._cluster.apply([body], "--force-conflicts")

    def _build_webhook_configuration(self, ca: str) -> dict[str, Any]:
        """Return the webhook configuration for evictions that KubeVirt's operator would create."""
        rule = {"operations": ["*"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods/eviction"]}
        client_config = {
            "url": f"{self._url}/launcher-eviction-validate",
            "caBundle": base64.b64encode(ca.encode()).decode(),
        }
        hook = {
            "name": EVICTION_WEBHOOK,
            "admissionReviewVersions": ["v1"],
            "sideEffects": "NoneOnDryRun",
            "failurePolicy": "Ignore",
            "clientConfig": client_config,
            "rules": [{**rule, "scope": "*"}],
        }
        return {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingWebhookConfiguration",
            "metadata": {"name": WEBHOOK_CONFIGURATION},
            "webhooks": [hook],
        }


class KubeVirtControlPlane(Startable):
    """virt-controller and virt-api, installed as KubeVirt's operator would install them.

    Args:
        directory: The directory for the logs.
    """

    def __init__(self, cluster: LocalCluster, directory: Path) -> None:
        self._controller, self._api = VirtController(cluster, directory), VirtApi(cluster, directory)

    @property
    def servers(self) -> list[Server]:
        """Return the processes of virt-controller and virt-api."""
        return [self._controller.server, self._api.server]

    def _start_and_wait(self) -> None:
        """Install KubeVirt with its default configuration; return when the API server calls its eviction webhook."""
        self._controller.install_crds()
        self._controller.create_kubevirt()
        self._controller.start()
        self._api.start()

    def stop(self) -> None:
        """Kill both processes without a graceful shutdown.

        The webhook stays registered, because the API server may have stopped already.
        """
        kill_all(self.servers)
