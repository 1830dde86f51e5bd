"""The interface through which event sources emit to the local delivery."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from eventing.local.envelope import Envelope


@dataclass(frozen=True)
class SourceSink:
    """Interface of the local delivery for event sources.

    Attributes:
        emit: Stores an event from a source in this process before it returns.
        url: URL of the sink for sources in other processes.
    """

    emit: Callable[[Envelope], None]
    url: str
