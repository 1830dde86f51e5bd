"""The Lease in which migrations are claimed before they are created: by which attempt, and until when.

It also lists the migrations that were refused, or twice got no answer, until they may be retried.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from kube.paths import LEASE_NAMESPACE, LEASES, Object
from kube.times import microtime, moment_or_none
from kube.virtualization.vmis import Item, node_of
from kube.text_limits import shortened

CLAIM = "virtual-machine-migrations"
CLAIM_PATH = f"{LEASES}/{CLAIM}"
CLAIMED = "nodemaintenance.dev/migrations"
"""Annotation of the Lease: name of a migration → attempt, node and end of its claim, as a JSON object."""
REFUSED = "nodemaintenance.dev/refused-migrations"
"""Annotation of the Lease, a JSON object: name of a migration → number of refusals, retry time and last error."""
SHORTEST, LONGEST = timedelta(seconds=10), timedelta(minutes=1)
"""Bounds of the backoff after a refusal; each backoff is twice the previous one."""
WRITE_SECONDS = 2.0
"""Time limit for all writes of an attempt, in seconds.

The API server carries them out within the same time again, or never.
"""
LONGEST_WORDS = 400
"""Maximum length of a stored error message, in characters."""
NOBODY = "nobody"
"""Attempt of an abandoned claim: no event has this id."""
LEASE = timedelta(seconds=10)
"""Duration of a claim: twice `WRITE_SECONDS`, and the rest for differences between clocks."""


class Claim(NamedTuple):
    """The exclusive right to create the migration of one name.

    Attributes:
        attempt: Id of the event that claimed it. The same event, delivered again, continues with the claim.
        node: Node that the VMI leaves.
        until: Time until which no other attempt may create the migration.
    """

    attempt: str
    node: str
    until: datetime


Claims = dict[str, Claim]


class Refusal(NamedTuple):
    """The refusals of a migration: their number, the time before which it is not retried, and the last message."""

    times: int
    until: datetime
    words: str


Refusals = dict[str, Refusal]


def claimed(lease: Item | None) -> Claims:
    """Return the claims in the Lease; malformed ones are ignored."""
    read = {name: _claim(value) for name, value in _told(lease, CLAIMED).items()}
    return {name: claim for name, claim in read.items() if claim}


def refused(lease: Item | None, now: datetime) -> Refusals:
    """Return the recent refusals in the Lease; malformed ones are ignored."""
    read = {name: _refusal(value) for name, value in _told(lease, REFUSED).items()}
    return {name: one for name, one in read.items() if one and abs(one.until - now) <= 2 * LONGEST}


def _told(lease: Item | None, annotation: str) -> dict[str, Any]:
    noted = ((lease or {}).get("metadata") or {}).get("annotations") or {}
    try:
        found = json.loads(noted.get(annotation) or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _refusal(told: Any) -> Refusal | None:
    until = moment_or_none(told.get("until")) if isinstance(told, dict) else None
    times = told.get("times") if until else None
    return Refusal(times, until, str(told.get("words"))) if until and isinstance(times, int) and times > 0 else None


def again_refused(known: Mapping[str, Refusal], words: Mapping[str, str], now: datetime) -> Refusals:
    """Add new refusals, with the error message of each, to the known ones; each backoff is twice the previous one."""
    times = {name: known[name].times + 1 if name in known else 1 for name in words}
    pauses = {name: min(SHORTEST * 2 ** min(count - 1, 10), LONGEST) for name, count in times.items()}
    fresh = {name: Refusal(times[name], now + pauses[name], shortened(words[name], LONGEST_WORDS)) for name in words}
    return {**known, **fresh}


def _claim(told: Any) -> Claim | None:
    until = moment_or_none(told.get("until")) if isinstance(told, dict) else None
    return Claim(str(told.get("attempt")), str(told.get("node")), until) if until else None


def holding(claims: Mapping[str, Claim], created: Collection[str], now: datetime) -> Claims:
    """Return the claims under which a migration may still be created: it does not exist, and the claim has not expired.

    A claim that lasts far too long is corrupted and must not occupy its slot forever.
    """
    return {name: one for name, one in claims.items() if name not in created and now < one.until <= now + 2 * LEASE}


def claims_of(attempt: str, due: Mapping[str, Item], now: datetime) -> Claims:
    """Return this attempt's claims on the migrations `due`."""
    return {name: Claim(attempt, node_of(vmi), now + LEASE) for name, vmi in due.items()}


def abandoned(claims: Mapping[str, Claim]) -> Claims:
    """Return these claims without an attempt: they occupy slots until they expire, but no attempt continues them."""
    return {name: claim._replace(attempt=NOBODY) for name, claim in claims.items()}


def lease_of(claims: Mapping[str, Claim]) -> Object:
    """Build the Lease with these claims."""
    metadata = {"name": CLAIM, "namespace": LEASE_NAMESPACE, "annotations": _annotations(claims, {})}
    return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": {}}


def lease_patch(lease: Item, claims: Mapping[str, Claim], refusals: Mapping[str, Refusal]) -> Object:
    """Build the merge patch with claims and refusals; it fails if another client has changed the Lease."""
    version = lease["metadata"]["resourceVersion"]
    return {"metadata": {"resourceVersion": version, "annotations": _annotations(claims, refusals)}}


def _annotations(claims: Mapping[str, Claim], refusals: Mapping[str, Refusal]) -> dict[str, str]:
    noted: dict[str, Mapping[str, Claim | Refusal]] = {CLAIMED: claims, REFUSED: refusals}
    return {
        annotation: json.dumps(
            {name: {**one._asdict(), "until": microtime(one.until)} for name, one in sorted(told.items())}
        )
        for annotation, told in noted.items()
    }
