"""Streams server-sent events to open pages: newer states of the cluster, keepalives, and the limit on open streams."""

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
"""Maximum number of concurrent streams: each occupies a thread that is not free for other requests."""
MAX_STREAM_SECONDS = 300.0
"""Lifetime of a stream; the browser then reconnects, and a user who has lost permissions gets no new stream."""
KEEPALIVE_SECONDS = 15.0
"""Idle time after which a stream sends a comment, so that the server notices a closed connection."""
KEEPALIVE_COMMENT = ": keepalive\n\n"
"""A comment in the event stream, which browsers ignore."""
T = TypeVar("T")


class PageStreams:
    """The event streams of all open pages, which share one limit."""

    def __init__(self, watcher: ClusterWatcher) -> None:
        self._watcher, self._free_streams = watcher, threading.Semaphore(MAX_STREAMS)

    def iter_states(self, state: ClusterState, *, include_current: bool = False) -> Iterator[ClusterState | None]:
        """Yield newer states as they arrive, and None after each idle period; end after `MAX_STREAM_SECONDS`."""
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


def share_rendering(state: ClusterState, key: Hashable, render: Callable[[], T]) -> T:
    """Return what `render` returns for this key, rendered once for all pages that show this state.

    Pages under different path prefixes share nothing, because links begin with the prefix.
    """
    return state.share((request.script_root, key), render)


def format_sse(event_name: str, data: str, version: int) -> str:
    """Format a server-sent event; a browser that reconnects sends the id of the last event that it received."""
    lines = "".join(f"data: {line}\n" for line in data.splitlines() or [""])
    return f"event: {event_name}\nid: {version}\n{lines}\n"


def get_shown_version() -> str:
    """Return the version that the browser shows."""
    return request.headers.get("Last-Event-ID") or request.args.get("version", "")
