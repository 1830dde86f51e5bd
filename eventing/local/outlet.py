"""Where sources put their events."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from eventing.local.envelope import Envelope


@dataclass(frozen=True)
class Outlet:
    """The local delivery as a source sees it.

    Attributes:
        send: keeps an event of a source in this process; when it returns, the event is stored.
        url: where other processes post theirs.
    """

    send: Callable[[Envelope], None]
    url: str
