"""Components whose certificates are renewed, each with its label value and its own renewal period (OSV-21)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

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
