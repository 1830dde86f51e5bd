"""Tests of `renew-certificates` with objects that are broken, edited by hand, or not writable.

They check that no state is a dead end, no write comes too early, and one broken Secret does not stop the others.
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

from eventing import events
from functions.certificates.renewal import WRITE_SECONDS
from functions.certificates.settings import Settings
from functions.certificates.renewal_pass import renewed
from kube.certificates import certificate_objects, key_pairs, lookup
from kube.certificates.kubernetes_events import FAILED, NAMELESS
from kube.certificates.components import COMPONENTS, LABEL
from kube.certificates.certificate_objects import CERTIFICATE, KEY, NAMES, TRUSTED
from kube.certificates.ca_injection import trusted
from kube.certificates.key_pairs import Pair
from kube.client.api_errors import Unavailable
from kube.client.deadline import within
from kube.client.sync_client import Cluster
from kube.paths import NAMESPACE
from tests.fault_proxy import LATE, SILENCE, Fault, Faults
from tests.functions.certificates.conftest import MAPS, PAUSE, SECRETS, WEBHOOKS, Certificates, hint
from tests.functions.conftest import Functions
from tests.functions.event_builders import tick
from tests.proofs import proves

pytestmark = pytest.mark.slow

STEP = "renew-certificates"
MOST_TICKS = 20
KUBEVIRT = COMPONENTS["kubevirt"]
AUTHORITY = KUBEVIRT.authority
DAY, LITTLE = timedelta(days=1), timedelta(minutes=1)
VERSION_3, VERSION_6 = b"\xa0\x03\x02\x01\x02", b"\xa0\x03\x02\x01\x05"
"""DER encodings of a certificate's version field: v3, and v6, which is not defined."""


@pytest.fixture
def door(functions: Functions) -> Cluster:
    """Return an API client with the step's own account."""
    return functions.clusters[STEP]


def foreign(certificates: Certificates, name: str) -> dict[str, str]:
    """Return the data of another issuer's Secret: certificate, key and the certificate of the signing CA."""
    signer = key_pairs.new_authority(KUBEVIRT, certificates.now)
    made = key_pairs.new_serving(signer, [f"{name}.svc", "127.0.0.1"], KUBEVIRT, certificates.now)
    return certificate_objects.encoded({CERTIFICATE: made.certificate, KEY: made.key, TRUSTED: signer.certificate})


def shown(certificates: Certificates, name: str) -> str:
    return certificate_objects.text(certificates.secret(name), CERTIFICATE)


@proves("OSV-20")
@pytest.mark.parametrize("names", ["2001:DB8::0001", "api.svc, 0:0::1", "api.svc."])
def test_a_name_that_can_be_written_in_two_ways_is_one_name(
    door: Cluster, certificates: Certificates, names: str
) -> None:
    certificates.add("api", annotations={NAMES: names})
    certificates.renew(door)
    serial = certificates.serial("api")

    assert certificates.renew(door) == []
    assert certificates.serial("api") == serial != ""


@proves("OSV-20", "OSV-23")
@pytest.mark.parametrize("names", ["bücher.svc", "two words.svc", "fe80::1%eth0", f"{'a' * 64}.svc", "a..svc"])
def test_a_name_that_no_server_has_is_announced_and_stops_no_other(
    door: Cluster, certificates: Certificates, names: str
) -> None:
    certificates.add("a-bad", annotations={NAMES: names})
    certificates.add("api")

    certificates.renew(door)

    assert certificates.serial("api")
    assert certificates.serial("a-bad") == ""
    assert names in certificates.events("a-bad")[NAMELESS]["message"]


@proves("OSV-20")
def test_an_authority_that_has_just_expired_signs_nothing(door: Cluster, certificates: Certificates) -> None:
    """Check that one pass replaces an expired CA and issues a valid certificate from the new one.

    Ticks were lost for days: the server's certificate has expired, while a certificate of another issuer is still
    valid.
    """
    certificates.add("api")
    certificates.renew(door)
    (authority,) = key_pairs.certificates(shown(certificates, AUTHORITY))
    certificates.now = key_pairs.ends(authority) + LITTLE
    certificates.add("theirs", data=foreign(certificates, "theirs"))

    assert certificates.renew(door) == []

    assert key_pairs.is_valid(shown(certificates, "api"), certificates.now)
    assert key_pairs.is_signed_by(shown(certificates, "api"), certificates.trusted())


