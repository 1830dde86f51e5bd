"""The admission webhook as a local process, registered so that the API server calls it, on every engine."""

from __future__ import annotations

import sys
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from functions.certificates.settings import Settings
from functions.certificates.renewal_pass import renewed
from kube.certificates import certificate_objects
from kube.client.api_errors import ApiError, Denied, Rejected
from kube.maintenance.groups import MEDIK8S
from localcluster import access
from localcluster.admission.mounted_secret import MountedSecret
from localcluster.cluster import LocalCluster
from localcluster.processes import Server, Startable, await_ready, free_port
from localcluster.readiness import READY, answers
from localcluster.servers import DIRECT, LOOPBACK, ROOT
from localcluster.errors import LocalClusterError

COMPONENT = ROOT / "manifests" / "components" / "admission"
SHIPPED = ("rbac.yaml", "policy.yaml")
"""The manifests that are applied unchanged; the server is a local process, and the configuration needs its address."""
SECRET = ROOT / "manifests" / "components" / "certificates" / "rights" / "validate.yaml"
NAME = "validate"
"""The name of the Secret with the serving certificate."""
SECONDS = 30


class Webhook(Startable):
    """The webhook's server, its serving certificate, and the admission configuration that registers it.

    The certificate is in the Secret `validate`. The product's own code issues it, and the function `renew-certificates`
    renews it where that function runs.

    Args:
        cluster: A cluster with the CRDs installed.
        directory: The directory for the log and the certificate.
    """

    def __init__(self, cluster: LocalCluster, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._cluster = cluster
        port = free_port()
        self.url = f"https://{LOOPBACK}:{port}"
        self.folder = directory / "admission"
        self.secret = MountedSecret(cluster.kubeconfig, self.folder, access.NAMESPACE, NAME)
        variables = {
            **DIRECT,
            "KUBECONFIG": str(cluster.kubeconfig_for(access.service_account("validate"))),
            "CERTIFICATE": str(self.folder),
            "HOST": LOOPBACK,
            "PORT": str(port),
        }
        command = [sys.executable, "-m", "functions.admission"]
        self.server = Server("validate", command, directory / "validate.log", variables, ROOT)

    @property
    def ca_file(self) -> Path:
        """Return the path of the CA certificate that clients of the webhook trust."""
        return self.folder / certificate_objects.TRUSTED

    def _bring_up(self) -> None:
        """Register and start the webhook; return when the API server calls it."""
        files = [word for name in SHIPPED for word in ("-f", COMPONENT / name)]
        self._cluster.kubectl("apply", "--server-side", *files)
        self._configure()
        self._name_address()
        self._look()
        self.secret.start()
        if not self.secret.came.wait(SECONDS):
            raise LocalClusterError(f"the Secret {NAME} got no certificate")
        self.start_server()
        await_ready("admission by webhook", partial(self._refuses, "nobody-knows-it"), [self.server], SECONDS)
        await_ready("admission by policy", partial(self._refuses, "NoName"), [self.server], SECONDS)

    def start_server(self) -> None:
        """Start the server process; return when it is ready, with its caches synced."""
        self.server.start()
        await_ready("the webhook", partial(answers, self.url + READY, self.ca_file), [self.server], SECONDS)

    def stop(self) -> None:
        """Kill the server; it holds no state."""
        self.server.kill()
        self.secret.stop()

    def renew(self) -> None:
        """Request a renewal and issue a certificate; return when the Secret's files have been written again."""
        self.secret.came.clear()
        asked = {"metadata": {"annotations": {certificate_objects.RENEW: "now"}}}
        self._cluster.door().patch(certificate_objects.secrets_path(access.NAMESPACE, NAME), asked)
        self._look()
        if not self.secret.came.wait(SECONDS):
            raise LocalClusterError(f"the Secret {NAME} got no other certificate")

    def _name_address(self) -> None:
        """Add this host's address to the names of the certificate."""
        secret = yaml.safe_load(SECRET.read_text())
        secret["metadata"]["annotations"][certificate_objects.NAMES] += f",{LOOPBACK}"
        self._cluster.apply([secret], "--force-conflicts")

    def _look(self) -> None:
        """Run one pass of `renew-certificates`: issue missing certificates and inject the CA bundle."""
        door = self._cluster.door()
        errors = door.run(renewed(door.api, Settings(), datetime.now(timezone.utc))).errors
        if errors:
            raise LocalClusterError(f"the webhook's certificate: {errors[0].message}")

    def _configure(self) -> None:
        """Apply the webhook configuration of the manifests with this host's address."""
        wanted = yaml.safe_load((COMPONENT / "webhook.yaml").read_text())
        for webhook in wanted["webhooks"]:
            webhook["clientConfig"] = {"url": f"{self.url}/validate"}
        self._cluster.apply([wanted], "--force-conflicts")

    def _refuses(self, node: str) -> bool:
        """Return whether a dry-run creation of a NodeMaintenance for this unknown node is rejected."""
        body: dict[str, Any] = {
            "apiVersion": MEDIK8S.api_version,
            "kind": "NodeMaintenance",
            "metadata": {"name": "admission-trial"},
            "spec": {"nodeName": node},
        }
        try:
            self._cluster.door().dry_run().create(MEDIK8S.path, body)
        except (Denied, Rejected):
            return True
        except ApiError:
            return False
        return False
