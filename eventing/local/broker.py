"""Entry point of the local delivery: `python -m eventing.local.broker`. It reads the same manifests as Knative.

Everything runs on one event loop: sources and ingress write events to the outbox, and `delivery` delivers them.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from eventing import logs
from eventing.local import ingress, manifests, posting, sources, triggers
from eventing.local.delivery import Delivery
from eventing.local.manifests import Document, ManifestError
from eventing.local.metrics import DeliveryMetrics
from eventing.local.outbox import Outbox
from eventing.local.source_sink import SourceSink
from eventing.local.sources import EventSource
from eventing.local.triggers import Trigger
from eventing.logs import log
from eventing.urls import is_url, parse_host_port
from kube.client.api import Api
from kube.client.api_errors import Unavailable


@dataclass(frozen=True)
class Options:
    """The parsed command line."""

    triggers: dict[str, Trigger]
    sources: list[EventSource]
    database: Path
    host: str
    port: int


async def serve(options: Options) -> None:
    """Deliver events until SIGTERM or SIGINT, or until an error makes further delivery impossible."""
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    metrics = DeliveryMetrics()
    with closing(Outbox(options.database)) as outbox:
        async with posting.create_session() as client:
            delivery = Delivery(outbox, options.triggers, client, metrics)
            try:
                delivery.resume()
                await _run_until_stopped(options, delivery, metrics, stopping)
            finally:
                await delivery.stop()
    log("stopped")


async def _run_until_stopped(
    options: Options, delivery: Delivery, metrics: DeliveryMetrics, stop_event: asyncio.Event
) -> None:
    """Run ingress and sources until `stop_event` is set, or until a source or the delivery fails."""
    event_sources = options.sources
    app = ingress.build_application(
        delivery.accept, lambda: [source.name for source in event_sources if not source.is_ready], metrics
    )
    async with _serve_app(app, options.host, options.port) as url:
        log("listening", url=url, triggers=len(options.triggers), sources=len(event_sources))
        delivery.start()
        async with _start_sources(event_sources, SourceSink(delivery.accept, url)) as tasks:
            stop = asyncio.ensure_future(stop_event.wait())
            futures: list[asyncio.Future[Any]] = [stop, delivery.failure, *tasks]
            await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
            stop.cancel()
    for future in futures:
        if future.done() and not future.cancelled():
            future.result()


@asynccontextmanager
async def _serve_app(app: web.Application, host: str, port: int) -> AsyncIterator[str]:
    """Serve `app` and yield its URL, with the port that the system chose if `port` is 0."""
    logging.getLogger("aiohttp.server").addFilter(_strip_traceback)
    # Like Knative's ingress, do not decompress: a compressed body is rejected because it is not JSON.
    runner = web.AppRunner(app, access_log=None, auto_decompress=False)
    await runner.setup()
    try:
        await _start_listening(web.TCPSite(runner, host, port, shutdown_timeout=1), f"{host}:{port}")
        yield f"http://{host}:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def _start_listening(site: web.TCPSite, address: str) -> None:
    """Start listening on `address`. Raises `OSError` that names the address and the remedy."""
    try:
        await site.start()
    except OSError as error:
        # The error text consists of the address and the reason.
        reason = (error.strerror or str(error)).rpartition(": ")[2]
        raise OSError(
            error.errno, f"cannot listen on {address}: {reason}; choose another address with --listen"
        ) from None


def _strip_traceback(record: logging.LogRecord) -> bool:
    """Reduce the log record of a malformed HTTP request to one line.

    The client has received a 400, and must not be able to fill the log with tracebacks.
    """
    if record.exc_info and isinstance(record.exc_info[1], HttpProcessingError):
        record.msg, record.args, record.exc_info = f"rejected: {type(record.exc_info[1]).__name__}", None, None
    return True


@asynccontextmanager
async def _start_sources(event_sources: list[EventSource], sink: SourceSink) -> AsyncIterator[list[asyncio.Task[None]]]:
    """Run the sources concurrently; at the end of the block, cancel them and wait for them."""
    tasks = [asyncio.create_task(source.run(sink), name=source.name) for source in event_sources]
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@contextmanager
def _report_errors() -> Iterator[None]:
    """Turn errors that the operator can fix into one line and exit status 1."""
    try:
        yield
    except (ManifestError, Unavailable) as error:
        raise click.ClickException(str(error)) from None
    except sqlite3.Error as error:
        raise click.ClickException(f"database: {error}") from None
    except OSError as error:
        raise click.ClickException(error.strerror or str(error)) from None


async def _check_connection(documents: list[Document]) -> None:
    """Raise `Unavailable` if a source needs a kubeconfig and none exists; otherwise, only the log would report that."""
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
    help="Manifest file or folder; may be repeated.",
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
    with _report_errors():
        documents = manifests.read_documents(paths)
        event_sources = sources.parse_sources(documents, os.environ.get("PODSOURCE_KUBECONFIG"))
        options = Options(triggers.parse_triggers(documents, functions_url), event_sources, database, *listen)
        asyncio.run(_check_connection(documents))
        asyncio.run(serve(options))


if __name__ == "__main__":
    main()