@proves("OSV-20")
@pytest.mark.parametrize("kind", ["ed25519", "p521"])
def test_an_authority_of_any_key_signs_or_is_replaced(door: Cluster, certificates: Certificates, kind: str) -> None:
    key = ed25519.Ed25519PrivateKey.generate() if kind == "ed25519" else ec.generate_private_key(ec.SECP521R1())
    brought = authority_of(key, certificates.now)
    certificates.add(AUTHORITY, data=certificate_objects.encoded({CERTIFICATE: brought.certificate, KEY: brought.key}))
    certificates.add("api")

    assert certificates.renew(door) == []

    assert certificates.serial("api")
    assert key_pairs.is_signed_by(shown(certificates, "api"), shown(certificates, AUTHORITY))


def authority_of(key: ed25519.Ed25519PrivateKey | ec.EllipticCurvePrivateKey, now: datetime) -> Pair:
    """Build a CA as an administrator may supply it: its key identifier is not the SHA-1 hash of its key."""
    name = x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, "brought")])
    identifier = x509.SubjectKeyIdentifier(b"somebody's own number")
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.serial_number(7).not_valid_before(now - LITTLE).not_valid_after(now + 3 * DAY)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    builder = builder.add_extension(key_pairs.usage(signs=True), critical=True).add_extension(identifier, critical=False)
    made = builder.sign(key, hashes.SHA256() if isinstance(key, ec.EllipticCurvePrivateKey) else None)
    form, kind = serialization.PrivateFormat.PKCS8, serialization.Encoding.PEM
    return Pair(made.public_bytes(kind).decode(), key.private_bytes(kind, form, serialization.NoEncryption()).decode())


@proves("OSV-22")
def test_clients_believe_what_an_authority_signs_that_somebody_brought(
    door: Cluster, certificates: Certificates
) -> None:
    """Check that clients trust certificates of a supplied CA with an unusual key identifier.

    OpenSSL compares the certificate's authority key identifier with the identifier in the CA's certificate.
    """
    brought = authority_of(ec.generate_private_key(ec.SECP256R1()), certificates.now)
    certificates.add(AUTHORITY, data=certificate_objects.encoded({CERTIFICATE: brought.certificate, KEY: brought.key}))
    certificates.add("api")

    certificates.renew(door)

    assert handshake(certificate_objects.current(certificates.secret("api")), certificates.trusted())


def handshake(pair: Pair | None, bundle: str) -> bool:
    """Return whether a client with the bundle trusts a server with the key pair; all in memory."""
    assert pair
    store = x509.verification.Store(x509.load_pem_x509_certificates(bundle.encode()))
    verifier = x509.verification.PolicyBuilder().store(store).build_server_verifier(x509.DNSName("api.svc"))
    try:
        verifier.verify(pair.parsed, [])
    except x509.verification.VerificationError:
        return False
    return _openssl(pair, bundle)


def _openssl(pair: Pair, bundle: str) -> bool:
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.NamedTemporaryFile("w") as file:
        file.write(pair.certificate + pair.key)
        file.flush()
        server.load_cert_chain(file.name)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    theirs = server.wrap_bio(to_server, to_client, server_side=True)
    ours = ssl.create_default_context(cadata=bundle).wrap_bio(to_client, to_server, server_hostname="api.svc")
    for side in (ours, theirs, ours):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
        except ssl.SSLCertVerificationError:
            return False
    return True


@proves("OSV-22")
def test_who_asks_while_the_authority_is_lost_waits_for_the_next_one(door: Cluster, certificates: Certificates) -> None:
    """Check that a requested renewal after the loss of the CA waits until the new CA has been published long enough.

    Clients still trust the server's certificate, but they would not trust one of the new CA yet.
    """
    certificates.add("api")
    certificates.renew(door)
    serial = certificates.serial("api")
    certificates.remove(f"{SECRETS}/{AUTHORITY}")
    certificates.ask("api")

    certificates.renew(door)
    kept = certificates.serial("api")
    certificates.renew(door, PAUSE)

    assert kept == serial != certificates.serial("api")
    assert certificate_objects.RENEW not in certificates.secret("api")["metadata"]["annotations"]


