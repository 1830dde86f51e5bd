"""The pages about nodes: the list and the details, each with a stream of what changes in it (OSV-7 to OSV-9)."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from itertools import chain

from flask import Response, render_template, request, stream_template, stream_with_context
from werkzeug.exceptions import NotFound, ServiceUnavailable

from console.operations.describing import full_name, phase_word, remedy
from console.web import machines
from console.web.context import Context
from console.web.live import State
from console.web.protection import token
from console.web.rows import STATE_FILTERS, Row, Wanted, leading, row, rows, steps
from kube.maintenance.objects import Maintenance, is_deleting, node_name, requester, spec_of, status_of
from kube.paths import Object

STREAMS = 48
"""Viewers at a time: each holds a thread, and enough must be left for pages (console/web/serving.py)."""
STREAM_SECONDS = 300.0
"""A stream ends after this long and the browser opens another: who lost his rights sees no more then."""
QUIET_SECONDS = 15.0
"""After so long without a change something is sent anyway, so that a closed connection is noticed."""
PIECE = 16 * 1024
"""Characters of a long page sent at a time."""
STILL_HERE = ": still here\n\n"
"""A comment, which browsers read over."""
BURST_SECONDS = 0.1
"""At most ten updates a second: eyes see no more."""


class Pages:
    """The views; each method is one, listed in `console.web.app`."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._streams = threading.Semaphore(STREAMS)

    def nodes(self) -> Response:
        """The list, narrowed by `q` (in the name) and `state`; sent while it is made: its head is seen early."""
        state, user = self._context.viewed()
        wanted = _wanted()
        everything = rows(state.nodes, state.maintenances)
        shown = [item for item in everything if wanted(item)]
        token()  # its cookie has to go before the page
        page = stream_template(
            "nodes.html",
            **{"user": user, "rows": shown, "counts": counts(everything), "wanted": wanted},
            version=state.version,
        )
        return Response(in_pieces(page))

    def live_nodes(self) -> Response:
        """Changes of the list, from the version that the page shows."""
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
        """One node in detail."""
        state, user = self._context.viewed()
        told = {**self._details(state, name), **machines.shown(self._context, name)}
        return render_template("node.html", user=user, version=state.version, **told)

    def machines(self, name: str) -> str:
        """The node's virtual machines, which the page asks for anew when something moved."""
        self._context.viewed()
        return render_template("machines.html", **machines.shown(self._context, name))

    def live_node(self, name: str) -> Response:
        """Changes of the details; `moved` says that there may be new events, too."""
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
        """What the details' templates need; 404 for a name that neither a node nor a maintenance has."""
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
        """States newer than this one as they come, None when there was none for a while; ends after some minutes."""
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
    """How many nodes there are in each of the filters' states, and in all."""
    return {"all": len(everything), **{name: sum(map(holds, everything)) for name, holds in STATE_FILTERS.items()}}


def in_pieces(parts: Iterable[str]) -> Iterator[str]:
    """The same text in pieces that are worth a packet."""
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
    """One server-sent event; a browser that reconnects says the id of the last one it got."""
    lines = "".join(f"data: {line}\n" for line in data.splitlines() or [""])
    return f"event: {event}\nid: {version}\n{lines}\n"


def _seen() -> str:
    """The version that the browser shows."""
    return request.headers.get("Last-Event-ID") or request.args.get("version", "")


def _wanted() -> Wanted:
    state = request.args.get("state", "")
    return Wanted(request.args.get("q", "").strip(), state if state in STATE_FILTERS else "")


def _around(everything: list[Row], shown: list[Row]) -> str:
    """What is beside the list: how many nodes there are, and that none is like what was asked for."""
    totals = render_template("counts.html", counts=counts(everything), oob=True)
    return totals + render_template("none.html", some=shown, oob=True)


def _banner(state: State) -> str:
    """What says that the page is old, to be put in its place."""
    return render_template("stale.html", since=state.stale, oob=True)


def _parts(details: Object, banner: str) -> dict[str, str]:
    """The two parts of the details that change, by the name of their event."""
    return {
        "status": render_template("node_status.html", **details) + banner,
        "offers": render_template("offers.html", row=details["row"], at="node"),
    }


def _shown(item: Maintenance) -> Object:
    """What the page says of one maintenance."""
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
