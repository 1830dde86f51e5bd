"""Connects a command to the cluster, and converts API errors to one-line messages."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager
from typing import TypeVar

import click

from console.operations.errors import NoResult
from console.terminal.options import get_cluster_access
from kube.client.api import Api
from kube.client.api_errors import ApiError, Denied, Unavailable
from kube.client.sync_client import SyncClient

T = TypeVar("T")


def run_with_api(operation: Callable[[Api], Awaitable[T]]) -> T:
    """Run `operation` with a client for the cluster that the command line selects, and return its result.

    An `ApiError` becomes a `ClickException` with the server's message and a remedy (exit status 1).
    """
    cluster_access = get_cluster_access()

    async def connect_and_run() -> T:
        try:
            api = await Api.connect(*cluster_access)
        except Unavailable as error:
            raise click.ClickException(error.message) from None  # the message contains the remedy
        try:
            return await operation(api)
        finally:
            await api.close()

    logging.getLogger("kubernetes").setLevel(logging.ERROR)  # The client's warnings would repeat the error message.
    try:
        return asyncio.run(connect_and_run())
    except ApiError as error:
        raise click.ClickException(format_api_error(error)) from None


@contextmanager
def open_client() -> Iterator[SyncClient]:
    """Yield a client for the cluster that the command line selects. An `ApiError` in the block becomes `NoResult`."""
    try:
        client = SyncClient(*get_cluster_access())
    except Unavailable as error:
        raise NoResult(error.message) from None  # the message contains the remedy
    try:
        with closing(client):
            yield client
    except ApiError as error:
        raise NoResult(format_api_error(error)) from None


def format_api_error(error: ApiError) -> str:
    """Return the server's message on one line, with a remedy if there is one."""
    message = " ".join(error.message.split())
    if isinstance(error, Denied):
        return f"{message}: ask an administrator for this right, or use another --context"
    if isinstance(error, Unavailable):
        return f"{message}: check that the cluster is up and that --kubeconfig and --context name it, then try again"
    return message


async def run_with_timeout(timeout: float, operation: Awaitable[T], build_message: Callable[[], str]) -> T:
    """Return the result of `operation`, or raise `build_message()` as a one-line error after `timeout` seconds.

    A `timeout` of 0 means no limit.
    """
    try:
        return await asyncio.wait_for(operation, timeout or None)
    except asyncio.TimeoutError:
        raise click.ClickException(build_message()) from None
