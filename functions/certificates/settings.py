"""What an installation says about the renewal of certificates, in its environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from kube.certificates.components import COMPONENTS
from kube.paths import NAMESPACE

PAUSE_SECONDS = 600
"""A kubelet brings a changed ConfigMap to its pods within two minutes; who reads it then has the time to read it."""

LONGEST_PAUSE_SECONDS = int(min(component.period for component in COMPONENTS.values()).total_seconds()) // 4
"""An authority that waits for longer than a period would be replaced before its turn comes, again and again."""


@dataclass(frozen=True)
class Settings:
    """Where to look, and how long clients have to read what they are to trust."""

    namespaces: tuple[str, ...] = (NAMESPACE,)
    pause: timedelta = timedelta(seconds=PAUSE_SECONDS)

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Settings:
        """As the environment has them. Raises `ValueError` for a pause that is none, or too long."""
        named = environment.get("CERTIFICATE_NAMESPACES") or NAMESPACE
        namespaces = tuple(dict.fromkeys(name.strip() for name in named.split(",") if name.strip()))
        pause = environment.get("CERTIFICATE_PAUSE") or str(PAUSE_SECONDS)
        if not (pause.isascii() and pause.isdecimal() and len(pause) < 9):
            raise ValueError(f"CERTIFICATE_PAUSE={pause} is no number of seconds")
        if int(pause) > LONGEST_PAUSE_SECONDS:
            raise ValueError(f"CERTIFICATE_PAUSE={pause} is more than {LONGEST_PAUSE_SECONDS} seconds: set it lower")
        return cls(namespaces, timedelta(seconds=int(pause)))
