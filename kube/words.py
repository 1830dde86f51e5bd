"""Counts as text: `1 pod`, `2 pods`."""

from __future__ import annotations


def counted(number: int, thing: str) -> str:
    """`1 pod`, `2 pods`: the number with its thing, `thing` being one whose plural ends with s."""
    return f"{number} {thing}{'' if number == 1 else 's'}"
