"""Serve the web console by gunicorn: settings, checks before the start, and in whose name it acts."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from socket import AF_INET, AF_INET6, create_server
from typing import Any

from flask import Flask
from gunicorn.app.base import BaseApplication

from console.operations.errors import OperationError
from console.web.app import create_app
from console.web.audit import write_to_stdout
from console.web.callers import Identify, Proxy, as_owner, by_header, by_token
from console.web.pages import STREAM_SECONDS, STREAMS
from eventing import gunicorn_worker
from eventing.journal.database import NotYet
from eventing.journal.store import Journal, JournalError
from eventing.urls import host_and_port
from kube.door.api_errors import Unavailable
from kube.door.sync_client import Cluster

THREADS = STREAMS + 16
"""Each open page holds one for its stream; the others answer."""


class Worker(gunicorn_worker.Worker):
    """One that leaves time for the API server, whose answers may take 10 s each, and for streams."""

    request_seconds = 30.0
    answer_seconds = STREAM_SECONDS + 30.0


@dataclass(frozen=True)
class Settings:
    """The options of `kubectl maintenance console`.

    Attributes:
        listen: ADDRESS:PORT.
        here: only this machine can reach that address.
        journal: its path or URL, "" for none.
        functions: below which URL functions answer by their names, "" where the Triggers say.
        broker: where the broker takes events, "" where the Broker says.
        hosts: names by which browsers may ask, none for any.
        proxy: who says who asks, None for nobody.
        tls: browsers use https.
        access: kubeconfig and context (None for the usual ways to find the cluster), and as which user and groups.
    """

    listen: str
    here: bool
    journal: str
    functions: str
    broker: str
    hosts: Sequence[str]
    proxy: Proxy | None
    tls: bool
    access: tuple[str | None, str | None, str, Sequence[str]]


def serve(settings: Settings, warn: Callable[[str], None]) -> None:
    """Serve until the process is told to end. Raises `OperationError` at once for what could not work.

    Of a journal that cannot be read yet `warn` hears why.
    """
    _connected(settings).close()
    if reason := _not_yet(settings):
        warn(f"{reason}; the pages about events say so until it can be read")
    _check_free(settings.listen)
    print(f"console: http{'s' if settings.tls else ''}://{settings.listen}", flush=True)
    Server(settings).run()


def load(settings: Settings) -> Flask:
    """The app, in the process that serves: connections do not survive a fork."""
    cluster = _connected(settings)
    return create_app(
        cluster,
        _identify(cluster, settings),
        journal=_journal(settings),
        functions=settings.functions,
        broker=settings.broker,
        hosts=settings.hosts,
        tls=settings.tls,
    )


class Server(BaseApplication):
    """gunicorn with one process, since there is one watch of the cluster, and a thread for every open page."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        super().__init__()

    def load_config(self) -> None:
        """Called by gunicorn."""
        options: dict[str, Any] = {
            **{"bind": self._settings.listen, "workers": 1, "worker_class": Worker, "threads": THREADS},
            **{"timeout": 60, "graceful_timeout": 1, "control_socket_disable": True, "loglevel": "warning"},
        }
        for name, value in options.items():
            self.cfg.set(name, value)

    def load(self) -> Any:
        """Called by gunicorn, in the process that serves."""
        logging.getLogger("kubernetes").setLevel(logging.ERROR)
        write_to_stdout()
        return load(self._settings)


def _connected(settings: Settings) -> Cluster:
    try:
        return Cluster(*settings.access)
    except Unavailable as error:
        raise OperationError(error.message) from None


def _identify(cluster: Cluster, settings: Settings) -> Identify:
    """A proxy when one is named; else tokens, but on this machine alone the kubeconfig's user."""
    if settings.proxy:
        return by_header(cluster.api, settings.proxy)
    return as_owner(cluster.api) if settings.here else by_token(cluster.run(cluster.api.nameless()))


def _check_free(listen: str) -> None:
    """Whether the address can be had: gunicorn would try for seconds, behind an address that is printed already."""
    host, port = host_and_port(listen)
    family = AF_INET6 if host.startswith("[") else AF_INET
    try:
        create_server((host.strip("[]"), port), family=family).close()
    except OSError as error:
        message = os.strerror(error.errno or 0)
        raise OperationError(f"{listen}: {message}; name another address by --listen") from None


def _not_yet(settings: Settings) -> str:
    """Why the journal cannot be read yet, which is no reason not to start; "" where it can, and where there is to be
    none. Raises `OperationError` for what is no journal."""
    try:
        if settings.journal:
            Journal(settings.journal, create=False).close()
    except NotYet as error:
        return str(error)
    except JournalError as error:
        raise OperationError(str(error)) from None
    return ""


def _journal(settings: Settings) -> Journal | None:
    """The journal, which need not be there yet: `record` makes or migrates it, and the pages say so until then.

    So do they while a PostgreSQL is away: nodes are drained without it. Raises `OperationError` for what is no journal.
    """
    try:
        return Journal(settings.journal, create=False, awaited=True) if settings.journal else None
    except JournalError as error:
        raise OperationError(str(error)) from None
