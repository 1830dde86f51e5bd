"""Tests for `renew-certificates` on a real API server, with the function's own ServiceAccount.

They cover each state of a certificate Secret, and concurrent passes.
"""

from __future__ import annotations

import base64
import json
import logging
from datetime import datetime, timedelta, timezone

import pytest

from chaos.api_fault_proxy import FaultProxy
from eventing import events
from functions.certificates import renewal
from functions.certificates.renewal import renew_all
from functions.certificates.settings import Settings
from kube.certificates import component_state, key_pairs, lookup, objects
from kube.certificates.ca_injection import INJECT_ANNOTATION, TARGET_PATHS, get_trusted_bundle
from kube.certificates.components import COMPONENT_LABEL, COMPONENTS
from kube.certificates.objects import (
    CA_ENTRY,
    CERT_MANAGER_REASON,
    CERTIFICATE_ENTRY,
    NO_NAMES_REASON,
    NOT_RENEWED_REASON,
    PRIVATE_KEY_ENTRY,
    RENEWED_REASON,
    UNKNOWN_COMPONENT_REASON,
)
from kube.client.api_errors import Conflict, Unavailable
from kube.client.sync_client import SyncClient
from kube.paths import DEFAULT_NAMESPACE, Object
from tests.functions.certificates.conftest import (
    CONFIG_MAPS_PATH,
    PROPAGATION_DELAY,
    SECRETS_PATH,
    SETTINGS,
    WEBHOOK_CONFIGURATIONS_PATH,
    NamespaceCertificates,
    build_secret_reference_event,
)
from tests.functions.conftest import MAX_DELIVERIES, Functions
from tests.functions.event_builders import build_tick
from tests.proofs import proves

STEP = "renew-certificates"
MAX_REQUEST_SECONDS = 30.0
CA_SECRET_NAME = COMPONENTS["kubevirt"].ca_secret_name


@pytest.fixture
def client(functions: Functions, monkeypatch: pytest.MonkeyPatch) -> SyncClient:
    """Return an API client with the account of `renew-certificates`.

    The fixture extends the time limits of `renew-certificates`, so that its passes complete even on a busy machine.
    """
    for module, limits in (
        (lookup, ("LIST_TIMEOUT_SECONDS", "TICK_LIST_TIMEOUT_SECONDS")),
        (renewal, ("WRITE_TIMEOUT_SECONDS", "EVENT_TIMEOUT_SECONDS")),
    ):
        for limit in limits:
            monkeypatch.setattr(module, limit, MAX_REQUEST_SECONDS)
    return functions.clusters[STEP]


@proves("OSV-20", "OSV-23")
def test_labelled_secret_gets_trusted_certificate(functions: Functions, certificates: NamespaceCertificates) -> None:
    """Check that a tick issues a certificate and key, writes the CA bundle, and records an Event with the serial."""
    certificates.create_secret("api")

    functions.invoke(STEP, build_tick())

    secret = certificates.get_secret("api")
    certificate = objects.decode_entry(secret, CERTIFICATE_ENTRY)
    assert component_state.get_current_key_pair(secret)
    assert key_pairs.get_subject_alt_names(certificate) == ["api.svc", "127.0.0.1"]
    assert objects.decode_entry(secret, CA_ENTRY) == certificates.get_trusted_bundle()
    assert key_pairs.is_signed_by(certificate, certificates.get_trusted_bundle())
    assert certificates.get_serial("api") in certificates.get_events_by_reason("api")[RENEWED_REASON]["message"]


@proves("OSV-23")
def test_admission_webhook_gets_certificate_and_ca_bundle(
    functions: Functions, certificates: NamespaceCertificates
) -> None:
    """Check that the admission webhook's Secret gets a certificate, and the webhook configuration the CA bundle."""
    certificates.create_secret("validate", "ours")
    certificates.create_webhook_configuration("nodemaintenance-validate", "validate")

    functions.invoke(STEP, build_tick())

    (hook,) = certificates.administrator_client.get(f"{WEBHOOK_CONFIGURATIONS_PATH}/nodemaintenance-validate")[
        "webhooks"
    ]
    assert base64.b64decode(hook["clientConfig"]["caBundle"]).decode() == certificates.get_trusted_bundle("ours")
    assert component_state.get_current_key_pair(certificates.get_secret("validate"))


