"""Components whose certificates are renewed, each with its label value and its own renewal period (OSV-21)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

from kube.times import SECONDS

LABEL = "nodemaintenance.dev/certificates"
"""Label whose value names the component; objects without it are never changed (OSV-23)."""
BACKDATED = timedelta(minutes=5)
"""A certificate's validity starts this long before its issue, so that clients with slow clocks accept it."""
LIFETIMES, AUTHORITY_LIFETIMES = 2, 3
"""Lifetimes of serving certificates and of CAs, in periods.

A serving certificate is renewed after one of its two periods, so renewals may fail for a whole period before it
expires. A CA is also renewed after one period, and outlives all certificates that it has signed.
"""


@dataclass(frozen=True)
class Component:
    """A component, as named by the label, and the period after which its certificates are renewed."""

    name: str
    period: timedelta

    @property
    def authority(self) -> str:
        """Return the name of the Secret with the component's CA: its certificate and its signing key."""
        return f"{self.name}-certificate-authority"

    @property
    def publication(self) -> str:
        """Return the name of the ConfigMap with the certificates that clients trust."""
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
    """Return the start of validity for a certificate issued now; it is never in the future (OSV-21)."""
    return now - BACKDATED


def issued(not_before: datetime) -> datetime:
    """Return when we issued a certificate whose validity starts at `not_before`."""
    return not_before + BACKDATED


def renewal(not_before: datetime, not_after: datetime, component: Component) -> datetime:
    """Return the renewal time: one period after the issue, or two thirds of the lifetime if that is earlier.

    A certificate from another issuer may have a lifetime shorter than a period.
    """
    return min(issued(not_before) + component.period, not_before + (not_after - not_before) * 2 / 3)


def rounded_up(moment: datetime) -> datetime:
    """Round up to a whole second, the precision of `timestamp`, so that no waiting period becomes too short."""
    return moment + timedelta(microseconds=-moment.microsecond % 1_000_000)


def moment_or_none(text: object) -> datetime | None:
    """Parse a time that `timestamp` has written; None for any other text."""
    try:
        return datetime.strptime(str(text), SECONDS).replace(tzinfo=timezone.utc)
    except ValueError:
        return None
