"""Addresses of this machine, for which no proxy is asked."""

from __future__ import annotations

from ipaddress import ip_address
from urllib.parse import urlsplit


def is_loopback(url: str) -> bool:
    """Whether a URL leads to this machine: to `localhost`, 127.0.0.0/8 or ::1. kubectl asks no proxy for these."""
    try:
        host = urlsplit(url).hostname or ""
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:  # another name, or no URL
        return False
