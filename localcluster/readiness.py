"""Health pages, which tell whether a server is ready; objects of the API server are read through `kube.door`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import requests

READY = "/health/readiness"
"""The page of every program of ours."""
SECONDS = 5.0


def answers(url: str, certificate: Path | None = None, headers: Mapping[str, str] | None = None) -> bool:
    """Tell whether a GET is answered with success; in: the server's certificate where it speaks TLS."""
    with requests.Session() as session:
        session.trust_env = False  # a proxy from the environment is for the world outside, not for this machine
        session.verify = str(certificate) if certificate else True
        try:
            return session.get(url, headers=headers, timeout=SECONDS).ok
        except requests.RequestException:
            return False


def is_ready(url: str) -> bool:
    """Tell whether a program of ours at this address is ready."""
    return answers(url.rstrip("/") + READY)
