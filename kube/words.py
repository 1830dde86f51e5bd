"""Counts as text: `1 pod`, `2 pods`; and texts cut to a length."""

from __future__ import annotations


def counted(number: int, thing: str) -> str:
    """`1 pod`, `2 pods`: the number with its thing, `thing` being one whose plural ends with s."""
    return f"{number} {thing}{'' if number == 1 else 's'}"


def shortened(text: str, most: int) -> str:
    """The text, or so many characters of its beginning and how many more there were."""
    return text if len(text) <= most else f"{text[:most]}… ({len(text) - most} more characters)"
