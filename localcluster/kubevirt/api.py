"""KubeVirt's virt-api on a local cluster, for evictions: evicting a virt-launcher pod starts a migration of its VMI.

The module does what KubeVirt's operator would do: it provides the certificates and registers the webhook that the API
server calls for each eviction.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

from kube.client.api import absent_ok
from localcluster.cluster import LocalCluster
from localcluster.kubevirt.controller import NAMESPACE
from localcluster.processes import Server, Startable, await_ready, free_port
from localcluster.programs import build
from localcluster.readiness import answers
from localcluster.servers import DIRECT, LOOPBACK, ROOT

WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
WEBHOOK = "virt-api-validator"
EVICTIONS = "virt-launcher-eviction-interceptor.kubevirt.io"
ASKED = "apiserver_admission_webhook_request_total{"
"""The API server's own request counter for this webhook."""
NOBODY = "/api/v1/namespaces/default/pods/nobody"
EVICTION = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "nobody"}}
REQUEST_HEADERS = {"username-headers": "User", "group-headers": "Group", "extra-headers-prefix": "Extra-"}
SECONDS = 60


class VirtApi(Startable):
    """The virt-api process and its webhook for evictions.

    Args:
        cluster: A cluster on which KubeVirt is installed.
        directory: The directory for the log.
    """

    def __init__(self, cluster: LocalCluster, directory: Path) -> None:
        self._cluster = cluster
        program = build.servers(build.KUBEVIRT) / "virt-api"
        self._url = f"https://{LOOPBACK}:{(port := free_port())}"
        pki = cluster.directory / "pki"  # any certificate for this address works
        self._certificate, key = pki / "apiserver.crt", pki / "apiserver.key"
        flags = {
            "kubeconfig": cluster.kubeconfig,
            "listen": LOOPBACK,
            "port": port,
            **dict.fromkeys(("tls-cert-file", "handler-cert-file"), self._certificate),
            **dict.fromkeys(("tls-key-file", "handler-key-file"), key),
        }
        words = [f"--{name}={value}" for name, value in flags.items()]
        directory.mkdir(parents=True, exist_ok=True)
        self.server = Server("virt-api", [program, *words], directory / "virt-api.log", DIRECT, ROOT)

    def _bring_up(self) -> None:
        """Start virt-api; return when the API server calls its webhook."""
        trusted = self._cluster.certificate
        headers = {f"requestheader-{name}": json.dumps([f"X-Remote-{word}"]) for name, word in REQUEST_HEADERS.items()}
        known = {"client-ca-file": trusted, "requestheader-client-ca-file": trusted, **headers}
        self._have("kube-system", "extension-apiserver-authentication", known)
        self._have(NAMESPACE, "kubevirt-ca", {"ca-bundle": trusted})
        self.server.start()
        await_ready("virt-api", lambda: answers(f"{self._url}/healthz", self._certificate), [self.server], SECONDS)
        self._cluster.door().create(WEBHOOKS, self._webhook(trusted))
        await_ready("the webhook of virt-api", self._is_asked, [self.server], SECONDS)

    def stop(self) -> None:
        """Unregister the webhook, and kill virt-api without a graceful shutdown."""
        door = self._cluster.door()
        door.run(absent_ok(door.api.request("DELETE", f"{WEBHOOKS}/{WEBHOOK}")))
        self.server.kill()

    def _is_asked(self) -> bool:
        """Return whether the API server calls the webhook; it loads a new webhook configuration with a delay."""
        door, before = self._cluster.door(), self._times_asked()
        door.run(absent_ok(door.api.create(f"{NOBODY}/eviction", EVICTION)))
        return self._times_asked() > before

    def _times_asked(self) -> float:
        lines = self._cluster.kubectl("get", "--raw", "/metrics").stdout.splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(ASKED) and EVICTIONS in line)

    def _have(self, namespace: str, name: str, data: dict[str, str]) -> None:
        """Apply a ConfigMap."""
        body = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": name, "namespace": namespace},
            "data": data,
        }
        self._cluster.apply([body], "--force-conflicts")

    def _webhook(self, trusted: str) -> dict[str, Any]:
        """Return KubeVirt's webhook for evictions, as its operator would write it."""
        rule = {"operations": ["*"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods/eviction"]}
        where = {
            "url": f"{self._url}/launcher-eviction-validate",
            "caBundle": base64.b64encode(trusted.encode()).decode(),
        }
        hook = {
            "name": EVICTIONS,
            "admissionReviewVersions": ["v1"],
            "sideEffects": "NoneOnDryRun",
            "failurePolicy": "Ignore",
            "clientConfig": where,
            "rules": [{**rule, "scope": "*"}],
        }
        return {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingWebhookConfiguration",
            "metadata": {"name": WEBHOOK},
            "webhooks": [hook],
        }
