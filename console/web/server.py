"""Serves the web console or the journal API with gunicorn, after checking the settings."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from socket import AF_INET, AF_INET6, create_server
from typing import Any

from gunicorn.app.base import BaseApplication

from console.operations.errors import OperationError
from console.web.app import create_app
from console.web.audit import configure_audit_log
from console.web.callers import (
    AuthenticatingProxy,
    IdentifyCaller,
    identify_by_header,
    identify_by_kubeconfig,
    identify_by_token,
)
from console.web.journal_api import create_journal_api
from console.web.streams import MAX_STREAM_SECONDS, MAX_STREAMS
from eventing import gunicorn_worker
from eventing.endpoints import parse_host_port
from eventing.journal.database import JournalNotReady
from eventing.journal.store import Journal, JournalError
from kube.client.api_errors import Unavailable
from kube.client.sync_client import SyncClient

THREADS = MAX_STREAMS + 16
"""Number of threads of the console: one for each stream of an open page, and 16 for other requests."""
JOURNAL_THREADS = 8
"""Number of threads of the journal API, which also limits its concurrent requests to the API server."""


class ConsoleWorker(gunicorn_worker.DeadlineWorker):
    """Gunicorn worker of the console; its timeouts allow for streams, and for API servers that take up to 10 s."""

    request_timeout_seconds = 30.0
    response_timeout_seconds = MAX_STREAM_SECONDS + 30.0


class JournalWorker(gunicorn_worker.DeadlineWorker):
    """Gunicorn worker of the journal API; its timeouts allow for slow databases, and for slow clients."""

    request_timeout_seconds = 30.0
    response_timeout_seconds = 60.0


@dataclass(frozen=True)
class Settings:
    """The options of `kubectl maintenance console`.

    Attributes:
        listen: Address and port to listen on, as ADDRESS:PORT.
        journal_api: Whether to serve the journal API instead of the console.
        is_local: Whether the address in `listen` is a loopback address.
        journal_url: The journal's path or URL, or "" for no journal.
        functions_url: The functions' base URL, or "" to use the URLs in the Triggers.
        broker_url: URL of the broker, or "" to read it from the Broker object.
        hosts: Values of the Host header that the console accepts; empty means any.
        proxy: The authenticating proxy that identifies the callers, or None.
        tls: Whether browsers connect over HTTPS.
        cluster_access: Kubeconfig and context (None for kubectl's defaults), and the user and groups to impersonate.
    """

    listen: str
    journal_api: bool
    is_local: bool
    journal_url: str
    functions_url: str
    broker_url: str
    hosts: Sequence[str]
    proxy: AuthenticatingProxy | None
    tls: bool
    cluster_access: tuple[str | None, str | None, str, Sequence[str]]


def serve(settings: Settings, on_warning: Callable[[str], None]) -> None:
    """Serve until a signal stops the process. Raises `OperationError` if the server cannot start with these settings.

    If the journal cannot be read yet, the function passes the reason to `on_warning`.
    """
    _connect(settings).close()
    if reason := _explain_unready_journal(settings):
        on_warning(f"{reason}; until then, the pages about events show this error")
    _check_address_free(settings.listen)
    name = "journal" if settings.journal_api else "console"
    print(f"{name}: http{'s' if settings.tls else ''}://{settings.listen}", flush=True)
    GunicornServer(settings).run()


class GunicornServer(BaseApplication):
    """Gunicorn server with one worker process, so that the cluster is watched only once, and a thread per open page."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        super().__init__()

    def load_config(self) -> None:
        """Set the gunicorn options; gunicorn calls this method at startup."""
        is_journal = self._settings.journal_api
        options: dict[str, Any] = {
            **{
                "bind": self._settings.listen,
                "workers": 1,
                "worker_class": JournalWorker if is_journal else ConsoleWorker,
                "threads": JOURNAL_THREADS if is_journal else THREADS,
            },
            **{"timeout": 60, "graceful_timeout": 1, "control_socket_disable": True, "loglevel": "warning"},
        }
        for name, value in options.items():
            self.cfg.set(name, value)

    def load(self) -> Any:
        """Build the WSGI app; gunicorn calls this method in the worker process.

        The method opens the connections there, because connections do not survive a fork.
        """
        logging.getLogger("kubernetes").setLevel(logging.ERROR)
        configure_audit_log()
        settings, client = self._settings, _connect(self._settings)
        journal = _open_journal(settings)
        if settings.journal_api:
            return create_journal_api(client, journal)
        return create_app(
            client,
            _select_identification(client, settings),
            journal=journal,
            functions_url=settings.functions_url,
            broker_url=settings.broker_url,
            hosts=settings.hosts,
            tls=settings.tls,
        )


def _connect(settings: Settings) -> SyncClient:
    try:
        return SyncClient(*settings.cluster_access)
    except Unavailable as error:
        raise OperationError(error.message) from None


def _select_identification(client: SyncClient, settings: Settings) -> IdentifyCaller:
    """Select how callers are identified: by the proxy if configured, by the kubeconfig if local, or else by token."""
    if settings.proxy:
        return identify_by_header(client.api, settings.proxy)
    if settings.is_local:
        return identify_by_kubeconfig(client.api)
    return identify_by_token(client.run(client.api.create_anonymous()))


def _check_address_free(listen: str) -> None:
    """Raise `OperationError` if the console cannot listen on the address; gunicorn would retry for several seconds."""
    host, port = parse_host_port(listen)
    family = AF_INET6 if host.startswith("[") else AF_INET
    try:
        create_server((host.strip("[]"), port), family=family).close()
    except OSError as error:
        message = os.strerror(error.errno or 0)
        raise OperationError(f"cannot listen on {listen}: {message}; name another address with --listen") from None


def _explain_unready_journal(settings: Settings) -> str:
    """Return why the journal cannot be read yet, or "" if it can be read or none is configured.

    The server starts even if the journal cannot be read yet. Raises `OperationError` if `journal_url` is not a journal.
    """
    try:
        if settings.journal_url:
            Journal(settings.journal_url, create=False).close()
    except JournalNotReady as error:
        return str(error)
    except JournalError as error:
        raise OperationError(str(error)) from None
    return ""


def _open_journal(settings: Settings) -> Journal | None:
    """Open the journal, which may not exist yet; return None if none is configured.

    The function `record` creates or migrates the journal. Until then, and while the PostgreSQL server is unreachable,
    the pages about events report the problem. Raises `OperationError` if `journal_url` is not a journal.
    """
    try:
        return Journal(settings.journal_url, create=False, defer_not_ready=True) if settings.journal_url else None
    except JournalError as error:
        raise OperationError(str(error)) from None
