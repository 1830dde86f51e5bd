"""DNS names and IP addresses of servers, in the normalized form that certificates use."""

from __future__ import annotations

import re
from collections.abc import Iterable
from ipaddress import ip_address

LONGEST = 253
_LABEL = r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?"
_NAME = re.compile(rf"(\*\.)?{_LABEL}(\.{_LABEL})*", re.IGNORECASE)


def normal(name: str) -> str:
    """Return the normalized DNS name or IP address, "" for any other text.

    Addresses in a certificate are read in Python's notation. With another notation, requested and existing names would
    always differ.
    """
    try:
        address = ip_address(name)
    except ValueError:
        name = name.removesuffix(".")
        return name if len(name) <= LONGEST and _NAME.fullmatch(name) else ""
    return "" if "%" in name else str(address)  # an IPv6 zone is valid on one host only


def usable(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names that a certificate can hold, normalized and without duplicates."""
    return tuple(dict.fromkeys(found for name in names if (found := normal(name.strip()))))


def unusable(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names that a certificate cannot hold."""
    return tuple(name.strip() for name in names if name.strip() and not normal(name.strip()))
