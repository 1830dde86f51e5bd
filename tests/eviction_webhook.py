"""A real admission webhook for evictions, which can delay, reject or never answer a request."""

from __future__ import annotations

import base64
import json
import ssl
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

from kube.paths import Object
from localcluster.cluster import LocalCluster
from localcluster.processes import await_ready
from tests.receiver import Answer, Received, Receiver

WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
NOBODY = "none"
"""Name of a pod that does not exist; its reviewed eviction shows that the webhook is in force."""


@contextmanager
def webhook(
    cluster: LocalCluster, namespace: str, handle: Callable[[Received], Answer], seconds: int
) -> Iterator[Receiver]:
    """Serve `handle` as the webhook for evictions in a namespace while the block runs; yield its server.

    The API server waits up to `seconds` for each response.
    """
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    pki = cluster.directory / "pki"
    tls.load_cert_chain(pki / "apiserver.crt", pki / "apiserver.key")
    with closing(Receiver(otherwise=handle, tls=tls)) as reviewer:
        where = {"url": f"{reviewer.url}/", "caBundle": base64.b64encode(cluster.certificate.encode()).decode()}
        hook = {
            "name": "slow.example.com",
            "clientConfig": where,
            "rules": [
                {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods/eviction"]}
            ],
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
            "timeoutSeconds": seconds,
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
        }
        cluster.door().create(WEBHOOKS, {"metadata": {"name": namespace}, "webhooks": [hook]})
        try:
            _await_in_force(cluster, namespace, reviewer)
            yield reviewer
        finally:
            cluster.door().run(cluster.door().api.request("DELETE", f"{WEBHOOKS}/{namespace}"))


def _await_in_force(cluster: LocalCluster, namespace: str, reviewer: Receiver) -> None:
    """Request the eviction of a pod that does not exist, until the webhook receives such a request."""
    words = ("create", "--raw", f"/api/v1/namespaces/{namespace}/pods/{NOBODY}/eviction", "-f", "-")
    metadata = {"name": NOBODY, "namespace": namespace}
    body = json.dumps({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata})

    def reviewed() -> bool:
        cluster.kubectl(*words, input=body, check=False)
        return bool(reviewer.requests)

    await_ready("the webhook", reviewed, cluster.servers)


def is_of_nobody(request: Received) -> bool:
    """Return whether the request is only the check that the webhook is in force."""
    return f'"{NOBODY}"'.encode() in request.body


def admission(request: Received, refusal: str = "") -> Answer:
    """Build an AdmissionReview response that allows the request, or denies it with the message `refusal`."""
    response: Object = {"uid": json.loads(request.body)["request"]["uid"], "allowed": not refusal}
    response |= {"status": {"message": refusal}} if refusal else {}
    review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}
    return Answer(200, {"content-type": "application/json"}, json.dumps(review).encode())
