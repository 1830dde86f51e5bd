"""Runs the admission webhook as a local process, and registers it with the API server; the same on every engine."""

from __future__ import annotations

import asyncio
import sys
import threading
from contextlib import aclosing, suppress
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from functions.certificates.renewal import renew_all
from functions.certificates.settings import Settings
from kube.certificates import objects
from kube.certificates.component_state import get_current_key_pair
from kube.certificates.objects import CA_ENTRY, CERTIFICATE_ENTRY, PRIVATE_KEY_ENTRY
from kube.client.api import Api
from kube.client.api_errors import ApiError, Denied, Rejected
from kube.client.list_watch import follow
from kube.maintenance.groups import MEDIK8S
from kube.paths import Object
from localcluster import access
from localcluster.cluster import LocalCluster
from localcluster.errors import LocalClusterError
from localcluster.processes import Server, Startable, reserve_port, wait_until_ready
from localcluster.readiness import READINESS_PATH, is_responding
from localcluster.servers import LOOPBACK, NO_PROXY_LOCAL_ENV, ROOT

COMPONENT_DIR = ROOT / "manifests" / "components" / "admission"
APPLIED_FILES = ("rbac.yaml", "policy.yaml")
"""The manifests that are applied unchanged, unlike the webhook configuration; the Deployment is not applied."""
SECRET_MANIFEST = ROOT / "manifests" / "components" / "certificates" / "rights" / "validate.yaml"
SECRET_NAME = "validate"  # noqa: S105 - a name, not a secret
"""The name of the Secret with the serving certificate."""
TIMEOUT_SECONDS = 180
SECRET_KEYS = (CERTIFICATE_ENTRY, PRIVATE_KEY_ENTRY, CA_ENTRY)


