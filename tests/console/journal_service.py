"""Runs a console's journal API, which clients reach through the API server's proxy, without a kubelet.

The API server's proxy connects only to addresses of pods. The journal API's pod, which no kubelet runs, therefore has
the address of this host.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import requests
import yaml

from eventing.journal.wire import AUDIENCE, NUMBERS_PATH, READER
from kube.client.api_errors import ApiError, Denied, Rejected
from kube.paths import Object
from localcluster.access import NAMESPACE
from localcluster.cluster import LocalCluster
from localcluster.knative.fake_kubelet import write_account_kubeconfig
from localcluster.knative.install import get_host_address
from localcluster.processes import wait_until_ready
from localcluster.web_console import WebConsole

COMPONENT_DIR = Path(__file__).parents[2] / "manifests" / "components" / "console"
POD_NAME = "console-0"
CORE_PATH = f"/api/v1/namespaces/{NAMESPACE}"
ACCOUNTS_PATH = f"{CORE_PATH}/serviceaccounts"
TOKEN_PATH = f"{ACCOUNTS_PATH}/{READER}/token"
NUMBERS_PROXY_PATH = f"{CORE_PATH}/services/{READER}/proxy{NUMBERS_PATH}"


class JournalService(WebConsole):
    """The process that serves the journal API; `url` is its direct address, without the API server's proxy."""

    def _start_and_wait(self) -> None:
        """Start the process, and wait until the journal API rejects a request without a token."""
        self.server.start()
        wait_until_ready("the journal API", self._requires_token, [self.server])

    def _requires_token(self) -> bool:
        try:
            return requests.get(f"{self.url}{NUMBERS_PATH}", timeout=5).status_code == 401
        except requests.ConnectionError:
            return False


@contextmanager
def run_journal_service(cluster: LocalCluster, directory: Path, *options: str | Path) -> Iterator[JournalService]:
    """Apply the console's ServiceAccount and the journal API's objects, and run the API as this account."""
    rbac_file, address = COMPONENT_DIR / "rbac.yaml", get_host_address()
    cluster.kubectl("apply", "-f", rbac_file)
    kubeconfig = write_account_kubeconfig(cluster, NAMESPACE, "console")
    arguments = ("--journal-api", "--kubeconfig", kubeconfig, *options)
    service = JournalService(cluster, directory, *arguments, address="0.0.0.0")  # noqa: S104 - as in a cluster
    port = urlsplit(service.url).port
    manifests = yaml.safe_dump_all([*_load_manifests(), *_build_pod_and_endpoint(address, port)])
    cluster.kubectl("apply", "-f", "-", input=manifests)
    status = {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]}
    cluster.get_client().patch(f"{CORE_PATH}/pods/{POD_NAME}/status", {"status": status})
    try:
        wait_until_ready("the policy for tokens", lambda: _is_policy_in_effect(cluster), [], 20)
        with service:
            wait_until_ready("the proxy to the journal API", lambda: _is_served(cluster), [service.server], 20)
            yield service
    finally:
        kubeconfig.unlink()  # The process's token is invalid once its ServiceAccount is deleted.
        cluster.kubectl("delete", "-f", "-", input=manifests)
        cluster.kubectl("delete", "-f", rbac_file)


def request_token(cluster: LocalCluster, service_account: str = READER, audience: str = AUDIENCE) -> str:
    """Return a token for the ServiceAccount in the product's namespace, requested by the administrator."""
    spec = {"audiences": [audience] if audience else [], "expirationSeconds": 600}
    token: str = cluster.get_client().create(f"{ACCOUNTS_PATH}/{service_account}/token", {"spec": spec})["status"][
        "token"
    ]
    return token


def _load_manifests() -> list[Object]:
    """Return the journal API's manifests; its Service has no selector, because no kubelet runs a pod in this test."""
    documents = list(yaml.safe_load_all((COMPONENT_DIR / "journal.yaml").read_text()))
    (service,) = (document for document in documents if document["kind"] == "Service")
    del service["spec"]["selector"]
    return documents


def _build_pod_and_endpoint(address: str, port: int | None) -> tuple[Object, Object]:
    """Build a pod that is not scheduled, and an endpoint of the Service with the pod's address."""
    spec = {"schedulerName": "none", "containers": [{"name": "console", "image": "registry.invalid/console"}]}
    metadata = {"name": POD_NAME, "namespace": NAMESPACE}
    reference = {"kind": "Pod", **metadata}
    labels = {"kubernetes.io/service-name": READER}
    endpoint_slice = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": READER, "namespace": NAMESPACE, "labels": labels},
        "addressType": "IPv4",
        "ports": [{"name": "", "port": port, "protocol": "TCP"}],
        "endpoints": [{"addresses": [address], "conditions": {"ready": True}, "targetRef": reference}],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}, endpoint_slice


def _is_policy_in_effect(cluster: LocalCluster) -> bool:
    """Return whether the policy makes the API server reject a token request for another audience."""
    try:
        request_token(cluster, audience="other")
    except Rejected:
        return True
    return False


def _is_served(cluster: LocalCluster) -> bool:
    """Return whether a request reaches the journal API, which then rejects it because of the missing token."""
    try:
        cluster.get_client().get(NUMBERS_PROXY_PATH)
    except Denied:
        return True
    except ApiError:
        return False
    return False
