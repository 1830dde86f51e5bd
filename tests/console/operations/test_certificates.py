"""Tests for the state of a certificate, derived from its renewal and expiry dates."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from console.operations.certificates import CertificateState, compute_certificate_state, is_ca_certificate
from kube.certificates.components import COMPONENTS
from kube.times import format_time

NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)
MINUTE, DAY = timedelta(minutes=1), timedelta(days=1)


def build_entry(renewal_in: timedelta, expires_in: timedelta) -> dict[str, str]:
    return {"renewal": format_time(NOW + renewal_in), "ends": format_time(NOW + expires_in)}


@pytest.mark.parametrize(
    ("entry", "state"),
    [
        (build_entry(MINUTE, DAY), CertificateState.VALID),
        (build_entry(-MINUTE, DAY), CertificateState.RENEWAL_DUE),
        (build_entry(-DAY, DAY), CertificateState.OVERDUE),
        (build_entry(-DAY, -MINUTE), CertificateState.EXPIRED),
        (build_entry(MINUTE, timedelta()), CertificateState.EXPIRED),
        ({"renewal": "", "ends": ""}, CertificateState.NOT_ISSUED),
        ({"renewal": "soon", "ends": "later"}, CertificateState.NOT_ISSUED),
        ({"renewal": "", "ends": format_time(NOW + DAY)}, CertificateState.VALID),
    ],
)
def test_dates_determine_state_of_certificate(entry: dict[str, str], state: CertificateState) -> None:
    """Check a certificate's state before its renewal is due, after its renewal is due, and after it has expired."""
    assert compute_certificate_state(entry, NOW) is state


def test_secret_name_identifies_ca() -> None:
    """Check that a certificate counts as the component's CA only if its Secret has the CA's name."""
    assert is_ca_certificate({"component": "cdi", "secret": COMPONENTS["cdi"].ca_secret_name})
    assert not is_ca_certificate({"component": "ours", "secret": COMPONENTS["cdi"].ca_secret_name})
