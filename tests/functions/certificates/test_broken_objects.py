"""Tests for `renew-certificates` with objects that are broken, edited by hand, or not writable.

They check that `renew-certificates` recovers from every state, writes nothing too early, and still renews all other
Secrets.
"""

from __future__ import annotations

import base64
import itertools
import json
import ssl
import tempfile
import time
from collections.abc import Callable
from datetime import datetime, timedelta, timezone

import pytest
from cloudevents.core.base import BaseCloudEvent
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from prometheus_client import REGISTRY

from chaos.api_fault_proxy import DELAYED, NO_RESPONSE, Fault, FaultProxy
from eventing import events
from functions.certificates.renewal import WRITE_TIMEOUT_SECONDS, renew_all
from functions.certificates.settings import Settings
from kube.certificates import component_state, key_pairs, lookup, objects
from kube.certificates.ca_injection import get_trusted_bundle
from kube.certificates.components import COMPONENT_LABEL, COMPONENTS
from kube.certificates.key_pairs import KeyPair
from kube.certificates.objects import (
    CA_ENTRY,
    CERTIFICATE_ENTRY,
    DNS_NAMES_ANNOTATION,
    NO_NAMES_REASON,
    NOT_RENEWED_REASON,
    PRIVATE_KEY_ENTRY,
)
from kube.client.api_errors import Unavailable
from kube.client.deadline import set_deadline
from kube.client.sync_client import SyncClient
from kube.paths import DEFAULT_NAMESPACE
from tests.functions.certificates.conftest import (
    CONFIG_MAPS_PATH,
    PROPAGATION_DELAY,
    SECRETS_PATH,
    WEBHOOK_CONFIGURATIONS_PATH,
    NamespaceCertificates,
    build_secret_reference_event,
)
from tests.functions.conftest import Functions
from tests.functions.event_builders import build_tick
from tests.proofs import proves

pytestmark = pytest.mark.slow

STEP = "renew-certificates"
MAX_TICKS = 20
KUBEVIRT = COMPONENTS["kubevirt"]
CA_SECRET_NAME = KUBEVIRT.ca_secret_name
DAY, MINUTE = timedelta(days=1), timedelta(minutes=1)
VERSION_3, VERSION_6 = b"\xa0\x03\x02\x01\x02", b"\xa0\x03\x02\x01\x05"
"""DER encodings of a certificate's version field: v3, and the undefined v6."""


@pytest.fixture
def client(functions: Functions) -> SyncClient:
    """Return an API client with the account of `renew-certificates`."""
    return functions.clusters[STEP]


def build_secret_data_of_other_issuer(certificates: NamespaceCertificates, name: str) -> dict[str, str]:
    """Build the data of a Secret of another issuer: the certificate, its key and the certificate of its CA."""
    signer = key_pairs.create_ca(KUBEVIRT, certificates.now)
    pair = key_pairs.issue_serving_certificate(signer, [f"{name}.svc", "127.0.0.1"], KUBEVIRT, certificates.now)
    return objects.encode_entries(
        {CERTIFICATE_ENTRY: pair.certificate, PRIVATE_KEY_ENTRY: pair.key, CA_ENTRY: signer.certificate}
    )


def get_certificate_pem(certificates: NamespaceCertificates, name: str) -> str:
    return objects.decode_entry(certificates.get_secret(name), CERTIFICATE_ENTRY)


@proves("OSV-20")
@pytest.mark.parametrize("names", ["2001:DB8::0001", "api.svc, 0:0::1", "api.svc."])
def test_equivalent_spellings_of_server_name_cause_no_renewal(
    client: SyncClient, certificates: NamespaceCertificates, names: str
) -> None:
    certificates.create_secret("api", annotations={DNS_NAMES_ANNOTATION: names})
    certificates.run_pass_after(client)
    serial = certificates.get_serial("api")

    assert certificates.run_pass_after(client) == []
    assert certificates.get_serial("api") == serial != ""


@proves("OSV-20", "OSV-23")
@pytest.mark.parametrize("names", ["bücher.svc", "two words.svc", "fe80::1%eth0", f"{'a' * 64}.svc", "a..svc"])
def test_invalid_server_name_is_reported_and_blocks_no_other_secret(
    client: SyncClient, certificates: NamespaceCertificates, names: str
) -> None:
    certificates.create_secret("a-bad", annotations={DNS_NAMES_ANNOTATION: names})
    certificates.create_secret("api")

    certificates.run_pass_after(client)

    assert certificates.get_serial("api")
    assert certificates.get_serial("a-bad") == ""
    assert names in certificates.get_events_by_reason("a-bad")[NO_NAMES_REASON]["message"]


@proves("OSV-20")
def test_expired_ca_is_replaced_in_one_pass(client: SyncClient, certificates: NamespaceCertificates) -> None:
    """Check that one pass replaces an expired CA and issues a valid certificate from the new one.

    The test simulates days without a tick. The server's certificate has expired as well, but a certificate of another
    issuer is still valid.
    """
    certificates.create_secret("api")
    certificates.run_pass_after(client)
    (ca,) = key_pairs.parse_certificates(get_certificate_pem(certificates, CA_SECRET_NAME))
    certificates.now = key_pairs.get_not_after(ca) + MINUTE
    certificates.create_secret("theirs", data=build_secret_data_of_other_issuer(certificates, "theirs"))

    assert certificates.run_pass_after(client) == []

    assert key_pairs.is_valid(get_certificate_pem(certificates, "api"), certificates.now)
    assert key_pairs.is_signed_by(get_certificate_pem(certificates, "api"), certificates.get_trusted_bundle())


