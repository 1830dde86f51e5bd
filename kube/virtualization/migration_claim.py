"""The Lease in which migrations are claimed before they are created: by which attempt, and until when. Pure.

What was refused, or twice had no answer, stands there too, for as long as it is not tried again.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from kube.paths import LEASE_NAMESPACE, LEASES, Object
from kube.times import microtime, moment_or_none
from kube.virtualization.machines import Item, node_of
from kube.words import shortened

CLAIM = "virtual-machine-migrations"
CLAIM_PATH = f"{LEASES}/{CLAIM}"
CLAIMED = "nodemaintenance.dev/migrations"
"""Annotation of that Lease: name of a migration → attempt, node and end of its claim, as a JSON object."""
REFUSED = "nodemaintenance.dev/refused-migrations"
"""Annotation of that Lease: name of a migration → how often it was refused, until when it rests, and the last words."""
SHORTEST, LONGEST = timedelta(seconds=10), timedelta(minutes=1)
"""Pause after a refusal; each is twice the one before."""
WRITE_SECONDS = 2.0
"""In so much time an attempt sends all that it writes, and in as much again the API server does it or never will."""
LONGEST_WORDS = 400
"""Characters of a refusal that are kept."""
NOBODY = "nobody"
"""In the place of an attempt: no event has this id."""
LEASE = timedelta(seconds=10)
"""A claim holds for so long: what is left beside the two spans above is for clocks that differ."""


class Claim(NamedTuple):
    """Who may create a migration of this name: the attempt, by the id of its event, so that the same event delivered
    again goes on with it; the node that the machine leaves; and until when nobody else may."""

    attempt: str
    node: str
    until: datetime


Claims = dict[str, Claim]


class Refusal(NamedTuple):
    """How often a migration was refused, until when it is not asked for again, and the words of the last refusal."""

    times: int
    until: datetime
    words: str


Refusals = dict[str, Refusal]


def claimed(lease: Item | None) -> Claims:
    """What the Lease says is claimed; what somebody spoiled claims nothing."""
    read = {name: _claim(value) for name, value in _told(lease, CLAIMED).items()}
    return {name: claim for name, claim in read.items() if claim}


def refused(lease: Item | None, now: datetime) -> Refusals:
    """What the Lease says was refused of late; what somebody spoiled is none."""
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
    """What is known of refusals, and these, by the words of each: each rests twice as long as the last time."""
    times = {name: known[name].times + 1 if name in known else 1 for name in words}
    pauses = {name: min(SHORTEST * 2 ** min(count - 1, 10), LONGEST) for name, count in times.items()}
    fresh = {name: Refusal(times[name], now + pauses[name], shortened(words[name], LONGEST_WORDS)) for name in words}
    return {**known, **fresh}


def _claim(told: Any) -> Claim | None:
    until = moment_or_none(told.get("until")) if isinstance(told, dict) else None
    return Claim(str(told.get("attempt")), str(told.get("node")), until) if until else None


def holding(claims: Mapping[str, Claim], created: Collection[str], now: datetime) -> Claims:
    """Those under which a migration may still be created: it is not there, and its time is not over.

    One that claims far more time than anybody does is spoiled, and must not take its slot for ever.
    """
    return {name: one for name, one in claims.items() if name not in created and now < one.until <= now + 2 * LEASE}


def claims_of(attempt: str, due: Mapping[str, Item], now: datetime) -> Claims:
    """The claims of this attempt on the migrations `due`."""
    return {name: Claim(attempt, node_of(vmi), now + LEASE) for name, vmi in due.items()}


def abandoned(claims: Mapping[str, Claim]) -> Claims:
    """These, as claims of nobody: they hold their slots until they are over, and no attempt goes on with them."""
    return {name: claim._replace(attempt=NOBODY) for name, claim in claims.items()}


def lease_of(claims: Mapping[str, Claim]) -> Object:
    """The Lease with these claims."""
    metadata = {"name": CLAIM, "namespace": LEASE_NAMESPACE, "annotations": _annotations(claims, {})}
    return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": {}}


def lease_patch(lease: Item, claims: Mapping[str, Claim], refusals: Mapping[str, Refusal]) -> Object:
    """Merge patch that writes these, if nobody wrote the Lease since it was read."""
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
