"""Tests of migration claims: what the Lease stores and for how long, and how malformed content is ignored."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from kube.paths import Object
from kube.virtualization.migration_claims import (
    CLAIMED,
    LEASE,
    REFUSED,
    WRITE_SECONDS,
    Claim,
    Refusal,
    again_refused,
    claimed,
    claims_of,
    holding,
    lease_of,
    lease_patch,
    refused,
)
from tests.kube.virtualization.test_evacuation import vmi
from tests.proofs import proves

NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)
HONEST = {"attempt": "event-1", "node": "a", "until": "2026-01-01T00:00:10.000000Z"}


def written(told: Any) -> Object:
    return {"metadata": {"annotations": {CLAIMED: told if isinstance(told, str) else json.dumps(told)}}}


@proves("DRN-8")
def test_a_claim_names_attempt_node_and_end() -> None:
    """Read back the claims that were written, and fail the write if another client has changed the Lease."""
    claims = claims_of("event-1", {"evacuation-u-x-1": vmi("x")}, NOW)
    lease = lease_of(claims)

    assert claims == {"evacuation-u-x-1": Claim("event-1", "a", NOW + LEASE)}
    assert claimed(lease) == claims
    patch = lease_patch({"metadata": {"resourceVersion": "7"}}, {}, {})
    assert (patch["metadata"]["resourceVersion"], claimed(patch)) == ("7", {})


def test_a_refusal_rests_longer_each_time() -> None:
    """Double the backoff of a refusal up to a minute, and keep its last message; forget old and malformed refusals."""
    once = again_refused({}, {"m": "no"}, NOW)
    twice = again_refused(once, {"m": "no " * 1000}, NOW)
    often = again_refused({"m": Refusal(50, NOW, "")}, {"m": "no"}, NOW)
    lease = lease_patch({"metadata": {"resourceVersion": "7"}}, {}, {**twice, "o": Refusal(1, NOW, "o")})

    assert once == {"m": Refusal(1, NOW + timedelta(seconds=10), "no")}
    assert (twice["m"].times, twice["m"].until) == (2, NOW + timedelta(seconds=20))
    assert len(twice["m"].words) < 500
    assert often["m"].until == NOW + timedelta(minutes=1)
    assert refused(lease, NOW).keys() == {"m", "o"}
    assert refused(lease, NOW + timedelta(hours=1)) == {}
    for spoiled in ("[]", "no", '{"m": 7}', '{"m": {"until": "soon"}}', '{"m": {"until": "2026-11-23T12:00:00Z"}}'):
        assert refused({"metadata": {"annotations": {REFUSED: spoiled}}}, NOW) == {}


def test_a_claim_outlasts_all_that_its_attempt_may_still_cause() -> None:
    """Make a claim outlast its attempt's writes, their execution by the API server, and differences between clocks."""
    assert timedelta(seconds=4 * WRITE_SECONDS) <= LEASE


@pytest.mark.parametrize(
    "told",
    [
        "",
        "nonsense",
        "[1]",
        "7",
        {"x": 1},
        {"x": {}},
        {"x": {**HONEST, "until": "soon"}},
        {"x": {**HONEST, "until": 7}},
    ],
    ids=str,
)
def test_a_claim_that_somebody_spoiled_claims_nothing(told: Any) -> None:
    """Ignore malformed claims."""
    assert claimed(written(told)) == {}


def test_what_is_whole_beside_it_is_read() -> None:
    """Keep the valid claims next to a malformed one, so that their slots stay occupied."""
    assert list(claimed(written({"x": 1, "y": HONEST}))) == ["y"]


@pytest.mark.parametrize(
    ("until", "holds"),
    [(NOW, False), (NOW + timedelta(seconds=1), True), (NOW + 2 * LEASE, True), (NOW + 3 * LEASE, False)],
    ids=["over", "in time", "of a clock that is ahead", "longer than anybody claims"],
)
def test_how_long_a_claim_holds(until: datetime, *, holds: bool) -> None:
    """Limit the duration of a claim, so that none occupies a slot forever."""
    assert bool(holding({"x": Claim("event-1", "a", until)}, (), NOW)) is holds
    assert holding({"x": Claim("event-1", "a", until)}, ("x",), NOW) == {}


def test_without_a_lease_nothing_is_claimed() -> None:
    """Return no claims before the Lease exists."""
    assert claimed(None) == {}
