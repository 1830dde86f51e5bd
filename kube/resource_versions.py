"""Comparison of resource versions: which state of a collection is the newest (KEP-5504). Pure functions."""

from __future__ import annotations

import re
from collections.abc import Iterable

VERSION = re.compile("[1-9][0-9]{0,18}")


def newest(versions: Iterable[str]) -> str:
    """Return the highest valid version, "" if none is valid."""
    return max(filter(is_version, versions), key=lambda version: (len(version), version), default="")


def oldest(versions: Iterable[str]) -> str:
    """Return the lowest version, "" if `versions` is empty or contains an invalid one."""
    known = list(versions)
    whole = all(map(is_version, known))
    return min(known, key=lambda version: (len(version), version), default="") if whole else ""


def is_version(text: object) -> bool:
    """Return whether `text` is a resource version: at most 19 decimal digits, not starting with zero."""
    return isinstance(text, str) and bool(VERSION.fullmatch(text))


def is_as_new(version: str, other: str) -> bool:
    """Return whether `version` is at least as new as `other`; False if either is invalid."""
    return is_version(version) and is_version(other) and newest((version, other)) == version
