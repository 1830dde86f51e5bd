"""Compares the resource versions of API objects and lists as decimal numbers (KEP-5504). Pure functions."""

from __future__ import annotations

import re
from collections.abc import Iterable

VERSION_PATTERN = re.compile("[1-9][0-9]{0,18}")


def find_newest_resource_version(versions: Iterable[str]) -> str:
    """Return the newest valid resource version, "" if none is valid."""
    return max(filter(is_resource_version, versions), key=lambda version: (len(version), version), default="")


def find_oldest_resource_version(versions: Iterable[str]) -> str:
    """Return the oldest resource version, "" if `versions` is empty or contains an invalid one."""
    version_list = list(versions)
    are_all_valid = all(map(is_resource_version, version_list))
    return min(version_list, key=lambda version: (len(version), version), default="") if are_all_valid else ""


def is_resource_version(text: object) -> bool:
    """Return whether `text` is a resource version: at most 19 decimal digits, not starting with zero."""
    return isinstance(text, str) and bool(VERSION_PATTERN.fullmatch(text))


def is_at_least_as_new(version: str, other: str) -> bool:
    """Return whether `version` is at least as new as `other`; False if either is invalid."""
    return (
        is_resource_version(version)
        and is_resource_version(other)
        and find_newest_resource_version((version, other)) == version
    )
