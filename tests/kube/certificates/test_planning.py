"""Tests for planning certificate writes for each state of a component, and for clients' trust after each write."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from kube.certificates import component_state, key_pairs, objects
from kube.certificates.ca_injection import INJECT_ANNOTATION, has_ca_bundle_and_annotated_rules
from kube.certificates.components import COMPONENT_LABEL, COMPONENTS
from kube.certificates.objects import CA_ENTRY, CERTIFICATE_ENTRY, PRIVATE_KEY_ENTRY
from kube.certificates.planning import (
    BUNDLE_INJECTED,
    BUNDLE_PUBLISHED,
    CA_ACTIVATED,
    CA_CREATED,
    CERTIFICATE_ISSUED,
    STATUS_UPDATED,
    plan_next_write,
)
from tests.kube.certificates.scenario import NAMESPACE, PROPAGATION_DELAY, CertificateScenario
from tests.proofs import proves

ONE_SECOND = timedelta(seconds=1)


@pytest.fixture
def scenario() -> CertificateScenario:
    """Return a scenario with one component and two servers that have certificates, without planned writes."""
    new_scenario = CertificateScenario("kubevirt", "api", "handler")
    new_scenario.apply_all_writes()
    return new_scenario


def add_webhook_configuration(scenario: CertificateScenario) -> None:
    """Add a webhook configuration that requests the CA bundle by annotation."""
    metadata = {"annotations": {INJECT_ANNOTATION: f"{NAMESPACE}/api"}}
    scenario.put_object(
        "ValidatingWebhookConfiguration", "hook", {"metadata": metadata, "webhooks": [{"clientConfig": {}}]}
    )


@proves("OSV-20")
def test_first_writes_create_ca_and_issue_all_certificates() -> None:
    scenario = CertificateScenario("cdi", "api")

    reasons = [write.reason for write in scenario.apply_writes()]

    assert reasons == [CA_CREATED, BUNDLE_PUBLISHED, CA_ACTIVATED, CERTIFICATE_ISSUED, STATUS_UPDATED]
    assert scenario.is_trusted("api")
    assert key_pairs.get_subject_alt_names(scenario.get_certificate("api")) == ["api.svc"]
    assert objects.decode_entry(scenario.get_secret("api"), CA_ENTRY) == "".join(scenario.list_trusted_cas())


@proves("X-3")
def test_no_write_is_planned_before_renewal_is_due(scenario: CertificateScenario) -> None:
    scenario.now += timedelta(hours=12)

    assert scenario.apply_all_writes() == []


@proves("OSV-22")
def test_new_ca_is_published_before_any_server_uses_it(scenario: CertificateScenario) -> None:
    """Check the order of the writes, and that no server's certificate changes before the waiting period ends."""
    add_webhook_configuration(scenario)
    scenario.apply_all_writes()
    old_cas, serials = scenario.list_trusted_cas(), (scenario.get_serial("api"), scenario.get_serial("handler"))
    scenario.now += timedelta(days=1)

    first_writes = [(write.reason, write.target[0]) for write in scenario.apply_writes()]
    published_cas = scenario.list_trusted_cas()
    scenario.now += PROPAGATION_DELAY - ONE_SECOND
    writes_during_waiting_period = scenario.apply_all_writes()
    serials_during_waiting_period = (scenario.get_serial("api"), scenario.get_serial("handler"))
    scenario.now += ONE_SECOND
    later_reasons = [write.reason for write in scenario.apply_writes()]

    assert first_writes == [
        (CA_CREATED, "Secret"),
        *[(BUNDLE_INJECTED, "Secret")] * 2,
        (BUNDLE_INJECTED, "ValidatingWebhookConfiguration"),
        (BUNDLE_PUBLISHED, "ConfigMap"),
    ]
    assert published_cas[1:] == old_cas
    assert len(published_cas) == 2
    assert (writes_during_waiting_period, serials_during_waiting_period) == ([], serials)
    assert later_reasons == [CA_ACTIVATED, CERTIFICATE_ISSUED, CERTIFICATE_ISSUED, STATUS_UPDATED]
    assert scenario.list_trusted_cas() == published_cas
    assert all(scenario.is_trusted(name, published_cas) for name in ("api", "handler"))


