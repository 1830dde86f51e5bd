"""Tests for the journal with a database that accepts connections but never responds."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial

import pytest
from sqlalchemy import make_url

from eventing.journal.database import BUSY_TIMEOUT_SECONDS
from eventing.journal.store import Journal, JournalError
from tests.eventing.journal.test_store import build_numbered_event
from tests.postgresql import PostgreSQL
from tests.relay import Relay

FUNCTION_THREADS = 16
MAX_REJECTED_WRITE_SECONDS = 1.0
"""Maximum seconds of a rejected write; the thread that tries the database needs five seconds to detect the outage."""


@pytest.fixture
def database_relay(postgresql: PostgreSQL) -> Iterator[Relay]:
    """Yield a relay to the database server."""
    relay = Relay(postgresql.port)
    yield relay
    relay.close()


def measure_rejected_write_seconds(journal: Journal, number: int) -> float:
    started = time.monotonic()
    with pytest.raises(JournalError):
        journal.write_event(build_numbered_event(number))
    return time.monotonic() - started


@pytest.mark.slow
def test_only_one_write_waits_for_unresponsive_database(postgresql: PostgreSQL, database_relay: Relay) -> None:
    """Check that one thread waits for the unresponsive database, and that all other writes are rejected immediately.

    The other threads can then answer brokers, which retry, and kubelet probes, so that the process is not restarted.
    """
    url = make_url(postgresql.create_database()).set(host="127.0.0.1", port=database_relay.port)
    with closing(Journal(url.render_as_string(hide_password=False))) as journal:
        assert journal.write_event(build_numbered_event(0))

        database_relay.stop_responding()
        measure_rejected_write_seconds(journal, 1)
        with ThreadPoolExecutor(FUNCTION_THREADS) as threads:
            seconds = sorted(
                threads.map(partial(measure_rejected_write_seconds, journal), range(2, 2 + FUNCTION_THREADS))
            )
        assert seconds[-2] < MAX_REJECTED_WRITE_SECONDS

        database_relay.restore()
        assert journal.write_event(build_numbered_event(1))


def test_reader_can_start_before_database_server(postgresql: PostgreSQL, database_relay: Relay) -> None:
    """X-6: a reader can start before the database server; until the server runs, read errors name the journal.

    A console does not need the journal for its pages about nodes.
    """
    url = make_url(postgresql.create_database()).set(host="127.0.0.1", port=database_relay.port)
    relay_url = url.render_as_string(hide_password=False)
    Journal(relay_url).close()
    database_relay.cut()
    with pytest.raises(JournalError):
        Journal(relay_url, create=False)
    with closing(Journal(relay_url, create=False, defer_not_ready=True)) as reader:
        with pytest.raises(JournalError, match=f"journal {relay_url}: "):
            reader.select()

        database_relay.restore()

        assert reader.select() == []


def test_connections_use_tcp_keepalive(postgresql: PostgreSQL) -> None:
    """Check that TCP keepalive soon detects an unreachable host while a connection waits for a response.

    TCP retransmits nothing while no data is sent, and by default, keepalive probes start only after two hours.
    """
    with closing(Journal(postgresql.create_database())) as journal, journal._database.connect() as connection:
        driver = connection.connection.driver_connection
        assert driver
        with socket.socket(fileno=os.dup(driver.fileno())) as duplicate:
            options = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
            idle_seconds, interval_seconds, count = (
                duplicate.getsockopt(socket.IPPROTO_TCP, option) for option in options
            )
            assert duplicate.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)

    assert idle_seconds + interval_seconds * count <= 2 * BUSY_TIMEOUT_SECONDS
