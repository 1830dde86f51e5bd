"""The pages about nodes: the list and the details, each with a stream of its changes (OSV-7 to OSV-9)."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from itertools import chain

from flask import Response, render_template, request, stream_template, stream_with_context
from werkzeug.exceptions import NotFound, ServiceUnavailable

from console.operations.descriptions import find_separate_error, get_phase_label
from console.web.cluster_state import ClusterState
from console.web.context import ConsoleContext
from console.web.node_rows import (
    STATE_FILTERS,
    Row,
    RowFilter,
    build_row,
    build_rows,
    diff_rows,
    select_draining_maintenance,
)
from console.web.protection import get_csrf_token
from kube.maintenance.blocked_groups import group_blocked_pods
from kube.maintenance.objects import (
    Maintenance,
    format_full_name,
    get_ender,
    get_node_name,
    get_requester,
    get_spec,
    get_status,
)
from kube.paths import Object
from kube.virtualization.drain_forecast import BLOCKS, MOVES, RESTARTS, STOPS

MAX_STREAMS = 48
"""Maximum number of concurrent streams: each occupies a thread that is not free for other requests."""
MAX_STREAM_SECONDS = 300.0
"""Lifetime of a stream; the browser then reconnects, and a user who has lost permissions gets no new stream."""
KEEPALIVE_SECONDS = 15.0
"""Idle time after which a stream sends a comment, so that the server notices a closed connection."""
CHUNK_CHARACTERS = 16 * 1024
"""Characters per chunk of a long page."""
KEEPALIVE_COMMENT = ": keepalive\n\n"
"""A comment in the event stream, which browsers ignore."""
DRAIN_EFFECT_TONES = {MOVES: "ok", RESTARTS: "off", STOPS: "off", BLOCKS: "bad"}
"""CSS class for each effect of a drain on a virtual machine."""
MIN_UPDATE_SECONDS = 0.1
"""Delay between two updates: users perceive no more than ten per second."""


class NodeViews:
    """The views about nodes; `console.web.app` maps a URL to each method."""

    def __init__(self, context: ConsoleContext) -> None:
        self._context = context
        self._streams = threading.Semaphore(MAX_STREAMS)

    def nodes(self) -> Response:
        """Render the list, filtered by `q` (part of the name) and `state`.

        The response streams while the template renders, so that browsers show its beginning early.
        """
        state, user = self._context.read_state()
        row_filter = _parse_filter()
        all_rows, shown_rows = _build_rows(state, row_filter)
        get_csrf_token()  # creates the CSRF token, because its cookie must precede the streamed page
        page = stream_template(
            "nodes.html",
            **{"user": user, "rows": shown_rows, "counts": count_by_state(all_rows), "row_filter": row_filter},
            version=state.version,
        )
        return Response(join_chunks(page))

    def live_nodes(self) -> Response:
        """Stream the changes to the list since the version that the page shows."""
        state, _ = self._context.read_state()
        row_filter = _parse_filter()
        all_rows, shown_rows = _build_rows(state, row_filter)
        initial_html = ""
        if _get_shown_version() != str(state.version):
            initial_html = render_template("rows_all.html", rows=shown_rows) + _render_summary(
                state, all_rows, shown_rows
            )

        def iter_messages() -> Iterator[str]:
            before, last_summary = shown_rows, ""
            if initial_html:
                yield format_sse("rows", initial_html, state.version)
            for newer in self._iter_states(state):
                if newer is None:
                    yield KEEPALIVE_COMMENT
                    continue
                all_rows, after = _build_rows(newer, row_filter)
                changes = render_template("rows_changed.html", changes=list(diff_rows(before, after)))
                summary = _render_summary(newer, all_rows, after)
                if changes.strip() or summary != last_summary:
                    yield format_sse("rows", changes + summary, newer.version)
                before, last_summary = after, summary

        return self._build_stream(iter_messages())

    def node(self, name: str) -> str:
        """Render the details of one node."""
        state, user = self._context.read_state()
        values = {**self._build_details(state, name), **self._read_vmi_values(name)}
        return render_template("node.html", user=user, version=state.version, **values)

    def machines(self, name: str) -> str:
        """Render the node's virtual machines; the page repeats the request after each `moved` event."""
        self._context.read_state()
        return render_template("machines.html", **self._read_vmi_values(name))

    def live_node(self, name: str) -> Response:
        """Stream the changes to the details; a `moved` event makes the page reload the timeline and the VMs."""
        state, _ = self._context.read_state()
        shown_version = _get_shown_version()
        current_parts = _render_parts(self._build_details(state, name), _render_stale_banner(state))

        def iter_messages() -> Iterator[str]:
            before = current_parts if shown_version == str(state.version) else {}
            for newer in self._iter_states(state, include_current=not before):
                if newer is None:
                    yield KEEPALIVE_COMMENT
                    continue
                after = _render_parts(
                    self._build_details(newer, name, may_be_missing=True), _render_stale_banner(newer)
                )
                changed = [part for part in after if before.get(part) != after[part]]
                yield from (format_sse(part, after[part], newer.version) for part in changed)
                if changed:
                    yield format_sse("moved", "", newer.version)
                before = after

        return self._build_stream(iter_messages())

    def _build_details(self, state: ClusterState, name: str, *, may_be_missing: bool = False) -> Object:
        """Return the values for the details' templates. Raises `NotFound` if no node or maintenance has this name."""
        maintenances = [maintenance for maintenance in state.maintenances if get_node_name(maintenance) == name]
        facts = state.nodes.get(name)
        if facts is None and not maintenances and not may_be_missing:
            raise NotFound(f'node "{name}" not found')
        first = select_draining_maintenance(maintenances) if maintenances else None
        ordered = [first, *(maintenance for maintenance in maintenances if maintenance is not first)] if first else []
        return {
            "row": build_row(name, facts, maintenances),
            "facts": facts,
            "maintenances": [_build_maintenance_values(maintenance) for maintenance in ordered],
        }

    def _read_vmi_values(self, name: str) -> Object:
        """Return the values for the template of the virtual machines; `vmis` is None on a cluster without KubeVirt."""
        caller = self._context.get_caller()
        node_vmis = self._context.client.run(caller.read_vmis(name)) if self._context.has_vms() else None
        return {"vmis": node_vmis, "tones": DRAIN_EFFECT_TONES}

    def _iter_states(self, state: ClusterState, *, include_current: bool = False) -> Iterator[ClusterState | None]:
        """Yield newer states as they arrive, and None after each idle period; end after `MAX_STREAM_SECONDS`."""
        if include_current:
            yield state
        end, version = time.monotonic() + MAX_STREAM_SECONDS, state.version
        while time.monotonic() < end:
            newer = self._context.watcher.wait_for_newer_state(version, KEEPALIVE_SECONDS)
            if newer:
                version = newer.version
            yield newer
            time.sleep(MIN_UPDATE_SECONDS)

    def _build_stream(self, messages: Iterator[str]) -> Response:
        if not self._streams.acquire(blocking=False):
            raise ServiceUnavailable(f"{MAX_STREAMS} pages are open already: this page does not update itself")
        response = Response(stream_with_context(chain([KEEPALIVE_COMMENT], messages)), mimetype="text/event-stream")
        response.call_on_close(self._streams.release)
        return response


