"""The Lease that contains migration claims: which attempt may create a migration, and until when.

The Lease also lists, until their next retry, migrations whose creation was refused or twice got no response.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from datetime import datetime, timedelta
from typing import NamedTuple

from kube.paths import LEASE_NAMESPACE, LEASES_PATH, Object
from kube.text_limits import truncate
from kube.times import format_micro_time, parse_time_or_none
from kube.virtualization.vmis import Resource, get_node_name

LEASE_NAME = "virtual-machine-migrations"
LEASE_PATH = f"{LEASES_PATH}/{LEASE_NAME}"
CLAIMS_ANNOTATION = "nodemaintenance.dev/migrations"
"""Annotation on the Lease: a JSON object with the attempt, the node and the end of each claim, by migration name."""
REFUSALS_ANNOTATION = "nodemaintenance.dev/refused-migrations"
"""Annotation on the Lease: a JSON object with the number of refusals, the retry time and the last error message.

The keys of the object are the names of the refused migrations.
"""
MIN_BACKOFF, MAX_BACKOFF = timedelta(seconds=10), timedelta(minutes=1)
"""Minimum and maximum backoff after a refusal; each backoff is twice the previous one."""
WRITE_TIMEOUT_SECONDS = 2.0
"""Timeout of all writes of an attempt, in seconds.

If a write is still in flight then, the API server completes it within another `WRITE_TIMEOUT_SECONDS`, or never.
"""
MAX_MESSAGE_CHARACTERS = 400
"""Maximum length, in characters, of an error message in the Lease."""
NO_ATTEMPT = "nobody"
"""Value of `attempt` in an abandoned claim; no event has this id.

The claim occupies a slot until it expires, but no attempt uses it.
"""
CLAIM_DURATION = timedelta(seconds=10)
"""Time for which a claim is valid: twice `WRITE_TIMEOUT_SECONDS`, plus a margin for clock skew."""


class MigrationClaim(NamedTuple):
    """The exclusive right to create the migration with a given name.

    Attributes:
        attempt: Id of the event whose processing claimed the migration. If the event is delivered again, its attempt
            continues with the claim.
        node: Name of the node that the VMI leaves.
        until: Time until which no other attempt may create the migration.
    """

    attempt: str
    node: str
    until: datetime


ClaimsByName = dict[str, MigrationClaim]


class MigrationRefusal(NamedTuple):
    """The refusals to create one migration: how many there were, when to retry, and the last error message."""

    times: int
    until: datetime
    words: str


RefusalsByName = dict[str, MigrationRefusal]


def parse_claims(lease: Resource | None) -> ClaimsByName:
    """Return the claims in the Lease by migration name; malformed claims are ignored."""
    return {
        name: MigrationClaim(str(value.get("attempt")), str(value.get("node")), until)
        for name, value, until in _parse_annotation(lease, CLAIMS_ANNOTATION)
    }


def parse_refusals(lease: Resource | None, now: datetime) -> RefusalsByName:
    """Return the recent refusals in the Lease by migration name; malformed refusals are ignored."""
    return {
        name: MigrationRefusal(value["times"], until, str(value.get("words")))
        for name, value, until in _parse_annotation(lease, REFUSALS_ANNOTATION)
        if abs(until - now) <= 2 * MAX_BACKOFF and isinstance(value.get("times"), int) and value["times"] > 0
    }


def _parse_annotation(lease: Resource | None, annotation: str) -> Iterator[tuple[str, Object, datetime]]:
    """Yield each entry's name, its fields and its parsed `until`; entries without a valid `until` are skipped."""
    annotations = ((lease or {}).get("metadata") or {}).get("annotations") or {}
    try:
        found = json.loads(annotations.get(annotation) or "{}")
    except ValueError:
        return
    for name, value in found.items() if isinstance(found, dict) else ():
        if isinstance(value, dict) and (until := parse_time_or_none(value.get("until"))):
            yield name, value, until


def add_refusals(
    refusals: Mapping[str, MigrationRefusal], messages: Mapping[str, str], now: datetime
) -> RefusalsByName:
    """Return `refusals` with one more refusal per migration in `messages`; each further one doubles the backoff."""
    added: RefusalsByName = {}
    for name, message in messages.items():
        count = refusals[name].times + 1 if name in refusals else 1
        backoff = min(MIN_BACKOFF * 2 ** min(count - 1, 10), MAX_BACKOFF)
        added[name] = MigrationRefusal(count, now + backoff, truncate(message, MAX_MESSAGE_CHARACTERS))
    return {**refusals, **added}


def select_held_claims(
    claims: Mapping[str, MigrationClaim], created_names: Collection[str], now: datetime
) -> ClaimsByName:
    """Return the claims that have not expired and whose migration does not exist yet.

    A claim whose end is far in the future is corrupted and ignored, so that it does not occupy a slot forever.
    """
    return {
        name: claim
        for name, claim in claims.items()
        if name not in created_names and now < claim.until <= now + 2 * CLAIM_DURATION
    }


def build_claims(attempt_id: str, due_migrations: Mapping[str, Resource], now: datetime) -> ClaimsByName:
    """Return an attempt's claims for `due_migrations`, which contains the VMIs to migrate by migration name."""
    return {
        name: MigrationClaim(attempt_id, get_node_name(vmi), now + CLAIM_DURATION)
        for name, vmi in due_migrations.items()
    }


def build_lease(claims: Mapping[str, MigrationClaim]) -> Object:
    """Build the Lease that contains these claims."""
    metadata = {"name": LEASE_NAME, "namespace": LEASE_NAMESPACE, "annotations": _build_annotations(claims, {})}
    return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": {}}


def build_lease_patch(
    lease: Resource, claims: Mapping[str, MigrationClaim], refusals: Mapping[str, MigrationRefusal]
) -> Object:
    """Build the merge patch with claims and refusals; it fails if another client has changed the Lease."""
    version = lease["metadata"]["resourceVersion"]
    return {"metadata": {"resourceVersion": version, "annotations": _build_annotations(claims, refusals)}}


def _build_annotations(
    claims: Mapping[str, MigrationClaim], refusals: Mapping[str, MigrationRefusal]
) -> dict[str, str]:
    return {
        CLAIMS_ANNOTATION: _format_claims_or_refusals(claims),
        REFUSALS_ANNOTATION: _format_claims_or_refusals(refusals),
    }


def _format_claims_or_refusals(items: Mapping[str, MigrationClaim | MigrationRefusal]) -> str:
    named = sorted(items.items())
    return json.dumps({name: {**item._asdict(), "until": format_micro_time(item.until)} for name, item in named})
