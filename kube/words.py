"""Counts as text: `1 pod`, `2 pods`; texts cut to a length, and lists to what they take as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable

from kube.paths import Object

WORDS = len("… (123456789 more characters)")


def counted(number: int, thing: str) -> str:
    """`1 pod`, `2 pods`: the number with its thing, `thing` being one whose plural ends with s."""
    return f"{number} {thing}{'' if number == 1 else 's'}"


def shortened(text: str, most: int) -> str:
    """The text, or so many characters of its beginning and how many more there were.

    One that is longer by no more than these words take stays, and so does one that was cut before.
    """
    over = len(text) - most
    return text if over <= WORDS else f"{text[:most]}… ({over} more characters)"


def fitting(items: Iterable[Object], limit: int, *, escaped: bool = False) -> list[Object]:
    """The first of the items, as many as take so many bytes in JSON: in UTF-8, or in ASCII as it travels in events."""
    kept: list[Object] = []
    for item in items:
        limit -= len(json.dumps(item, ensure_ascii=escaped).encode(errors="surrogatepass"))
        if limit < 0:
            break
        kept.append(item)
    return kept
