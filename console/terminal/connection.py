"""Run a command's work on one connection to the API server; its errors become one line each."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

import click

from console.terminal.options import Access, access
from kube.door.api import Api
from kube.door.api_errors import ApiError, Denied, Unavailable

T = TypeVar("T")


def with_api(work: Callable[[Api], Awaitable[T]]) -> T:
    """The result of `work`, done with the cluster that the command line names.

    An error of the API server becomes the server's sentence with a remedy (exit 1).
    """
    logging.getLogger("kubernetes").setLevel(logging.ERROR)  # it would warn of what the error then says
    try:
        return asyncio.run(_connected(access(), work))
    except ApiError as error:
        raise click.ClickException(sentence(error)) from None


async def _connected(wanted: Access, work: Callable[[Api], Awaitable[T]]) -> T:
    try:
        api = await Api.connect(*wanted)
    except Unavailable as error:
        raise click.ClickException(error.message) from None  # it names the remedy already
    try:
        return await work(api)
    finally:
        await api.close()


def sentence(error: ApiError) -> str:
    """The server's message on one line, and what a person can do about it."""
    message = " ".join(error.message.split())
    if isinstance(error, Denied):
        return f"{message}: ask an administrator for this right, or use another --context"
    if isinstance(error, Unavailable):
        return f"{message}: check that the cluster is up and that --kubeconfig and --context name it, then try again"
    return message


async def within(seconds: float, work: Awaitable[T], late: Callable[[], str]) -> T:
    """The result of `work`, or `late()` as a one-line error when it takes longer; 0 seconds is without limit."""
    try:
        return await asyncio.wait_for(work, seconds or None)
    except asyncio.TimeoutError:
        raise click.ClickException(late()) from None
