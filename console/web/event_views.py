"""The pages about recorded events: the filtered list, one event, a node's timeline, and the dry run of a replay."""

from __future__ import annotations

import json
import re
import threading
from functools import lru_cache

from cloudevents.core.formats.json import JSONFormat
from flask import Response, make_response, render_template, request
from werkzeug.exceptions import NotFound

from console.operations.archive import redact_possible_secrets
from console.operations.finished_drains import DRAIN_EVENT_TYPES
from console.operations.replay import replay_dry_run
from console.web import swimlanes
from console.web.callers import list_mutex_read_rights, list_replay_rights, list_run_replay_rights
from console.web.context import ConsoleContext
from console.web.event_filter import PAGE_SIZE, EventFilter, split_page
from console.web.event_groups import KIND_LABELS, group_by_object, is_failed
from console.web.json_markup import color_json
from console.web.node_rows import select_draining_maintenance
from console.web.polling import build_unchanged_response, render_stale_banner
from eventing.events import (
    KNOWN_TYPES,
    MAINTENANCE_PENDING,
    MAINTENANCE_RESTORE_PENDING,
    MAINTENANCE_STEP_FAILED,
    NODE_RESTORED,
    TYPE_DESCRIPTIONS,
    shorten_type,
)
from eventing.journal.entries import REDRIVE_PREFIX, Entry, Query, get_object_identity
from eventing.journal.origins import find_origin
from eventing.journal.store import Journal
from eventing.replay.object_changes import MUTEX_OBJECT_KINDS
from kube.client.access_reviews import Permission
from kube.client.api_errors import Unavailable
from kube.maintenance.objects import get_node_name

MAX_SHARED_LISTS = 16
"""Number of rendered lists of events to keep, for pages with different filters."""
MAX_TIMELINE_EVENTS = 1000
"""Maximum number of events in one timeline; the timeline links to older events."""
AGE_CHOICES = ("15m", "1h", "1d", "7d")
"""The values of `since` and `until` that the page suggests, among all that `parse_time_or_age` accepts."""
LAST_DRAIN_TYPES = (
    *(MAINTENANCE_PENDING, *DRAIN_EVENT_TYPES),
    *(MAINTENANCE_STEP_FAILED, MAINTENANCE_RESTORE_PENDING, NODE_RESTORED),
)
"""Types of the events by which the timeline finds a node's last maintenance; an upgrade run emits none of these.

The journal may have removed a drain's first events, but not yet its last ones.
"""
EVENT_TABS = {"summary": "Summary", "attempts": "Attempts", "replay": "Replay", "json": "JSON"}
"""The tabs of an event, by their value in the URL; the first one is the default."""
FLAG_OR_DATA_PATTERN = re.compile("; (?:data:|`)")
"""Matches the beginning of a flag's or the data's description in `TYPE_DESCRIPTIONS`."""
MAX_RELATED_EVENTS = 100
"""Maximum number of causes and replies to which an event's page has a link."""


