"""Tests that the fixed ports of Knative's dispatcher are reserved until the dispatcher starts."""

from __future__ import annotations

import socket

import pytest

from localcluster.errors import LocalClusterError
from localcluster.knative import planes
from localcluster.processes import reserve_port


def test_ports_are_reserved_within_with_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that reserved ports cannot be used within the `with` block, and are free afterwards."""
    first_port, second_port = reserve_port(), reserve_port()
    monkeypatch.setattr(planes, "DISPATCHER_PORTS", (first_port, second_port))
    with planes.reserve_ports():
        with socket.socket() as other_socket, pytest.raises(OSError, match="in use"):
            other_socket.bind(("", second_port))
        with (
            pytest.raises(LocalClusterError, match=rf"port {first_port} is in use, .* stop the program"),
            planes.reserve_ports(),
        ):
            pass
    with planes.reserve_ports():
        pass


def test_no_port_stays_reserved_if_another_port_is_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that no port stays reserved if one of the requested ports is in use."""
    first_port = reserve_port()
    with socket.socket() as other_socket:
        other_socket.bind(("", 0))
        other_socket.listen()
        monkeypatch.setattr(planes, "DISPATCHER_PORTS", (first_port, other_socket.getsockname()[1]))
        with pytest.raises(LocalClusterError, match="is in use"), planes.reserve_ports():
            pass
    monkeypatch.setattr(planes, "DISPATCHER_PORTS", (first_port,))
    with planes.reserve_ports():
        pass
