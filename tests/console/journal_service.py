"""Runs the journal API of a console, which a client reaches through the API server's proxy, without a kubelet.

The API server's proxy only connects to the addresses of pods. A pod that no kubelet runs has this host's address.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import requests
import yaml

from eventing.journal.wire import AUDIENCE, NUMBERS_PATH, READER
from kube.client.api_errors import Rejected
from kube.paths import Object
from localcluster.access import NAMESPACE
from localcluster.cluster import LocalCluster
from localcluster.knative.fake_kubelet import write_account_kubeconfig
from localcluster.knative.install import get_host_address
from localcluster.processes import wait_until_ready
from localcluster.web_console import TIMEOUT_SECONDS, WebConsole

COMPONENT_DIR = Path(__file__).parents[2] / "manifests" / "components" / "console"
POD_PATH = f"/api/v1/namespaces/{NAMESPACE}/pods"
ACCOUNTS_PATH = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts"
TOKEN_PATH = f"{ACCOUNTS_PATH}/{READER}/token"
SLICES_PATH = f"/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices"


class JournalService(WebConsole):
    """The process that serves the journal API; `url` is its address without the API server's proxy."""

    def _start_and_wait(self) -> None:
        """Start the process; return when it rejects a request without a token."""
        self.server.start()
        wait_until_ready("the journal API", self._requires_token, [self.server], TIMEOUT_SECONDS)

    def _requires_token(self) -> bool:
        try:
            return requests.get(f"{self.url}{NUMBERS_PATH}", timeout=5).status_code == 401
        except requests.ConnectionError:
            return False


@contextmanager
def run_journal_service(cluster: LocalCluster, directory: Path, *options: str | Path) -> Iterator[JournalService]:
    """Apply the console's account, and the objects of the journal API; run the API with this account and `options`."""
    rbac_file = COMPONENT_DIR / "rbac.yaml"
    cluster.kubectl("apply", "-f", rbac_file)
    kubeconfig = write_account_kubeconfig(cluster, NAMESPACE, "console")
    arguments = ("--journal-api", "--kubeconfig", kubeconfig, *options)
    service = JournalService(cluster, directory, *arguments, address="0.0.0.0")  # noqa: S104 - as in a cluster
    manifests = _load_manifests(urlsplit(service.url).port)
    cluster.kubectl("apply", "-f", "-", input=manifests)
    try:
        wait_until_ready("the policy for tokens", lambda: _is_policy_in_effect(cluster), [], 20)
        with service, _run_pod(cluster):
            yield service
    finally:
        kubeconfig.unlink()  # Its token is invalid once the account is deleted.
        cluster.kubectl("delete", "-f", "-", input=manifests)
        cluster.kubectl("delete", "-f", rbac_file)


def request_token(cluster: LocalCluster, account: str = READER, audience: str = AUDIENCE) -> str:
    """Return a token of the ServiceAccount in the product's namespace, requested by the administrator."""
    spec = {"audiences": [audience] if audience else [], "expirationSeconds": 600}
    token: str = cluster.get_client().create(f"{ACCOUNTS_PATH}/{account}/token", {"spec": spec})["status"]["token"]
    return token


def _is_policy_in_effect(cluster: LocalCluster) -> bool:
    """Return whether the API server rejects the request for a token with another audience."""
    try:
        cluster.get_client().create(TOKEN_PATH, {"spec": {"audiences": ["other"], "expirationSeconds": 600}})
    except Rejected:
        return True
    return False


def _load_manifests(port: int | None) -> str:
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