@proves("OSV-20", "OSV-22")
@pytest.mark.parametrize("deed", ["deleted", "corrupt"])
def test_the_only_server_that_is_lost_amid_the_pause_is_mended_by_the_authority_that_clients_know(
    door: Cluster, certificates: Certificates, deed: str
) -> None:
    certificates.add("api")
    certificates.renew(door)
    known = certificates.trusted()
    certificates.renew(door, DAY)
    if deed == "deleted":
        certificates.remove(f"{SECRETS}/api")
    else:
        certificates.change("api", {"data": {KEY: ""}})

    certificates.renew(door, LITTLE)

    assert certificate_objects.current(certificates.secret("api"))
    assert key_pairs.is_signed_by(shown(certificates, "api"), known)


@proves("OSV-22", "OSV-23")
def test_a_certificate_of_somebody_else_beside_an_authority_at_rest_has_its_pause_too(
    door: Cluster, certificates: Certificates
) -> None:
    """Check that another issuer's certificate is replaced only after a waiting period, even if our CA is an old one.

    The clients of that server read the Secret's own `ca.crt`, to which our CA was added only now.
    """
    certificates.add("api")
    certificates.renew(door)
    certificates.renew(door, PAUSE)
    certificates.add("theirs", data=foreign(certificates, "theirs"))
    before = certificates.serial("theirs")

    certificates.renew(door)
    kept, trusted = certificates.serial("theirs"), certificate_objects.text(certificates.secret("theirs"), TRUSTED)
    certificates.renew(door, PAUSE)

    assert kept == before
    assert trusted == certificates.trusted()
    assert key_pairs.is_signed_by(shown(certificates, "theirs"), shown(certificates, AUTHORITY))


@proves("OSV-22")
def test_an_authority_that_somebody_puts_in_the_place_of_ours_is_published_first(
    door: Cluster, certificates: Certificates
) -> None:
    certificates.add("api")
    certificates.renew(door)
    serial, known = certificates.serial("api"), certificates.trusted()
    brought = key_pairs.new_authority(KUBEVIRT, certificates.now)
    certificates.change(AUTHORITY, {"data": certificate_objects.encoded({CERTIFICATE: brought.certificate, KEY: brought.key})})

    certificates.renew(door, PAUSE)
    kept, published = certificates.serial("api"), certificates.trusted()
    certificates.renew(door, PAUSE)

    assert kept == serial
    assert set(key_pairs.certificates(published)) == {brought.certificate, *key_pairs.certificates(known)}
    assert key_pairs.is_signed_by(shown(certificates, "api"), brought.certificate)


@proves("OSV-20")
def test_a_secret_that_nobody_may_change_stops_no_other(door: Cluster, certificates: Certificates) -> None:
    """Check that an immutable Secret does not stop the others, although it is the first by name."""
    certificates.add("a-frozen", immutable=True)
    certificates.add("api")

    errors = certificates.renew(door)

    assert [error.status for error in errors] == [422]
    assert certificates.serial("api")
    assert "a-frozen" in certificates.events(KUBEVIRT.publication)[FAILED]["message"]


@proves("OSV-20", "OSV-22")
def test_what_cannot_be_told_of_the_next_authority_holds_that_back_and_no_repair(
    door: Cluster, certificates: Certificates
) -> None:
    """Check that an immutable Secret with an old bundle holds back the next CA, but no repair.

    Its clients trust the other servers by its `ca.crt`. So the current CA signs until none of its certificates is valid
    any more. A Secret that is deleted meanwhile is recreated at once.
    """
    certificates.add("frozen")
    certificates.add("api")
    certificates.renew(door)
    certificates.change("frozen", {"immutable": True})
    known = certificates.trusted()

    certificates.renew(door, DAY)
    certificates.renew(door, PAUSE)
    certificates.remove(f"{SECRETS}/api")
    certificates.renew(door)
    mended = shown(certificates, "api")
    certificates.renew(door, 2 * DAY)
    certificates.renew(door, PAUSE)

    assert key_pairs.is_signed_by(mended, known)
    assert key_pairs.is_valid(shown(certificates, "api"), certificates.now)


@proves("OSV-20")
def test_a_secret_comes_back_while_a_configuration_may_not_be_written(
    door: Cluster, certificates: Certificates
) -> None:
    certificates.add("api")
    certificates.add_webhook("not-ours-to-write", "api")
    certificates.renew(certificates.admin)
    certificates.renew(door, DAY)
    certificates.change("api", {"data": {KEY: ""}})

    certificates.renew(door)

    assert certificates.serial("api")


