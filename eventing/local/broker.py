"""The local delivery as a program: `python -m eventing.local.broker`. It reads the same manifests as Knative.

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
from eventing.local.metrics import Measures
from eventing.local.outbox import Outbox
from eventing.local.source_sink import Outlet
from eventing.local.sources import Source
from eventing.local.triggers import Trigger
from eventing.logs import log
from eventing.urls import host_and_port, is_url
from kube.client.api import Api
from kube.client.api_errors import Unavailable


@dataclass(frozen=True)
class Options:
    """The parsed command line."""

    triggers: dict[str, Trigger]
    sources: list[Source]
    database: Path
    host: str
    port: int


async def serve(options: Options) -> None:
    """Deliver events until SIGTERM or SIGINT. Raises an error that makes further delivery impossible."""
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    measures = Measures()
    with closing(Outbox(options.database)) as outbox:
        async with posting.session() as client:
            delivery = Delivery(outbox, options.triggers, client, measures)
            try:
                delivery.resume()
                await _emit(options, delivery, measures, stopping)
            finally:
                await delivery.stop()
    log("stopped")


async def _emit(options: Options, delivery: Delivery, measures: Measures, stopping: asyncio.Event) -> None:
    """Run ingress and sources until `stopping` is set, or until a source or the delivery fails."""
    found = options.sources
    app = ingress.application(delivery.accept, lambda: [one.name for one in found if not one.ready], measures)
    async with _listening(app, options.host, options.port) as url:
        log("listening", url=url, triggers=len(options.triggers), sources=len(found))
        delivery.begin()
        async with _running(found, Outlet(delivery.accept, url)) as tasks:
            stop = asyncio.ensure_future(stopping.wait())
            ends: list[asyncio.Future[Any]] = [stop, delivery.broken, *tasks]
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            stop.cancel()
    for ended in ends:
        if ended.done() and not ended.cancelled():
            ended.result()


@asynccontextmanager
async def _listening(app: web.Application, host: str, port: int) -> AsyncIterator[str]:
    """Serve `app` and yield its URL, with the port that the system chose if `port` is 0."""
    logging.getLogger("aiohttp.server").addFilter(_without_traceback)
    # Like Knative's ingress, do not decompress: a compressed body is rejected because it is not JSON.
    runner = web.AppRunner(app, access_log=None, auto_decompress=False)
    await runner.setup()
    try:
        await _bound(web.TCPSite(runner, host, port, shutdown_timeout=1), f"{host}:{port}")
        yield f"http://{host}:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def _bound(site: web.TCPSite, address: str) -> None:
    """Start to listen. Raises `OSError` with the address and the remedy."""
    try:
        await site.start()
    except OSError as error:
        reason = (error.strerror or str(error)).rpartition(": ")[2]  # asyncio puts the address first
        raise OSError(error.errno, f"{address}: {reason}; name another address by --listen") from None


def _without_traceback(record: logging.LogRecord) -> bool:
    """Reduce the log record of a malformed HTTP request to one line.

    The client has received a 400. It must not be able to fill the log with tracebacks.
    """
    if record.exc_info and isinstance(record.exc_info[1], HttpProcessingError):
        record.msg, record.args, record.exc_info = f"refused: {type(record.exc_info[1]).__name__}", None, None
    return True


@asynccontextmanager
async def _running(found: list[Source], outlet: Outlet) -> AsyncIterator[list[asyncio.Task[None]]]:
    """Run the sources concurrently; at the end of the block, cancel them and wait for them."""
    tasks = [asyncio.create_task(source.run(outlet), name=source.name) for source in found]
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@contextmanager
def _one_line() -> Iterator[None]:
    """Turn errors that the operator can fix into one line and exit status 1."""
    try:
        yield
    except (ManifestError, Unavailable) as error:
        raise click.ClickException(str(error)) from None
    except sqlite3.Error as error:
        raise click.ClickException(f"database: {error}") from None
    except OSError as error:
        raise click.ClickException(error.strerror or str(error)) from None


async def _check_identity(documents: list[Document]) -> None:
    """Raise `Unavailable` at startup, not only in the log later, if a source needs a kubeconfig and there is none."""
    if any(document.kind == "ApiServerSource" for document in documents):
        await (await Api.connect()).close()


def _address(context: click.Context, option: click.Parameter, value: str) -> tuple[str, int]:
    try:
        return host_and_port(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def _url(context: click.Context, option: click.Parameter, value: str) -> str:
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
    help="File or folder; repeatable.",
)
@click.option(
    "--functions", required=True, callback=_url, metavar="URL", help="URL below which Services are found by name."
)
@click.option(
    "--database",
    default="delivery.db",
    show_default=True,
    type=click.Path(path_type=Path),
    help="SQLite file, of this broker alone.",
)
@click.option("--listen", default="127.0.0.1:8081", show_default=True, callback=_address, help="HOST:PORT for events.")
def main(paths: tuple[Path, ...], functions: str, database: Path, listen: tuple[str, int]) -> None:
    """Deliver events according to the Triggers and sources in the manifests, without Knative."""
    logs.configure()
    with _one_line():
        documents = manifests.read(paths)
        found = sources.read(documents, os.environ.get("PODSOURCE_KUBECONFIG"))
        options = Options(triggers.read(documents, functions), found, database, *listen)
        asyncio.run(_check_identity(documents))
        asyncio.run(serve(options))


if __name__ == "__main__":
    main()
