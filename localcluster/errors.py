"""The package's exception; its message is one sentence for a user at the terminal."""

from __future__ import annotations


class LocalClusterError(Exception):
    """An error that the user can fix; the message states the problem and the remedy."""
