"""Serves the web console with gunicorn: settings, checks before the start, and how callers are identified."""

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
from console.web.node_views import STREAM_SECONDS, STREAMS
from eventing import gunicorn_worker
from eventing.journal.database import NotYet
from eventing.journal.store import Journal, JournalError
from eventing.urls import host_and_port
from kube.client.api_errors import Unavailable
from kube.client.sync_client import Cluster

THREADS = STREAMS + 16
"""Each open page occupies a thread for its stream; the other threads answer requests."""


class Worker(gunicorn_worker.Worker):
    """A gunicorn worker with time limits for slow API servers, which may take 10 s per answer, and for streams."""

    request_seconds = 30.0
    answer_seconds = STREAM_SECONDS + 30.0


@dataclass(frozen=True)
class Settings:
    """The options of `kubectl maintenance console`.

    Attributes:
        listen: ADDRESS:PORT.
        here: Whether only this machine can reach that address.
        journal: The journal's path or URL, "" for none.
        functions: URL under which functions are found by name, "" to use the Triggers' addresses.
        broker: URL of the broker, "" to read it from the Broker.
        hosts: Host names that the console answers to; empty means any.
        proxy: The proxy that identifies the callers, None without one.
        tls: Whether browsers connect by HTTPS.
        access: Kubeconfig and context (None for kubectl's defaults), and the user and groups to impersonate.
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
    """Serve until the process is stopped. Raises `OperationError` before that if the settings cannot work.

    `warn` is called with the reason if the journal cannot be read yet.
    """
    _connected(settings).close()
    if reason := _not_yet(settings):
        warn(f"{reason}; the pages about events say so until it can be read")
    _check_free(settings.listen)
    print(f"console: http{'s' if settings.tls else ''}://{settings.listen}", flush=True)
    Server(settings).run()


def load(settings: Settings) -> Flask:
    """Build the app in the process that serves it, because connections do not survive a fork."""
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
    """Gunicorn with one process, because there is one watch of the cluster, and with a thread per open page."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        super().__init__()

    def load_config(self) -> None:
        """Set the gunicorn options; gunicorn calls this."""
        options: dict[str, Any] = {
            **{"bind": self._settings.listen, "workers": 1, "worker_class": Worker, "threads": THREADS},
            **{"timeout": 60, "graceful_timeout": 1, "control_socket_disable": True, "loglevel": "warning"},
        }
        for name, value in options.items():
            self.cfg.set(name, value)

    def load(self) -> Any:
        """Build the app; gunicorn calls this in the process that serves it."""
        logging.getLogger("kubernetes").setLevel(logging.ERROR)
        write_to_stdout()
        return load(self._settings)


def _connected(settings: Settings) -> Cluster:
    try:
        return Cluster(*settings.access)
    except Unavailable as error:
        raise OperationError(error.message) from None


def _identify(cluster: Cluster, settings: Settings) -> Identify:
    """Select the mode: a proxy if configured, else the kubeconfig's user on a loopback address, else tokens."""
    if settings.proxy:
        return by_header(cluster.api, settings.proxy)
    return as_owner(cluster.api) if settings.here else by_token(cluster.run(cluster.api.nameless()))


def _check_free(listen: str) -> None:
    """Raise `OperationError` if the address is in use, before it is printed; gunicorn would retry for seconds."""
    host, port = host_and_port(listen)
    family = AF_INET6 if host.startswith("[") else AF_INET
    try:
        create_server((host.strip("[]"), port), family=family).close()
    except OSError as error:
        message = os.strerror(error.errno or 0)
        raise OperationError(f"{listen}: {message}; name another address by --listen") from None


def _not_yet(settings: Settings) -> str:
    """Return why the journal cannot be read yet; "" if it can, or if none is configured.

    An unreadable journal does not prevent the start. Raises `OperationError` if it is not a journal.
    """
    try:
        if settings.journal:
            Journal(settings.journal, create=False).close()
    except NotYet as error:
        return str(error)
    except JournalError as error:
        raise OperationError(str(error)) from None
    return ""


def _journal(settings: Settings) -> Journal | None:
    """Open the journal, which may not exist yet; return None if none is configured.

    The function `record` creates or migrates it. Until then, and while a PostgreSQL server is unreachable, the pages
    report the problem; drains do not need the journal. Raises `OperationError` if it is not a journal.
    """
    try:
        return Journal(settings.journal, create=False, awaited=True) if settings.journal else None
    except JournalError as error:
        raise OperationError(str(error)) from None
