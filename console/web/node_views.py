"""The pages about nodes: the list and the details, each with a stream of its changes (OSV-7 to OSV-9)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from flask import Response, redirect, render_template, request, stream_template, url_for
from werkzeug.exceptions import NotFound
from werkzeug.wrappers import Response as ResponseBase

from console.operations.budget_hints import list_budget_groups
from console.operations.descriptions import find_error_not_in_blocked_pods, get_phase_label
from console.web.callers import ActionDenials
from console.web.cluster_state import ClusterState
from console.web.context import ConsoleContext
from console.web.maintenance_steps import build_steps
from console.web.node_rows import (
    DEFAULT_SORT,
    SORT_KEYS,
    STATE_FILTERS,
    NodeFacts,
    Row,
    RowFilter,
    RowOrder,
    build_row,
    diff_rows,
    select_draining_maintenance,
)
from console.web.polling import render_stale_banner
from console.web.protection import get_csrf_token
from console.web.streams import (
    KEEPALIVE_COMMENT,
    PageStreams,
    format_sse,
    get_version_shown_by_browser,
    render_once_per_state,
)
from eventing.journal.entries import Query
from kube.maintenance.blocked_groups import group_blocked_pods
from kube.maintenance.objects import (
    Maintenance,
    format_full_name,
    get_ending_user,
    get_node_name,
    get_requester,
    get_spec,
    get_status,
)
from kube.paths import Object
from kube.virtualization.drain_forecast import BLOCKS, MOVES, RESTARTS, STOPS

CHUNK_CHARACTERS = 16 * 1024
"""Characters per chunk of a long page."""
SORT_LABELS = {"state": "urgency", "name": "node", "since": "since", "requester": "who", "reason": "reason"}.items()
"""The orders that a phone's page offers; wider pages sort by a click on a column's heading."""
DRAIN_EFFECT_TONES = {MOVES: "ok", RESTARTS: "off", STOPS: "off", BLOCKS: "bad"}
"""CSS class for each effect of a drain on a virtual machine."""


class NodeViews:
    """The views about nodes; `console.web.app` maps a URL to each method."""

    def __init__(self, context: ConsoleContext, streams: PageStreams) -> None:
        self._context, self._streams = context, streams

    def nodes(self) -> Response:
        """Render the list, filtered by `q` (part of the name) and `state`, and sorted by `sort` and `order`.

        The page contains all rows, and hides those that the filter does not select, because the browser filters and
        sorts without further requests. The response streams while the template renders, so that browsers show its
        beginning early.
        """
        state, user = self._context.read_state()
        row_filter, row_order = _parse_filter(), _parse_order()
        rows, denials = state.rows, self._context.read_action_denials(state)
        get_csrf_token()  # creates the CSRF token, because its cookie must precede the streamed page
        page = stream_template(
            "nodes.html",
            **{"user": user, "rows": row_order.sort(rows), "counts": count_by_state(rows), "version": state.version},
            **{"row_filter": row_filter, "row_order": row_order, "has_rows": any(map(row_filter, rows))},
            **{"columns": SORT_LABELS, "denials": denials},
        )
        return Response(join_chunks(page))

    def live_nodes(self) -> Response:
        """Stream the changes to the list since the version that the page shows."""
        state, _ = self._context.read_state()
        denials = self._context.read_action_denials(state)
        is_current = get_version_shown_by_browser() == str(state.version)
        initial_html = "" if is_current else _render_all_rows_once_per_state(state, denials)

        def iter_messages() -> Iterator[str]:
            before = state
            if initial_html:
                yield format_sse("rows", initial_html, state.version)
            for newer in self._streams.iter_states(state):
                if newer is None:
                    yield KEEPALIVE_COMMENT
                    continue
                if changes := render_row_changes_once_per_state(before, newer, denials):
                    yield format_sse("rows", changes, newer.version)
                before = newer

        return self._streams.build_response(iter_messages())

    def node(self, name: str) -> str | ResponseBase:
        """Render the details of one node; for a deleted node, redirect to its recorded events if there are any."""
        state, user = self._context.read_state()
        if not _is_known(state, name) and self._has_recorded_events(name):
            return redirect(url_for("events", node=name))
        _require_node(state, name)
        values = {**_build_details(state, name), **self._read_scale_values(state, name), **self._read_vmi_values(name)}
        denials = self._context.read_action_denials(state)
        return render_template("node.html", user=user, version=state.version, denials=denials, **values)

    def machines(self, name: str) -> str:
        """Render the node's virtual machines; the page repeats the request after each `moved` event."""
        self._context.read_state()
        return render_template("machines.html", **self._read_vmi_values(name))

    def scale_commands(self, name: str) -> str:
        """Render the commands that scale up blocked workloads; the page repeats the request after `moved` events."""
        state, _ = self._context.read_state()
        return render_template("scale_commands.html", **self._read_scale_values(state, name))

    def live_node(self, name: str) -> Response:
        """Stream the changes to the details; a `moved` event makes the page reload the timeline and the VMs."""
        state, _ = self._context.read_state()
        _require_node(state, name)
        shown_version, denials = get_version_shown_by_browser(), self._context.read_action_denials(state)
        current_parts = _render_parts_once_per_state(state, name, denials)

        def iter_messages() -> Iterator[str]:
            before = current_parts if shown_version == str(state.version) else {}
            for newer in self._streams.iter_states(state, include_current=not before):
                if newer is None:
                    yield KEEPALIVE_COMMENT
                    continue
                after = _render_parts_once_per_state(newer, name, denials)
                changed = [part for part in after if before.get(part) != after[part]]
                yield from (format_sse(part, after[part], newer.version) for part in changed)
                if changed:
                    yield format_sse("moved", "", newer.version)
                before = after

        return self._streams.build_response(iter_messages())

    def _has_recorded_events(self, name: str) -> bool:
        return self._context.has_journal and bool(self._context.journal.list_entries(Query(node=name, limit=1)))

    def _read_scale_values(self, state: ClusterState, name: str) -> Object:
        """Return the groups of blocked pods whose workload a command can scale up, as values for the template.

        They are not part of the details, because all pages share these, and only some callers may read workloads.
        """
        groups = list_budget_groups(_select_maintenances(state, name))
        commands = self._context.client.run(self._context.get_caller().read_scale_commands(groups)) if groups else {}
        scalable = [
            group.add_scale_command(commands[group.budget_key]) for group in groups if group.budget_key in commands
        ]
        return {"scale_groups": scalable}

    def _read_vmi_values(self, name: str) -> Object:
        """Return the values for the template of the virtual machines; `vmis` is None on a cluster without KubeVirt."""
        caller = self._context.get_caller()
        node_vmis = self._context.client.run(caller.read_vmis(name)) if self._context.has_vms() else None
        return {"vmis": node_vmis, "tones": DRAIN_EFFECT_TONES}


