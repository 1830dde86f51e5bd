"""Text helpers: format counts and lists of names, truncate text, and cut a list to its size in JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from kube.paths import Object

SUFFIX_CHARACTERS = len("… (123456789 more characters)")


def format_count(count: int, noun: str) -> str:
    """Format a number with its noun, such as `1 pod` or `2 pods`; the noun must have a regular plural."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def format_first_names(names: Sequence[str], max_count: int) -> str:
    """Join at most `max_count` names with commas, followed by the number of further names, if any."""
    more = len(names) - max_count
    return ", ".join(names[:max_count]) + (f" and {more} more" if more > 0 else "")


def truncate(text: str, max_characters: int) -> str:
    """Return the text, or its first `max_characters` characters and the number of omitted characters.

    A text is also returned unchanged if it exceeds `max_characters` by at most the length of that suffix. Truncating a
    truncated text therefore has no effect.
    """
    excess = len(text) - max_characters
    return text if excess <= SUFFIX_CHARACTERS else f"{text[:max_characters]}… ({excess} more characters)"


def take_within_bytes(items: Iterable[Object], max_bytes: int, *, ascii_only: bool = False) -> list[Object]:
    """Return the leading items whose JSON takes at most `max_bytes` bytes in total.

    The size is measured in UTF-8, or, with `ascii_only`, with escaped non-ASCII characters as in event data.
    """
    kept: list[Object] = []
    for item in items:
        max_bytes -= len(json.dumps(item, ensure_ascii=ascii_only).encode(errors="surrogatepass"))
        if max_bytes < 0:
            break
        kept.append(item)
    return kept
