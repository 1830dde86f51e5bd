"""Connects a command to the cluster, and converts API errors to one-line error messages."""

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
    """Run `operation` with an API client for the cluster that the command line selects, and return its result.

    Converts an `ApiError` to a `ClickException` (exit status 1) with the API server's message and a remedy.
    """
    cluster_access = get_cluster_access()

    async def connect_and_run() -> T:
        try:
            api = await Api.connect(*cluster_access)
        except Unavailable as error:
            raise click.ClickException(error.message) from None  # The message contains the remedy.
        try:
            return await operation(api)
        finally:
            await api.close()

    logging.getLogger("kubernetes").setLevel(logging.ERROR)  # The API client's warnings would repeat the error message.
    try:
        return asyncio.run(connect_and_run())
    except ApiError as error:
        raise click.ClickException(format_api_error(error)) from None


@contextmanager
def open_client() -> Iterator[SyncClient]:
    """Yield an API client for the cluster that the command line selects; convert an `ApiError` to `NoResult`."""
    try:
        client = SyncClient(*get_cluster_access())
    except Unavailable as error:
        raise NoResult(error.message) from None  # The message contains the remedy.
    try:
        with closing(client):
            yield client
    except ApiError as error:
        raise NoResult(format_api_error(error)) from None


def format_api_error(error: ApiError) -> str:
    """Return the API server's error message on one line, with a remedy for a denied or failed request."""
    message = " ".join(error.message.split())
    if isinstance(error, Denied):
        return f"{message}: ask an administrator for this right, or use another --context"
    if isinstance(error, Unavailable):
        return f"{message}: check that the cluster is up and that --kubeconfig and --context name it, then try again"
    return message


async def run_with_timeout(timeout: float, operation: Awaitable[T], build_message: Callable[[], str]) -> T:
    """Await `operation` and return its result. Raises `ClickException` with `build_message()` after `timeout` seconds.

    A `timeout` of 0 means no limit.
    """
    try:
        return await asyncio.wait_for(operation, timeout or None)
    except asyncio.TimeoutError:
        raise click.ClickException(build_message()) from None
