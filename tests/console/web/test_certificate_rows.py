"""Tests for the rows of the console's page about certificates."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

from console.operations.certificates import CertificateState
from console.web.certificate_views import build_rows, group_by_component
from kube.times import format_time

NOW = datetime(2026, 1, 11, tzinfo=timezone.utc)


def build_entry(component: str, secret: str, **days: int) -> dict[str, Any]:
    """Build a certificate entry; `days` are the distances of its dates from `NOW`."""
    dates = {name: format_time(NOW + timedelta(days=offset)) for name, offset in days.items()}
    return {"component": component, "secret": secret, "begins": "", "ends": "", "renewal": "", **dates}


def test_row_shows_elapsed_lifetime_in_percent() -> None:
    """Check the elapsed part of the lifetime and the position of the renewal, which both need valid dates."""
    rows = build_rows(
        [
            build_entry("ours", "current", begins=-10, renewal=10, ends=30),
            build_entry("ours", "expired", begins=-30, renewal=-20, ends=-10),
            build_entry("ours", "missing"),
            build_entry("ours", "reversed", begins=30, renewal=10, ends=20),
        ],
        NOW,
    )

    assert [(row.elapsed, row.renewal) for row in rows] == [(25.0, 50.0), (100.0, 50.0), (None, None), (None, None)]
    assert [row.state for row in rows[:3]] == [
        CertificateState.VALID,
        CertificateState.EXPIRED,
        CertificateState.NOT_ISSUED,
    ]


def test_ca_is_first_row_of_its_component() -> None:
    """Check that rows are grouped by component, and that the CA precedes the serving certificates."""
    names = (("cdi", "a"), ("cdi", "cdi-certificate-authority"), ("ours", "validate"))

    groups = group_by_component(build_rows([build_entry(*name) for name in names], NOW))

    assert [(component, [row.entry["secret"] for row in rows]) for component, rows in groups] == [
        ("cdi", ["cdi-certificate-authority", "a"]),
        ("ours", ["validate"]),
    ]
