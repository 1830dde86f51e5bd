"""Whose certificates are renewed, and when: a component by its label value, a period of its own each (OSV-21). Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

from kube.times import SECONDS

LABEL = "nodemaintenance.dev/certificates"
"""Its value names the component. What does not carry it is never touched (OSV-23)."""
BACKDATED = timedelta(minutes=5)
"""A certificate begins so long before it is issued: for a client whose clock is slow, too, it has begun."""
LIFETIMES, AUTHORITY_LIFETIMES = 2, 3
"""Periods. A serving certificate lives for two and is renewed after one: what fails for a whole period expires nothing.
An authority is renewed after one, too, and outlives all that it has signed."""


@dataclass(frozen=True)
class Component:
    """A component, as the label names it, and how long its certificates are used before they are renewed."""

    name: str
    period: timedelta

    @property
    def authority(self) -> str:
        """Name of the Secret with its authority: a certificate and the key that signs."""
        return f"{self.name}-certificate-authority"

    @property
    def publication(self) -> str:
        """Name of the ConfigMap with what clients trust."""
        return f"{self.name}-certificates"


COMPONENTS = {
    component.name: component
    for component in (
        Component("kubevirt", timedelta(days=1)),
        Component("cdi", timedelta(days=15)),
        Component("macpool", timedelta(days=365)),
        Component("ours", timedelta(days=15)),
    )
}
"""Label value → component; `ours` are the servers of this product."""


def begins(now: datetime) -> datetime:
    """From when on a certificate issued now is valid: never in the future (OSV-21)."""
    return now - BACKDATED


def issued(not_before: datetime) -> datetime:
    """When a certificate that begins then was issued by us."""
    return not_before + BACKDATED


def renewal(not_before: datetime, not_after: datetime, component: Component) -> datetime:
    """When a certificate is due: a period after its issue, and never later than at two thirds of its life.

    One of somebody else may live shorter than a period.
    """
    return min(issued(not_before) + component.period, not_before + (not_after - not_before) * 2 / 3)


def rounded_up(moment: datetime) -> datetime:
    """The next whole second, which `timestamp` keeps: a pause that counts from it is never too short."""
    return moment + timedelta(microseconds=-moment.microsecond % 1_000_000)


def moment_or_none(text: object) -> datetime | None:
    """The moment that `timestamp` has written; None for what is none."""
    try:
        return datetime.strptime(str(text), SECONDS).replace(tzinfo=timezone.utc)
    except ValueError:
        return None