class EventViews:
    """The views about recorded events; `console.web.app` maps a URL to each method."""

    def __init__(self, context: ConsoleContext) -> None:
        self._context, self._lock = context, threading.Lock()
        self._render_list = lru_cache(MAX_SHARED_LISTS)(self._read_and_render_list)

    def events(self) -> str:
        """Render a page of events, grouped by object or in order of arrival, filtered by the query's fields."""
        _, user = self._context.read_state()
        event_filter = EventFilter.from_query(request.args)
        version = self._compute_version(event_filter)
        return render_template(
            "events.html",
            **{"user": user, "types": KNOWN_TYPES, "ages": AGE_CHOICES, "swimlanes": swimlanes},
            **{
                "filter": event_filter,
                "version": version,
                "list_html": self._render_list_once_per_version(event_filter, version),
            },
        )

    def tail(self) -> Response:
        """Render the list of events again, unless the page already shows this `version` of the list."""
        watcher = self._context.watcher
        try:
            self._context.read_state()
        except Unavailable:
            return build_unchanged_response(watcher)  # The page keeps its content and asks again.
        event_filter = EventFilter.from_query(request.args)
        version = self._compute_version(event_filter)
        if version == request.args.get("version"):
            return build_unchanged_response(watcher)
        list_html = self._render_list_once_per_version(event_filter, version)
        return make_response(
            render_template("events_tail.html", version=version, list_html=list_html)
            + render_stale_banner(watcher.get_stale_since())
        )

    def _compute_version(self, event_filter: EventFilter) -> str:
        """Return the version of the list, which an open page requests every two seconds without reading the events."""
        return self._context.journal.compute_version(event_filter.build_query())

    def _render_list_once_per_version(self, event_filter: EventFilter, version: str) -> str:
        """Return this version of the list as HTML, read and rendered once for all pages that show it."""
        with self._lock:  # The other pages wait for the list, and do not read another one.
            return self._render_list(event_filter, version, request.script_root)

    def _read_and_render_list(self, event_filter: EventFilter, _version: str, _script_root: str) -> str:
        entries, before = split_page(self._context.journal.list_entries(event_filter.build_query()), PAGE_SIZE)
        entries.reverse()
        return render_template(
            "events_list.html",
            **{"entries": entries, "groups": group_by_object(entries), "filter": event_filter},
            **{"before": before, "page_size": PAGE_SIZE},
            **{"swimlanes": swimlanes, "kind_labels": KIND_LABELS, "is_failed": is_failed},
        )

    def event(self, seq: int) -> str:
        """Render one tab of an event: its summary, its attempts, the form for a replay, or the event as JSON.

        An event about the upgrade mutex requires permission to read the mutex object.
        """
        state, user = self._context.read_state()
        entry = self._get_entry(seq)
        if entry.kind in MUTEX_OBJECT_KINDS:
            self._context.require(list_mutex_read_rights(entry.kind))
        tab = request.args.get("tab", "")
        rights = [*list_replay_rights(state.groups), *_list_additional_replay_rights(entry)]
        return render_template(
            "event.html",
            **{"user": user, "entry": entry, "tabs": EVENT_TABS, "tab": tab if tab in EVENT_TABS else "summary"},
            **{"swimlanes": swimlanes, "kind_labels": KIND_LABELS, "meaning": get_meaning(entry)},
            **{"object_name": get_object_identity(entry.event)[1], "redrive_prefix": REDRIVE_PREFIX},
            json=color_json(format_event_json(entry)) if tab == "json" else "",
            related=self._find_related_events(entry) if tab != "json" else {},
            denial=self._context.explain_denial(rights) if tab == "replay" else "",
        )

    def _find_related_events(self, entry: Entry) -> dict[str, Entry]:
        """Return the event's recorded cause and the recorded replies to the event, by their ids."""
        replies = [str(reply["id"]) for attempt in entry.attempts for reply in attempt.replies]
        ids = tuple(filter(None, [entry.cause, *replies]))[:MAX_RELATED_EVENTS]
        related = self._context.journal.list_entries(Query(ids=ids)) if ids else []
        return {item.event.get_id(): item for item in related if item.dead_letter is None}

    def replay(self, seq: int) -> str:
        """Replay one event as a dry run, and render the recorded and the new response of each function.

        The caller needs the permissions for starting a maintenance and for reading the recorded objects.
        """
        self._context.require(list_replay_rights(self._context.watcher.get_state().groups))
        entry = self._get_entry(seq)
        self._context.require(_list_additional_replay_rights(entry))
        api = self._context.client.run(self._context.get_caller().get_api())
        dry_run = replay_dry_run(entry, self._context.client, api, self._context.functions_url)
        return render_template(
            "replayed.html", entry=entry, dry_run=dry_run, shorten_type=shorten_type, to_json=json.dumps
        )

    def timeline(self, name: str) -> str:
        """Render the timeline of the node's maintenance.

        If the node has several maintenances, the timeline shows the one that the node's page shows. If the node has
        none, the timeline shows the last recorded one. Events of upgrade runs are on the page to which it links.
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
        entries = self._context.journal.select(Query(node=name, types=LAST_DRAIN_TYPES, limit=1, keep_newest=True))
        return entries[0].maintenance if entries else ""

    def _get_entry(self, seq: int) -> Entry:
        entries = self._context.journal.select(Query(after_seq=seq - 1, limit=1))
        if not entries or entries[0].seq != seq:
            raise NotFound(f"event {seq} not found: the journal may have removed it because of its age")
        return entries[0]


def _list_additional_replay_rights(entry: Entry) -> list[Permission]:
    """Return the additional permissions to replay an event of an upgrade run; none for other events."""
    return list_run_replay_rights() if entry.kind in MUTEX_OBJECT_KINDS else []


def render_timeline(journal: Journal, uid: str, **template_values: str) -> str:
    """Render the timeline of the events recorded for the maintenance or run with this uid; "" means no events.

    Events of ticks that changed nothing are only counted.
    """
    query = Query(maintenance=uid, limit=MAX_TIMELINE_EVENTS + 1, keep_newest=True)
    recorded, before = split_page(journal.list_entries(query) if uid else [], MAX_TIMELINE_EVENTS)
    entries = [entry for entry in recorded if not entry.is_idle_tick]
    return render_template(
        "timeline.html",
        uid=uid,
        before=before,
        entries=entries,
        idle_count=len(recorded) - len(entries),
        origin=find_origin(entry.event for entry in recorded),
        diagram=swimlanes.build_diagram(entries),
        swimlanes=swimlanes,
        is_failed=is_failed,
        **template_values,
    )


def get_meaning(entry: Entry) -> str:
    """Return what the event's type means, without its flags and data; "" for the types of other projects."""
    description = TYPE_DESCRIPTIONS.get(entry.event.get_type(), "")
    return FLAG_OR_DATA_PATTERN.split(description)[0].replace("`", "")


def format_event_json(entry: Entry) -> str:
    """Format the event as indented JSON, without environment variables' values, which a recorded rule may contain."""
    return json.dumps(
        redact_possible_secrets(json.loads(JSONFormat().write(entry.event))), indent=2, ensure_ascii=False
    )
