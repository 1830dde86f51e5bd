"""Tests of the journal with an unresponsive database, which neither refuses nor answers connections."""

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

from eventing.journal.database import BUSY_SECONDS
from eventing.journal.store import Journal, JournalError
from tests.eventing.journal.test_store import numbered
from tests.postgresql import PostgreSQL
from tests.relay import Relay

THREADS = 16
"""Threads of a function."""
SOON = 1.0
"""Maximum seconds of a refused write; a thread that tries the database needs five seconds to detect the outage."""


@pytest.fixture
def relay(postgresql: PostgreSQL) -> Iterator[Relay]:
    """Yield a relay to the database server."""
    relay = Relay(postgresql.port)
    yield relay
    relay.close()


def seconds_to_refuse(journal: Journal, number: int) -> float:
    started = time.monotonic()
    with pytest.raises(JournalError):
        journal.write(numbered(number))
    return time.monotonic() - started


@pytest.mark.slow
def test_one_thread_tries_it_and_no_other_waits(postgresql: PostgreSQL, relay: Relay) -> None:
    """Check that one thread tries the unresponsive database, and that all other writes are refused at once.

    The other threads can then answer brokers, which retry, and the kubelet, which would otherwise restart the process.
    """
    url = make_url(postgresql.database()).set(host="127.0.0.1", port=relay.port)
    with closing(Journal(url.render_as_string(hide_password=False))) as journal:
        assert journal.write(numbered(0))

        relay.silence()
        seconds_to_refuse(journal, 1)
        with ThreadPoolExecutor(THREADS) as threads:
            took = sorted(threads.map(partial(seconds_to_refuse, journal), range(2, 2 + THREADS)))
        assert took[-2] < SOON

        relay.mend()
        assert journal.write(numbered(1))


def test_a_reader_that_starts_before_the_server_reads_once_that_answers(postgresql: PostgreSQL, relay: Relay) -> None:
    """X-6: A reader can start before the database; it reports errors that name the journal until it can read.

    A console needs no journal for its pages about nodes.
    """
    url = make_url(postgresql.database()).set(host="127.0.0.1", port=relay.port)
    through = url.render_as_string(hide_password=False)
    Journal(through).close()
    relay.cut()
    with pytest.raises(JournalError):
        Journal(through, create=False)
    with closing(Journal(through, create=False, awaited=True)) as reader:
        with pytest.raises(JournalError, match=f"journal {through}: "):
            reader.select()

        relay.mend()

        assert reader.select() == []


def test_who_waits_for_an_answer_asks_whether_the_host_is_there(postgresql: PostgreSQL) -> None:
    """Check that TCP keepalive detects a dead host soon while a connection waits for an answer.

    TCP retransmits nothing while no data is sent, and the system's own keepalive probes start only after two hours.
    """
    with closing(Journal(postgresql.database())) as journal, journal._database.reading() as connection:
        driver = connection.connection.driver_connection
        assert driver
        with socket.socket(fileno=os.dup(driver.fileno())) as asking:
            options = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
            idle, interval, count = (asking.getsockopt(socket.IPPROTO_TCP, option) for option in options)
            assert asking.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)

    assert idle + interval * count <= 2 * BUSY_SECONDS