@proves("OSV-22")
def test_two_rotations_within_one_waiting_period_keep_both_old_cas(scenario: CertificateScenario) -> None:
    """Check that clients with the previous CA bundle trust a server after its certificate change."""
    ca_secret_name = scenario.component.ca_secret_name
    first_bundle = scenario.list_trusted_cas()

    for _ in range(2):
        scenario.get_secret(ca_secret_name)["metadata"]["annotations"] = {objects.RENEW_ANNOTATION: "now"}
        scenario.apply_all_writes()
        scenario.now += PROPAGATION_DELAY / 2
    second_bundle = scenario.list_trusted_cas()
    scenario.now += PROPAGATION_DELAY / 2
    scenario.apply_all_writes()

    assert len(second_bundle) == 3
    assert set(first_bundle) < set(second_bundle)
    assert scenario.list_trusted_cas() == second_bundle
    assert scenario.is_trusted("api", second_bundle)
    assert objects.RENEW_ANNOTATION not in scenario.get_secret(ca_secret_name)["metadata"].get("annotations", {})


@proves("OSV-22")
def test_old_ca_is_trusted_until_it_expires(scenario: CertificateScenario) -> None:
    """Check that a server that loads its new certificate late stays trusted, with at most three CAs in the bundle."""
    (old_ca,) = scenario.list_trusted_cas()
    max_count = 0
    while scenario.now < key_pairs.get_not_after(old_ca):
        assert old_ca in scenario.list_trusted_cas()
        scenario.now += timedelta(hours=1)
        scenario.apply_all_writes()
        max_count = max(max_count, len(scenario.list_trusted_cas()))

    assert old_ca not in scenario.list_trusted_cas()
    assert max_count == 3


@proves("OSV-20", "OSV-22")
def test_current_ca_renews_certificates_while_next_ca_is_blocked(scenario: CertificateScenario) -> None:
    """Check that the current CA renews each serving certificate once, but not shortly before the CA expires.

    The next CA must wait because a webhook configuration with the CA bundle cannot be written. Once the current CA has
    expired, the next CA signs.
    """
    add_webhook_configuration(scenario)
    scenario.apply_all_writes()
    scenario.unwritable.add(("ValidatingWebhookConfiguration", "hook"))
    (ca,) = scenario.list_trusted_cas()
    issued_count = 0
    while scenario.now + timedelta(minutes=20) < key_pairs.get_not_after(ca):
        scenario.now += timedelta(minutes=20)
        assert all(key_pairs.is_valid(scenario.get_certificate(name), scenario.now) for name in ("api", "handler"))
        issued_count += sum(write.reason == CERTIFICATE_ISSUED for write in scenario.apply_writes())
        assert all(key_pairs.is_signed_by(scenario.get_certificate(name), ca) for name in ("api", "handler"))
    scenario.now = key_pairs.get_not_after(ca)
    scenario.apply_all_writes()

    assert issued_count == 2
    assert all(scenario.is_trusted(name) for name in ("api", "handler"))


@proves("OSV-22")
def test_passes_without_list_of_targets_do_not_restart_waiting_period(scenario: CertificateScenario) -> None:
    """Check that passes that cannot list the CA injection targets do not restart the waiting period or write during it.

    In this test, every tenth pass cannot list the targets. Such a pass does not activate the next CA after the waiting
    period. It renews due certificates with the current CA, because later passes may not list the targets either.
    """
    add_webhook_configuration(scenario)
    scenario.apply_all_writes()
    scenario.now += timedelta(days=1)
    reasons_before = scenario.apply_all_writes()
    (next_ca, current_ca) = scenario.list_trusted_cas()
    writes_by_pass = []
    for number in range(1, 41):
        scenario.now += PROPAGATION_DELAY / 40
        scenario.are_targets_unknown = number % 10 == 0
        writes_by_pass.append(scenario.apply_all_writes())
    certificate_with_unknown_targets = scenario.get_certificate("api")
    scenario.are_targets_unknown = False
    reasons_after = [write.reason for write in scenario.apply_writes()]

    assert reasons_before[-1].reason == BUNDLE_PUBLISHED
    assert not any(writes_by_pass[:-1])
    assert key_pairs.is_signed_by(certificate_with_unknown_targets, current_ca)
    assert reasons_after == [CA_ACTIVATED, CERTIFICATE_ISSUED, CERTIFICATE_ISSUED, STATUS_UPDATED]
    assert key_pairs.is_signed_by(scenario.get_certificate("api"), next_ca)


