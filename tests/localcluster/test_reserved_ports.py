"""The fixed ports of Knative's dispatcher are reserved until it starts."""

from __future__ import annotations

import socket

import pytest

from localcluster.knative import planes
from localcluster.processes import free_port
from localcluster.errors import LocalClusterError


def test_a_port_is_kept_until_the_dispatcher_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that reserved ports cannot be bound, that the error names the port, and that they are free afterwards."""
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
    """Check that no port stays reserved if one of them is taken."""
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
