"""Addresses of this machine, for which no proxy is asked, and where nobody else's requests come in."""

from __future__ import annotations

from ipaddress import ip_address
from urllib.parse import urlsplit


def is_loopback(url: str) -> bool:
    """Whether a URL leads to this machine: to `localhost`, 127.0.0.0/8 or ::1. kubectl asks no proxy for these."""
    try:
        return is_loopback_host(urlsplit(url).hostname or "")
    except ValueError:  # another name, or no URL
        return False


def is_loopback_host(host: str) -> bool:
    """Whether a host, an IPv6 address with or without its brackets, is this machine.

    Raises `ValueError` for what is neither `localhost` nor an IP address.
    """
    return host == "localhost" or ip_address(host.strip("[]")).is_loopback
