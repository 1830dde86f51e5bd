"""Tests for each component's renewal schedule and for the validity period of certificates."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from kube.certificates import key_pairs
from kube.certificates.components import COMPONENTS
from kube.certificates.planning import round_up_to_second
from tests.kube.certificates.scenario import CertificateScenario
from tests.proofs import proves

ONE_HOUR, ONE_DAY = timedelta(hours=1), timedelta(days=1)


@proves("OSV-20", "OSV-21")
@pytest.mark.parametrize(
    ("component", "age", "is_renewed"),
    [
        ("kubevirt", 23 * ONE_HOUR, False),
        ("kubevirt", 25 * ONE_HOUR, True),
        ("cdi", 14 * ONE_DAY, False),
        ("cdi", 16 * ONE_DAY, True),
        ("macpool", 364 * ONE_DAY, False),
        ("macpool", 366 * ONE_DAY, True),
        ("ours", 14 * ONE_DAY, False),
        ("ours", 16 * ONE_DAY, True),
    ],
)
def test_ca_and_serving_certificate_are_renewed_after_period_of_component(
    component: str, age: timedelta, is_renewed: bool
) -> None:
    """OSV-21: CA and serving certificate are renewed after the component's period (1, 15 or 365 days)."""
    scenario = CertificateScenario(component, "api")
    scenario.apply_all_writes()
    old_serials = scenario.get_serial("api"), scenario.get_serial(scenario.component.ca_secret_name)

    scenario.now += age
    scenario.apply_all_writes()
    scenario.now += timedelta(minutes=11)
    scenario.apply_all_writes()

    new_serials = scenario.get_serial("api"), scenario.get_serial(scenario.component.ca_secret_name)
    assert [old != new for old, new in zip(old_serials, new_serials, strict=True)] == [is_renewed, is_renewed]


@proves("OSV-21")
@pytest.mark.parametrize("component", COMPONENTS)
def test_certificates_are_valid_immediately_and_expire_before_their_ca(component: str) -> None:
    scenario = CertificateScenario(component, "api")
    scenario.apply_all_writes()

    for _ in range(30):
        scenario.now += scenario.component.renewal_period / 4
        for _write in scenario.apply_writes():
            for name in ("api", scenario.component.ca_secret_name):
                certificates = key_pairs.parse_certificates(scenario.get_certificate(name))
                assert all(key_pairs.is_valid(certificate, scenario.now) for certificate in certificates)
        server, signer = scenario.get_certificate("api"), scenario.get_certificate(scenario.component.ca_secret_name)
        assert key_pairs.get_not_after(server) <= max(key_pairs.get_not_after(ca) for ca in scenario.list_trusted_cas())
        assert key_pairs.is_signed_by(server, signer) or scenario.is_trusted("api")


@proves("OSV-21")
def test_certificates_issued_by_fast_clock_are_replaced() -> None:
    """Check that certificates issued by a clock one day ahead are replaced, since clients do not accept them yet."""
    scenario = CertificateScenario("kubevirt", "api")
    scenario.now += ONE_DAY
    scenario.apply_all_writes()
    scenario.now -= ONE_DAY

    scenario.apply_all_writes()

    assert key_pairs.is_valid(scenario.get_certificate("api"), scenario.now)
    assert scenario.is_trusted("api")


@pytest.mark.parametrize(("micros", "second"), [(0, 7), (1, 8), (999_999, 8)])
def test_time_is_rounded_up_to_whole_second(micros: int, second: int) -> None:
    time = datetime(2026, 1, 1, 0, 0, 7, micros, tzinfo=timezone.utc)

    assert round_up_to_second(time) == time.replace(second=second, microsecond=0)