@proves("OSV-22")
@pytest.mark.parametrize("are_targets_known", [True, False])
def test_waiting_period_starts_in_pass_with_list_of_targets(
    scenario: CertificateScenario, are_targets_known: bool
) -> None:
    """Check that a published CA gets no publication time until a pass has listed the CA injection targets."""
    add_webhook_configuration(scenario)
    scenario.apply_all_writes()
    scenario.now += timedelta(days=1)
    scenario.are_targets_unknown = True
    scenario.apply_all_writes()
    scenario.now += PROPAGATION_DELAY
    scenario.are_targets_unknown = not are_targets_known
    assert CA_ACTIVATED not in [write.reason for write in scenario.apply_writes()]
    scenario.now += PROPAGATION_DELAY
    scenario.are_targets_unknown = False

    assert (CA_ACTIVATED in [write.reason for write in scenario.apply_writes()]) is are_targets_known


@proves("OSV-22")
def test_unwritable_server_secret_without_the_next_ca_ends_the_waiting_period(scenario: CertificateScenario) -> None:
    """Check that the next CA's publication time is removed if a server's Secret without that CA cannot be written.

    The pass could not list the CA injection targets, which alone would not end the waiting period.
    """
    scenario.now += timedelta(days=1)
    scenario.apply_all_writes()
    (newest_ca, *older_cas) = scenario.list_trusted_cas()
    scenario.get_secret("api")["data"] |= objects.encode_entries({CA_ENTRY: "".join(older_cas)})
    scenario.unwritable.add(("Secret", "api"))
    scenario.are_targets_unknown = True
    scenario.apply_all_writes()
    publication = scenario.objects["ConfigMap", scenario.component.bundle_configmap_name]

    assert key_pairs.compute_fingerprint(newest_ca) not in objects.parse_published_times(publication, scenario.now)


@proves("OSV-20")
@pytest.mark.parametrize(
    "corrupt_entries",
    [
        {},
        {CERTIFICATE_ENTRY: "garbage", PRIVATE_KEY_ENTRY: "garbage"},
        {CERTIFICATE_ENTRY: "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"},
    ],
)
def test_corrupt_certificate_is_reissued_immediately_by_the_same_ca(
    scenario: CertificateScenario, corrupt_entries: dict[str, str]
) -> None:
    trusted_cas, other_serial = scenario.list_trusted_cas(), scenario.get_serial("handler")
    scenario.get_secret("api")["data"] = objects.encode_entries(corrupt_entries)

    reasons = [write.reason for write in scenario.apply_writes()]

    assert reasons == [CERTIFICATE_ISSUED, STATUS_UPDATED]
    assert scenario.is_trusted("api", trusted_cas)
    assert scenario.get_serial("handler") == other_serial


@proves("OSV-20")
def test_private_key_of_another_certificate_is_replaced(scenario: CertificateScenario) -> None:
    scenario.get_secret("api")["data"][PRIVATE_KEY_ENTRY] = scenario.get_secret("handler")["data"][PRIVATE_KEY_ENTRY]

    scenario.apply_all_writes()

    assert component_state.get_current_key_pair(scenario.get_secret("api"))


@proves("OSV-20")
def test_deleted_secret_is_created_again(scenario: CertificateScenario) -> None:
    deleted_secret = scenario.objects.pop(("Secret", "api"))
    trusted_cas = scenario.list_trusted_cas()

    scenario.apply_all_writes()

    recreated_secret = scenario.get_secret("api")
    assert recreated_secret["type"] == deleted_secret["type"]
    assert recreated_secret["metadata"]["labels"] == deleted_secret["metadata"]["labels"]
    assert key_pairs.get_subject_alt_names(scenario.get_certificate("api")) == ["api.svc"]
    assert scenario.is_trusted("api", trusted_cas)


@proves("OSV-20", "OSV-22")
@pytest.mark.parametrize("loss", ["gone", "corrupt"])
def test_lost_ca_is_replaced_without_breaking_clients(scenario: CertificateScenario, loss: str) -> None:
    old_cas, serial = scenario.list_trusted_cas(), scenario.get_serial("api")
    if loss == "gone":
        del scenario.objects["Secret", scenario.component.ca_secret_name]
    else:
        scenario.get_secret(scenario.component.ca_secret_name)["data"] = objects.encode_entries(
            {CERTIFICATE_ENTRY: "garbage"}
        )

    scenario.apply_all_writes()
    published_cas = scenario.list_trusted_cas()
    serial_during_waiting_period = scenario.get_serial("api")
    scenario.now += PROPAGATION_DELAY
    scenario.apply_all_writes()

    assert serial_during_waiting_period == serial
    assert published_cas[1:] == old_cas
    assert scenario.is_trusted("api", published_cas)
    assert scenario.get_serial("api") != serial


