"""Tests for the claims for migration slots, which a Lease stores until they expire."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from kube.paths import Object
from kube.virtualization.migration_claims import (
    CLAIM_DURATION,
    CLAIMS_ANNOTATION,
    REFUSALS_ANNOTATION,
    WRITE_TIMEOUT_SECONDS,
    MigrationClaim,
    MigrationRefusal,
    add_refusals,
    build_claims,
    build_lease,
    build_lease_patch,
    parse_claims,
    parse_refusals,
    select_held_claims,
)
from tests.kube.virtualization.test_evacuation import make_vmi
from tests.proofs import proves

NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)
VALID_CLAIM = {"attempt": "event-1", "node": "a", "until": "2026-01-01T00:00:10.000000Z"}


def make_lease_with_claims(claims_data: Any) -> Object:
    return {
        "metadata": {
            "annotations": {CLAIMS_ANNOTATION: claims_data if isinstance(claims_data, str) else json.dumps(claims_data)}
        }
    }


@proves("DRN-8")
def test_migration_claims_are_written_and_read_back() -> None:
    """Check that written claims are read back from the Lease, and that the write requires an unchanged Lease."""
    claims = build_claims("event-1", {"evacuation-u-x-1": make_vmi("x")}, NOW)
    lease = build_lease(claims)

    assert claims == {"evacuation-u-x-1": MigrationClaim("event-1", "a", NOW + CLAIM_DURATION)}
    assert parse_claims(lease) == claims
    patch = build_lease_patch({"metadata": {"resourceVersion": "7"}}, {}, {})
    assert (patch["metadata"]["resourceVersion"], parse_claims(patch)) == ("7", {})


def test_backoff_of_rejected_migration_grows() -> None:
    """Check that a rejected migration's backoff doubles up to a minute; old and malformed rejections are dropped."""
    after_one = add_refusals({}, {"m": "no"}, NOW)
    after_two = add_refusals(after_one, {"m": "no " * 1000}, NOW)
    after_many = add_refusals({"m": MigrationRefusal(50, NOW, "")}, {"m": "no"}, NOW)
    lease = build_lease_patch(
        {"metadata": {"resourceVersion": "7"}}, {}, {**after_two, "o": MigrationRefusal(1, NOW, "o")}
    )

    assert after_one == {"m": MigrationRefusal(1, NOW + timedelta(seconds=10), "no")}
    assert (after_two["m"].times, after_two["m"].until) == (2, NOW + timedelta(seconds=20))
    assert len(after_two["m"].words) < 500
    assert after_many["m"].until == NOW + timedelta(minutes=1)
    assert parse_refusals(lease, NOW).keys() == {"m", "o"}
    assert parse_refusals(lease, NOW + timedelta(hours=1)) == {}
    for invalid_text in (
        "[]",
        "no",
        '{"m": 7}',
        '{"m": {"until": "soon"}}',
        '{"m": {"until": "2026-11-23T12:00:00Z"}}',
    ):
        assert parse_refusals({"metadata": {"annotations": {REFUSALS_ANNOTATION: invalid_text}}}, NOW) == {}


def test_migration_claim_outlasts_writes_of_its_attempt() -> None:
    """Check that a claim expires only after its attempt's writes have ended on the API server, despite clock skew."""
    assert timedelta(seconds=4 * WRITE_TIMEOUT_SECONDS) <= CLAIM_DURATION


@pytest.mark.parametrize(
    "claims_data",
    [
        "",
        "nonsense",
        "[1]",
        "7",
        {"x": 1},
        {"x": {}},
        {"x": {**VALID_CLAIM, "until": "soon"}},
        {"x": {**VALID_CLAIM, "until": 7}},
    ],
    ids=str,
)
def test_malformed_migration_claims_are_ignored(claims_data: Any) -> None:
    """Check that malformed migration claims in the Lease are ignored."""
    assert parse_claims(make_lease_with_claims(claims_data)) == {}


def test_valid_migration_claims_are_kept_next_to_malformed_claim() -> None:
    """Check that valid claims next to a malformed claim are kept, so that their migration slots stay occupied."""
    assert list(parse_claims(make_lease_with_claims({"x": 1, "y": VALID_CLAIM}))) == ["y"]


@pytest.mark.parametrize(
    ("expires_at", "is_held"),
    [
        (NOW, False),
        (NOW + timedelta(seconds=1), True),
        (NOW + 2 * CLAIM_DURATION, True),
        (NOW + 3 * CLAIM_DURATION, False),
    ],
    ids=["expired", "valid", "from a fast clock", "implausibly long"],
)
def test_migration_claim_is_held_until_it_expires(expires_at: datetime, *, is_held: bool) -> None:
    """Check that a claim expires after a limited time, so that no claim occupies a migration slot forever."""
    assert bool(select_held_claims({"x": MigrationClaim("event-1", "a", expires_at)}, (), NOW)) is is_held
    assert select_held_claims({"x": MigrationClaim("event-1", "a", expires_at)}, ("x",), NOW) == {}


def test_missing_lease_has_no_migration_claims() -> None:
    """Check that there are no migration claims before the Lease exists."""
    assert parse_claims(None) == {}
