"""Settings for the renewal of certificates, read from environment variables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from kube.certificates.components import COMPONENTS
from kube.paths import DEFAULT_NAMESPACE

PROPAGATION_SECONDS = 600
"""Default `CERTIFICATE_PAUSE`: two minutes for the kubelet to update a ConfigMap, eight for clients to reload it."""

MAX_PROPAGATION_SECONDS = int(min(component.renewal_period for component in COMPONENTS.values()).total_seconds()) // 4
"""Maximum `CERTIFICATE_PAUSE`; with a longer pause, a new CA might be replaced before it signs a certificate."""


@dataclass(frozen=True)
class Settings:
    """The namespaces to check, and how long clients have to load a new CA before it issues server certificates."""

    namespaces: tuple[str, ...] = (DEFAULT_NAMESPACE,)
    propagation_delay: timedelta = timedelta(seconds=PROPAGATION_SECONDS)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Settings:
        """Read the settings from the environment. Raises `ValueError` if `CERTIFICATE_PAUSE` is invalid or too long."""
        names = environment.get("CERTIFICATE_NAMESPACES") or DEFAULT_NAMESPACE
        namespaces = tuple(dict.fromkeys(name.strip() for name in names.split(",") if name.strip()))
        pause = environment.get("CERTIFICATE_PAUSE") or str(PROPAGATION_SECONDS)
        if not (pause.isascii() and pause.isdecimal() and len(pause) < 9):
            raise ValueError(
                f"CERTIFICATE_PAUSE={pause} is not a number of seconds: set it to a whole number, such as 600"
            )
        if int(pause) > MAX_PROPAGATION_SECONDS:
            raise ValueError(
                f"CERTIFICATE_PAUSE={pause} is more than {MAX_PROPAGATION_SECONDS} seconds: set a lower value"
            )
        return cls(namespaces, timedelta(seconds=int(pause)))