@proves("OSV-20")
def test_server_certificate_is_reissued_immediately_if_ca_and_secret_are_lost(scenario: CertificateScenario) -> None:
    del scenario.objects["Secret", scenario.component.ca_secret_name]
    del scenario.objects["Secret", "api"]

    scenario.apply_all_writes()

    assert scenario.is_trusted("api")
    assert scenario.is_trusted("handler")


@proves("OSV-22")
def test_certificate_of_another_issuer_is_trusted_until_replaced() -> None:
    """Check that another issuer's CA is published, and its certificate is replaced after the waiting period."""
    other_scenario = CertificateScenario("cdi", "api")
    other_scenario.apply_all_writes()
    own_scenario = CertificateScenario("cdi")
    own_scenario.add_server(
        "api",
        data={
            entry: objects.decode_entry(other_scenario.get_secret("api"), entry)
            for entry in (CERTIFICATE_ENTRY, PRIVATE_KEY_ENTRY, CA_ENTRY)
        },
    )
    foreign_certificate = own_scenario.get_certificate("api")

    own_scenario.apply_all_writes()
    certificate_during_waiting_period, published_cas = (
        own_scenario.get_certificate("api"),
        own_scenario.list_trusted_cas(),
    )
    own_scenario.now += PROPAGATION_DELAY
    own_scenario.apply_all_writes()

    assert certificate_during_waiting_period == foreign_certificate
    assert set(other_scenario.list_trusted_cas()) < set(published_cas)
    assert own_scenario.get_certificate("api") != foreign_certificate
    assert own_scenario.is_trusted("api", published_cas)


@proves("OSV-20", "OSV-22")
def test_lost_configmap_is_published_again_with_the_same_bundle(scenario: CertificateScenario) -> None:
    scenario.now += timedelta(days=1)
    scenario.apply_all_writes()
    old_cas = scenario.list_trusted_cas()
    del scenario.objects["ConfigMap", scenario.component.bundle_configmap_name]

    scenario.apply_all_writes()

    assert len(old_cas) == 2
    assert scenario.list_trusted_cas() == old_cas


def test_cas_that_other_client_added_to_configmap_are_not_trusted(scenario: CertificateScenario) -> None:
    """Check that CAs that another client added to the ConfigMap are ignored unless the CA's Secret is lost."""
    other_scenario = CertificateScenario("macpool", "api")
    other_scenario.apply_all_writes()
    old_cas = scenario.list_trusted_cas()
    publication = scenario.objects["ConfigMap", scenario.component.bundle_configmap_name]
    publication["data"][objects.BUNDLE_ENTRY] += "".join(other_scenario.list_trusted_cas())

    scenario.apply_all_writes()

    assert scenario.list_trusted_cas() == old_cas


@proves("OSV-20")
def test_renew_annotation_causes_one_new_certificate(scenario: CertificateScenario) -> None:
    api_serial, handler_serial = scenario.get_serial("api"), scenario.get_serial("handler")
    scenario.get_secret("api")["metadata"]["annotations"][objects.RENEW_ANNOTATION] = "now"

    scenario.apply_all_writes()
    later_writes = scenario.apply_all_writes()

    assert scenario.get_serial("api") != api_serial
    assert scenario.get_serial("handler") == handler_serial
    assert later_writes == []
    assert scenario.get_secret("api")["metadata"]["annotations"] == {objects.DNS_NAMES_ANNOTATION: "api.svc"}


def test_changed_dns_names_cause_new_certificate(scenario: CertificateScenario) -> None:
    scenario.get_secret("api")["metadata"]["annotations"][objects.DNS_NAMES_ANNOTATION] = "api.svc, 127.0.0.1"

    scenario.apply_all_writes()

    assert key_pairs.get_subject_alt_names(scenario.get_certificate("api")) == ["api.svc", "127.0.0.1"]


