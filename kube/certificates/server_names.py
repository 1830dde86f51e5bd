"""The names that servers are reached by, as a certificate can hold them, each in one way of writing. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from ipaddress import ip_address

LONGEST = 253
_LABEL = r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?"
_NAME = re.compile(rf"(\*\.)?{_LABEL}(\.{_LABEL})*", re.IGNORECASE)


def normal(name: str) -> str:
    """The one way of writing a DNS name or an address; "" for what is neither.

    A certificate gives addresses back as Python writes them: with another spelling the two would differ for ever.
    """
    try:
        address = ip_address(name)
    except ValueError:
        name = name.removesuffix(".")
        return name if len(name) <= LONGEST and _NAME.fullmatch(name) else ""
    return "" if "%" in name else str(address)  # a zone is of one machine alone


def usable(names: Iterable[str]) -> tuple[str, ...]:
    """Those that a certificate can hold, each once."""
    return tuple(dict.fromkeys(found for name in names if (found := normal(name.strip()))))


def unusable(names: Iterable[str]) -> tuple[str, ...]:
    """The others."""
    return tuple(name.strip() for name in names if name.strip() and not normal(name.strip()))
