"""The pages about recorded events: the filtered list, one event, a node's timeline, and the dry run of a replay."""

from __future__ import annotations

import json
from datetime import datetime

from cloudevents.core.formats.json import JSONFormat
from flask import render_template, request
from werkzeug.exceptions import BadRequest, NotFound

from console.operations.archive import redact_values
from console.operations.descriptions import parse_time_or_age
from console.operations.replay import replay_dry_run
from console.web import swimlanes
from console.web.callers import list_mutex_read_rights, list_replay_rights, list_run_replay_rights, list_start_rights
from console.web.context import ConsoleContext
from console.web.node_rows import select_draining_maintenance
from eventing.events import KNOWN_TYPES, shorten_type
from eventing.journal.entries import Entry, Query
from eventing.journal.store import Journal
from eventing.replay.object_changes import MUTEX_OBJECT_KINDS
from kube.maintenance.objects import get_node_name

PAGE_SIZE = 200
"""Maximum number of events on one page."""
MAX_TIMELINE_EVENTS = 1000
"""Maximum number of events in one timeline; older events are omitted."""
SINCE_CHOICES = ("15m", "1h", "1d")
"""The values of `since` that the page offers; the URL accepts any value that `parse_time_or_age` accepts."""


class EventViews:
    """The views about recorded events; `console.web.app` maps a URL to each method."""

    def __init__(self, context: ConsoleContext) -> None:
        self._context = context

    def events(self) -> str:
        """Render the newest events, filtered by `node`, `maintenance`, `type`, `since` and `failed`."""
        _, user = self._context.read_state()
        filters = {name: request.args.get(name, "").strip() for name in ("node", "maintenance", "type", "since")}
        failed = bool(request.args.get("failed"))
        query = Query(
            node=filters["node"],
            maintenance=filters["maintenance"],
            types=(filters["type"],) if filters["type"] else (),
            since=_parse_since(filters["since"]),
            failed=failed,
            limit=PAGE_SIZE,
            keep_newest=True,
        )
        entries = self._context.journal.list_entries(query)[::-1]
        return render_template(
            "events.html",
            **{"user": user, "entries": entries, "filters": filters, "failed": failed, "swimlanes": swimlanes},
            **{"types": KNOWN_TYPES, "since_choices": SINCE_CHOICES},
            **{"is_full": len(entries) == PAGE_SIZE, "page_size": PAGE_SIZE},
        )

    def event(self, seq: int) -> str:
        """Render one event as JSON, with its attempts.

        An event about the upgrade mutex requires permission to read the mutex object.
        """
        _, user = self._context.read_state()
        entry = self._get_entry(seq)
        if entry.kind in MUTEX_OBJECT_KINDS:
            self._context.require(list_mutex_read_rights(entry.kind))
        return render_template("event.html", user=user, entry=entry, json=format_event_json(entry), swimlanes=swimlanes)

    def replay(self, seq: int) -> str:
        """Replay one event as a dry run, and render the recorded and the new response of each function.

        The caller needs the permissions for starting a maintenance and for reading the recorded objects.
        """
        groups = self._context.watcher.get_state().groups
        self._context.require([*list_start_rights(groups), *list_replay_rights(groups)])
        entry = self._get_entry(seq)
        if entry.kind in MUTEX_OBJECT_KINDS:
            self._context.require(list_run_replay_rights())
        api = self._context.client.run(self._context.get_caller().get_api())
        dry_run = replay_dry_run(entry, self._context.client, api, self._context.functions_url)
        return render_template(
            "replayed.html", entry=entry, dry_run=dry_run, shorten_type=shorten_type, to_json=json.dumps
        )

    def timeline(self, name: str) -> str:
        """Render the timeline of the node's maintenance.

        If the node has several maintenances, the timeline shows the one that the node's page shows. If the node has
        none, the timeline shows the last recorded maintenance.
        """
        state, user = self._context.read_state()
        maintenances = [maintenance for maintenance in state.maintenances if get_node_name(maintenance) == name]
        uid = (
            select_draining_maintenance(maintenances)["metadata"]["uid"]
            if maintenances
            else self._find_last_maintenance_uid(name)
        )
        return render_timeline(self._context.journal, uid, user=user, name=name, of="node")

    def _find_last_maintenance_uid(self, name: str) -> str:
        """Return the uid of the last maintenance that was recorded for the node, even if other events followed."""
        entries = self._context.journal.select(Query(node=name, has_object=True, limit=1, keep_newest=True))
        return entries[0].maintenance if entries else ""

    def _get_entry(self, seq: int) -> Entry:
        entries = self._context.journal.select(Query(after_seq=seq - 1, limit=1))
        if not entries or entries[0].seq != seq:
            raise NotFound(f"event {seq} not found: the journal may have removed it because of its age")
        return entries[0]


def render_timeline(journal: Journal, uid: str, **template_values: str) -> str:
    """Render the timeline of the events recorded for the maintenance or run with this uid; "" means no events.

    Events of ticks that changed nothing are only counted.
    """
    recorded = journal.list_entries(Query(maintenance=uid, limit=MAX_TIMELINE_EVENTS, keep_newest=True)) if uid else []
    entries = [entry for entry in recorded if not entry.is_idle_tick]
    return render_template(
        "timeline.html",
        uid=uid,
        entries=entries,
        idle_count=len(recorded) - len(entries),
        diagram=swimlanes.build_diagram(entries),
        swimlanes=swimlanes,
        **template_values,
    )


def _parse_since(text: str) -> datetime | None:
    try:
        return parse_time_or_age(text) if text else None
    except ValueError as error:
        raise BadRequest(f"since: {error}") from None


def format_event_json(entry: Entry) -> str:
    """Format the event as indented JSON, without environment variables' values, which a recorded rule may contain."""
    return json.dumps(redact_values(json.loads(JSONFormat().write(entry.event))), indent=2, ensure_ascii=False)
