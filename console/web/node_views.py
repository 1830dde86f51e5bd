"""The pages about nodes: the list and the details, each with a stream of its changes (OSV-7 to OSV-9)."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from itertools import chain

from flask import Response, render_template, request, stream_template, stream_with_context
from werkzeug.exceptions import NotFound, ServiceUnavailable

from console.operations.descriptions import full_name, phase_word, remedy
from console.web import vmis
from console.web.context import Context
from console.web.cluster_state import State
from console.web.protection import token
from console.web.node_rows import STATE_FILTERS, Row, Wanted, leading, row, rows, steps
from kube.maintenance.objects import Maintenance, is_deleting, node_name, requester, spec_of, status_of
from kube.paths import Object

STREAMS = 48
"""Maximum number of concurrent streams: each occupies a thread, and pages need the rest (console/web/server.py)."""
STREAM_SECONDS = 300.0
"""Lifetime of a stream; the browser then reconnects, and a user who has lost permissions gets no new stream."""
QUIET_SECONDS = 15.0
"""Without changes for this long, the stream sends a comment, so that the server notices a closed connection."""
PIECE = 16 * 1024
"""Characters per chunk of a long page."""
STILL_HERE = ": still here\n\n"
"""A comment in the event stream, which browsers ignore."""
BURST_SECONDS = 0.1
"""Delay between two updates: users perceive no more than ten per second."""


class Pages:
    """The views about nodes; `console.web.app` maps a URL to each method."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._streams = threading.Semaphore(STREAMS)

    def nodes(self) -> Response:
        """Render the list, filtered by `q` (in the name) and `state`.

        The response streams while the template renders, so that its beginning is visible early.
        """
        state, user = self._context.viewed()
        wanted = _wanted()
        everything = rows(state.nodes, state.maintenances)
        shown = [item for item in everything if wanted(item)]
        token()  # creates the CSRF token: its cookie must precede the streamed page
        page = stream_template(
            "nodes.html",
            **{"user": user, "rows": shown, "counts": counts(everything), "wanted": wanted},
            version=state.version,
        )
        return Response(in_pieces(page))

    def live_nodes(self) -> Response:
        """Stream the changes of the list since the version that the page shows."""
        state, _ = self._context.viewed()
        wanted, seen = _wanted(), _seen()
        everything = rows(state.nodes, state.maintenances)
        shown = [item for item in everything if wanted(item)]
        first = ""
        if seen != str(state.version):
            first = render_template("rows_all.html", rows=shown) + _around(everything, shown) + _banner(state)

        def changes() -> Iterator[str]:
            nonlocal shown
            before, known, stale = shown, None, None
            if first:
                yield message("rows", first, state.version)
            for newer in self._newer(state):
                if newer is None:
                    yield STILL_HERE
                    continue
                everything = rows(newer.nodes, newer.maintenances)
                after = [item for item in everything if wanted(item)]
                html = render_template("rows_changed.html", steps=list(steps(before, after)))
                totals, before = counts(everything), after
                if html.strip() or totals != known or newer.stale != stale:
                    known, stale = totals, newer.stale
                    html += _around(everything, after) + _banner(newer)
                    yield message("rows", html, newer.version)

        return self._stream(changes())

    def node(self, name: str) -> str:
        """Render the details of one node."""
        state, user = self._context.viewed()
        told = {**self._details(state, name), **vmis.shown(self._context, name)}
        return render_template("node.html", user=user, version=state.version, **told)

    def machines(self, name: str) -> str:
        """Render the node's virtual machines; the page requests them again after each event `moved`."""
        self._context.viewed()
        return render_template("machines.html", **vmis.shown(self._context, name))

    def live_node(self, name: str) -> Response:
        """Stream the changes of the details; the event `moved` means that there may also be new recorded events."""
        state, _ = self._context.viewed()
        seen = _seen()
        last = _parts(self._details(state, name), _banner(state))

        def changes() -> Iterator[str]:
            before = last if seen == str(state.version) else {}
            for newer in self._from(state, now=not before):
                if newer is None:
                    yield STILL_HERE
                    continue
                after = _parts(self._details(newer, name, known=True), _banner(newer))
                changed = [part for part in after if before.get(part) != after[part]]
                yield from (message(part, after[part], newer.version) for part in changed)
                if changed:
                    yield message("moved", "", newer.version)
                before = after

        return self._stream(changes())

    def _details(self, state: State, name: str, *, known: bool = False) -> Object:
        """Return the data of the details' templates. Raises `NotFound` if no node or maintenance has this name."""
        found = [item for item in state.maintenances if node_name(item) == name]
        facts = state.nodes.get(name)
        if facts is None and not found and not known:
            raise NotFound(f"there is no node {name}")
        first = leading(found) if found else None
        ordered = [first, *(item for item in found if item is not first)] if first else []
        return {
            "row": row(name, facts, found),
            "facts": facts,
            "maintenances": [_shown(item) for item in ordered],
        }

    def _newer(self, state: State) -> Iterator[State | None]:
        """Yield newer states as they arrive, None after a quiet period; end after `STREAM_SECONDS`."""
        end, version = time.monotonic() + STREAM_SECONDS, state.version
        while time.monotonic() < end:
            newer = self._context.live.after(version, QUIET_SECONDS)
            if newer:
                version = newer.version
            yield newer
            time.sleep(BURST_SECONDS)

    def _from(self, state: State, *, now: bool) -> Iterator[State | None]:
        if now:
            yield state
        yield from self._newer(state)

    def _stream(self, changes: Iterator[str]) -> Response:
        if not self._streams.acquire(blocking=False):
            raise ServiceUnavailable(f"{STREAMS} viewers are looking already: this page shows no changes by itself")
        response = Response(stream_with_context(chain([STILL_HERE], changes)), mimetype="text/event-stream")
        response.call_on_close(self._streams.release)
        return response


