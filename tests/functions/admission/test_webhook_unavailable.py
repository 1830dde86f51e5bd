"""Tests of admission while the webhook is stopped or its certificate is not trusted, as docs/admission.md describes."""

from __future__ import annotations

import base64
from collections.abc import Iterator

import pytest
import requests

from kube.certificates.ca_injection import CARRIERS
from kube.client.api import JSON_PATCH
from kube.client.api_errors import ApiError, Denied, Rejected
from kube.client.decoding import hearing
from kube.client.sync_client import Cluster
from kube.maintenance.groups import MEDIK8S
from localcluster.admission.webhook import Webhook
from localcluster.cluster import LocalCluster
from localcluster.processes import await_ready
from tests.functions.admission.maintenances import create, named
from tests.functions.certificate_authority import Authority
from tests.proofs import proves
from tests.workload import Workload

CONFIGURATION = f"{CARRIERS['ValidatingWebhookConfiguration']}/nodemaintenance-validate"
BUNDLE = "/webhooks/0/clientConfig/caBundle"


def refuses(door: Cluster, name: str = "nobody", by: type[ApiError] = Denied) -> bool:
    """Return whether the API server rejects a dry-run maintenance of the unknown node `name` with the error `by`."""
    try:
        door.dry_run().create(MEDIK8S.path, named(name))
    except by:
        return True
    return False


@pytest.fixture
def stopped(webhook: Webhook, door: Cluster) -> Iterator[None]:
    """Yield while the webhook's server process is stopped, and start it again after the test."""
    webhook.server.kill()
    yield
    webhook.start_server()
    await_ready("admission", lambda: refuses(door), [webhook.server])


@proves("NMO-18")
def test_a_stopped_webhook_refuses_nothing_and_warns_of_nothing(stopped: None, work: Workload, door: Cluster) -> None:
    """Check that a stopped webhook blocks no creation and gives no warnings.

    The objects are created, and the functions mark an invalid one as failed.
    """
    node = work.node()
    work.pods(node, "bare")

    with hearing() as heard:
        made = create(door, named(node))
        create(door, named("nobody"))

    assert (made["spec"]["nodeName"], heard) == (node, [])


@proves("NMO-18", "NMO-19", "NMO-21")
def test_the_policy_stands_when_the_webhook_does_not(
    stopped: None, work: Workload, door: Cluster, guarded: LocalCluster
) -> None:
    """Check that the ValidatingAdmissionPolicy still rejects an invalid node name while the webhook is stopped.

    The API server enforces the policy a moment after it was applied, so the test waits for that.
    """
    await_ready("the policy", lambda: refuses(door, "doesNotExist", Rejected), guarded.servers)
    with pytest.raises(Rejected, match="no node with name doesNotExist found"):
        create(door, named("doesNotExist"))


@proves("NMO-18")
def test_who_cannot_be_believed_is_not_heard(webhook: Webhook, door: Cluster) -> None:
    """Check that the API server ignores a webhook whose certificate does not match the configured CA bundle.

    The API server then blocks no creation. With the right CA bundle it calls the webhook again.
    """
    right = door.get(CONFIGURATION)["webhooks"][0]["clientConfig"]["caBundle"]

    def believe(bundle: str) -> None:
        door.patch(CONFIGURATION, [{"op": "replace", "path": BUNDLE, "value": bundle}], JSON_PATCH)

    believe(base64.b64encode(Authority("wrong").certificate.encode()).decode())
    try:
        await_ready("the other authority", lambda: not refuses(door), [webhook.server])
    finally:
        believe(right)
    await_ready("the right authority", lambda: refuses(door), [webhook.server])


@pytest.mark.slow
@proves("NMO-18")
def test_nothing_goes_past_it_while_its_certificate_changes(webhook: Webhook, door: Cluster) -> None:
    """Check that the webhook rejects every invalid object while its certificate is renewed.

    With `failurePolicy: Ignore`, a failed TLS handshake would admit the object without a check.
    """
    for _ in range(10):
        webhook.renew()
        assert all(refuses(door) for _ in range(5))


@pytest.mark.parametrize("body", ["", "{", "[]", "{}", '{"apiVersion": "admission.k8s.io/v1"}'])
def test_what_is_no_review_is_answered_with_400(webhook: Webhook, body: str) -> None:
    answer = requests.post(f"{webhook.url}/validate", body, verify=str(webhook.ca_file), timeout=10)

    assert answer.status_code == 400


@pytest.mark.parametrize("charset", ["utf-16", "bogus"])
def test_the_body_is_json_whatever_its_sender_says_of_characters(webhook: Webhook, charset: str) -> None:
    """Check that the webhook decodes the body as UTF-8 and ignores the charset in the content type.

    RFC 8259, 8.1 and 11: JSON is encoded in UTF-8, and its media type has no charset parameter.
    """
    headers = {"content-type": f"application/json; charset={charset}"}
    answer = requests.post(f"{webhook.url}/validate", "{}", headers=headers, verify=str(webhook.ca_file), timeout=10)

    assert answer.status_code == 400
    assert "an AdmissionReview of" in answer.text
