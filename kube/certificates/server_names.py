"""Normalizes the names of servers, and selects those that a certificate can contain. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Iterable
from ipaddress import ip_address

MAX_DNS_NAME_CHARACTERS = 253
_DNS_LABEL = r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?"
DNS_NAME_PATTERN = re.compile(rf"(\*\.)?{_DNS_LABEL}(\.{_DNS_LABEL})*", re.IGNORECASE)


def normalize_name(name: str) -> str:
    """Return the normalized DNS name or IP address of a server; "" for any other text.

    An IP address gets the notation in which Python returns a certificate's addresses. In a different notation, a
    requested address would never equal the certificate's address.
    """
    try:
        address = ip_address(name)
    except ValueError:
        name = name.removesuffix(".")
        return name if len(name) <= MAX_DNS_NAME_CHARACTERS and DNS_NAME_PATTERN.fullmatch(name) else ""
    return "" if "%" in name else str(address)  # an IPv6 zone is valid only on one host


def select_usable_names(names: Iterable[str]) -> tuple[str, ...]:
    """Return the normalized names that a certificate can contain, without duplicates."""
    return tuple(dict.fromkeys(found for name in names if (found := normalize_name(name.strip()))))


def select_unusable_names(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names that a certificate cannot contain."""
    return tuple(name.strip() for name in names if name.strip() and not normalize_name(name.strip()))
