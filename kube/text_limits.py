"""Text helpers: counts with a noun, texts cut to a length, and lists cut to a size in JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable

from kube.paths import Object

WORDS = len("… (123456789 more characters)")


def counted(number: int, thing: str) -> str:
    """Return the number with its noun, such as `1 pod` or `2 pods`; `thing` has a regular plural."""
    return f"{number} {thing}{'' if number == 1 else 's'}"


def shortened(text: str, most: int) -> str:
    """Return the text, or its first `most` characters and the number of characters left out.

    A text that exceeds `most` by no more than the length of that note is returned unchanged. So is a text that was
    already cut to `most`.
    """
    over = len(text) - most
    return text if over <= WORDS else f"{text[:most]}… ({over} more characters)"


def fitting(items: Iterable[Object], limit: int, *, escaped: bool = False) -> list[Object]:
    """Return the leading items whose JSON takes at most `limit` bytes in total.

    The size is that of UTF-8, or with `escaped` that of ASCII, as used in event data.
    """
    kept: list[Object] = []
    for item in items:
        limit -= len(json.dumps(item, ensure_ascii=escaped).encode(errors="surrogatepass"))
        if limit < 0:
            break
        kept.append(item)
    return kept
