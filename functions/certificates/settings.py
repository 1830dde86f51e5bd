"""What an installation says about the renewal of certificates, in its environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from kube.paths import NAMESPACE

PAUSE_SECONDS = 600
"""A kubelet brings a changed ConfigMap to its pods within two minutes; who reads it then has the time to read it."""


@dataclass(frozen=True)
class Settings:
    """Where to look, and how long clients have to read what they are to trust."""

    namespaces: tuple[str, ...] = (NAMESPACE,)
    pause: timedelta = timedelta(seconds=PAUSE_SECONDS)

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Settings:
        """As the environment has them. Raises `ValueError` for a pause that is no number of seconds."""
        named = environment.get("CERTIFICATE_NAMESPACES") or NAMESPACE
        namespaces = tuple(name.strip() for name in named.split(",") if name.strip())
        pause = environment.get("CERTIFICATE_PAUSE") or str(PAUSE_SECONDS)
        if not (pause.isascii() and pause.isdecimal() and len(pause) < 9):
            raise ValueError(f"CERTIFICATE_PAUSE={pause} is no number of seconds")
        return cls(namespaces, timedelta(seconds=int(pause)))
