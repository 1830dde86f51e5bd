"""A real PostgreSQL as a process of its own, in a folder of its own, from Debian's packages."""

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

from localcluster.processes import Server, Startable, await_ready, free_port
from localcluster.programs.packages import find
from localcluster.servers import LOOPBACK

USER = "nobody"
"""Who runs it when we are root, which it refuses to run as."""
NUMBERS = itertools.count(1)


class PostgreSQL(Startable):
    """One server; `kill` and `start` again find the same data."""

    def __init__(self) -> None:
        programs = find("initdb").resolve().parent
        self._folder = Path(tempfile.mkdtemp(prefix="postgresql-"))  # pytest's own folders are closed to other users
        self.port = free_port()
        self._as_user = _as_user(self._folder)
        data = self._folder / "data"
        log = self._folder / "log"
        words = ("-A", "trust", "-U", "test", "-E", "UTF8", "--no-locale")
        init: list[str | Path] = [*self._as_user, programs / "initdb", "-D", data, *words]
        self._init = Server("initdb", init, log)
        options = (f"-cport={self.port}", f"-clisten_addresses={LOOPBACK}", "-cunix_socket_directories=")
        serve: list[str | Path] = [*self._as_user, programs / "postgres", "-D", data, *options]
        self._server = Server("postgres", serve, log)

    def _bring_up(self) -> None:
        if not (self._folder / "data").exists():
            self._init.start()
            assert self._init.process
            assert self._init.process.wait(60) == 0, self._init.tail()
        self._server.start()
        await_ready("PostgreSQL", self._answers, [self._server], 60)

    def stop(self) -> None:
        """End it and remove its data."""
        self._server.signal(signal.SIGQUIT)  # at once, and yet leaves no shared memory behind
        if self._server.process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._server.process.wait(5)
        self._server.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def kill(self) -> None:
        """End it, with every process that serves a connection, as a crash would."""
        self._server.kill()

    def database(self) -> str:
        """Give the URL of a new, empty database."""
        name = f"test_{next(NUMBERS)}"
        with psycopg.connect(self._url("postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}".encode())
        return self._url(name)

    def reader_of(self, url: str) -> str:
        """Give the URL of the same database for a user who may read its tables, and nothing else."""
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("DROP ROLE IF EXISTS reader")
            connection.execute("CREATE ROLE reader LOGIN IN ROLE pg_read_all_data")
        return url.replace("//test@", "//reader@")

    def _url(self, database: str) -> str:
        return f"postgresql://test@{LOOPBACK}:{self.port}/{database}"

    def _answers(self) -> bool:
        try:
            psycopg.connect(self._url("postgres"), connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True


def _as_user(folder: Path) -> list[str]:
    """The words before a command that make it run as a user that may own `folder`."""
    if os.geteuid() != 0:
        return []
    user = pwd.getpwnam(USER)
    os.chown(folder, user.pw_uid, user.pw_gid)
    return ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups", "--pdeathsig=KILL"]
