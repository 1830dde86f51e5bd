"""What an event source of the local delivery emits to, in this process or from a child."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from eventing.local.envelope import Envelope


@dataclass(frozen=True)
class Outlet:
    """The local delivery as a source sees it.

    Attributes:
        emit: accepts an event of a source in this process; when it returns, the event is stored.
        url: the sink that other processes post to.
    """

    emit: Callable[[Envelope], None]
    url: str