@proves("OSV-22")
@pytest.mark.parametrize("kind", TARGET_PATHS)
def test_annotated_object_of_each_supported_kind_gets_ca_bundle(certificates: NamespaceCertificates, kind: str) -> None:
    """Check that an annotated object of each supported kind gets the CA bundle and keeps all its other fields."""
    certificates.create_secret("api")
    created = certificates.administrator_client.create(TARGET_PATHS[kind], build_injection_target(kind))
    path = f"{TARGET_PATHS[kind]}/{created['metadata']['name']}"
    try:
        errors = certificates.run_pass_after(certificates.administrator_client)
        written = certificates.administrator_client.get(path)
    finally:
        certificates.delete_and_wait(path)

    bundle = base64.b64encode(certificates.get_trusted_bundle().encode()).decode()
    section = "spec" if "spec" in created else "webhooks"
    assert errors == []
    assert get_trusted_bundle(written) == certificates.get_trusted_bundle() != ""
    assert json.dumps(written[section], sort_keys=True).replace(f'"caBundle": "{bundle}", ', "") == json.dumps(
        created[section], sort_keys=True
    )


@pytest.mark.parametrize("kind", TARGET_PATHS)
def test_injection_targets_are_reread_with_list_permission_only(
    client: SyncClient, certificates: NamespaceCertificates, kind: str
) -> None:
    """Check that `reread_injection_targets` returns the latest state of each CA injection target that still exists.

    The account of `renew-certificates` has the verb `list` for all target kinds, but `get` only for CRDs.
    """
    created = {
        **certificates.administrator_client.create(TARGET_PATHS[kind], build_injection_target(kind)),
        "kind": kind,
    }
    path = f"{TARGET_PATHS[kind]}/{created['metadata']['name']}"
    try:
        certificates.administrator_client.patch(path, {"metadata": {"labels": {"written": "meanwhile"}}})
        deleted = {**created, "metadata": {"name": "gone.carried.test"}}
        (reread_target,) = client.run(lookup.reread_injection_targets(client.api, [deleted, created]))
    finally:
        certificates.delete_and_wait(path)

    assert (reread_target["kind"], reread_target["metadata"]["labels"]) == (kind, {"written": "meanwhile"})
    assert reread_target.keys() == created.keys()


def build_injection_target(kind: str) -> Object:
    """Build a CA injection target of this kind for the Secret `api`; the API server never calls its webhook."""
    service = {"namespace": DEFAULT_NAMESPACE, "name": "api"}
    metadata = {"name": "test-carrier", "annotations": {INJECT_ANNOTATION: f"{DEFAULT_NAMESPACE}/api"}}
    if kind == "APIService":
        spec = {"group": "carried.test", "version": "v1", "groupPriorityMinimum": 1, "versionPriority": 1}
        return {"metadata": {**metadata, "name": "v1.carried.test"}, "spec": {**spec, "service": service}}
    if kind == "CustomResourceDefinition":
        schema = {"openAPIV3Schema": {"type": "object"}}
        version = {"name": "v1", "served": True, "storage": True, "schema": schema}
        names = {"plural": "things", "singular": "thing", "kind": "Thing", "listKind": "ThingList"}
        webhook = {"conversionReviewVersions": ["v1"], "clientConfig": {"service": service}}
        conversion = {"strategy": "Webhook", "webhook": webhook}
        spec = {"group": "carried.test", "scope": "Cluster", "names": names, "versions": [version]}
        return {"metadata": {**metadata, "name": "things.carried.test"}, "spec": {**spec, "conversion": conversion}}
    hook = {"name": "hook.carried.test", "sideEffects": "None", "admissionReviewVersions": ["v1"]}
    return {"metadata": metadata, "webhooks": [{**hook, "clientConfig": {"service": service}}]}


