"""Components whose certificates are renewed, each with its label value and renewal period (OSV-21)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

COMPONENT_LABEL = "nodemaintenance.dev/certificates"
"""Label whose value is the name of a component; objects without the label are never changed (OSV-23)."""
CLOCK_SKEW = timedelta(minutes=5)
"""Time by which the start of a certificate's validity is set back, so that clients with slow clocks accept it."""
SERVING_LIFETIME_PERIODS, CA_LIFETIME_PERIODS = 2, 3
"""Lifetimes of serving certificates and of CAs, in renewal periods.

A serving certificate is renewed after one of its two periods, so that renewals may fail for a whole period before the
certificate expires. A CA is also renewed after one period, and outlives all certificates that it has signed.
"""


@dataclass(frozen=True)
class Component:
    """A component, whose name is the label's value, and the period after which its certificates are renewed."""

    name: str
    renewal_period: timedelta

    @property
    def ca_secret_name(self) -> str:
        """Return the name of the Secret with the component's CA certificate and signing key."""
        return f"{self.name}-certificate-authority"

    @property
    def bundle_configmap_name(self) -> str:
        """Return the name of the ConfigMap with the CA certificates that clients trust."""
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
"""All components by name; `ours` is the component of this project's own servers."""