def test_secret_without_dns_names_does_not_stop_other_servers() -> None:
    scenario = CertificateScenario("cdi", "api")
    scenario.put_object("Secret", "without-names", {"metadata": {"labels": {COMPONENT_LABEL: "cdi"}}, "type": "Opaque"})

    scenario.apply_all_writes()

    assert scenario.is_trusted("api")
    assert component_state.get_current_key_pair(scenario.get_secret("without-names")) is None


@proves("OSV-20", "OSV-22")
@pytest.mark.parametrize("component", COMPONENTS)
def test_clients_trust_all_servers_between_any_two_writes(component: str) -> None:
    """Check that a client trusts every server with a Secret if its bundle is not older than the waiting period.

    The test covers four renewal periods, and deletes a server's Secret, the CA's Secret and the ConfigMap in turn.
    """
    scenario = CertificateScenario(component, "api", "handler")
    add_webhook_configuration(scenario)
    scenario.apply_all_writes()
    bundles_by_time = [(scenario.now, scenario.list_trusted_cas())]
    deletable_objects = [
        ("Secret", "api"),
        ("Secret", scenario.component.ca_secret_name),
        ("ConfigMap", scenario.component.bundle_configmap_name),
    ]
    step_count = 0
    while scenario.now < bundles_by_time[0][0] + 4 * scenario.component.renewal_period:
        scenario.now += (
            PROPAGATION_DELAY
            if plan_next_write(scenario.build_state(), scenario.now + PROPAGATION_DELAY, PROPAGATION_DELAY)
            else scenario.component.renewal_period / 8
        )
        if step_count % 5 == 4:
            scenario.objects.pop(deletable_objects[step_count // 5 % 3])
        step_count += 1
        for _ in scenario.apply_writes():
            present_names = [name for name in ("api", "handler") if ("Secret", name) in scenario.objects]
            if scenario.list_trusted_cas():
                assert all(scenario.is_trusted(name) for name in present_names)
            oldest_bundle_in_use = [
                bundle for time, bundle in bundles_by_time if time <= scenario.now - PROPAGATION_DELAY
            ][-1]
            assert all(scenario.is_trusted(name, oldest_bundle_in_use) for name in present_names)
        bundles_by_time.append((scenario.now, scenario.list_trusted_cas()))
        assert has_ca_bundle_and_annotated_rules(
            scenario.objects["ValidatingWebhookConfiguration", "hook"], "".join(scenario.list_trusted_cas())
        )

    assert step_count > 30


def test_certificate_status_contains_names_and_dates_but_no_private_key(scenario: CertificateScenario) -> None:
    publication = scenario.objects["ConfigMap", scenario.component.bundle_configmap_name]
    status = json.loads(publication["data"][objects.STATUS_ENTRY])

    assert status.keys() == {"api", "handler", scenario.component.ca_secret_name}
    assert status["api"]["serial"] == scenario.get_serial("api")
    assert status["api"]["ends"] > status["api"]["renewal"] > status["api"]["begins"]
    assert "PRIVATE" not in json.dumps(publication)


def test_repr_of_component_state_contains_no_private_key(scenario: CertificateScenario) -> None:
    scenario.now += timedelta(days=1)
    write = plan_next_write(scenario.build_state(), scenario.now, PROPAGATION_DELAY)
    pair = component_state.get_current_key_pair(scenario.get_secret("api"))

    assert write is not None
    assert pair is not None
    for text in (repr(write), str(write), repr(pair), str([pair])):
        assert "data" not in text
        assert "PRIVATE" not in text


def test_ca_that_administrator_removed_from_secret_is_not_trusted(scenario: CertificateScenario) -> None:
    """Check that a CA that an administrator removed from the CA's Secret, for example after a theft, is not trusted.

    At that time, another CA has issued the certificates of all servers.
    """
    ca_secret_name, (removed_ca,) = scenario.component.ca_secret_name, scenario.list_trusted_cas()
    scenario.get_secret(ca_secret_name)["metadata"]["annotations"] = {objects.RENEW_ANNOTATION: "now"}
    scenario.apply_all_writes()
    scenario.now += PROPAGATION_DELAY
    scenario.apply_all_writes()
    scenario.get_secret(ca_secret_name)["data"][CA_ENTRY] = scenario.get_secret(ca_secret_name)["data"][
        CERTIFICATE_ENTRY
    ]

    scenario.apply_all_writes()

    assert removed_ca not in scenario.list_trusted_cas()
    assert scenario.is_trusted("api")
    assert scenario.is_trusted("handler")
