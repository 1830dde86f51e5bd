"""A database that is away without a word: connections are neither refused nor answered."""

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
"""Of a function."""
SOON = 1.0
"""Seconds; who tries the database needs five to find it away."""


@pytest.fixture
def relay(postgresql: PostgreSQL) -> Iterator[Relay]:
    """The way to the server."""
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
    """The others answer the brokers, who come again, and the kubelet, which would end a process that is silent."""
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
    """X-6: a console is there for nodes, too; what is asked of the journal meanwhile is an error that names it."""
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
    """Nothing is sent that could miss its acknowledgement, and the system's own probes begin after two hours."""
    with closing(Journal(postgresql.database())) as journal, journal._database.reading() as connection:
        driver = connection.connection.driver_connection
        assert driver
        with socket.socket(fileno=os.dup(driver.fileno())) as asking:
            options = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
            idle, interval, count = (asking.getsockopt(socket.IPPROTO_TCP, option) for option in options)
            assert asking.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)

    assert idle + interval * count <= 2 * BUSY_SECONDS