@proves("OSV-20")
@pytest.mark.parametrize("key_type", ["ed25519", "p521"])
def test_supplied_ca_with_unusual_key_type_does_not_prevent_issuance(
    client: SyncClient, certificates: NamespaceCertificates, key_type: str
) -> None:
    key = ed25519.Ed25519PrivateKey.generate() if key_type == "ed25519" else ec.generate_private_key(ec.SECP521R1())
    custom_ca = build_custom_ca(key, certificates.now)
    certificates.create_secret(
        CA_SECRET_NAME,
        data=objects.encode_entries({CERTIFICATE_ENTRY: custom_ca.certificate, PRIVATE_KEY_ENTRY: custom_ca.key}),
    )
    certificates.create_secret("api")

    assert certificates.run_pass_after(client) == []

    assert certificates.get_serial("api")
    assert key_pairs.is_signed_by(
        get_certificate_pem(certificates, "api"), get_certificate_pem(certificates, CA_SECRET_NAME)
    )


def build_custom_ca(key: ed25519.Ed25519PrivateKey | ec.EllipticCurvePrivateKey, now: datetime) -> KeyPair:
    """Build a CA that an administrator could supply, whose key identifier is not the SHA-1 hash of its key."""
    name = x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, "supplied")])
    identifier = x509.SubjectKeyIdentifier(b"custom key identifier")
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.serial_number(7).not_valid_before(now - MINUTE).not_valid_after(now + 3 * DAY)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    builder = builder.add_extension(key_pairs.build_key_usage(is_ca=True), critical=True).add_extension(
        identifier, critical=False
    )
    certificate = builder.sign(key, hashes.SHA256() if isinstance(key, ec.EllipticCurvePrivateKey) else None)
    private_format, encoding = serialization.PrivateFormat.PKCS8, serialization.Encoding.PEM
    return KeyPair(
        certificate.public_bytes(encoding).decode(),
        key.private_bytes(encoding, private_format, serialization.NoEncryption()).decode(),
    )


@proves("OSV-22")
def test_certificate_issued_by_supplied_ca_is_trusted(client: SyncClient, certificates: NamespaceCertificates) -> None:
    """Check that clients trust certificates of an administrator's CA with an unusual key identifier.

    OpenSSL compares the certificate's authority key identifier with the identifier in the CA's certificate.
    """
    custom_ca = build_custom_ca(ec.generate_private_key(ec.SECP256R1()), certificates.now)
    certificates.create_secret(
        CA_SECRET_NAME,
        data=objects.encode_entries({CERTIFICATE_ENTRY: custom_ca.certificate, PRIVATE_KEY_ENTRY: custom_ca.key}),
    )
    certificates.create_secret("api")

    certificates.run_pass_after(client)

    assert can_connect(
        component_state.get_current_key_pair(certificates.get_secret("api")), certificates.get_trusted_bundle()
    )


def can_connect(pair: KeyPair | None, bundle: str) -> bool:
    """Return whether a client with the bundle trusts a server with the key pair; no network is used."""
    assert pair
    store = x509.verification.Store(x509.load_pem_x509_certificates(bundle.encode()))
    verifier = x509.verification.PolicyBuilder().store(store).build_server_verifier(x509.DNSName("api.svc"))
    try:
        verifier.verify(pair.parsed_certificate, [])
    except x509.verification.VerificationError:
        return False
    return _can_connect_with_openssl(pair, bundle)


def _can_connect_with_openssl(pair: KeyPair, bundle: str) -> bool:
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.NamedTemporaryFile("w") as file:
        file.write(pair.certificate + pair.key)
        file.flush()
        server.load_cert_chain(file.name)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server_side = server.wrap_bio(to_server, to_client, server_side=True)
    client_side = ssl.create_default_context(cadata=bundle).wrap_bio(to_client, to_server, server_hostname="api.svc")
    for side in (client_side, server_side, client_side):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
        except ssl.SSLCertVerificationError:
            return False
    return True


@proves("OSV-22")
def test_requested_renewal_after_ca_loss_waits_until_new_ca_is_propagated(
    client: SyncClient, certificates: NamespaceCertificates
) -> None:
    """Check that a requested renewal after the loss of the CA waits until the new CA has been published long enough.

    Clients still trust the server's certificate, but would not yet trust one issued by the new CA.
    """
    certificates.create_secret("api")
    certificates.run_pass_after(client)
    serial = certificates.get_serial("api")
    certificates.delete_and_wait(f"{SECRETS_PATH}/{CA_SECRET_NAME}")
    certificates.request_renewal("api")

    certificates.run_pass_after(client)
    serial_during_propagation = certificates.get_serial("api")
    certificates.run_pass_after(client, PROPAGATION_DELAY)

    assert serial_during_propagation == serial != certificates.get_serial("api")
    assert objects.RENEW_ANNOTATION not in certificates.get_secret("api")["metadata"]["annotations"]