@proves("OSV-20")
@pytest.mark.parametrize(
    ("fault", "goes_on"), [(Fault(500, "failed calling webhook"), True), (Fault(503), True), (Fault(429), False)]
)
def test_what_an_answer_says_of_one_object_stops_no_other(
    faults: Faults, spoiled: Functions, certificates: Certificates, fault: Fault, goes_on: bool
) -> None:
    """Check that 500 or 503 for one object does not stop the other writes, and that 429 stops the pass.

    If another product's webhook for a configuration is broken, the API server answers each write of that configuration
    with 500. The error is `Unavailable` in all cases, so the event is retried.
    """
    door = spoiled.clusters[STEP]
    certificates.add("api")
    certificates.renew(door)
    certificates.add_webhook("behind-a-broken-one", "api")
    certificates.change("api", {"data": {KEY: ""}})
    faults.spoil(lambda request: fault if request.startswith("patch validatingwebhook") else None)

    errors = certificates.renew(door)
    faults.speak_again()

    assert [(type(error), error.status) for error in errors] == [(Unavailable, fault.status)]
    assert bool(certificates.serial("api")) is goes_on
    assert (FAILED in certificates.events(KUBEVIRT.publication)) is goes_on


@proves("OSV-20")
@pytest.mark.parametrize("hanging", ["patch validatingwebhook", "patch secrets 1", "create events"])
def test_a_write_that_hangs_stops_no_other(
    faults: Faults, spoiled: Functions, certificates: Certificates, hanging: str
) -> None:
    """Check that a write without a response does not stop the others, including those of the next component.

    Another product's webhook hangs for a configuration, for the first Secret, or for Events. The step completes all
    other writes before its own deadline.
    """
    certificates.add("api")
    certificates.add("handler")
    certificates.add("upload", "cdi")
    certificates.renew(spoiled.clusters[STEP])
    certificates.add_webhook("behind-a-hanging-one", "api")
    for name in ("api", "handler", "upload"):
        certificates.change(name, {"data": {KEY: ""}})
    faults.spoil(lambda request: SILENCE if request.startswith(hanging) else None)

    spoiled.post(STEP, tick())
    faults.speak_again()

    left = [name for name in ("api", "handler", "upload") if not certificates.serial(name)]
    assert len(left) == (1 if hanging == "patch secrets 1" else 0)


