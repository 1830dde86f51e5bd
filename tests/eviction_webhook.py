"""Real admission webhook for evictions, which can delay a request, reject it, or never respond to it."""

from __future__ import annotations

import base64
import json
import ssl
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

from kube.paths import Object
from localcluster.cluster import LocalCluster
from localcluster.http_receiver import ReceivedRequest, Receiver, Response
from localcluster.processes import wait_until_ready

WEBHOOKS_PATH = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
PROBE_POD = "none"
"""Name of a pod that does not exist; its eviction is requested until the API server calls the webhook."""


@contextmanager
def serve_webhook(
    cluster: LocalCluster, namespace: str, handle: Callable[[ReceivedRequest], Response], timeout_seconds: int
) -> Iterator[Receiver]:
    """Serve `handle` as the webhook for evictions in a namespace while the `with` block runs, and yield its server.

    The API server waits up to `timeout_seconds` for each response.
    """
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    pki = cluster.directory / "pki"
    tls.load_cert_chain(pki / "apiserver.crt", pki / "apiserver.key")
    with closing(Receiver(default_answer=handle, tls=tls)) as webhook_server:
        client_config = {
            "url": f"{webhook_server.url}/",
            "caBundle": base64.b64encode(cluster.certificate.encode()).decode(),
        }
        hook = {
            "name": "slow.example.com",
            "clientConfig": client_config,
            "rules": [
                {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods/eviction"]}
            ],
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
            "timeoutSeconds": timeout_seconds,
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
        }
        cluster.get_client().create(WEBHOOKS_PATH, {"metadata": {"name": namespace}, "webhooks": [hook]})
        try:
            _wait_until_called(cluster, namespace, webhook_server)
            yield webhook_server
        finally:
            cluster.get_client().run(cluster.get_client().api.request("DELETE", f"{WEBHOOKS_PATH}/{namespace}"))


def _wait_until_called(cluster: LocalCluster, namespace: str, webhook_server: Receiver) -> None:
    """Request the eviction of a pod that does not exist until the API server calls the webhook for it."""
    arguments = ("create", "--raw", f"/api/v1/namespaces/{namespace}/pods/{PROBE_POD}/eviction", "-f", "-")
    metadata = {"name": PROBE_POD, "namespace": namespace}
    body = json.dumps({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata})

    def is_called() -> bool:
        cluster.kubectl(*arguments, input=body, check=False)
        return bool(webhook_server.requests)

    wait_until_ready("the webhook", is_called, cluster.servers)


def is_probe(request: ReceivedRequest) -> bool:
    """Return whether the request is only the probe of `_wait_until_called`."""
    return f'"{PROBE_POD}"'.encode() in request.body


def build_review_response(request: ReceivedRequest, denial: str = "") -> Response:
    """Build an AdmissionReview response that allows the request, or denies it with the message `denial`."""
    response: Object = {"uid": json.loads(request.body)["request"]["uid"], "allowed": not denial}
    response |= {"status": {"message": denial}} if denial else {}
    review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}
    return Response(200, {"content-type": "application/json"}, json.dumps(review).encode())
