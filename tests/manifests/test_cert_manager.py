"""Tests for the component `cert-manager` on a real API server with the CRDs of cert-manager.

The API server must accept the component's objects unchanged, and `renew-certificates` must then write nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime, timezone

import pytest
import yaml

from functions.certificates.renewal import renew_all
from functions.certificates.settings import Settings
from kube.certificates import key_pairs, objects
from kube.certificates.ca_injection import INJECT_ANNOTATION
from kube.certificates.components import COMPONENT_LABEL, COMPONENTS
from localcluster.cluster import LocalCluster
from tests.manifests import cert_manager
from tests.manifests.rendering import MANIFESTS, filter_by_kind, render_overlay
from tests.proofs import proves

COMPONENT_DIR = MANIFESTS / "components" / "cert-manager"
OWN_NAMESPACE = "node-maintenance"
WEBHOOK_CONFIGURATION = "nodemaintenance-validate"
STRICT_APPLY = ("apply", "--server-side", "--validate=strict", "--force-conflicts", "-f")


@pytest.fixture(scope="module")
def cert_manager_cluster(installed_cluster: LocalCluster) -> Iterator[LocalCluster]:
    """Yield the installed cluster with the CRDs of cert-manager, but without cert-manager itself."""
    crds = [yaml.safe_load(file.read_text()) for file in cert_manager.fetch_crds()]
    for crd in crds:
        crd["metadata"] = {"name": crd["metadata"]["name"]}  # All other metadata contains Helm templates.
    names = [crd["metadata"]["name"] for crd in crds]
    installed_cluster.kubectl("apply", "--server-side", "-f", "-", input=yaml.safe_dump_all(crds))
    installed_cluster.wait_for_crds(*names)
    yield installed_cluster
    installed_cluster.kubectl("delete", "crd", *names)


@proves("OSV-23")
def test_api_server_keeps_all_fields_of_cert_manager_objects(cert_manager_cluster: LocalCluster) -> None:
    """Check that the schemas of cert-manager accept and keep each field of the component's objects."""
    manifests = list(yaml.safe_load_all((COMPONENT_DIR / "certificates.yaml").read_text()))

    cert_manager_cluster.kubectl(*STRICT_APPLY, COMPONENT_DIR / "certificates.yaml")

    get_command = ("get", "issuers.cert-manager.io,certificates.cert-manager.io", "-n", OWN_NAMESPACE, "-o", "json")
    applied = json.loads(cert_manager_cluster.kubectl(*get_command).stdout)["items"]
    specs = {(manifest["kind"], manifest["metadata"]["name"]): manifest["spec"] for manifest in applied}
    assert specs == {(manifest["kind"], manifest["metadata"]["name"]): manifest["spec"] for manifest in manifests}


def test_api_server_rejects_unknown_field_in_certificate(cert_manager_cluster: LocalCluster) -> None:
    """Check that the strict field validation of the applied objects rejects an unknown field."""
    manifest = (COMPONENT_DIR / "certificates.yaml").read_text().replace("renewBefore:", "renewAfter:")

    with pytest.raises(Exception, match="renewAfter"):
        cert_manager_cluster.kubectl(*STRICT_APPLY, "-", "--dry-run=server", input=manifest)


@proves("OSV-23")
def test_ca_injection_annotation_names_certificate_of_cert_manager() -> None:
    """Check that the Certificate, its Secret and the webhook's CA injection annotation have the same name."""
    (configuration,) = filter_by_kind(render_overlay("plain"), "ValidatingWebhookConfiguration")
    manifests = list(yaml.safe_load_all((COMPONENT_DIR / "certificates.yaml").read_text()))
    (serving_certificate,) = [
        certificate for certificate in filter_by_kind(manifests, "Certificate") if not certificate["spec"].get("isCA")
    ]

    certificate_name = f"{serving_certificate['metadata']['namespace']}/{serving_certificate['metadata']['name']}"
    assert configuration["metadata"]["annotations"][INJECT_ANNOTATION] == certificate_name
    assert serving_certificate["spec"]["secretName"] == serving_certificate["metadata"]["name"]


@pytest.mark.slow
@proves("OSV-23")
def test_renewal_writes_nothing_if_cert_manager_manages_secret(cert_manager_cluster: LocalCluster) -> None:
    """Check that `renew-certificates` writes nothing if cert-manager manages Secret and webhook configuration.

    Neither object has the component label.
    """
    client = cert_manager_cluster.get_client()
    now = datetime.now(timezone.utc)
    signer = key_pairs.create_ca(COMPONENTS["ours"], now)
    key_pair = key_pairs.issue_serving_certificate(signer, ["validate.node-maintenance.svc"], COMPONENTS["ours"], now)
    entries = {"tls.crt": key_pair.certificate, "tls.key": key_pair.key, "ca.crt": signer.certificate}
    metadata = {"name": "validate", "annotations": {objects.CERT_MANAGER_ANNOTATION: "validate"}}
    secret = {"metadata": metadata, "type": "kubernetes.io/tls", "data": objects.encode_entries(entries)}
    cert_manager_cluster.kubectl("delete", "secret", "validate", "-n", OWN_NAMESPACE, "--ignore-not-found")
    client.create(objects.build_secrets_path(OWN_NAMESPACE), secret)
    (configuration,) = filter_by_kind(render_overlay("plain"), "ValidatingWebhookConfiguration")
    cert_manager_cluster.kubectl(*STRICT_APPLY, "-", input=yaml.safe_dump(configuration))
    try:
        versions_before = list_writable_objects(cert_manager_cluster)

        errors = client.run(renew_all(client.api, Settings(), now)).errors

        assert errors == []
        assert list_writable_objects(cert_manager_cluster) == versions_before
    finally:
        cert_manager_cluster.kubectl("delete", "validatingwebhookconfiguration", WEBHOOK_CONFIGURATION)
        cert_manager_cluster.kubectl("delete", "secret", "validate", "-n", OWN_NAMESPACE)


def list_writable_objects(cluster: LocalCluster) -> str:
    """Return the name and resourceVersion of every object that a renewal may write."""
    kinds = "secret,configmap,event,validatingwebhookconfiguration"
    jsonpath_option = "-o=jsonpath={range .items[*]}{.kind}/{.metadata.name}={.metadata.resourceVersion} {end}"
    listing = cluster.kubectl("get", kinds, "-n", OWN_NAMESPACE, jsonpath_option).stdout
    assert COMPONENT_LABEL not in cluster.kubectl("get", "configmap", "-n", OWN_NAMESPACE, "-o", "yaml").stdout
    return listing