def count_by_state(rows: list[Row]) -> dict[str, int]:
    """Return the number of nodes that match each filter, and their total."""
    return {"all": len(rows), **{name: sum(map(matches, rows)) for name, matches in STATE_FILTERS.items()}}


def join_chunks(parts: Iterable[str]) -> Iterator[str]:
    """Yield the same text in larger chunks, so that a network packet is not sent for each part.

    As a generator, it closes the template's generator when a browser disconnects. A suspended template would keep
    Flask's context, so that later requests of the same thread would share the CSRF token of its user.
    """
    chunk: list[str] = []
    size = 0
    for part in parts:
        chunk.append(part)
        size += len(part)
        if size >= CHUNK_CHARACTERS:
            yield "".join(chunk)
            chunk, size = [], 0
    yield "".join(chunk)


def format_sse(event_name: str, data: str, version: int) -> str:
    """Format a server-sent event; a browser that reconnects sends the id of the last event that it received."""
    lines = "".join(f"data: {line}\n" for line in data.splitlines() or [""])
    return f"event: {event_name}\nid: {version}\n{lines}\n"


def _get_shown_version() -> str:
    """Return the version that the browser shows."""
    return request.headers.get("Last-Event-ID") or request.args.get("version", "")


def _parse_filter() -> RowFilter:
    state = request.args.get("state", "")
    return RowFilter(request.args.get("q", "").strip(), state if state in STATE_FILTERS else "")


def _build_rows(state: ClusterState, row_filter: RowFilter) -> tuple[list[Row], list[Row]]:
    """Return the rows of all nodes, and the rows that the filter selects."""
    rows = build_rows(state.nodes, state.maintenances)
    return rows, [row for row in rows if row_filter(row)]


def _render_summary(state: ClusterState, all_rows: list[Row], shown_rows: list[Row]) -> str:
    """Render the parts next to the list: the number of nodes, the message if none matches, and the stale banner."""
    counts = render_template("counts.html", counts=count_by_state(all_rows), oob=True)
    return counts + render_template("none.html", has_rows=bool(shown_rows), oob=True) + _render_stale_banner(state)


def _render_stale_banner(state: ClusterState) -> str:
    """Render the banner of a stale page as an htmx out-of-band swap."""
    return render_template("stale.html", since=state.stale_since, oob=True)


def _render_parts(details: Object, banner: str) -> dict[str, str]:
    """Render the two parts of the details that change, keyed by the names of their server-sent events."""
    return {
        "status": render_template("node_status.html", **details) + banner,
        "offers": render_template("offers.html", row=details["row"], at="node"),
    }


def _build_maintenance_values(maintenance: Maintenance) -> Object:
    """Return the values that the page shows for one maintenance."""
    status, metadata = get_status(maintenance), maintenance["metadata"]
    blocked = status.get("blockedPods") or []
    blocked_keys = {(pod["namespace"], pod["name"]) for pod in blocked}
    pending_refs = status.get("pendingPodsRefs") or []
    pending = [pod for pod in pending_refs if (pod["namespace"], pod["name"]) not in blocked_keys]
    return {
        "name": format_full_name(maintenance),
        "uid": metadata["uid"],
        "phase": get_phase_label(maintenance),
        "percent": int(status.get("drainProgress") or 0),
        "has_counts": "evictionPods" in status,
        "remaining": len(status.get("pendingPods") or []),
        "evictionPods": status.get("evictionPods"),
        "totalpods": status.get("totalpods"),
        "error": find_separate_error(status),
        "reason": get_spec(maintenance).get("reason") or "",
        "requester": get_requester(maintenance),
        "ender": get_ender(maintenance),
        "created": metadata["creationTimestamp"],
        "updated": status.get("lastUpdate") or "",
        "conditions": status.get("conditions") or [],
        "blocked": group_blocked_pods(blocked, format_full_name(maintenance)),
        "pending": pending,
    }