@proves("OSV-20", "OSV-22")
@pytest.mark.parametrize("fault", ["deleted", "corrupt"])
def test_certificate_lost_during_waiting_period_is_reissued_by_trusted_ca(
    client: SyncClient, certificates: NamespaceCertificates, fault: str
) -> None:
    certificates.create_secret("api")
    certificates.run_pass_after(client)
    trusted_bundle = certificates.get_trusted_bundle()
    certificates.run_pass_after(client, DAY)
    if fault == "deleted":
        certificates.delete_and_wait(f"{SECRETS_PATH}/api")
    else:
        certificates.patch_secret("api", {"data": {PRIVATE_KEY_ENTRY: ""}})

    certificates.run_pass_after(client, MINUTE)

    assert component_state.get_current_key_pair(certificates.get_secret("api"))
    assert key_pairs.is_signed_by(get_certificate_pem(certificates, "api"), trusted_bundle)


@proves("OSV-22", "OSV-23")
def test_foreign_certificate_is_replaced_only_after_waiting_period(
    client: SyncClient, certificates: NamespaceCertificates
) -> None:
    """Check that another issuer's certificate is replaced only after a waiting period, even if the product's CA is old.

    The server's clients read `ca.crt` in the server's Secret, to which the product's CA has only just been added.
    """
    certificates.create_secret("api")
    certificates.run_pass_after(client)
    certificates.run_pass_after(client, PROPAGATION_DELAY)
    certificates.create_secret("theirs", data=build_secret_data_of_other_issuer(certificates, "theirs"))
    foreign_serial = certificates.get_serial("theirs")

    certificates.run_pass_after(client)
    serial_during_propagation, trusted_bundle = (
        certificates.get_serial("theirs"),
        objects.decode_entry(certificates.get_secret("theirs"), CA_ENTRY),
    )
    certificates.run_pass_after(client, PROPAGATION_DELAY)

    assert serial_during_propagation == foreign_serial
    assert trusted_bundle == certificates.get_trusted_bundle()
    assert key_pairs.is_signed_by(
        get_certificate_pem(certificates, "theirs"), get_certificate_pem(certificates, CA_SECRET_NAME)
    )


@proves("OSV-22")
def test_replaced_ca_is_published_before_it_signs(client: SyncClient, certificates: NamespaceCertificates) -> None:
    certificates.create_secret("api")
    certificates.run_pass_after(client)
    serial, old_bundle = certificates.get_serial("api"), certificates.get_trusted_bundle()
    new_ca = key_pairs.create_ca(KUBEVIRT, certificates.now)
    certificates.patch_secret(
        CA_SECRET_NAME,
        {"data": objects.encode_entries({CERTIFICATE_ENTRY: new_ca.certificate, PRIVATE_KEY_ENTRY: new_ca.key})},
    )

    certificates.run_pass_after(client, PROPAGATION_DELAY)
    serial_during_propagation, published_bundle = certificates.get_serial("api"), certificates.get_trusted_bundle()
    certificates.run_pass_after(client, PROPAGATION_DELAY)

    assert serial_during_propagation == serial
    assert set(key_pairs.parse_certificates(published_bundle)) == {
        new_ca.certificate,
        *key_pairs.parse_certificates(old_bundle),
    }
    assert key_pairs.is_signed_by(get_certificate_pem(certificates, "api"), new_ca.certificate)


@proves("OSV-20")
def test_immutable_secret_does_not_block_other_secrets(client: SyncClient, certificates: NamespaceCertificates) -> None:
    """Check that an immutable Secret does not block the other Secrets, even if it is the first by name."""
    certificates.create_secret("a-frozen", immutable=True)
    certificates.create_secret("api")

    errors = certificates.run_pass_after(client)

    assert [error.status for error in errors] == [422]
    assert certificates.get_serial("api")
    assert (
        "a-frozen" in certificates.get_events_by_reason(KUBEVIRT.bundle_configmap_name)[NOT_RENEWED_REASON]["message"]
    )


@proves("OSV-20", "OSV-22")
def test_immutable_secret_delays_next_ca_but_not_repairs(
    client: SyncClient, certificates: NamespaceCertificates
) -> None:
    """Check that the next CA signs no certificate while an immutable Secret has an old bundle.

    Clients of that Secret use its `ca.crt` to trust the other servers. The current CA therefore signs until all
    certificates that it issued have expired. `renew-certificates` recreates a deleted Secret immediately.
    """
    certificates.create_secret("frozen")
    certificates.create_secret("api")
    certificates.run_pass_after(client)
    certificates.patch_secret("frozen", {"immutable": True})
    trusted_bundle = certificates.get_trusted_bundle()

    certificates.run_pass_after(client, DAY)
    certificates.run_pass_after(client, PROPAGATION_DELAY)
    certificates.delete_and_wait(f"{SECRETS_PATH}/api")
    certificates.run_pass_after(client)
    repaired_pem = get_certificate_pem(certificates, "api")
    certificates.run_pass_after(client, 2 * DAY)
    certificates.run_pass_after(client, PROPAGATION_DELAY)

    assert key_pairs.is_signed_by(repaired_pem, trusted_bundle)
    assert key_pairs.is_valid(get_certificate_pem(certificates, "api"), certificates.now)


@proves("OSV-20")
def test_secret_is_repaired_while_webhook_configuration_cannot_be_written(
    client: SyncClient, certificates: NamespaceCertificates
) -> None:
    certificates.create_secret("api")
    certificates.create_webhook_configuration("not-ours-to-write", "api")
    certificates.run_pass_after(certificates.administrator_client)
    certificates.run_pass_after(client, DAY)
    certificates.patch_secret("api", {"data": {PRIVATE_KEY_ENTRY: ""}})

    certificates.run_pass_after(client)

    assert certificates.get_serial("api")


