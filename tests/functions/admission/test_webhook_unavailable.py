"""Tests for admission while the webhook is stopped or its certificate is untrusted, as docs/admission.md describes."""

from __future__ import annotations

import base64
from collections.abc import Iterator

import pytest
import requests

from kube.certificates.ca_injection import TARGET_PATHS
from kube.client.api import JSON_PATCH
from kube.client.api_errors import ApiError, Denied, Rejected
from kube.client.decoding import collect_warnings
from kube.client.sync_client import SyncClient
from kube.maintenance.groups import MEDIK8S
from localcluster.admission.webhook import Webhook
from localcluster.cluster import LocalCluster
from localcluster.processes import wait_until_ready
from tests.functions.admission.maintenances import build_maintenance, create_maintenance
from tests.functions.certificate_authority import CertificateAuthority
from tests.proofs import proves
from tests.workload import Workload

CONFIGURATION_PATH = f"{TARGET_PATHS['ValidatingWebhookConfiguration']}/nodemaintenance-validate"
CA_BUNDLE_POINTER = "/webhooks/0/clientConfig/caBundle"


def is_create_rejected(client: SyncClient, name: str = "nobody", error_type: type[ApiError] = Denied) -> bool:
    """Return whether a dry run that creates a maintenance for the unknown node `name` raises `error_type`."""
    try:
        client.with_dry_run().create(MEDIK8S.path, build_maintenance(name))
    except error_type:
        return True
    return False


@pytest.fixture
def stopped_webhook(webhook: Webhook, client: SyncClient) -> Iterator[None]:
    """Yield while the webhook's server process is stopped, and start it again after the test."""
    webhook.server.kill()
    yield
    webhook.start_server()
    wait_until_ready("admission", lambda: is_create_rejected(client), [webhook.server])


@proves("NMO-18")
def test_stopped_webhook_blocks_no_creation_and_causes_no_warnings(
    stopped_webhook: None, workload: Workload, client: SyncClient
) -> None:
    """Check that objects are created without warnings while the webhook is stopped.

    The API server then creates even an invalid object, and the functions report the error in its status.
    """
    node = workload.take_node()
    workload.create_bare_pods(node, "bare")

    with collect_warnings() as collected_warnings:
        created = create_maintenance(client, build_maintenance(node))
        create_maintenance(client, build_maintenance("nobody"))

    assert (created["spec"]["nodeName"], collected_warnings) == (node, [])


@proves("NMO-18", "NMO-19", "NMO-21")
def test_admission_policy_rejects_invalid_names_while_webhook_is_stopped(
    stopped_webhook: None, workload: Workload, client: SyncClient, webhook_cluster: LocalCluster
) -> None:
    """Check that the ValidatingAdmissionPolicy still rejects an invalid node name while the webhook is stopped.

    The API server enforces a new policy only after a delay, so the test first waits until the policy is enforced.
    """
    wait_until_ready(
        "the policy", lambda: is_create_rejected(client, "doesNotExist", Rejected), webhook_cluster.servers
    )
    with pytest.raises(Rejected, match="no node with name doesNotExist found"):
        create_maintenance(client, build_maintenance("doesNotExist"))


@proves("NMO-18")
def test_webhook_with_untrusted_certificate_is_ignored(webhook: Webhook, client: SyncClient) -> None:
    """Check that the API server ignores a webhook whose certificate does not match the configured CA bundle.

    The API server then blocks no creation. With the right CA bundle, it calls the webhook again.
    """
    original_bundle = client.get(CONFIGURATION_PATH)["webhooks"][0]["clientConfig"]["caBundle"]

    def set_ca_bundle(bundle: str) -> None:
        client.patch(CONFIGURATION_PATH, [{"op": "replace", "path": CA_BUNDLE_POINTER, "value": bundle}], JSON_PATCH)

    set_ca_bundle(base64.b64encode(CertificateAuthority("wrong").ca_certificate.encode()).decode())
    try:
        wait_until_ready("the wrong CA bundle", lambda: not is_create_rejected(client), [webhook.server])
    finally:
        set_ca_bundle(original_bundle)
    wait_until_ready("the right CA bundle", lambda: is_create_rejected(client), [webhook.server])


@pytest.mark.slow
@proves("NMO-18")
def test_webhook_rejects_invalid_objects_during_certificate_renewal(webhook: Webhook, client: SyncClient) -> None:
    """Check that the webhook rejects every invalid object while its certificate is renewed.

    With `failurePolicy: Ignore`, a failed TLS handshake would admit the object without a check.
    """
    for _ in range(10):
        webhook.renew_certificate()
        assert all(is_create_rejected(client) for _ in range(5))


@pytest.mark.parametrize("body", ["", "{", "[]", "{}", '{"apiVersion": "admission.k8s.io/v1"}'])
def test_webhook_answers_400_to_invalid_review(webhook: Webhook, body: str) -> None:
    response = requests.post(f"{webhook.url}/validate", body, verify=str(webhook.ca_file), timeout=10)

    assert response.status_code == 400


@pytest.mark.parametrize("charset", ["utf-16", "bogus"])
def test_webhook_ignores_charset_of_content_type(webhook: Webhook, charset: str) -> None:
    """Check that the webhook decodes the body as UTF-8 and ignores the charset in the content type.

    RFC 8259, 8.1 and 11: JSON is encoded in UTF-8, and its media type has no charset parameter.
    """
    headers = {"content-type": f"application/json; charset={charset}"}
    response = requests.post(f"{webhook.url}/validate", "{}", headers=headers, verify=str(webhook.ca_file), timeout=10)

    assert response.status_code == 400
    assert "an AdmissionReview of" in response.text
