"""The component `cert-manager` on a real API server with cert-manager's CRDs.

The API server accepts its objects unchanged, and `renew-certificates` then writes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime, timezone

import pytest
import yaml

from functions.certificates.settings import Settings
from functions.certificates.renewal_pass import renewed
from kube.certificates import certificate_objects, key_pairs
from kube.certificates.components import COMPONENTS, LABEL
from kube.certificates.ca_injection import INJECT
from localcluster.cluster import LocalCluster
from tests.manifests import cert_manager
from tests.manifests.rendering import MANIFESTS, of_kind, overlay
from tests.proofs import proves

COMPONENT = MANIFESTS / "components" / "cert-manager"
OURS = "node-maintenance"
CONFIGURATION = "nodemaintenance-validate"
STRICT = ("apply", "--server-side", "--validate=strict", "--force-conflicts", "-f")


@pytest.fixture(scope="module")
def managed(installed: LocalCluster) -> Iterator[LocalCluster]:
    """Yield the installed cluster with the CRDs of cert-manager, but without cert-manager itself."""
    crds = [yaml.safe_load(file.read_text()) for file in cert_manager.crds()]
    for crd in crds:
        crd["metadata"] = {"name": crd["metadata"]["name"]}  # cert-manager's chart fills in the other fields
    names = [crd["metadata"]["name"] for crd in crds]
    installed.kubectl("apply", "--server-side", "-f", "-", input=yaml.safe_dump_all(crds))
    installed.await_kinds(*names)
    yield installed
    installed.kubectl("delete", "crd", *names)


@proves("OSV-23")
def test_cert_managers_kinds_take_the_component_as_it_is(managed: LocalCluster) -> None:
    """Check that cert-manager's schemas accept each field of the component and keep it."""
    shipped = list(yaml.safe_load_all((COMPONENT / "certificates.yaml").read_text()))

    managed.kubectl(*STRICT, COMPONENT / "certificates.yaml")

    kinds = ("get", "issuers.cert-manager.io,certificates.cert-manager.io", "-n", OURS, "-o", "json")
    there = json.loads(managed.kubectl(*kinds).stdout)["items"]
    specs = {(item["kind"], item["metadata"]["name"]): item["spec"] for item in there}
    assert specs == {(item["kind"], item["metadata"]["name"]): item["spec"] for item in shipped}


def test_a_field_that_the_kinds_do_not_have_is_refused(managed: LocalCluster) -> None:
    """Check that an unknown field is rejected, so that the previous test can fail."""
    wrong = (COMPONENT / "certificates.yaml").read_text().replace("renewBefore:", "renewAfter:")

    with pytest.raises(Exception, match="renewAfter"):
        managed.kubectl(*STRICT, "-", "--dry-run=server", input=wrong)


@proves("OSV-23")
def test_the_webhook_asks_for_the_certificate_that_cert_manager_makes() -> None:
    """Check that Certificate, Secret and the webhook's CA injection annotation have the same name."""
    (configuration,) = of_kind(overlay("plain"), "ValidatingWebhookConfiguration")
    shipped = list(yaml.safe_load_all((COMPONENT / "certificates.yaml").read_text()))
    (server,) = [item for item in of_kind(shipped, "Certificate") if not item["spec"].get("isCA")]

    where = f"{server['metadata']['namespace']}/{server['metadata']['name']}"
    assert configuration["metadata"]["annotations"][INJECT] == where
    assert server["spec"]["secretName"] == server["metadata"]["name"]


@pytest.mark.slow
@proves("OSV-23")
def test_beside_cert_manager_we_write_nothing(managed: LocalCluster) -> None:
    """Check that a renewal writes nothing if cert-manager manages the Secret and the webhook configuration.

    Neither object has the component label.
    """
    door = managed.door()
    now = datetime.now(timezone.utc)
    signer = key_pairs.new_authority(COMPONENTS["ours"], now)
    pair = key_pairs.new_serving(signer, ["validate.node-maintenance.svc"], COMPONENTS["ours"], now)
    entries = {"tls.crt": pair.certificate, "tls.key": pair.key, "ca.crt": signer.certificate}
    metadata = {"name": "validate", "annotations": {certificate_objects.CERT_MANAGER: "validate"}}
    secret = {"metadata": metadata, "type": "kubernetes.io/tls", "data": certificate_objects.encoded(entries)}
    managed.kubectl("delete", "secret", "validate", "-n", OURS, "--ignore-not-found")
    door.create(certificate_objects.secrets_path(OURS), secret)
    (configuration,) = of_kind(overlay("plain"), "ValidatingWebhookConfiguration")
    managed.kubectl(*STRICT, "-", input=yaml.safe_dump(configuration))
    try:
        before = everything(managed)

        errors = door.run(renewed(door.api, Settings(), now)).errors

        assert errors == []
        assert everything(managed) == before
    finally:
        managed.kubectl("delete", "validatingwebhookconfiguration", CONFIGURATION)
        managed.kubectl("delete", "secret", "validate", "-n", OURS)


def everything(cluster: LocalCluster) -> str:
    """Return name and resourceVersion of every object that the renewal may write."""
    kinds = "secret,configmap,event,validatingwebhookconfiguration"
    versions = "-o=jsonpath={range .items[*]}{.kind}/{.metadata.name}={.metadata.resourceVersion} {end}"
    found = cluster.kubectl("get", kinds, "-n", OURS, versions).stdout
    assert LABEL not in cluster.kubectl("get", "configmap", "-n", OURS, "-o", "yaml").stdout
    return found
