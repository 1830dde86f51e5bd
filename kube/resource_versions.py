"""Resource versions: which of several states of one collection is the newest (KEP-5504). Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

VERSION = re.compile("[1-9][0-9]{0,18}")


def newest(versions: Iterable[str]) -> str:
    """The highest of the versions; "" when none of them is one."""
    return max(filter(is_version, versions), key=lambda version: (len(version), version), default="")


def oldest(versions: Iterable[str]) -> str:
    """The lowest of the versions; "" when there is none, or one of them is none."""
    known = list(versions)
    whole = all(map(is_version, known))
    return min(known, key=lambda version: (len(version), version), default="") if whole else ""


def is_version(text: object) -> bool:
    """Whether it is a resource version: a decimal number of 63 bits that does not begin with zero."""
    return isinstance(text, str) and bool(VERSION.fullmatch(text))


def is_as_new(version: str, other: str) -> bool:
    """Whether the first of two versions of one collection is not older than the second; False where one is none."""
    return is_version(version) and is_version(other) and newest((version, other)) == version