def test_crd_with_bundle_of_other_namespace_is_not_read_in_full(
    fault_proxy: FaultProxy, proxied_functions: Functions, certificates: NamespaceCertificates
) -> None:
    """Check that `renew-certificates` never reads a whole CRD that requests a bundle from another namespace.

    A CRD of cert-manager, for example, may be 180 kB large, and every pass would read it.
    """
    name, kind = "things.carried.test", "CustomResourceDefinition"
    other_target = build_injection_target(kind)
    other_target["metadata"]["annotations"] = {INJECT_ANNOTATION: "elsewhere/api"}
    certificates.create_secret("api")
    certificates.administrator_client.create(TARGET_PATHS[kind], other_target)
    fault_proxy.inject(lambda _request: None)
    try:
        proxied_functions.invoke(STEP, build_tick())
        count_with_foreign_target = fault_proxy.request_counts["get customresourcedefinitions"]
        certificates.administrator_client.patch(f"{TARGET_PATHS[kind]}/{name}", build_injection_target(kind))
        proxied_functions.post(STEP, build_tick())
        count_with_own_target = fault_proxy.request_counts["get customresourcedefinitions"]
    finally:
        certificates.delete_and_wait(f"{TARGET_PATHS[kind]}/{name}")

    assert (count_with_foreign_target, count_with_own_target) == (0, 1)
    assert certificates.get_serial("api")


@proves("X-3")
def test_pass_without_due_renewal_writes_nothing(functions: Functions, certificates: NamespaceCertificates) -> None:
    certificates.create_secret("api")
    functions.invoke(STEP, build_tick())
    resource_versions = [
        secret["metadata"]["resourceVersion"]
        for secret in certificates.administrator_client.list(SECRETS_PATH)["items"]
    ]
    bundle_configmap = certificates.get_bundle_configmap()

    functions.invoke(STEP, build_tick())
    functions.invoke(STEP, build_secret_reference_event(events.REFERENCE_UPDATED, "api"))

    assert [
        secret["metadata"]["resourceVersion"]
        for secret in certificates.administrator_client.list(SECRETS_PATH)["items"]
    ] == resource_versions
    assert certificates.get_bundle_configmap() == bundle_configmap


@proves("OSV-20")
def test_delete_event_of_secret_recreates_it(functions: Functions, certificates: NamespaceCertificates) -> None:
    certificates.create_secret("api")
    functions.invoke(STEP, build_tick())
    old_serial, old_bundle = certificates.get_serial("api"), certificates.get_trusted_bundle()
    certificates.delete_and_wait(f"{SECRETS_PATH}/api")

    functions.invoke(STEP, build_secret_reference_event(events.REFERENCE_DELETED, "api"))

    assert certificates.get_serial("api") not in ("", old_serial)
    assert certificates.get_trusted_bundle() == old_bundle
    assert certificates.get_secret("api")["metadata"]["labels"] == {COMPONENT_LABEL: "kubevirt"}


@proves("OSV-20", "X-3a")
@pytest.mark.parametrize("is_corrupt", [False, True], ids=["deleted", "corrupt"])
def test_tick_repairs_secret_whose_event_was_lost(
    functions: Functions, certificates: NamespaceCertificates, is_corrupt: bool
) -> None:
    """Check that a tick reissues a deleted or corrupt certificate with the same CA."""
    certificates.create_secret("api")
    functions.invoke(STEP, build_tick())
    old_serial, old_bundle = certificates.get_serial("api"), certificates.get_trusted_bundle()
    if is_corrupt:
        certificates.patch_secret(
            "api",
            {"data": objects.encode_entries({CERTIFICATE_ENTRY: "garbage", PRIVATE_KEY_ENTRY: "garbage"})},
        )
    else:
        certificates.delete_and_wait(f"{SECRETS_PATH}/api")

    functions.invoke(STEP, build_tick())

    assert certificates.get_serial("api") not in ("", old_serial)
    assert certificates.get_trusted_bundle() == old_bundle


