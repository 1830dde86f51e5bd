"""Settings for the renewal of certificates, read from environment variables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from kube.certificates.components import COMPONENTS
from kube.paths import NAMESPACE

PAUSE_SECONDS = 600
"""A kubelet updates a mounted ConfigMap within two minutes; the rest is for the client to reload it."""

LONGEST_PAUSE_SECONDS = int(min(component.period for component in COMPONENTS.values()).total_seconds()) // 4
"""A CA that waited longer than a period would be replaced before it could sign, again and again."""


@dataclass(frozen=True)
class Settings:
    """The namespaces to check, and how long clients have to read a new CA before a server uses it."""

    namespaces: tuple[str, ...] = (NAMESPACE,)
    pause: timedelta = timedelta(seconds=PAUSE_SECONDS)

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Settings:
        """Read the settings from the environment. Raises `ValueError` if the pause is invalid or too long."""
        named = environment.get("CERTIFICATE_NAMESPACES") or NAMESPACE
        namespaces = tuple(dict.fromkeys(name.strip() for name in named.split(",") if name.strip()))
        pause = environment.get("CERTIFICATE_PAUSE") or str(PAUSE_SECONDS)
        if not (pause.isascii() and pause.isdecimal() and len(pause) < 9):
            raise ValueError(f"CERTIFICATE_PAUSE={pause} is no number of seconds")
        if int(pause) > LONGEST_PAUSE_SECONDS:
            raise ValueError(f"CERTIFICATE_PAUSE={pause} is more than {LONGEST_PAUSE_SECONDS} seconds: set it lower")
        return cls(namespaces, timedelta(seconds=int(pause)))
