"""Components whose certificates are renewed, each with its label value and its own renewal period (OSV-21)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

from kube.times import TIME_FORMAT

COMPONENT_LABEL = "nodemaintenance.dev/certificates"
"""Label whose value names the component; objects without it are never changed (OSV-23)."""
CLOCK_SKEW = timedelta(minutes=5)
"""A certificate's validity starts this long before it is issued, so that clients with slow clocks accept it."""
SERVING_LIFETIME_PERIODS, CA_LIFETIME_PERIODS = 2, 3
"""Lifetimes of serving certificates and of CAs, in renewal periods.

A serving certificate is renewed after one of its two periods, so renewals may fail for a whole period before the
certificate expires. A CA is also renewed after one period, and outlives all certificates that it has signed.
"""


@dataclass(frozen=True)
class Component:
    """A component, as named by the label, and the period after which its certificates are renewed."""

    name: str
    renewal_period: timedelta

    @property
    def ca_secret_name(self) -> str:
        """Return the name of the Secret with the component's CA: its certificate and its signing key."""
        return f"{self.name}-certificate-authority"

    @property
    def bundle_configmap_name(self) -> str:
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
"""Label value → component; `ours` is the component of this project's own servers."""


def compute_not_before(now: datetime) -> datetime:
    """Return the start of the validity of a certificate issued now; it is never in the future (OSV-21)."""
    return now - CLOCK_SKEW


def compute_issue_time(not_before: datetime) -> datetime:
    """Return the time when we issued a certificate whose validity starts at `not_before`."""
    return not_before + CLOCK_SKEW


def compute_renewal_time(not_before: datetime, not_after: datetime, component: Component) -> datetime:
    """Return the renewal time: one period after issuance, or after two thirds of the lifetime if that is earlier.

    A certificate from a foreign issuer may have a lifetime shorter than a period.
    """
    return min(compute_issue_time(not_before) + component.renewal_period, not_before + (not_after - not_before) * 2 / 3)


def round_up_to_second(time: datetime) -> datetime:
    """Round up to a whole second, the precision of `format_time`, so that no waiting period becomes too short."""
    return time + timedelta(microseconds=-time.microsecond % 1_000_000)


def parse_strict_time_or_none(text: object) -> datetime | None:
    """Parse a time in the format of `format_time`; return None for any other text."""
    try:
        return datetime.strptime(str(text), TIME_FORMAT).replace(tzinfo=timezone.utc)
    except ValueError:
        return None