@proves("OSV-20")
@pytest.mark.parametrize(
    ("fault", "writes_continue"),
    [(Fault(500, "failed calling webhook"), True), (Fault(503), True), (Fault(429), False)],
)
def test_server_error_for_one_object_does_not_block_other_writes(
    fault_proxy: FaultProxy,
    proxied_functions: Functions,
    certificates: NamespaceCertificates,
    fault: Fault,
    writes_continue: bool,
) -> None:
    """Check that a 500 or 503 response for one object does not stop the other writes, and that a 429 stops the pass.

    If another product's admission webhook is broken, the API server responds with 500 to each write that needs that
    webhook. The error is `Unavailable` in all cases, so the event is retried.
    """
    client = proxied_functions.clusters[STEP]
    certificates.create_secret("api")
    certificates.run_pass_after(client)
    certificates.create_webhook_configuration("after-a-failing-write", "api")
    certificates.patch_secret("api", {"data": {PRIVATE_KEY_ENTRY: ""}})
    fault_proxy.inject(lambda request: fault if request.startswith("patch validatingwebhook") else None)

    errors = certificates.run_pass_after(client)
    fault_proxy.stop_faults()

    assert [(type(error), error.status) for error in errors] == [(Unavailable, fault.status)]
    assert bool(certificates.get_serial("api")) is writes_continue
    assert (NOT_RENEWED_REASON in certificates.get_events_by_reason(KUBEVIRT.bundle_configmap_name)) is writes_continue


@proves("OSV-20")
@pytest.mark.parametrize("hanging_request", ["patch validatingwebhook", "patch secrets 1", "create events"])
def test_hanging_write_does_not_block_other_writes(
    fault_proxy: FaultProxy, proxied_functions: Functions, certificates: NamespaceCertificates, hanging_request: str
) -> None:
    """Check that a write without a response does not block the other writes, including those of the next component.

    Another product's admission webhook hangs for a webhook configuration, for the first Secret, or for Events. The
    step completes all other writes before its own deadline.
    """
    certificates.create_secret("api")
    certificates.create_secret("handler")
    certificates.create_secret("upload", "cdi")
    certificates.run_pass_after(proxied_functions.clusters[STEP])
    certificates.create_webhook_configuration("after-a-hanging-write", "api")
    for name in ("api", "handler", "upload"):
        certificates.patch_secret(name, {"data": {PRIVATE_KEY_ENTRY: ""}})
    fault_proxy.inject(lambda request: NO_RESPONSE if request.startswith(hanging_request) else None)

    proxied_functions.post(STEP, build_tick())
    fault_proxy.stop_faults()

    unrepaired_names = [name for name in ("api", "handler", "upload") if not certificates.get_serial(name)]
    assert len(unrepaired_names) == (1 if hanging_request == "patch secrets 1" else 0)


