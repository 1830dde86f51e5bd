"""Runs the journal API of a console, which a client reaches through the API server's proxy, without a kubelet.

The API server's proxy only connects to the addresses of pods. A pod that no kubelet runs has this host's address.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

from eventing.journal.wire import NUMBERS_PATH, READER
from kube.client.api_errors import ApiError, Denied
from kube.paths import Object
from localcluster.access import NAMESPACE
from localcluster.cluster import LocalCluster
from localcluster.knative.fake_kubelet import write_account_kubeconfig
from localcluster.knative.install import get_host_address
from localcluster.processes import reserve_port, wait_until_ready
from localcluster.web_console import WebConsole

COMPONENT_DIR = Path(__file__).parents[2] / "manifests" / "components" / "console"
POD_NAME = "console-0"
CORE_PATH = f"/api/v1/namespaces/{NAMESPACE}"
NUMBERS_PROXY_PATH = f"{CORE_PATH}/services/{READER}/proxy{NUMBERS_PATH}"


class JournalService:
    """The addresses of a running console: its pages, and its journal API without the API server's proxy."""

    def __init__(self, console_url: str, port: int) -> None:
        self.console_url, self.url = console_url, f"http://{get_host_address()}:{port}"


@contextmanager
def run_journal_service(cluster: LocalCluster, directory: Path, *options: str | Path) -> Iterator[JournalService]:
    """Apply the console's account and Service, and run a console with this account and with `options`."""
    port, rbac_file, address = reserve_port(), COMPONENT_DIR / "rbac.yaml", get_host_address()
    manifests = yaml.safe_dump_all([*_load_manifests(), *_build_pod_and_endpoint(address, port)])
    cluster.kubectl("apply", "-f", rbac_file)
    cluster.kubectl("apply", "-f", "-", input=manifests)
    status = {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]}
    cluster.get_client().patch(f"{CORE_PATH}/pods/{POD_NAME}/status", {"status": status})
    kubeconfig = write_account_kubeconfig(cluster, NAMESPACE, "console")
    arguments = ("--journal-api", f"0.0.0.0:{port}", "--kubeconfig", kubeconfig, *options)
    try:
        with WebConsole(cluster, directory, *arguments) as console:
            wait_until_ready("the proxy to the journal API", lambda: _is_served(cluster), [console.server], 20)
            yield JournalService(console.url, port)
    finally:
        kubeconfig.unlink()  # Its token is invalid once the account is deleted.
        cluster.kubectl("delete", "-f", "-", input=manifests)
        cluster.kubectl("delete", "-f", rbac_file)


def _load_manifests() -> list[Object]:
    """Return the manifests of the journal API; the Service selects no pods, because a kubelet runs none of them."""
    documents = list(yaml.safe_load_all((COMPONENT_DIR / "journal.yaml").read_text()))
    (service,) = (document for document in documents if document["kind"] == "Service")
    del service["spec"]["selector"]
    return documents


def _build_pod_and_endpoint(address: str, port: int) -> tuple[Object, Object]:
    """Build a pod that no scheduler assigns to a node, and the Service's endpoint at the pod's address."""
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


def _is_served(cluster: LocalCluster) -> bool:
    """Return whether a request reaches the console, which rejects it, because it has no token."""
    try:
        cluster.get_client().get(NUMBERS_PROXY_PATH)
    except Denied:
        return True
    except ApiError:
        return False
    return False