@proves("OSV-20")
def test_a_component_whose_every_write_hangs_takes_no_other_ones_time_for_ever(
    faults: Faults,
    spoiled: Functions,
    certificates: Certificates,
    elsewhere: Certificates,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Check that a component whose writes all hang does not block the other components forever.

    Its writes, and a list that never ends, take a whole pass. The next passes start with other components, in the same
    namespace and in another one.
    """
    frozen = [f"frozen-{number}" for number in range(8)]
    for name in frozen:
        certificates.add(name)
    for one in (certificates, elsewhere):
        one.add("upload", "cdi")
        one.renew(certificates.admin)
        one.remove(f"{one.secrets}/upload")
    for name in frozen:
        certificates.change(name, {"data": {KEY: ""}})
    monkeypatch.setenv("CERTIFICATE_NAMESPACES", f"{NAMESPACE},{elsewhere.namespace}")
    hanging = ("list customresourcedefinitions", "patch secrets")
    faults.spoil(lambda request: SILENCE if request.startswith(hanging) else None)

    for _ in range(3):
        spoiled.post(STEP, tick())
    faults.speak_again()

    assert not any(map(certificates.serial, frozen))
    assert certificates.serial("upload")
    assert elsewhere.serial("upload")


@proves("OSV-20")
def test_a_write_has_its_time_though_those_of_another_kind_hang(
    faults: Faults, spoiled: Functions, certificates: Certificates
) -> None:
    """Check that timeouts of Secret writes do not shorten the timeout of ConfigMap writes.

    A webhook for Secrets does not affect ConfigMaps. A shared timeout would leave them a sixteenth of a second.
    """
    names = [f"api-{number}" for number in range(3)]
    for name in names:
        certificates.add(name)
    certificates.renew(spoiled.clusters[STEP])
    for name in names:
        certificates.change(name, {"data": {KEY: ""}})
    asked: list[tuple[str, float]] = []

    def hang(request: str) -> Fault | None:
        asked.append((request, time.monotonic()))
        return SILENCE if request.startswith("patch") else None

    faults.spoil(hang)
    certificates.renew(spoiled.clusters[STEP])
    faults.speak_again()

    began, ended = next(
        (at, later) for (request, at), (_, later) in itertools.pairwise(asked) if request == "patch configmaps 1"
    )
    assert ended - began > WRITE_SECONDS / 2


@proves("OSV-20")
@pytest.mark.parametrize("path", [f"{SECRETS}/{AUTHORITY}", f"{MAPS}/{KUBEVIRT.publication}"])
def test_a_name_of_ours_that_an_object_without_the_label_has_is_announced(
    door: Cluster, certificates: Certificates, path: str
) -> None:
    """Check that the step reports an unlabelled object with a name that it needs, and makes all independent writes."""
    certificates.add("api")
    certificates.renew(door)
    certificates.admin.patch(path, {"metadata": {"labels": {LABEL: None}}})
    certificates.change("api", {"data": {KEY: ""}})

    errors = certificates.renew(door)
    told = certificates.events(KUBEVIRT.publication)[FAILED]["message"]
    repaired = certificates.serial("api")
    certificates.admin.delete(path, uid=certificates.admin.get(path)["metadata"]["uid"])
    cured = certificates.renew(door)

    assert [error.status for error in errors] == [409]
    assert path.rpartition("/")[2] in told
    assert LABEL in told
    assert cured == []
    assert certificates.serial("api")
    assert bool(repaired) is (path.startswith(MAPS))


@proves("OSV-20")
def test_a_moment_of_the_future_in_the_bundle_holds_nothing_up(door: Cluster, certificates: Certificates) -> None:
    """Check that a publication time in the future does not delay a renewal.

    A user, or a process with a wrong clock, may have written it.
    """
    certificates.add("api")
    certificates.renew(door)
    certificates.renew(door, DAY)
    serial = certificates.serial("api")
    publication = certificates.publication()
    assert publication
    late = dict.fromkeys(json.loads(certificate_objects.annotation(publication, certificate_objects.PUBLISHED)), "2999-01-01T00:00:00Z")
    annotations = {certificate_objects.PUBLISHED: json.dumps(late)}
    certificates.admin.patch(f"{MAPS}/{KUBEVIRT.publication}", {"metadata": {"annotations": annotations}})

    certificates.renew(door)
    certificates.renew(door, PAUSE)

    assert certificates.serial("api") != serial


@pytest.mark.parametrize("pause", ["21601", "86400"])
def test_a_pause_within_which_a_certificate_would_be_due_again_is_refused(pause: str) -> None:
    """Check that `CERTIFICATE_PAUSE` must be shorter than the time after which a certificate is due again.

    Otherwise each new CA would be replaced before it could sign.
    """
    with pytest.raises(ValueError, match="CERTIFICATE_PAUSE"):
        Settings.of({"CERTIFICATE_PAUSE": pause})


@proves("OSV-20", "OSV-22")
def test_who_asks_without_end_is_answered_until_the_bundle_has_enough(
    door: Cluster, certificates: Certificates
) -> None:
    """Check that repeated requests for a new CA are fulfilled until the bundle has ten CAs.

    Each new CA starts another waiting period and stays in the bundle until it expires, so the number must be limited.
    """
    certificates.add("api")
    certificates.renew(door)
    serial = certificates.serial("api")
    for _ in range(15):
        certificates.ask(AUTHORITY)
        certificates.renew(door, PAUSE / 2)

    assert len(certificate_objects.bundle_of(certificates.publication())) == 10
    assert certificates.serial("api") != serial
    assert certificate_objects.TRUSTED in certificates.events(AUTHORITY)[FAILED]["message"]


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
def test_what_somebody_writes_into_the_list_of_secrets_stops_nothing(
    door: Cluster, certificates: Certificates, entry: dict[str, object]
) -> None:
    certificates.add("api")
    certificates.renew(door)
    publication = certificates.publication()
    assert publication
    status = json.dumps({**json.loads(publication["data"][certificate_objects.STATUS]), **entry})
    certificates.admin.patch(f"{MAPS}/{KUBEVIRT.publication}", {"data": {certificate_objects.STATUS: status}})
    certificates.remove(f"{SECRETS}/api")

    assert certificates.renew(door) == []

    assert certificates.serial("api")
    assert certificates.renew(door) == []


@proves("OSV-20")
@pytest.mark.parametrize("names", [["api.svc"], []])
def test_thousands_of_secrets_that_somebody_writes_into_the_list_hold_nothing_up(
    functions: Functions, certificates: Certificates, names: list[str]
) -> None:
    """Check that thousands of missing Secrets in the ConfigMap's list do not delay a repair.

    Looking up each of them would take longer than a pass. The step recreates a limited number of Secrets that have
    server names, and removes the other entries.
    """
    certificates.add("api")
    functions.answer(STEP, tick())
    status = {f"a-{number}": {"names": names} for number in range(5000)}
    data = {certificate_objects.STATUS: json.dumps({**status, "api": {"names": ["api.svc"]}})}
    certificates.admin.patch(f"{MAPS}/{KUBEVIRT.publication}", {"data": data})
    certificates.change("api", {"data": {KEY: ""}})

    functions.post(STEP, tick())
    repaired = certificates.serial("api")
    for _ in range(MOST_TICKS):
        if functions.post(STEP, tick()).status_code == 204:
            break

    assert repaired
    assert functions.post(STEP, tick()).status_code == 204
    assert certificate_objects.remembered(certificates.publication()).keys() == certificates.names()
    assert len(certificates.names()) == (lookup.MOST_SECRETS + 1 if names else 2)
    assert (FAILED in certificates.events(KUBEVIRT.publication)) is bool(names)


@proves("OSV-23")
def test_a_secret_with_the_name_of_another_components_authority_is_announced(
    door: Cluster, certificates: Certificates
) -> None:
    """Check that the step reports a Secret whose name is that of another component's CA Secret, and does not write it.

    Otherwise both components would overwrite it forever.
    """
    name = COMPONENTS["cdi"].authority
    before = certificates.add(name)
    certificates.add("upload", "cdi")

    certificates.renew(door)

    assert certificates.secret(name) == before
    assert "cdi" in certificates.events(name)["CertificateNotRenewed"]["message"]


@proves("OSV-20")
def test_where_nobody_can_tell_who_wants_a_bundle_servers_are_repaired_and_no_authority_follows(
    faults: Faults, spoiled: Functions, certificates: Certificates
) -> None:
    """Check that servers are repaired and no new CA signs while the CA injection targets cannot be listed.

    A new CA would lock out every client that uses an unlisted target. The failure is counted for the alert, and the
    event is not retried.
    """
    door, failures = spoiled.clusters[STEP], ("nodemaintenance_certificate_failures_total", {"component": ""})
    certificates.add("api")
    certificates.renew(door)
    known = certificates.trusted()
    faults.spoil(lambda request: Fault(403) if request.startswith("list validatingwebhook") else None)
    certificates.change("api", {"data": {KEY: ""}})

    counted = REGISTRY.get_sample_value(*failures) or 0

    errors = certificates.renew(door)
    counted = (REGISTRY.get_sample_value(*failures) or 0) - counted
    repaired = certificates.serial("api")
    certificates.renew(door, DAY)
    certificates.renew(door, PAUSE)
    kept = shown(certificates, "api")
    faults.speak_again()
    certificates.renew(door)
    certificates.renew(door, PAUSE)

    assert (errors, counted) == ([], 1)
    assert repaired
    assert key_pairs.is_signed_by(kept, known)
    assert not key_pairs.is_signed_by(shown(certificates, "api"), known)


@pytest.mark.parametrize("fault", [Fault(403), Fault(503)])
def test_a_look_that_reads_nothing_is_no_sign_of_life_and_hides_nothing(
    faults: Faults, spoiled: Functions, certificates: Certificates, fault: Fault
) -> None:
    """Check that a pass that cannot read the Secrets leaves the metrics unchanged.

    The alert for an expiring certificate then stays active, and the time of the last pass does not advance.
    """
    certificates.add("api")
    spoiled.answer(STEP, tick())
    labels = {"component": "kubevirt", "namespace": NAMESPACE, "secret": "api"}
    look, ends = "nodemaintenance_certificates_timestamp_seconds", "nodemaintenance_certificate_ends_timestamp_seconds"
    before = REGISTRY.get_sample_value(look), REGISTRY.get_sample_value(ends, labels)
    faults.spoil(lambda request: fault if request.startswith("list secrets") else None)

    spoiled.post(STEP, tick())
    faults.speak_again()

    assert None not in before
    assert (REGISTRY.get_sample_value(look), REGISTRY.get_sample_value(ends, labels)) == before


@proves("OSV-20")
@pytest.mark.parametrize("event", [tick(), hint(events.REFERENCE_UPDATED, "api")])
def test_a_list_that_does_not_end_leaves_servers_the_time_to_be_repaired(
    faults: Faults, spoiled: Functions, certificates: Certificates, event: BaseCloudEvent
) -> None:
    """Check that a server is repaired although a list never ends, and that the event is not retried.

    A busy API server may need that long for a thousand CustomResourceDefinitions.
    """
    certificates.add("api")
    certificates.renew(spoiled.clusters[STEP])
    certificates.change("api", {"data": {KEY: ""}})
    faults.spoil(lambda request: SILENCE if request.startswith("list customresourcedefinitions") else None)

    answer = spoiled.post(STEP, event)
    faults.speak_again()

    assert certificates.serial("api")
    assert answer.status_code == 204


def late(faults: Faults, then: Callable[[str], Fault | None] = lambda _request: None) -> Callable[[str], Fault | None]:
    """Return a fault rule that delays the list of CRDs until a Secret is patched.

    Afterwards the rule `then` applies.
    """

    def rule(request: str) -> Fault | None:
        if request == "patch secrets 1":
            faults.speak_again()
            faults.spoil(then)
        return LATE if request == "list customresourcedefinitions 1" else None

    return rule


@proves("OSV-20", "OSV-23")
def test_a_list_that_comes_late_has_a_tick_look_once_more(
    faults: Faults, spoiled: Functions, certificates: Certificates
) -> None:
    """Check that a tick makes a second pass when the lists arrive late.

    The first pass makes the repairs that need no lists; the second one writes the bundle to the CA injection targets.
    """
    certificates.add("api")
    certificates.renew(spoiled.clusters[STEP])
    certificates.add_webhook("nodemaintenance-validate", "api")
    certificates.change("api", {"data": {KEY: ""}})
    faults.spoil(late(faults))

    answer = spoiled.post(STEP, tick())
    (hook,) = certificates.admin.get(f"{WEBHOOKS}/nodemaintenance-validate")["webhooks"]

    assert answer.status_code == 204
    assert certificates.serial("api")
    assert base64.b64decode(hook["clientConfig"]["caBundle"]).decode() == certificates.trusted()


def test_what_the_second_look_of_a_tick_cannot_read_stands_as_the_first_has_found_it(
    faults: Faults, spoiled: Functions, certificates: Certificates
) -> None:
    """Check that the metrics keep the first pass's result if a tick's second pass cannot read the Secrets.

    Otherwise the alert for passes that read nothing would fire although each tick reads everything.
    """
    certificates.add("api")
    certificates.renew(spoiled.clusters[STEP])
    certificates.change("api", {"data": {KEY: ""}})
    began = datetime.now(timezone.utc).timestamp()
    faults.spoil(late(faults, lambda request: Fault(503) if request == "list secrets 1" else None))

    answer = spoiled.post(STEP, tick())
    faults.speak_again()
    labels = {"component": "kubevirt", "namespace": NAMESPACE, "secret": "api"}

    assert answer.status_code == 503
    assert (REGISTRY.get_sample_value("nodemaintenance_certificates_timestamp_seconds") or 0) >= began
    assert REGISTRY.get_sample_value("nodemaintenance_certificate_ends_timestamp_seconds", labels)


@proves("OSV-20")
def test_of_ticks_that_look_twice_each_second_look_begins_with_another_component_too(
    faults: Faults, spoiled: Functions, certificates: Certificates
) -> None:
    """Check that the second passes of consecutive ticks start with different components.

    Otherwise a write that hangs in the first component would delay the other component's next CA forever.
    """
    certificates.add("api")
    certificates.add("upload", "cdi")
    certificates.renew(spoiled.clusters[STEP])
    looks = []
    for _ in range(2):
        certificates.change("api", {"data": {KEY: ""}})
        faults.spoil(late(faults))
        looks.append(certificates.look(spoiled.clusters[STEP]).states)

    assert not any(state.is_blind for states in looks for state in states)
    assert {states[0].component.name for states in looks} == {"kubevirt", "cdi"}


def silence(requests: str) -> Callable[[str], Fault | None]:
    """Return a fault rule under which requests that start with `requests` get no response."""
    return lambda request: SILENCE if request.startswith(requests) else None


@proves("OSV-20")
def test_what_is_in_the_way_of_a_second_look_is_found_though_the_lists_are_late_again(
    faults: Faults, spoiled: Functions, certificates: Certificates
) -> None:
    """Check that a second pass reports an unlabelled ConfigMap in its way although the lists hang again.

    The step records an Event, and the event that triggered it is not retried.
    """
    certificates.add("api")
    certificates.renew(spoiled.clusters[STEP])
    certificates.add_webhook("nodemaintenance-validate", "api")
    certificates.admin.patch(f"{MAPS}/{KUBEVIRT.publication}", {"metadata": {"labels": {LABEL: None}}})
    certificates.change("api", {"data": {KEY: ""}})
    faults.spoil(late(faults, silence("list customresource")))

    answer = spoiled.post(STEP, tick())
    again = faults.seen["create configmaps"]
    faults.speak_again()

    assert answer.status_code == 204
    assert again == 2
    assert FAILED in certificates.events(KUBEVIRT.publication)


@proves("OSV-22")
def test_a_configuration_that_somebody_writes_amid_a_second_look_gets_its_bundle_though_the_lists_are_late_again(
    faults: Faults, spoiled: Functions, certificates: Certificates
) -> None:
    path = f"{WEBHOOKS}/nodemaintenance-validate"
    certificates.add("api")
    certificates.renew(spoiled.clusters[STEP])
    certificates.add_webhook("nodemaintenance-validate", "api")
    certificates.change("api", {"data": {KEY: ""}})

    def meanwhile(request: str) -> Fault | None:
        if request == "patch validatingwebhookconfigurations 1":
            certificates.admin.patch(path, {"metadata": {"labels": {"written": "meanwhile"}}})
        return SILENCE if request.startswith("list customresource") else None

    faults.spoil(late(faults, meanwhile))
    answer = spoiled.post(STEP, tick())
    faults.speak_again()

    written = certificates.admin.get(path)
    assert answer.status_code == 204
    assert written["metadata"]["labels"] == {"written": "meanwhile"}
    assert trusted(written) == certificates.trusted() != ""


@proves("OSV-20")
@pytest.mark.parametrize("come", [True, False])
def test_a_tick_whose_time_is_over_when_the_lists_come_has_the_next_one_wait_for_them(
    faults: Faults, spoiled: Functions, certificates: Certificates, monkeypatch: pytest.MonkeyPatch, come: bool
) -> None:
    """Check that a tick without time for a second pass makes the next tick wait for the lists.

    Otherwise hanging writes could use up the time of every second pass. If the lists do not arrive, the next tick makes
    its pass without them and repairs what it can.
    """
    monkeypatch.setattr(lookup, "PATIENCE_SECONDS", 0)
    monkeypatch.setattr(lookup, "CARRIERS_SECONDS", 0.5)
    certificates.add("api")
    certificates.add("handler")
    certificates.renew(spoiled.clusters[STEP])
    certificates.change("api", {"data": {KEY: ""}})
    certificates.change("handler", {"data": {KEY: ""}})
    blind = []
    for hanging in ("patch secrets", "patch secrets" if come else "list customresourcedefinitions"):
        faults.spoil(silence(hanging))
        with within(1):
            blind.append([state.is_blind for state in certificates.look(spoiled.clusters[STEP]).states])
        faults.speak_again()

    assert blind == [[True], [not come]]
    assert all(bool(certificates.serial(name)) is not come for name in ("api", "handler"))


@proves("OSV-20")
def test_a_certificate_of_a_version_that_nobody_knows_is_corrupt(door: Cluster, certificates: Certificates) -> None:
    certificates.add("api")
    certificates.renew(door)
    there = x509.load_pem_x509_certificate(shown(certificates, "api").encode()).public_bytes(serialization.Encoding.DER)
    strange = there.replace(VERSION_3, VERSION_6, 1)
    text = "\n".join([key_pairs.BEGIN, base64.encodebytes(strange).decode().strip(), key_pairs.END, ""])
    certificates.change("api", {"data": certificate_objects.encoded({CERTIFICATE: text})})

    assert certificates.renew(door) == []

    assert certificates.serial("api")


@proves("OSV-23")
def test_no_key_is_in_what_a_state_prints(door: Cluster, certificates: Certificates) -> None:
    certificates.add("api")
    certificates.renew(door)
    key = (certificates.secret("api")["data"])[KEY]

    states = door.run(renewed(door.api, Settings(), datetime.now(timezone.utc))).states

    assert states
    assert key not in repr(states)
    assert base64.b64decode(key).decode() not in str(states)
