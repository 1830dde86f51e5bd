"""Real PostgreSQL server from Debian's packages, which runs as a separate process with its own data directory."""

from __future__ import annotations

import contextlib
import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

import psycopg

from localcluster.processes import Server, Startable, reserve_port, wait_until_ready
from localcluster.programs.packages import find_program
from localcluster.servers import LOOPBACK

UNPRIVILEGED_USER = "nobody"
"""The user as whom the server runs if the tests run as root; PostgreSQL refuses to run as root."""
DATABASE_NUMBERS = itertools.count(1)


class PostgreSQL(Startable):
    """A PostgreSQL server; after `kill`, `start` restarts it with the same data."""

    def __init__(self) -> None:
        programs = find_program("initdb").resolve().parent
        self._folder = Path(tempfile.mkdtemp(prefix="postgresql-"))  # Other users cannot access pytest's directories.
        self.port = reserve_port()
        self._user_prefix = _build_user_prefix(self._folder)
        data = self._folder / "data"
        log = self._folder / "log"
        initdb_options = ("-A", "trust", "-U", "test", "-E", "UTF8", "--no-locale")
        init_command: list[str | Path] = [*self._user_prefix, programs / "initdb", "-D", data, *initdb_options]
        self._initdb = Server("initdb", init_command, log)
        options = (f"-cport={self.port}", f"-clisten_addresses={LOOPBACK}", "-cunix_socket_directories=")
        serve_command: list[str | Path] = [*self._user_prefix, programs / "postgres", "-D", data, *options]
        self._server = Server("postgres", serve_command, log)

    def _start_and_wait(self) -> None:
        if not (self._folder / "data").exists():
            self._initdb.start()
            assert self._initdb.process
            assert self._initdb.process.wait(60) == 0, self._initdb.describe_log_tail()
        self._server.start()
        wait_until_ready("PostgreSQL", self._is_responding, [self._server], 60)

    def stop(self) -> None:
        """Stop the server, and delete its data."""
        self._server.send_signal(signal.SIGQUIT)  # This signal causes an immediate shutdown that frees shared memory.
        if self._server.process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._server.process.wait(5)
        self._server.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def kill(self) -> None:
        """Kill the server with all its connection processes, as a crash would."""
        self._server.kill()

    def create_database(self) -> str:
        """Create an empty database and return its URL."""
        name = f"test_{next(DATABASE_NUMBERS)}"
        with psycopg.connect(self._build_url("postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}".encode())
        return self._build_url(name)

    def create_reader_url(self, url: str) -> str:
        """Create a user with only the permission to read the tables, and return the database's URL for this user."""
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("DROP ROLE IF EXISTS reader")
            connection.execute("CREATE ROLE reader LOGIN IN ROLE pg_read_all_data")
        return url.replace("//test@", "//reader@")

    def _build_url(self, database: str) -> str:
        return f"postgresql://test@{LOOPBACK}:{self.port}/{database}"

    def _is_responding(self) -> bool:
        try:
            psycopg.connect(self._build_url("postgres"), connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True


def _build_user_prefix(directory: Path) -> list[str]:
    """Return a command prefix that runs a command as a user who owns `directory`."""
    if os.geteuid() != 0:
        return []
    user = pwd.getpwnam(UNPRIVILEGED_USER)
    os.chown(directory, user.pw_uid, user.pw_gid)
    return ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups", "--pdeathsig=KILL"]
