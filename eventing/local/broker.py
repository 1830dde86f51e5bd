"""Entry point of the local delivery: `python -m eventing.local.broker`. It reads the same manifests as Knative.

Everything runs on one event loop: sources and the ingress write events to the outbox, and `delivery` delivers them.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import click

from eventing import logs
from eventing.endpoints import is_url, parse_host_port
from eventing.local import api_server_source, container_source, ingress, manifests, ping_source
from eventing.local.delivery import Delivery, DeliveryMetrics
from eventing.local.envelope import EmitEvent, create_session
from eventing.local.manifests import Document, ManifestError, Trigger
from eventing.local.outbox import Outbox
from eventing.logs import log
from eventing.task_supervisor import TaskSupervisor, create_stop_event, wait_until_stopped
from kube.client.api import Api
from kube.client.api_errors import Unavailable


class EventSource(Protocol):
    """A source that emits events until it is cancelled; `is_ready` is true while the source is active."""

    name: str
    is_ready: bool

    async def run(self, emit: EmitEvent, sink_url: str) -> None:
        """Emit events until cancelled: through `emit` from this process, or to `sink_url` from other processes."""


@dataclass(frozen=True)
class Options:
    """The parsed options of the command line."""

    triggers: dict[str, Trigger]
    sources: list[EventSource]
    database: Path
    host: str
    port: int

    def list_unready_sources(self) -> list[str]:
        """Return the names of the sources that are not ready."""
        return [source.name for source in self.sources if not source.is_ready]


async def serve(options: Options) -> None:
    """Deliver events until SIGTERM or SIGINT, or until an error prevents further delivery."""
    stop_event, metrics = create_stop_event(), DeliveryMetrics()
    with closing(Outbox(options.database)) as outbox:
        async with create_session() as session, TaskSupervisor() as workers:
            delivery = Delivery(outbox, options.triggers, session, metrics, workers)
            try:
                delivery.resume()
                app = ingress.build_application(delivery.accept, options.list_unready_sources, metrics)
                async with ingress.serve_app(app, options.host, options.port) as url, TaskSupervisor() as source_tasks:
                    log("listening", url=url, triggers=len(options.triggers), sources=len(options.sources))
                    delivery.start()
                    for source in options.sources:
                        source_tasks.start(source.run(delivery.accept, url))
                    await wait_until_stopped(stop_event, workers, source_tasks)
            finally:
                await delivery.stop()
    log("stopped")


@contextmanager
def _report_user_errors() -> Iterator[None]:
    """Convert errors that the user can fix to a one-line message and exit status 1."""
    try:
        yield
    except (ManifestError, Unavailable) as error:
        raise click.ClickException(str(error)) from None
    except sqlite3.Error as error:
        raise click.ClickException(f"database: {error}") from None
    except OSError as error:
        raise click.ClickException(error.strerror or str(error)) from None


def parse_sources(documents: Iterable[Document], kubeconfig: str | None) -> list[EventSource]:
    """Build the sources in `documents`; sources that run as child processes use `kubeconfig`."""
    sources: list[EventSource] = []
    for document in documents:
        if document.kind == "ApiServerSource":
            sources += api_server_source.parse_sources(document)
        elif document.kind == "PingSource":
            sources.append(ping_source.parse_source(document))
        elif document.kind == "ContainerSource":
            sources.append(container_source.parse_source(document, kubeconfig))
    return sources


async def _check_connection(documents: list[Document]) -> None:
    """Raise `Unavailable` if a source needs a kubeconfig that does not exist; without this check, it is only logged."""
    if any(document.kind == "ApiServerSource" for document in documents):
        await (await Api.connect()).close()


def _parse_address(context: click.Context, option: click.Parameter, value: str) -> tuple[str, int]:
    try:
        return parse_host_port(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def _parse_url(context: click.Context, option: click.Parameter, value: str) -> str:
    if not is_url(value):
        raise click.BadParameter(f"{value!r} is not a URL such as http://127.0.0.1:8080")
    return value


@click.command(
    epilog="Example: python -m eventing.local.broker --manifests manifests/base --functions http://127.0.0.1:8080"
)
@click.option(
    "--manifests",
    "paths",
    multiple=True,
    required=True,
    type=click.Path(path_type=Path),
    help="Manifest file or directory; may be repeated.",
)
@click.option(
    "--functions",
    "functions_url",
    required=True,
    callback=_parse_url,
    metavar="URL",
    help="Base URL of the functions; events for the Service NAME go to URL/NAME.",
)
@click.option(
    "--database",
    default="delivery.db",
    show_default=True,
    type=click.Path(path_type=Path),
    help="SQLite file of the outbox; only one broker may use it.",
)
@click.option(
    "--listen",
    default="127.0.0.1:8081",
    show_default=True,
    callback=_parse_address,
    help="Address that accepts events, HOST:PORT.",
)
def main(paths: tuple[Path, ...], functions_url: str, database: Path, listen: tuple[str, int]) -> None:
    """Deliver events according to the Triggers and sources in the manifests, without Knative."""
    logs.configure()
    with _report_user_errors():
        documents = manifests.read_documents(paths)
        event_sources = parse_sources(documents, os.environ.get("PODSOURCE_KUBECONFIG"))
        options = Options(manifests.parse_triggers(documents, functions_url), event_sources, database, *listen)
        asyncio.run(_check_connection(documents))
        asyncio.run(serve(options))


if __name__ == "__main__":
    main()
