"""Streams server-sent events to open pages: new cluster states, and keepalives; limits the number of open streams."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Iterator
from itertools import chain
from typing import TypeVar

from flask import Response, request, stream_with_context
from werkzeug.exceptions import ServiceUnavailable

from console.web.cluster_state import ClusterState, ClusterWatcher

MAX_STREAMS = 96
"""Maximum number of concurrent streams, because each occupies one of the server's threads."""
MAX_STREAM_SECONDS = 300.0
"""Lifetime of a stream; the browser then reconnects, and the console checks the user's permissions again."""
KEEPALIVE_SECONDS = 15.0
"""Idle time after which a stream sends a comment, so that the server detects a closed connection."""
KEEPALIVE_COMMENT = ": keepalive\n\n"
"""A comment in the format of server-sent events, which browsers ignore."""
T = TypeVar("T")


class PageStreams:
    """The event streams of all open pages, which share one limit."""

    def __init__(self, watcher: ClusterWatcher) -> None:
        self._watcher, self._free_streams = watcher, threading.Semaphore(MAX_STREAMS)

    def iter_states(self, state: ClusterState, *, include_current: bool = False) -> Iterator[ClusterState | None]:
        """Yield states that are newer than `state`, and None after each idle period; end after `MAX_STREAM_SECONDS`."""
        if include_current:
            yield state
        end, version = time.monotonic() + MAX_STREAM_SECONDS, state.version
        while time.monotonic() < end:
            newer = self._watcher.wait_for_newer_state(version, KEEPALIVE_SECONDS)
            if newer:
                version = newer.version
            yield newer

    def build_response(self, messages: Iterator[str]) -> Response:
        """Build the response that streams the messages. Raises `ServiceUnavailable` if too many streams are open."""
        if not self._free_streams.acquire(blocking=False):
            raise ServiceUnavailable(f"{MAX_STREAMS} pages are open already: this page does not update itself")
        response = Response(stream_with_context(chain([KEEPALIVE_COMMENT], messages)), mimetype="text/event-stream")
        response.call_on_close(self._free_streams.release)
        return response


def render_once_per_state(state: ClusterState, key: Hashable, render: Callable[[], T]) -> T:
    """Call `render` once per key, and return its result to all pages that show this state.

    Pages under different path prefixes do not share a result, because their links begin with the prefix.
    """
    return state.share((request.script_root, key), render)


def format_sse(event_name: str, data: str, version: int) -> str:
    """Format a server-sent event with `version` as its id, which the browser sends back when it reconnects."""
    lines = "".join(f"data: {line}\n" for line in data.splitlines() or [""])
    return f"event: {event_name}\nid: {version}\n{lines}\n"


def get_version_shown_by_browser() -> str:
    """Return the version of the state that the browser shows: the last event's id, or the query parameter `version`."""
    return request.headers.get("Last-Event-ID") or request.args.get("version", "")
