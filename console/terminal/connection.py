"""Runs a command's work with one API client, and converts API errors to one-line messages."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

import click

from console.terminal.options import Access, access
from kube.client.api import Api
from kube.client.api_errors import ApiError, Denied, Unavailable

T = TypeVar("T")


def with_api(work: Callable[[Api], Awaitable[T]]) -> T:
    """Run `work` with a client for the cluster that the command line names, and return its result.

    An `ApiError` becomes the server's message with a remedy (exit status 1).
    """
    logging.getLogger("kubernetes").setLevel(logging.ERROR)  # its warnings would repeat the error message
    try:
        return asyncio.run(_connected(access(), work))
    except ApiError as error:
        raise click.ClickException(sentence(error)) from None


async def _connected(wanted: Access, work: Callable[[Api], Awaitable[T]]) -> T:
    try:
        api = await Api.connect(*wanted)
    except Unavailable as error:
        raise click.ClickException(error.message) from None  # the message contains the remedy
    try:
        return await work(api)
    finally:
        await api.close()


def sentence(error: ApiError) -> str:
    """Return the server's message on one line, with a remedy if there is one."""
    message = " ".join(error.message.split())
    if isinstance(error, Denied):
        return f"{message}: ask an administrator for this right, or use another --context"
    if isinstance(error, Unavailable):
        return f"{message}: check that the cluster is up and that --kubeconfig and --context name it, then try again"
    return message


async def within(seconds: float, work: Awaitable[T], late: Callable[[], str]) -> T:
    """Return the result of `work`; raise `late()` as a one-line error after `seconds`, where 0 means no limit."""
    try:
        return await asyncio.wait_for(work, seconds or None)
    except asyncio.TimeoutError:
        raise click.ClickException(late()) from None
