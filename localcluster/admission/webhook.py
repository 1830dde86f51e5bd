"""The webhook as a process beside the product, and the API server calling it for real, on every engine."""

from __future__ import annotations

import base64
import sys
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from kube.certificates.injection import INJECT
from kube.door.api_errors import ApiError, Denied, Rejected
from kube.maintenance.groups import MEDIK8S
from localcluster import access
from localcluster.admission.authority import Authority
from localcluster.cluster import LocalCluster
from localcluster.processes import Server, Startable, await_ready, free_port
from localcluster.readiness import READY, answers
from localcluster.servers import DIRECT, LOOPBACK, ROOT

COMPONENT = ROOT / "manifests" / "components" / "admission"
SHIPPED = ("rbac.yaml", "policy.yaml")
"""What is applied as it is; the server is a process here, and the configuration names its address."""
CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
SECONDS = 30


class Webhook(Startable):
    """The server, its certificate, and what has the API server ask it.

    In: a cluster with the CRDs, and a folder for log and certificate.
    """

    def __init__(self, cluster: LocalCluster, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._cluster = cluster
        port = free_port()
        self.url = f"https://{LOOPBACK}:{port}"
        self.folder = directory / "admission"
        self.authority = Authority("admission")
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
        """Give the file of the authority's certificate."""
        return self.folder / "ca.crt"

    def _bring_up(self) -> None:
        """Return when the API server asks it about the next object."""
        self.authority.write_certificate(self.folder, [LOOPBACK])
        self.ca_file.write_text(self.authority.certificate)
        files = [word for name in SHIPPED for word in ("-f", COMPONENT / name)]
        self._cluster.kubectl("apply", "--server-side", *files)
        self.start_server()
        self._configure()
        await_ready("admission by webhook", partial(self._refuses, "nobody-knows-it"), [self.server], SECONDS)
        await_ready("admission by policy", partial(self._refuses, "NoName"), [self.server], SECONDS)

    def start_server(self) -> None:
        """Start the process; return when it knows what is on the cluster."""
        self.server.start()
        await_ready("the webhook", partial(answers, self.url + READY, self.ca_file), [self.server], SECONDS)

    def stop(self) -> None:
        """End it; there is nothing that it could lose."""
        self.server.kill()

    def _configure(self) -> None:
        """Apply the configuration as it is shipped, with this machine's address, and with the CA in it."""
        wanted = yaml.safe_load((COMPONENT / "webhook.yaml").read_text())
        # On Knative and RabbitMQ `renew-certificates` is at work, whose CA this server's certificate is not of.
        del wanted["metadata"]["annotations"][INJECT]
        bundle = base64.b64encode(self.authority.certificate.encode()).decode()
        for webhook in wanted["webhooks"]:
            webhook["clientConfig"] = {"url": f"{self.url}/validate", "caBundle": bundle}
        self._cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", input=yaml.safe_dump(wanted))

    def _refuses(self, node: str) -> bool:
        """Tell whether a maintenance of a node that is not there is refused; it is not kept anyway."""
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
