"""The one error of this room: a sentence for the person at the terminal."""

from __future__ import annotations


class LocalClusterError(Exception):
    """Something a person can put right; the text says what and how."""