@proves("OSV-20")
def test_update_event_repairs_corrupt_secret(functions: Functions, certificates: NamespaceCertificates) -> None:
    certificates.create_secret("api")
    functions.invoke(STEP, build_tick())
    certificates.patch_secret(
        "api",
        {"data": objects.encode_entries({CERTIFICATE_ENTRY: "garbage", PRIVATE_KEY_ENTRY: "garbage"})},
    )

    functions.invoke(STEP, build_secret_reference_event(events.REFERENCE_UPDATED, "api"))

    assert key_pairs.is_signed_by(
        objects.decode_entry(certificates.get_secret("api"), CERTIFICATE_ENTRY),
        certificates.get_trusted_bundle(),
    )


@proves("OSV-20", "OSV-22")
def test_deleted_ca_and_bundle_are_recreated_without_client_failures(
    client: SyncClient, certificates: NamespaceCertificates
) -> None:
    certificates.create_secret("api")
    certificates.run_pass_after(client)
    old_bundle, serial = certificates.get_trusted_bundle(), certificates.get_serial("api")
    certificates.delete_and_wait(f"{SECRETS_PATH}/{CA_SECRET_NAME}")

    certificates.run_pass_after(client)
    published_bundle, serial_after_recreation = certificates.get_trusted_bundle(), certificates.get_serial("api")
    certificates.delete_and_wait(f"{CONFIG_MAPS_PATH}/{COMPONENTS['kubevirt'].bundle_configmap_name}")
    certificates.run_pass_after(client)
    recreated_bundle = certificates.get_trusted_bundle()
    certificates.run_pass_after(client, PROPAGATION_DELAY)

    assert old_bundle in published_bundle
    assert serial_after_recreation == serial != certificates.get_serial("api")
    assert recreated_bundle == published_bundle == certificates.get_trusted_bundle()


@proves("OSV-20", "OSV-21", "OSV-22")
def test_certificate_is_renewed_one_propagation_delay_after_new_ca_is_published(
    client: SyncClient, certificates: NamespaceCertificates
) -> None:
    certificates.create_secret("api")
    certificates.run_pass_after(client)
    serial, trusted = certificates.get_serial("api"), certificates.get_trusted_bundle()

    certificates.run_pass_after(client, timedelta(hours=23))
    before_propagation = certificates.get_serial("api"), certificates.get_trusted_bundle()
    certificates.run_pass_after(client, timedelta(hours=2))
    after_propagation = certificates.get_serial("api"), certificates.get_trusted_bundle()
    certificates.run_pass_after(client, PROPAGATION_DELAY)

    assert before_propagation == (serial, trusted)
    assert after_propagation[0] == serial
    assert after_propagation[1].endswith(trusted)
    assert after_propagation[1] != trusted
    assert certificates.get_serial("api") != serial
    assert certificates.get_trusted_bundle() == after_propagation[1]


@proves("OSV-23")
def test_unlabelled_secret_is_never_written(client: SyncClient, certificates: NamespaceCertificates) -> None:
    """Check that `renew-certificates` never writes an unlabelled Secret.

    This includes a Secret that lost its label, and one whose name the ConfigMap still lists.
    """
    certificates.administrator_client.create(SECRETS_PATH, {"metadata": {"name": "plain"}, "type": "Opaque"})
    certificates.create_secret("api")
    certificates.run_pass_after(client)
    certificates.patch_secret("api", {"metadata": {"labels": {COMPONENT_LABEL: None}}, "data": None})
    initial_secrets = [certificates.get_secret(name) for name in ("plain", "api")]

    certificates.run_pass_after(client, timedelta(days=2))
    certificates.run_pass_after(client, PROPAGATION_DELAY)

    assert [certificates.get_secret(name) for name in ("plain", "api")] == initial_secrets
    assert "api" not in objects.parse_summaries(certificates.get_bundle_configmap())
    for name in ("plain", "api"):
        certificates.delete_and_wait(f"{SECRETS_PATH}/{name}")