def counts(everything: list[Row]) -> dict[str, int]:
    """Return the number of nodes that match each filter, and their total."""
    return {"all": len(everything), **{name: sum(map(holds, everything)) for name, holds in STATE_FILTERS.items()}}


def in_pieces(parts: Iterable[str]) -> Iterator[str]:
    """Yield the same text in chunks that are large enough for a network packet."""
    waiting: list[str] = []
    size = 0
    for part in parts:
        waiting.append(part)
        size += len(part)
        if size >= PIECE:
            yield "".join(waiting)
            waiting, size = [], 0
    yield "".join(waiting)


def message(event: str, data: str, version: int) -> str:
    """Format a server-sent event; a browser that reconnects sends the id of the last event that it received."""
    lines = "".join(f"data: {line}\n" for line in data.splitlines() or [""])
    return f"event: {event}\nid: {version}\n{lines}\n"


def _seen() -> str:
    """Return the version that the browser shows."""
    return request.headers.get("Last-Event-ID") or request.args.get("version", "")


def _wanted() -> Wanted:
    state = request.args.get("state", "")
    return Wanted(request.args.get("q", "").strip(), state if state in STATE_FILTERS else "")


def _around(everything: list[Row], shown: list[Row]) -> str:
    """Render the parts next to the list: the number of nodes, and the message if no node matches."""
    totals = render_template("counts.html", counts=counts(everything), oob=True)
    return totals + render_template("none.html", some=shown, oob=True)


def _banner(state: State) -> str:
    """Render the banner for a stale page, to be swapped into its place."""
    return render_template("stale.html", since=state.stale, oob=True)


def _parts(details: Object, banner: str) -> dict[str, str]:
    """Render the two parts of the details that change, each under the name of its event."""
    return {
        "status": render_template("node_status.html", **details) + banner,
        "offers": render_template("offers.html", row=details["row"], at="node"),
    }


def _shown(item: Maintenance) -> Object:
    """Return the data that the page shows for one maintenance."""
    status, metadata = status_of(item), item["metadata"]
    blocked = [{**pod, "unblocks": remedy(pod)} for pod in status.get("blockedPods") or []]
    stuck = {(pod["namespace"], pod["name"]) for pod in blocked}
    pending = [pod for pod in status.get("pendingPodsRefs") or [] if (pod["namespace"], pod["name"]) not in stuck]
    return {
        "name": full_name(item),
        "uid": metadata["uid"],
        "phase": phase_word(item),
        "percent": int(status.get("drainProgress") or 0),
        "counted": "evictionPods" in status,
        "left": len(status.get("pendingPods") or []),
        "evictionPods": status.get("evictionPods"),
        "totalpods": status.get("totalpods"),
        "error": status.get("lastError") or "",
        "reason": spec_of(item).get("reason") or "",
        "by": requester(item),
        "created": metadata["creationTimestamp"],
        "updated": status.get("lastUpdate") or "",
        "ending": is_deleting(item),
        "conditions": status.get("conditions") or [],
        "blocked": blocked,
        "pending": pending,
    }
