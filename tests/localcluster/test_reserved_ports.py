"""The fixed ports of Knative's dispatcher are reserved until it starts."""

from __future__ import annotations

import socket

import pytest

from localcluster.errors import LocalClusterError
from localcluster.knative import planes
from localcluster.processes import reserve_port


def test_ports_are_reserved_within_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that reserved ports cannot be bound, that the error names the port, and that they are free afterwards."""
    first, second = reserve_port(), reserve_port()
    monkeypatch.setattr(planes, "DISPATCHER_PORTS", (first, second))
    with planes.reserve_ports():
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("", second))
        with (
            pytest.raises(LocalClusterError, match=rf"port {first} is in use, .* stop the program"),
            planes.reserve_ports(),
        ):
            pass
    with planes.reserve_ports():
        pass


def test_taken_port_releases_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that no port stays reserved if one of them is taken."""
    first = reserve_port()
    with socket.socket() as other:
        other.bind(("", 0))
        other.listen()
        monkeypatch.setattr(planes, "DISPATCHER_PORTS", (first, other.getsockname()[1]))
        with pytest.raises(LocalClusterError, match="is in use"), planes.reserve_ports():
            pass
    monkeypatch.setattr(planes, "DISPATCHER_PORTS", (first,))
    with planes.reserve_ports():
        pass
