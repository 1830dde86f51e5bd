"""Detects loopback hosts and URLs, which a client reaches without a proxy and only from the same machine."""

from __future__ import annotations

from ipaddress import ip_address
from urllib.parse import urlsplit


def is_loopback_url(url: str) -> bool:
    """Return whether a URL's host is `localhost`, in 127.0.0.0/8 or ::1; kubectl uses no proxy for such a URL."""
    try:
        return is_loopback_host(urlsplit(url).hostname or "")
    except ValueError:  # a host name other than localhost, or an invalid URL
        return False


def is_loopback_host(host: str) -> bool:
    """Return whether a host is `localhost` or a loopback address; an IPv6 address may be in brackets.

    Raises `ValueError` if the host is neither `localhost` nor an IP address.
    """
    return host == "localhost" or ip_address(host.strip("[]")).is_loopback