@proves("OSV-23")
@pytest.mark.parametrize(
    ("name", "component", "annotations", "reason"),
    [
        ("strange", "teapot", {}, UNKNOWN_COMPONENT_REASON),
        ("theirs", "kubevirt", {objects.CERT_MANAGER_ANNOTATION: "theirs"}, CERT_MANAGER_REASON),
        ("without-names", "kubevirt", {objects.DNS_NAMES_ANNOTATION: " , "}, NO_NAMES_REASON),
    ],
)
def test_unsuitable_secret_is_skipped_with_one_event(
    functions: Functions,
    certificates: NamespaceCertificates,
    name: str,
    component: str,
    annotations: dict[str, str],
    reason: str,
) -> None:
    """Check that an unsuitable Secret is skipped with one Event in several ticks, and other Secrets are renewed."""
    created_secret = certificates.create_secret(name, component, annotations=annotations)
    certificates.create_secret("api")

    functions.invoke(STEP, build_tick())
    recorded_events = certificates.get_events_by_reason(name)
    functions.invoke(STEP, build_tick())

    assert recorded_events.keys() == {reason}
    assert recorded_events[reason]["type"] == "Warning"
    assert certificates.get_events_by_reason(name) == recorded_events
    assert certificates.get_secret(name) == created_secret
    assert certificates.get_serial("api")


@proves("OSV-22", "OSV-23")
def test_foreign_certificate_stays_trusted_until_replaced(
    client: SyncClient, certificates: NamespaceCertificates
) -> None:
    component = COMPONENTS["cdi"]
    signer = key_pairs.create_ca(component, certificates.now)
    foreign_pair = key_pairs.issue_serving_certificate(signer, ["api.svc"], component, certificates.now)
    entries = {
        CERTIFICATE_ENTRY: foreign_pair.certificate,
        PRIVATE_KEY_ENTRY: foreign_pair.key,
        CA_ENTRY: signer.certificate,
    }
    certificates.create_secret("api", data=objects.encode_entries(entries))

    certificates.run_pass_after(client)
    published_bundle, served_certificate = (
        certificates.get_trusted_bundle(),
        objects.decode_entry(certificates.get_secret("api"), CERTIFICATE_ENTRY),
    )
    certificates.run_pass_after(client, PROPAGATION_DELAY)

    assert signer.certificate in key_pairs.parse_certificates(published_bundle)
    assert served_certificate == foreign_pair.certificate
    assert objects.decode_entry(certificates.get_secret("api"), CERTIFICATE_ENTRY) != foreign_pair.certificate
    assert certificates.get_trusted_bundle() == published_bundle


@proves("X-2", "OSV-20")
@pytest.mark.parametrize("elapsed_time", [timedelta(0), timedelta(days=1), timedelta(days=1) + PROPAGATION_DELAY])
def test_concurrent_passes_create_one_ca(
    client: SyncClient, admin_client: SyncClient, certificates: NamespaceCertificates, elapsed_time: timedelta
) -> None:
    """Check that concurrent passes create at most one new CA, and that every client trusts every server.

    The passes start without certificates, when a renewal is due, or at the end of the waiting period. A pass fails
    after too many conflicts or a timeout, and its event is redelivered.
    """
    for name in ("api", "handler", "controller"):
        certificates.create_secret(name)
    if elapsed_time:
        certificates.run_pass_after(client)
        certificates.run_pass_after(client, timedelta(days=1))
    ca_count = len(component_state.parse_published_bundle(certificates.get_bundle_configmap()))
    now = certificates.now + PROPAGATION_DELAY if elapsed_time > timedelta(days=1) else certificates.now

    outcomes = client.gather_all(*(renew_all(client.api, SETTINGS, now) for _ in range(4)))

    errors = [error for outcome in outcomes for error in outcome.errors]
    assert all(isinstance(error, Conflict | Unavailable) for error in errors)
    is_slow = any(isinstance(error, Unavailable) for error in errors)
    assert is_slow or any(not outcome.errors for outcome in outcomes)
    for _ in range(MAX_DELIVERIES):
        if not errors:
            break
        errors = client.run(renew_all(client.api, SETTINGS, now)).errors
    assert errors == []
    signers = component_state.parse_published_bundle(certificates.get_bundle_configmap())
    assert len(signers) == max(ca_count, 1)
    for name in ("api", "handler", "controller"):
        secret = certificates.get_secret(name)
        certificate = objects.decode_entry(secret, CERTIFICATE_ENTRY)
        assert component_state.get_current_key_pair(secret)
        assert any(key_pairs.is_signed_by(certificate, signer) for signer in signers)
        assert objects.decode_entry(secret, CA_ENTRY) == "".join(signers)