class Webhook(Startable):
    """The webhook's server, its serving certificate, and the admission configuration that registers it.

    The certificate is in the Secret `validate`. This class issues the certificate with the product's own code. The
    function `renew-certificates`, if it runs, renews the certificate.

    Args:
        cluster: A cluster with the CRDs installed.
        directory: The directory for the log and the certificate.
    """

    def __init__(self, cluster: LocalCluster, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._cluster = cluster
        port = reserve_port()
        self.url = f"https://{LOOPBACK}:{port}"
        self.directory = directory / "admission"
        self.secret = MountedSecret(cluster.kubeconfig, self.directory, access.NAMESPACE, SECRET_NAME)
        variables = {
            **NO_PROXY_LOCAL_ENV,
            "KUBECONFIG": str(cluster.ensure_kubeconfig(access.make_username("validate"))),
            "CERTIFICATE": str(self.directory),
            "HOST": LOOPBACK,
            "PORT": str(port),
        }
        command = [sys.executable, "-m", "functions.admission"]
        self.server = Server("validate", command, directory / "validate.log", variables, ROOT)

    @property
    def ca_file(self) -> Path:
        """Return the path of the CA certificate that clients of the webhook trust."""
        return self.directory / objects.CA_ENTRY

    def _start_and_wait(self) -> None:
        """Register and start the webhook; return when the API server calls it."""
        file_arguments = [argument for name in APPLIED_FILES for argument in ("-f", COMPONENT_DIR / name)]
        self._cluster.kubectl("apply", "--server-side", *file_arguments)
        self._apply_configuration()
        self._add_loopback_name()
        self._run_renewal()
        self.secret.start()
        if not self.secret.updated.wait(TIMEOUT_SECONDS):
            raise LocalClusterError(
                f'Secret "{access.NAMESPACE}/{SECRET_NAME}": no certificate was written within {TIMEOUT_SECONDS} s'
            )
        self.start_server()
        for name, invalid_node in (("the admission webhook", "no-such-node"), ("the admission policy", "NoName")):
            wait_until_ready(name, partial(self._is_rejected, invalid_node), [self.server], TIMEOUT_SECONDS)

    def start_server(self) -> None:
        """Start the server process; return when it is ready, with its caches synced."""
        self.server.start()
        wait_until_ready(
            "the webhook's server",
            partial(is_responding, self.url + READINESS_PATH, self.ca_file),
            [self.server],
            TIMEOUT_SECONDS,
        )

    def stop(self) -> None:
        """Kill the server, which has no state to save, and stop mirroring the Secret."""
        self.server.kill()
        self.secret.stop()

    def renew_certificate(self) -> None:
        """Renew the serving certificate; return when the files with the new certificate have been written."""
        self.secret.updated.clear()
        change = {"metadata": {"annotations": {objects.RENEW_ANNOTATION: "now"}}}
        self._cluster.get_client().patch(objects.build_secrets_path(access.NAMESPACE, SECRET_NAME), change)
        self._run_renewal()
        if not self.secret.updated.wait(TIMEOUT_SECONDS):
            raise LocalClusterError(
                f'Secret "{access.NAMESPACE}/{SECRET_NAME}": the certificate was not renewed within {TIMEOUT_SECONDS} s'
            )

    def _add_loopback_name(self) -> None:
        """Add the loopback address to the DNS names that the certificate must contain."""
        secret = yaml.safe_load(SECRET_MANIFEST.read_text())
        secret["metadata"]["annotations"][objects.DNS_NAMES_ANNOTATION] += f",{LOOPBACK}"
        self._cluster.apply([secret], "--force-conflicts")

    def _run_renewal(self) -> None:
        """Run one pass of `renew-certificates`: issue missing certificates and inject the CA bundle."""
        client = self._cluster.get_client()
        errors = client.run(renew_all(client.api, Settings(), datetime.now(timezone.utc))).errors
        if errors:
            raise LocalClusterError(f"cannot issue the webhook's certificate: {errors[0].message}")

    def _apply_configuration(self) -> None:
        """Apply the webhook configuration from the manifests, with the URL of the local server."""
        configuration = yaml.safe_load((COMPONENT_DIR / "webhook.yaml").read_text())
        for webhook in configuration["webhooks"]:
            webhook["clientConfig"] = {"url": f"{self.url}/validate"}
        self._cluster.apply([configuration], "--force-conflicts")

    def _is_rejected(self, invalid_node: str) -> bool:
        """Return whether the API server rejects a dry-run creation of a NodeMaintenance for this node."""
        body: dict[str, Any] = {
            "apiVersion": MEDIK8S.api_version,
            "kind": "NodeMaintenance",
            "metadata": {"name": "admission-trial"},
            "spec": {"nodeName": invalid_node},
        }
        try:
            self._cluster.get_client().with_dry_run().create(MEDIK8S.path, body)
        except (Denied, Rejected):
            return True
        except ApiError:
            return False
        return False


class MountedSecret(Startable):
    """Mirrors a Secret to a directory, as a kubelet does for a volume.

    Each version of the Secret is written to a new directory, and then a symlink is switched to that directory.

    Args:
        kubeconfig: The credentials for reading the Secret.
        directory: The directory to write to.
        namespace: The Secret's namespace.
        name: The Secret's name.

    Attributes:
        certificates: The distinct certificates that have been written, oldest first.
        updated: A `threading.Event` that is set after each write.
    """

    def __init__(self, kubeconfig: Path, directory: Path, namespace: str, name: str) -> None:
        self.directory = directory
        self.certificates: list[str] = []
        self.updated = threading.Event()
        self._kubeconfig, self._path, self._name = kubeconfig, objects.build_secrets_path(namespace), name
        self._revision = 0
        self._loop = asyncio.new_event_loop()
        self._watch_task: asyncio.Task[None] | None = None
        self._thread = threading.Thread(target=self._run_watch, daemon=True)

    def _start_and_wait(self) -> None:
        """Start watching the Secret; `updated` is set once the first certificate is written."""
        self.directory.mkdir(parents=True, exist_ok=True)
        for entry in SECRET_KEYS:
            with suppress(FileExistsError):
                (self.directory / entry).symlink_to(f"..data/{entry}")
        self._watch_task = self._loop.create_task(self._watch_secret())
        self._thread.start()

    def stop(self) -> None:
        """Stop watching the Secret; its files stay unchanged."""
        if self._watch_task and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._watch_task.cancel)
            self._thread.join()
        self._loop.close()

    def _run_watch(self) -> None:
        assert self._watch_task  # noqa: S101 - the task is created before the thread starts
        self._loop.run_until_complete(asyncio.wait([self._watch_task]))

    async def _watch_secret(self) -> None:
        api = await Api.connect(str(self._kubeconfig))
        try:
            async with aclosing(follow(api, self._path, field_selector=f"metadata.name={self._name}")) as changes:
                async for change in changes:
                    if change.change_type in ("ADDED", "MODIFIED") and get_current_key_pair(change.object):
                        self._write_files(change.object)
        finally:
            await api.close()

    def _write_files(self, secret: Object) -> None:
        self._revision += 1
        version_dir = self.directory / f"..{self._revision}"
        version_dir.mkdir(exist_ok=True)
        for entry in SECRET_KEYS:
            access.write_secret(version_dir / entry, objects.decode_entry(secret, entry))
        link = self.directory / "..new"
        link.unlink(missing_ok=True)
        link.symlink_to(version_dir.name)
        link.replace(self.directory / "..data")
        certificate = objects.decode_entry(secret, CERTIFICATE_ENTRY)
        if certificate not in self.certificates:
            self.certificates.append(certificate)
        self.updated.set()
