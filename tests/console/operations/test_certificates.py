"""Tests for the state of a certificate, which its dates determine."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from console.operations.certificates import CertificateState, compute_state, is_authority
from kube.certificates.components import COMPONENTS
from kube.times import format_time

NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)
MINUTE, DAY = timedelta(minutes=1), timedelta(days=1)


def build_entry(renewal: timedelta, ends: timedelta) -> dict[str, str]:
    return {"renewal": format_time(NOW + renewal), "ends": format_time(NOW + ends)}


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
def test_dates_determine_the_state_of_a_certificate(entry: dict[str, str], state: CertificateState) -> None:
    """Check the state of a certificate before and after its renewal is due, and after it has expired."""
    assert compute_state(entry, NOW) is state


def test_name_of_the_secret_identifies_the_ca() -> None:
    """Check that only the CA's own Secret counts as the CA of the component."""
    assert is_authority({"component": "cdi", "secret": COMPONENTS["cdi"].ca_secret_name})
    assert not is_authority({"component": "ours", "secret": COMPONENTS["cdi"].ca_secret_name})
