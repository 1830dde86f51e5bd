"""Runs the journal API of a console, which a client reaches through the API server's proxy, without a kubelet.

The API server's proxy only connects to the addresses of pods. A pod that no kubelet runs has this host's address.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

from eventing.journal.wire import READER
from kube.paths import Object
from localcluster.access import NAMESPACE
from localcluster.cluster import LocalCluster
from localcluster.knative.fake_kubelet import write_account_kubeconfig
from localcluster.knative.install import get_host_address
from localcluster.processes import reserve_port, wait_until_ready
from localcluster.web_console import WebConsole

COMPONENT_DIR = Path(__file__).parents[2] / "manifests" / "components" / "console"
POD_PATH = f"/api/v1/namespaces/{NAMESPACE}/pods"
SLICES_PATH = f"/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices"


class JournalService:
    """The addresses of a running console: its pages, and its journal API without the API server's proxy."""

    def __init__(self, console_url: str, port: int) -> None:
        self.console_url, self.url = console_url, f"http://{get_host_address()}:{port}"


@contextmanager
def run_journal_service(cluster: LocalCluster, directory: Path, *options: str | Path) -> Iterator[JournalService]:
    """Apply the console's account and Service, and run a console with this account and with `options`."""
    port, rbac_file = reserve_port(), COMPONENT_DIR / "rbac.yaml"
    manifests = _load_manifests(port)
    cluster.kubectl("apply", "-f", rbac_file)
    cluster.kubectl("apply", "-f", "-", input=manifests)
    kubeconfig = write_account_kubeconfig(cluster, NAMESPACE, "console")
    arguments = ("--journal-api", f"0.0.0.0:{port}", "--kubeconfig", kubeconfig, *options)
    try:
        with WebConsole(cluster, directory, *arguments) as console, _run_pod(cluster):
            yield JournalService(console.url, port)
    finally:
        kubeconfig.unlink()  # Its token is invalid once the account is deleted.
        cluster.kubectl("delete", "-f", "-", input=manifests)
        cluster.kubectl("delete", "-f", rbac_file)


def _load_manifests(port: int) -> str:
    """Return the manifests of the journal API, with `port` as the port of the pods."""
    documents = list(yaml.safe_load_all((COMPONENT_DIR / "journal.yaml").read_text()))
    (service,) = (document for document in documents if document["kind"] == "Service")
    service["spec"]["ports"][0]["targetPort"] = port
    return yaml.safe_dump_all(documents)


@contextmanager
def _run_pod(cluster: LocalCluster) -> Iterator[None]:
    """Create a pod of the console that is Ready at this host's address, and wait for the Service's endpoint."""
    client, address = cluster.get_client(), get_host_address()
    labels = {"app.kubernetes.io/part-of": "node-maintenance", "app.kubernetes.io/component": "console"}
    spec = {"schedulerName": "none", "containers": [{"name": "console", "image": "registry.invalid/console"}]}
    pod = client.create(POD_PATH, {"metadata": {"generateName": "console-", "labels": labels}, "spec": spec})
    path = f"{POD_PATH}/{pod['metadata']['name']}"
    condition = {"type": "Ready", "status": "True"}
    status = {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}], "conditions": [condition]}
    client.patch(f"{path}/status", {"status": status})
    try:
        wait_until_ready(f"the endpoint of {READER}", lambda: _has_endpoint(cluster, address), [], 20)
        yield
    finally:
        client.delete(path, uid=pod["metadata"]["uid"])
        wait_until_ready(f"no endpoint of {READER}", lambda: not _has_endpoint(cluster, address), [], 20)


def _has_endpoint(cluster: LocalCluster, address: str) -> bool:
    slices: list[Object] = cluster.get_client().list(
        SLICES_PATH, label_selector=f"kubernetes.io/service-name={READER}"
    )["items"]
    return address in json.dumps([endpoint_slice["endpoints"] for endpoint_slice in slices])
