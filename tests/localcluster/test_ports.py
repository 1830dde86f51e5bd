"""The ports of Knative's dispatcher are kept for it."""

from __future__ import annotations

import socket

import pytest

from localcluster.knative import planes
from localcluster.processes import free_port
from localcluster.trouble import LocalClusterError


def test_a_port_is_kept_until_the_dispatcher_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who wants one meanwhile is refused, and told which and why; afterwards it is free."""
    first, second = free_port(), free_port()
    monkeypatch.setattr(planes, "DISPATCHER_PORTS", (first, second))
    with planes.reserved_ports():
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("", second))
        with (
            pytest.raises(LocalClusterError, match=rf"port {first} is taken .* end that program"),
            planes.reserved_ports(),
        ):
            pass
    with planes.reserved_ports():
        pass


def test_a_second_port_that_is_taken_frees_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """What could not be kept in whole is not kept at all."""
    first = free_port()
    with socket.socket() as other:
        other.bind(("", 0))
        other.listen()
        monkeypatch.setattr(planes, "DISPATCHER_PORTS", (first, other.getsockname()[1]))
        with pytest.raises(LocalClusterError, match="is taken"), planes.reserved_ports():
            pass
    monkeypatch.setattr(planes, "DISPATCHER_PORTS", (first,))
    with planes.reserved_ports():
        pass
