"""The interface through which event sources emit to the local delivery."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from eventing.local.envelope import Envelope


@dataclass(frozen=True)
class SourceSink:
    """The local delivery, as event sources use it.

    Attributes:
        emit: Stores an event of a source in this process before it returns.
        url: The sink that other processes post to.
    """

    emit: Callable[[Envelope], None]
    url: str
