"""Resource versions: which of several states of one collection is the newest (KEP-5504). Pure."""

from __future__ import annotations

from collections.abc import Iterable


def newest(versions: Iterable[str]) -> str:
    """The highest of the versions; "" when none of them is one."""
    return max((version for version in versions if version.isdecimal()), key=int, default="")