def count_by_state(rows: list[Row]) -> dict[str, int]:
    """Return the number of nodes that match each filter, and their total with the key ""."""
    return {"": len(rows), **{name: sum(map(matches, rows)) for name, matches in STATE_FILTERS.items()}}


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


def _parse_filter() -> RowFilter:
    state = request.args.get("state", "")
    return RowFilter(request.args.get("q", "").strip(), state if state in STATE_FILTERS else "")


def _parse_order() -> RowOrder:
    column = request.args.get("sort", "")
    return RowOrder(column if column in SORT_KEYS else DEFAULT_SORT, request.args.get("order") == "desc")


def _render_all_rows_once_per_state(state: ClusterState, denials: ActionDenials) -> str:
    return render_once_per_state(state, ("rows", denials), lambda: _render_all_rows(state, denials))


def _render_all_rows(state: ClusterState, denials: ActionDenials) -> str:
    """Render all rows and the parts next to the list, as htmx out-of-band swaps."""
    return render_template("rows_all.html", rows=state.rows, denials=denials) + _render_summary(state)


def render_row_changes_once_per_state(before: ClusterState, after: ClusterState, denials: ActionDenials) -> str:
    """Return the changes of the list as htmx out-of-band swaps, or "" if the list has not changed."""
    key = ("changed rows", before.version, denials)
    return render_once_per_state(after, key, lambda: _render_row_changes(before, after, denials))