@proves("X-2", "OSV-20")
def test_first_pass_that_cannot_list_injection_targets_in_time_has_no_error(
    client: SyncClient, certificates: NamespaceCertificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that the first pass reports no error if the lists of CA injection targets arrive too late.

    The pass writes the ConfigMap twice: first to add the new CA, and then to mark it as published when it begins to
    sign certificates.
    """
    monkeypatch.setattr(lookup, "LIST_TIMEOUT_SECONDS", 0.0)
    certificates.create_secret("api")

    result = client.run(renew_all(client.api, SETTINGS, certificates.now, is_tick=False))

    assert result.errors == []
    (signer,) = component_state.parse_published_bundle(certificates.get_bundle_configmap())
    times = objects.parse_published_times(certificates.get_bundle_configmap(), certificates.now)
    assert set(times) == {key_pairs.compute_fingerprint(signer)}
    assert key_pairs.is_signed_by(objects.decode_entry(certificates.get_secret("api"), CERTIFICATE_ENTRY), signer)


def test_forbidden_webhook_configuration_is_reported_and_blocks_no_certificate(
    functions: Functions, certificates: NamespaceCertificates
) -> None:
    """Check that an Event reports a webhook configuration without write permission, and that certificates are issued.

    The configuration never had the CA of `renew-certificates`, so it does not delay the server's certificate.
    """
    certificates.create_secret("api")
    certificates.create_webhook_configuration("of-somebody-else", "api")

    functions.invoke(STEP, build_tick())

    event_message = certificates.get_events_by_reason(COMPONENTS["kubevirt"].bundle_configmap_name)[NOT_RENEWED_REASON][
        "message"
    ]
    assert "of-somebody-else" in event_message
    assert certificates.get_serial("api")


@proves("OSV-22")
def test_unwritable_webhook_configuration_delays_next_ca(
    client: SyncClient, certificates: NamespaceCertificates
) -> None:
    """Check that no new CA signs while a webhook configuration that trusts the current CA cannot be written.

    The current CA signs the renewed certificate, and the pass reports the error. The next CA signs once the webhook
    configuration can be written.
    """
    certificates.create_secret("api")
    certificates.create_webhook_configuration("not-ours-to-write", "api")
    certificates.run_pass_after(certificates.administrator_client)
    serial, old_bundle = certificates.get_serial("api"), certificates.get_trusted_bundle()

    errors = certificates.run_pass_after(client, timedelta(days=1))
    certificates.run_pass_after(client, PROPAGATION_DELAY)
    renewed_pem = objects.decode_entry(certificates.get_secret("api"), CERTIFICATE_ENTRY)
    serial_with_fault = certificates.get_serial("api")
    certificates.run_pass_after(certificates.administrator_client, timedelta(0))
    certificates.run_pass_after(certificates.administrator_client, PROPAGATION_DELAY)

    assert [error.status for error in errors] == [403]
    assert serial_with_fault != serial
    assert key_pairs.is_signed_by(renewed_pem, old_bundle)
    assert not key_pairs.is_signed_by(
        objects.decode_entry(certificates.get_secret("api"), CERTIFICATE_ENTRY), old_bundle
    )


def test_repeatedly_removed_ca_bundle_is_restored_only_at_ticks(
    fault_proxy: FaultProxy, proxied_functions: Functions, certificates: NamespaceCertificates
) -> None:
    """Check that a bundle that another client keeps removing is restored once, and then only at ticks.

    Each write causes an event, so repairs without a cooldown would run in a fast loop.
    """
    certificates.create_secret("contested")
    proxied_functions.invoke(STEP, build_tick())
    fault_proxy.inject(lambda _request: None)

    for _ in range(10):
        certificates.patch_secret("contested", {"data": {CA_ENTRY: ""}})
        proxied_functions.invoke(STEP, build_secret_reference_event(events.REFERENCE_UPDATED, "contested"))
    count_after_hints = fault_proxy.request_counts["patch secrets"]
    proxied_functions.invoke(STEP, build_tick())

    # On a busy machine, the loop may take longer than the cooldown of ten seconds.
    assert count_after_hints in (1, 2)
    assert objects.decode_entry(certificates.get_secret("contested"), CA_ENTRY) == certificates.get_trusted_bundle()


@proves("OSV-20")
def test_renew_annotation_causes_immediate_renewal(functions: Functions, certificates: NamespaceCertificates) -> None:
    certificates.create_secret("api")
    functions.invoke(STEP, build_tick())
    serial = certificates.get_serial("api")
    certificates.request_renewal("api")

    functions.invoke(STEP, build_secret_reference_event(events.REFERENCE_UPDATED, "api"))

    assert certificates.get_serial("api") != serial
    assert objects.RENEW_ANNOTATION not in certificates.get_secret("api")["metadata"]["annotations"]


def test_unreadable_namespace_does_not_block_other_namespaces(
    client: SyncClient, certificates: NamespaceCertificates
) -> None:
    certificates.create_secret("api")
    settings = Settings(namespaces=("kube-system", DEFAULT_NAMESPACE))

    errors = client.run(renew_all(client.api, settings, datetime.now(timezone.utc))).errors

    assert [error.status for error in errors] == [403]
    assert certificates.get_serial("api")


@proves("OSV-23")
def test_no_key_appears_in_logs_events_or_responses(
    functions: Functions, certificates: NamespaceCertificates, caplog: pytest.LogCaptureFixture
) -> None:
    """Check that no key appears in logs, Events or responses after a renewal, a repair and a rejected write."""
    caplog.set_level(logging.DEBUG)
    certificates.create_secret("api")
    certificates.create_secret("frozen", immutable=True)
    responses = [functions.post(STEP, build_tick()) for _ in range(2)]
    keys = [objects.decode_entry(certificates.get_secret(name), PRIVATE_KEY_ENTRY) for name in ("api", CA_SECRET_NAME)]
    certificates.patch_secret("api", {"data": {PRIVATE_KEY_ENTRY: base64.b64encode(keys[1].encode()).decode()}})
    responses.append(functions.post(STEP, build_secret_reference_event(events.REFERENCE_UPDATED, "api")))

    logged = "\n".join(record.getMessage() + json.dumps(record.__dict__, default=str) for record in caplog.records)
    recorded_events = json.dumps(
        certificates.administrator_client.list(f"/api/v1/namespaces/{DEFAULT_NAMESPACE}/events")["items"]
    )
    response_text = "".join(response.text for response in responses)
    assert "certificates: Issued" in logged
    assert NOT_RENEWED_REASON in recorded_events
    for text in (logged, recorded_events, response_text, json.dumps(certificates.get_bundle_configmap())):
        assert "PRIVATE KEY" not in text
        assert base64.b64encode(b"-----BEGIN PRIVATE KEY").decode()[:24] not in text
        assert not any(line in text for key in keys for line in key.splitlines()[1:-1])


@pytest.mark.parametrize("pause", ["soon", "-1", "1.5", "999999999999", "²"])
def test_invalid_certificate_pause_is_rejected(pause: str) -> None:
    with pytest.raises(ValueError, match="CERTIFICATE_PAUSE"):
        Settings.from_environment({"CERTIFICATE_PAUSE": pause})


def test_certificate_settings_are_read_from_environment() -> None:
    settings = Settings.from_environment({"CERTIFICATE_NAMESPACES": " kubevirt, cdi ,", "CERTIFICATE_PAUSE": "60"})

    assert settings == Settings(("kubevirt", "cdi"), timedelta(seconds=60))
    assert Settings.from_environment({}) == Settings((DEFAULT_NAMESPACE,), timedelta(minutes=10))
