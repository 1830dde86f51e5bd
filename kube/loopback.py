"""Detects loopback URLs and hosts, which need no proxy and receive no requests from other machines."""

from __future__ import annotations

from ipaddress import ip_address
from urllib.parse import urlsplit


def is_loopback_url(url: str) -> bool:
    """Return whether a URL points to `localhost`, 127.0.0.0/8 or ::1; kubectl uses no proxy for these."""
    try:
        return is_loopback_host(urlsplit(url).hostname or "")
    except ValueError:  # a host name other than localhost, or not a URL
        return False


def is_loopback_host(host: str) -> bool:
    """Return whether a host is this machine; an IPv6 address may have brackets.

    Raises `ValueError` if the host is neither `localhost` nor an IP address.
    """
    return host == "localhost" or ip_address(host.strip("[]")).is_loopback