def _render_row_changes(before: ClusterState, after: ClusterState, denials: ActionDenials) -> str:
    """Render the changed rows, and the parts next to the list if they have changed, as htmx out-of-band swaps."""
    row_changes = list(diff_rows(before.rows, after.rows))
    changes = render_template("rows_changed.html", changes=row_changes, denials=denials).strip()
    summary_before, summary = _render_summary(before), _render_summary(after)
    return changes + (summary if summary != summary_before else "")


def _render_summary(state: ClusterState) -> str:
    """Render the parts next to the list: the number of nodes that match each filter, and the stale banner."""
    return render_template("counts.html", counts=count_by_state(state.rows)) + render_stale_banner(state.stale_since)


def _require_node(state: ClusterState, name: str) -> None:
    """Raise `NotFound` if no node or maintenance has this name."""
    if not _is_known(state, name):
        raise NotFound(f'node "{name}" not found: if it was deleted, filter Events by its name')


def _is_known(state: ClusterState, name: str) -> bool:
    """Return whether a node or a maintenance has this name."""
    return name in state.nodes or bool(_select_maintenances(state, name))


def _select_maintenances(state: ClusterState, node: str) -> list[Maintenance]:
    return [maintenance for maintenance in state.maintenances if get_node_name(maintenance) == node]


def _build_details(state: ClusterState, name: str) -> Object:
    """Return the values for the details' templates; the node may be missing, as after its deletion."""
    maintenances, facts = _select_maintenances(state, name), state.nodes.get(name)
    first = select_draining_maintenance(maintenances) if maintenances else None
    ordered = [first, *(maintenance for maintenance in maintenances if maintenance is not first)] if first else []
    return {
        "row": build_row(name, facts, maintenances),
        "facts": facts,
        "maintenances": [_build_maintenance_values(maintenance, facts) for maintenance in ordered],
    }


def _render_parts_once_per_state(state: ClusterState, name: str, denials: ActionDenials) -> dict[str, str]:
    return render_once_per_state(state, ("node", name, denials), lambda: _render_parts(state, name, denials))


def _render_parts(state: ClusterState, name: str, denials: ActionDenials) -> dict[str, str]:
    """Render the parts of the details that change, keyed by the names of their server-sent events."""
    details = _build_details(state, name)
    return {
        "tag": render_template("node_tag.html", row=details["row"]),
        "status": render_template("node_status.html", **details) + render_stale_banner(state.stale_since),
        "facts": render_template("node_facts.html", **details),
        "offers": render_template("offers.html", row=details["row"], at="node", denials=denials),
    }


def _build_maintenance_values(maintenance: Maintenance, facts: NodeFacts | None) -> Object:
    """Return the values that the page shows for one maintenance; `facts` is its node, None if the node is gone."""
    status, metadata = get_status(maintenance), maintenance["metadata"]
    blocked = status.get("blockedPods") or []
    blocked_keys = {(pod["namespace"], pod["name"]) for pod in blocked}
    pending_refs = status.get("pendingPodsRefs") or []
    pending = [pod for pod in pending_refs if (pod["namespace"], pod["name"]) not in blocked_keys]
    return {
        "name": format_full_name(maintenance),
        "uid": metadata["uid"],
        "phase": get_phase_label(maintenance),
        "steps": build_steps(maintenance, facts),
        "percent": int(status.get("drainProgress") or 0),
        "has_counts": "evictionPods" in status,
        "remaining": len(status.get("pendingPods") or []),
        "evictionPods": status.get("evictionPods"),
        "totalpods": status.get("totalpods"),
        "error": find_error_not_in_blocked_pods(status),
        "reason": get_spec(maintenance).get("reason") or "",
        "requester": get_requester(maintenance),
        "ender": get_ending_user(maintenance),
        "created": metadata["creationTimestamp"],
        "updated": status.get("lastUpdate") or "",
        "conditions": status.get("conditions") or [],
        "blocked": group_blocked_pods(blocked, format_full_name(maintenance)),
        "pending": pending,
    }