@proves("OSV-20")
def test_component_with_hanging_writes_does_not_block_other_components(
    fault_proxy: FaultProxy,
    proxied_functions: Functions,
    certificates: NamespaceCertificates,
    other_namespace_certificates: NamespaceCertificates,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Check that a component whose writes all hang does not block the other components forever.

    The hanging writes, and a list request that never ends, take all the time of a pass. The next passes start with
    different components, in the same namespace and in another namespace.
    """
    hanging_names = [f"frozen-{number}" for number in range(8)]
    for name in hanging_names:
        certificates.create_secret(name)
    for namespace in (certificates, other_namespace_certificates):
        namespace.create_secret("upload", "cdi")
        namespace.run_pass_after(certificates.administrator_client)
        namespace.delete_and_wait(f"{namespace.secrets_path}/upload")
    for name in hanging_names:
        certificates.patch_secret(name, {"data": {PRIVATE_KEY_ENTRY: ""}})
    monkeypatch.setenv("CERTIFICATE_NAMESPACES", f"{DEFAULT_NAMESPACE},{other_namespace_certificates.namespace}")
    hanging_requests = ("list customresourcedefinitions", "patch secrets")
    fault_proxy.inject(lambda request: NO_RESPONSE if request.startswith(hanging_requests) else None)

    for _ in range(3):
        proxied_functions.post(STEP, build_tick())
    fault_proxy.stop_faults()

    assert not any(map(certificates.get_serial, hanging_names))
    assert certificates.get_serial("upload")
    assert other_namespace_certificates.get_serial("upload")


@proves("OSV-20")
def test_write_timeouts_are_separate_for_secrets_and_configmaps(
    fault_proxy: FaultProxy, proxied_functions: Functions, certificates: NamespaceCertificates
) -> None:
    """Check that timeouts of Secret writes do not shorten the timeout of ConfigMap writes.

    A hanging webhook for Secrets does not affect ConfigMaps. A shared timeout would leave 1/16 s for ConfigMaps.
    """
    names = [f"api-{number}" for number in range(3)]
    for name in names:
        certificates.create_secret(name)
    certificates.run_pass_after(proxied_functions.clusters[STEP])
    for name in names:
        certificates.patch_secret(name, {"data": {PRIVATE_KEY_ENTRY: ""}})
    requests: list[tuple[str, float]] = []

    def record_request_and_hang(request: str) -> Fault | None:
        requests.append((request, time.monotonic()))
        return NO_RESPONSE if request.startswith("patch") else None

    fault_proxy.inject(record_request_and_hang)
    certificates.run_pass_after(proxied_functions.clusters[STEP])
    fault_proxy.stop_faults()

    began, ended = next(
        (request_time, next_time)
        for (request, request_time), (_, next_time) in itertools.pairwise(requests)
        if request == "patch configmaps 1"
    )
    assert ended - began > WRITE_TIMEOUT_SECONDS / 2


@proves("OSV-20")
@pytest.mark.parametrize(
    "path", [f"{SECRETS_PATH}/{CA_SECRET_NAME}", f"{CONFIG_MAPS_PATH}/{KUBEVIRT.bundle_configmap_name}"]
)
def test_unlabelled_object_with_needed_name_is_reported(
    client: SyncClient, certificates: NamespaceCertificates, path: str
) -> None:
    """Check that an unlabelled object with a name that the product needs is reported, and blocks no other write."""
    certificates.create_secret("api")
    certificates.run_pass_after(client)
    certificates.administrator_client.patch(path, {"metadata": {"labels": {COMPONENT_LABEL: None}}})
    certificates.patch_secret("api", {"data": {PRIVATE_KEY_ENTRY: ""}})

    errors = certificates.run_pass_after(client)
    event_message = certificates.get_events_by_reason(KUBEVIRT.bundle_configmap_name)[NOT_RENEWED_REASON]["message"]
    repaired_serial = certificates.get_serial("api")
    certificates.administrator_client.delete(path, uid=certificates.administrator_client.get(path)["metadata"]["uid"])
    errors_after_deletion = certificates.run_pass_after(client)

    assert [error.status for error in errors] == [409]
    assert path.rpartition("/")[2] in event_message
    assert COMPONENT_LABEL in event_message
    assert errors_after_deletion == []
    assert certificates.get_serial("api")
    assert bool(repaired_serial) is (path.startswith(CONFIG_MAPS_PATH))


@proves("OSV-20")
def test_future_publication_time_does_not_delay_renewal(
    client: SyncClient, certificates: NamespaceCertificates
) -> None:
    """Check that a publication time in the future does not delay a renewal.

    A user, or a process with a wrong clock, may have written that time.
    """
    certificates.create_secret("api")
    certificates.run_pass_after(client)
    certificates.run_pass_after(client, DAY)
    serial = certificates.get_serial("api")
    publication = certificates.get_bundle_configmap()
    assert publication
    future_times = dict.fromkeys(
        json.loads(objects.get_annotation(publication, objects.PUBLISHED_ANNOTATION)),
        "2999-01-01T00:00:00Z",
    )
    annotations = {objects.PUBLISHED_ANNOTATION: json.dumps(future_times)}
    certificates.administrator_client.patch(
        f"{CONFIG_MAPS_PATH}/{KUBEVIRT.bundle_configmap_name}", {"metadata": {"annotations": annotations}}
    )

    certificates.run_pass_after(client)
    certificates.run_pass_after(client, PROPAGATION_DELAY)

    assert certificates.get_serial("api") != serial


@pytest.mark.parametrize("pause", ["21601", "86400"])
def test_too_long_certificate_pause_is_rejected(pause: str) -> None:
    """Check that `CERTIFICATE_PAUSE` is rejected if a new certificate would be due for renewal before the pause ends.

    Otherwise each new CA would be replaced before it could sign.
    """
    with pytest.raises(ValueError, match="CERTIFICATE_PAUSE"):
        Settings.from_environment({"CERTIFICATE_PAUSE": pause})


@proves("OSV-20", "OSV-22")
def test_requests_for_new_ca_are_limited_by_bundle_size(
    client: SyncClient, certificates: NamespaceCertificates
) -> None:
    """Check that requests for a new CA are declined with an Event once the bundle has ten CAs.

    Each new CA starts another waiting period and stays in the bundle until it expires, so the number must be limited.
    """
    certificates.create_secret("api")
    certificates.run_pass_after(client)
    serial = certificates.get_serial("api")
    for _ in range(15):
        certificates.request_renewal(CA_SECRET_NAME)
        certificates.run_pass_after(client, PROPAGATION_DELAY / 2)

    assert len(component_state.parse_published_bundle(certificates.get_bundle_configmap())) == 10
    assert certificates.get_serial("api") != serial
    assert objects.CA_ENTRY in certificates.get_events_by_reason(CA_SECRET_NAME)[NOT_RENEWED_REASON]["message"]


@proves("OSV-20")
@pytest.mark.parametrize(
    "entry",
    [
        {"no/name": {"names": ["api.svc"]}},
        {"../x": {"names": ["api.svc"]}},
        {"token": {"names": ["api.svc"], "kind": "kubernetes.io/service-account-token"}},
        {"strange": {"names": ["bücher.svc"]}},
        {"strange": {"names": [None, {"a": 1}]}},
    ],
)
def test_invalid_entry_in_secret_list_blocks_no_renewal(
    client: SyncClient, certificates: NamespaceCertificates, entry: dict[str, object]
) -> None:
    certificates.create_secret("api")
    certificates.run_pass_after(client)
    publication = certificates.get_bundle_configmap()
    assert publication
    status = json.dumps({**json.loads(publication["data"][objects.STATUS_ENTRY]), **entry})
    certificates.administrator_client.patch(
        f"{CONFIG_MAPS_PATH}/{KUBEVIRT.bundle_configmap_name}", {"data": {objects.STATUS_ENTRY: status}}
    )
    certificates.delete_and_wait(f"{SECRETS_PATH}/api")

    assert certificates.run_pass_after(client) == []

    assert certificates.get_serial("api")
    assert certificates.run_pass_after(client) == []


@proves("OSV-20")
@pytest.mark.parametrize("names", [["api.svc"], []])
def test_thousands_of_listed_secrets_delay_no_repair(
    functions: Functions, certificates: NamespaceCertificates, names: list[str]
) -> None:
    """Check that thousands of missing Secrets in the ConfigMap's list do not delay a repair.

    Reading each listed Secret would take longer than a pass. `renew-certificates` recreates a limited number of
    Secrets that have DNS names of a server, and removes all other names from the list.
    """
    certificates.create_secret("api")
    functions.invoke(STEP, build_tick())
    status = {f"a-{number}": {"names": names} for number in range(5000)}
    data = {objects.STATUS_ENTRY: json.dumps({**status, "api": {"names": ["api.svc"]}})}
    certificates.administrator_client.patch(f"{CONFIG_MAPS_PATH}/{KUBEVIRT.bundle_configmap_name}", {"data": data})
    certificates.patch_secret("api", {"data": {PRIVATE_KEY_ENTRY: ""}})

    functions.post(STEP, build_tick())
    repaired_serial = certificates.get_serial("api")
    for _ in range(MAX_TICKS):
        if functions.post(STEP, build_tick()).status_code == 204:
            break

    assert repaired_serial
    assert functions.post(STEP, build_tick()).status_code == 204
    assert objects.parse_summaries(certificates.get_bundle_configmap()).keys() == certificates.list_secret_names()
    assert len(certificates.list_secret_names()) == (lookup.MAX_SERVER_SECRETS + 1 if names else 2)
    assert (NOT_RENEWED_REASON in certificates.get_events_by_reason(KUBEVIRT.bundle_configmap_name)) is bool(names)


@proves("OSV-23")
def test_secret_with_name_of_other_components_ca_is_reported(
    client: SyncClient, certificates: NamespaceCertificates
) -> None:
    """Check that `renew-certificates` reports, but does not write, a server Secret named like another CA Secret.

    Otherwise the two components would overwrite the Secret forever.
    """
    name = COMPONENTS["cdi"].ca_secret_name
    created_secret = certificates.create_secret(name)
    certificates.create_secret("upload", "cdi")

    certificates.run_pass_after(client)

    assert certificates.get_secret(name) == created_secret
    assert "cdi" in certificates.get_events_by_reason(name)["CertificateNotRenewed"]["message"]


@proves("OSV-20")
def test_unlistable_injection_targets_block_next_ca_but_not_repairs(
    fault_proxy: FaultProxy, proxied_functions: Functions, certificates: NamespaceCertificates
) -> None:
    """Check that server Secrets are repaired, but no new CA signs, while the CA injection targets cannot be listed.

    Clients that read the CA bundle from an unlisted target would not trust a new CA. The failure is counted for the
    alert, and the event is not retried.
    """
    client, failure_metric = (
        proxied_functions.clusters[STEP],
        ("nodemaintenance_certificate_failures_total", {"component": ""}),
    )
    certificates.create_secret("api")
    certificates.run_pass_after(client)
    trusted_bundle = certificates.get_trusted_bundle()
    fault_proxy.inject(lambda request: Fault(403) if request.startswith("list validatingwebhook") else None)
    certificates.patch_secret("api", {"data": {PRIVATE_KEY_ENTRY: ""}})

    initial_failure_count = REGISTRY.get_sample_value(*failure_metric) or 0

    errors = certificates.run_pass_after(client)
    failure_count = (REGISTRY.get_sample_value(*failure_metric) or 0) - initial_failure_count
    repaired_serial = certificates.get_serial("api")
    certificates.run_pass_after(client, DAY)
    certificates.run_pass_after(client, PROPAGATION_DELAY)
    certificate_with_403 = get_certificate_pem(certificates, "api")
    fault_proxy.stop_faults()
    certificates.run_pass_after(client)
    certificates.run_pass_after(client, PROPAGATION_DELAY)

    assert (errors, failure_count) == ([], 1)
    assert repaired_serial
    assert key_pairs.is_signed_by(certificate_with_403, trusted_bundle)
    assert not key_pairs.is_signed_by(get_certificate_pem(certificates, "api"), trusted_bundle)


@pytest.mark.parametrize("fault", [Fault(403), Fault(503)])
def test_pass_that_cannot_read_secrets_leaves_metrics_unchanged(
    fault_proxy: FaultProxy, proxied_functions: Functions, certificates: NamespaceCertificates, fault: Fault
) -> None:
    """Check that a pass that cannot read the Secrets leaves the metrics unchanged.

    The alert for an expiring certificate then stays active, and the time of the last pass does not advance.
    """
    certificates.create_secret("api")
    proxied_functions.invoke(STEP, build_tick())
    labels = {"component": "kubevirt", "namespace": DEFAULT_NAMESPACE, "secret": "api"}
    last_pass_metric, expiry_metric = (
        "nodemaintenance_certificates_timestamp_seconds",
        "nodemaintenance_certificate_ends_timestamp_seconds",
    )
    initial_samples = REGISTRY.get_sample_value(last_pass_metric), REGISTRY.get_sample_value(expiry_metric, labels)
    fault_proxy.inject(lambda request: fault if request.startswith("list secrets") else None)

    proxied_functions.post(STEP, build_tick())
    fault_proxy.stop_faults()

    assert None not in initial_samples
    assert (
        REGISTRY.get_sample_value(last_pass_metric),
        REGISTRY.get_sample_value(expiry_metric, labels),
    ) == initial_samples


@proves("OSV-20")
@pytest.mark.parametrize("event", [build_tick(), build_secret_reference_event(events.REFERENCE_UPDATED, "api")])
def test_server_secret_is_repaired_even_if_list_request_never_ends(
    fault_proxy: FaultProxy, proxied_functions: Functions, certificates: NamespaceCertificates, event: BaseCloudEvent
) -> None:
    """Check that a server's Secret is repaired even if a list request never ends, and that the event is not retried.

    A busy API server may take very long to list a thousand CustomResourceDefinitions.
    """
    certificates.create_secret("api")
    certificates.run_pass_after(proxied_functions.clusters[STEP])
    certificates.patch_secret("api", {"data": {PRIVATE_KEY_ENTRY: ""}})
    fault_proxy.inject(lambda request: NO_RESPONSE if request.startswith("list customresourcedefinitions") else None)

    response = proxied_functions.post(STEP, event)
    fault_proxy.stop_faults()

    assert certificates.get_serial("api")
    assert response.status_code == 204


def delay_crd_list(
    faults: FaultProxy, next_rule: Callable[[str], Fault | None] = lambda _request: None
) -> Callable[[str], Fault | None]:
    """Return a fault rule that delays the list of CRDs until a Secret is patched.

    After that patch, the rule `next_rule` applies.
    """

    def select_fault(request: str) -> Fault | None:
        if request == "patch secrets 1":
            faults.stop_faults()
            faults.inject(next_rule)
        return DELAYED if request == "list customresourcedefinitions 1" else None

    return select_fault


@proves("OSV-20", "OSV-23")
def test_tick_runs_second_pass_if_target_lists_arrive_late(
    fault_proxy: FaultProxy, proxied_functions: Functions, certificates: NamespaceCertificates
) -> None:
    """Check that a tick runs a second pass if the lists of CA injection targets arrive late.

    The first pass makes the repairs that need no lists. The second pass writes the bundle to the CA injection targets.
    """
    certificates.create_secret("api")
    certificates.run_pass_after(proxied_functions.clusters[STEP])
    certificates.create_webhook_configuration("nodemaintenance-validate", "api")
    certificates.patch_secret("api", {"data": {PRIVATE_KEY_ENTRY: ""}})
    fault_proxy.inject(delay_crd_list(fault_proxy))

    response = proxied_functions.post(STEP, build_tick())
    (hook,) = certificates.administrator_client.get(f"{WEBHOOK_CONFIGURATIONS_PATH}/nodemaintenance-validate")[
        "webhooks"
    ]

    assert response.status_code == 204
    assert certificates.get_serial("api")
    assert base64.b64decode(hook["clientConfig"]["caBundle"]).decode() == certificates.get_trusted_bundle()


def test_failed_second_pass_keeps_metrics_of_first_pass(
    fault_proxy: FaultProxy, proxied_functions: Functions, certificates: NamespaceCertificates
) -> None:
    """Check that the metrics keep the first pass's result if a tick's second pass cannot read the Secrets.

    Otherwise the alert for passes that read nothing would fire even though each tick reads everything.
    """
    certificates.create_secret("api")
    certificates.run_pass_after(proxied_functions.clusters[STEP])
    certificates.patch_secret("api", {"data": {PRIVATE_KEY_ENTRY: ""}})
    start_timestamp = datetime.now(timezone.utc).timestamp()
    fault_proxy.inject(delay_crd_list(fault_proxy, lambda request: Fault(503) if request == "list secrets 1" else None))

    response = proxied_functions.post(STEP, build_tick())
    fault_proxy.stop_faults()
    labels = {"component": "kubevirt", "namespace": DEFAULT_NAMESPACE, "secret": "api"}

    assert response.status_code == 503
    assert (REGISTRY.get_sample_value("nodemaintenance_certificates_timestamp_seconds") or 0) >= start_timestamp
    assert REGISTRY.get_sample_value("nodemaintenance_certificate_ends_timestamp_seconds", labels)


@proves("OSV-20")
def test_second_passes_start_with_different_components(
    fault_proxy: FaultProxy, proxied_functions: Functions, certificates: NamespaceCertificates
) -> None:
    """Check that the second passes of consecutive ticks start with different components.

    Otherwise a write that hangs in the first component would delay the other component's next CA forever.
    """
    certificates.create_secret("api")
    certificates.create_secret("upload", "cdi")
    certificates.run_pass_after(proxied_functions.clusters[STEP])
    states_by_tick = []
    for _ in range(2):
        certificates.patch_secret("api", {"data": {PRIVATE_KEY_ENTRY: ""}})
        fault_proxy.inject(delay_crd_list(fault_proxy))
        states_by_tick.append(certificates.run_pass(proxied_functions.clusters[STEP]).states)

    assert not any(state.are_targets_unknown for states in states_by_tick for state in states)
    assert {states[0].component.name for states in states_by_tick} == {"kubevirt", "cdi"}


def build_response_drop_rule(request_prefix: str) -> Callable[[str], Fault | None]:
    """Return a fault rule under which requests that start with `request_prefix` get no response."""
    return lambda request: NO_RESPONSE if request.startswith(request_prefix) else None


@proves("OSV-20")
def test_second_pass_reports_unlabelled_configmap_even_if_lists_hang(
    fault_proxy: FaultProxy, proxied_functions: Functions, certificates: NamespaceCertificates
) -> None:
    """Check that a second pass reports an unlabelled ConfigMap with the bundle's name, even if list requests hang.

    `renew-certificates` records a Kubernetes Event, and the tick is not retried.
    """
    certificates.create_secret("api")
    certificates.run_pass_after(proxied_functions.clusters[STEP])
    certificates.create_webhook_configuration("nodemaintenance-validate", "api")
    certificates.administrator_client.patch(
        f"{CONFIG_MAPS_PATH}/{KUBEVIRT.bundle_configmap_name}", {"metadata": {"labels": {COMPONENT_LABEL: None}}}
    )
    certificates.patch_secret("api", {"data": {PRIVATE_KEY_ENTRY: ""}})
    fault_proxy.inject(delay_crd_list(fault_proxy, build_response_drop_rule("list customresource")))

    response = proxied_functions.post(STEP, build_tick())
    create_count = fault_proxy.request_counts["create configmaps"]
    fault_proxy.stop_faults()

    assert response.status_code == 204
    assert create_count == 2
    assert NOT_RENEWED_REASON in certificates.get_events_by_reason(KUBEVIRT.bundle_configmap_name)


@proves("OSV-22")
def test_webhook_configuration_written_during_second_pass_gets_ca_bundle(
    fault_proxy: FaultProxy, proxied_functions: Functions, certificates: NamespaceCertificates
) -> None:
    path = f"{WEBHOOK_CONFIGURATIONS_PATH}/nodemaintenance-validate"
    certificates.create_secret("api")
    certificates.run_pass_after(proxied_functions.clusters[STEP])
    certificates.create_webhook_configuration("nodemaintenance-validate", "api")
    certificates.patch_secret("api", {"data": {PRIVATE_KEY_ENTRY: ""}})

    def write_webhook_configuration_on_patch(request: str) -> Fault | None:
        if request == "patch validatingwebhookconfigurations 1":
            certificates.administrator_client.patch(path, {"metadata": {"labels": {"written": "meanwhile"}}})
        return NO_RESPONSE if request.startswith("list customresource") else None

    fault_proxy.inject(delay_crd_list(fault_proxy, write_webhook_configuration_on_patch))
    response = proxied_functions.post(STEP, build_tick())
    fault_proxy.stop_faults()

    configuration = certificates.administrator_client.get(path)
    assert response.status_code == 204
    assert configuration["metadata"]["labels"] == {"written": "meanwhile"}
    assert get_trusted_bundle(configuration) == certificates.get_trusted_bundle() != ""


@proves("OSV-20")
@pytest.mark.parametrize("lists_arrive", [True, False])
def test_tick_without_time_for_second_pass_makes_next_tick_wait_for_target_lists(
    fault_proxy: FaultProxy,
    proxied_functions: Functions,
    certificates: NamespaceCertificates,
    monkeypatch: pytest.MonkeyPatch,
    lists_arrive: bool,
) -> None:
    """Check that a tick without time for a second pass makes the next tick wait for the lists of injection targets.

    Otherwise hanging writes could use up the time of every second pass. If the lists do not arrive, the next tick runs
    its pass without them and repairs what it can.
    """
    monkeypatch.setattr(lookup, "LIST_TIMEOUT_SECONDS", 0)
    monkeypatch.setattr(lookup, "TICK_LIST_TIMEOUT_SECONDS", 0.5)
    certificates.create_secret("api")
    certificates.create_secret("handler")
    certificates.run_pass_after(proxied_functions.clusters[STEP])
    certificates.patch_secret("api", {"data": {PRIVATE_KEY_ENTRY: ""}})
    certificates.patch_secret("handler", {"data": {PRIVATE_KEY_ENTRY: ""}})
    are_targets_unknown = []
    for hanging_request in ("patch secrets", "patch secrets" if lists_arrive else "list customresourcedefinitions"):
        fault_proxy.inject(build_response_drop_rule(hanging_request))
        with set_deadline(1):
            are_targets_unknown.append(
                [state.are_targets_unknown for state in certificates.run_pass(proxied_functions.clusters[STEP]).states]
            )
        fault_proxy.stop_faults()

    assert are_targets_unknown == [[True], [not lists_arrive]]
    assert all(bool(certificates.get_serial(name)) is not lists_arrive for name in ("api", "handler"))


@proves("OSV-20")
def test_certificate_with_undefined_version_is_reissued(
    client: SyncClient, certificates: NamespaceCertificates
) -> None:
    certificates.create_secret("api")
    certificates.run_pass_after(client)
    certificate = x509.load_pem_x509_certificate(get_certificate_pem(certificates, "api").encode()).public_bytes(
        serialization.Encoding.DER
    )
    invalid_certificate = certificate.replace(VERSION_3, VERSION_6, 1)
    text = "\n".join(
        [key_pairs.PEM_BEGIN, base64.encodebytes(invalid_certificate).decode().strip(), key_pairs.PEM_END, ""]
    )
    certificates.patch_secret("api", {"data": objects.encode_entries({CERTIFICATE_ENTRY: text})})

    assert certificates.run_pass_after(client) == []

    assert certificates.get_serial("api")


@proves("OSV-23")
def test_repr_of_component_states_contains_no_private_key(
    client: SyncClient, certificates: NamespaceCertificates
) -> None:
    certificates.create_secret("api")
    certificates.run_pass_after(client)
    key = (certificates.get_secret("api")["data"])[PRIVATE_KEY_ENTRY]

    states = client.run(renew_all(client.api, Settings(), datetime.now(timezone.utc))).states

    assert states
    assert key not in repr(states)
    assert base64.b64decode(key).decode() not in str(states)
