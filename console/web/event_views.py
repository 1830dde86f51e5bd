"""The pages about recorded events: the filtered list, one event, a node's timeline, and the dry run of a replay."""

from __future__ import annotations

import json
from datetime import datetime

from cloudevents.core.formats.json import JSONFormat
from flask import render_template, request
from werkzeug.exceptions import BadRequest, NotFound

from console.operations.archive_contents import without_values
from console.operations.time_parsing import parse_moment
from console.operations.replay_runner import dry_run
from console.web import swimlanes
from console.web.callers import to_read_mutex, to_replay, to_replay_a_run, to_start
from console.web.context import Context
from console.web.node_rows import leading
from eventing.event_types import KNOWN, short
from eventing.journal.entries import Entry, Query
from eventing.journal.store import Journal
from eventing.replay.object_changes import MUTEX
from kube.maintenance.groups import MEDIK8S
from kube.maintenance.objects import node_name

PAGE = 200
"""Maximum number of events on one page."""
LONGEST = 1000
"""Maximum number of events in one timeline; older events are omitted."""
SPANS = ("15m", "1h", "1d")
"""The values of `since` that the page offers; the URL accepts any value that `parse_moment` accepts."""


class EventPages:
    """The views about recorded events; `console.web.app` maps a URL to each method."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def events(self) -> str:
        """Render the newest events, filtered by `node`, `maintenance`, `type`, `since` and `failed`."""
        _, user = self._context.viewed()
        asked = {name: request.args.get(name, "").strip() for name in ("node", "maintenance", "type", "since")}
        failed = bool(request.args.get("failed"))
        query = Query(
            node=asked["node"],
            maintenance=asked["maintenance"],
            types=(asked["type"],) if asked["type"] else (),
            since=_moment(asked["since"]),
            failed=failed,
            limit=PAGE,
            newest=True,
        )
        found = self._context.journal.listed(query)[::-1]
        return render_template(
            "events.html",
            **{"user": user, "entries": found, "asked": asked, "failed": failed, "lanes": swimlanes},
            **{"types": KNOWN, "spans": SPANS, "full": len(found) == PAGE, "page": PAGE},
        )

    def event(self, seq: int) -> str:
        """Render one event as JSON, with its attempts.

        An event about the upgrade mutex requires permission to read the mutex object.
        """
        _, user = self._context.viewed()
        entry = self._entry(seq)
        if entry.kind in MUTEX:
            self._context.cluster.run(self._context.caller().require(to_read_mutex(entry.kind)))
        return render_template("event.html", user=user, entry=entry, text=pretty(entry), lanes=swimlanes)

    def replay(self, seq: int) -> str:
        """Replay one event as a dry run, and render the recorded and the new answer of each function.

        The caller needs the permissions for starting a maintenance and for reading the recorded objects.
        """
        caller, state = self._context.caller(), self._context.live.now()
        self._context.cluster.run(caller.require([*to_start(MEDIK8S, state.groups), *to_replay(state.groups)]))
        entry = self._entry(seq)
        if entry.kind in MUTEX:
            self._context.cluster.run(caller.require(to_replay_a_run()))
        door = self._context.cluster.run(caller.door())
        shown = dry_run(entry, self._context.cluster, door, self._context.functions)
        return render_template("replayed.html", entry=entry, shown=shown, short=short, value=json.dumps)

    def timeline(self, name: str) -> str:
        """Render the timeline of the node's maintenance.

        If there are several, it is the one that the node's page shows. If there is none, it is the last recorded one.
        """
        state, user = self._context.viewed()
        found = [item for item in state.maintenances if node_name(item) == name]
        uid = leading(found)["metadata"]["uid"] if found else self._last(name)
        return timeline(self._context.journal, uid, user=user, name=name, of="node")

    def _last(self, name: str) -> str:
        """Return the uid of the last maintenance that was recorded for the node, even if other events followed."""
        found = self._context.journal.select(Query(node=name, maintained=True, limit=1, newest=True))
        return found[0].maintenance if found else ""

    def _entry(self, seq: int) -> Entry:
        found = self._context.journal.select(Query(after=seq - 1, limit=1))
        if not found or found[0].seq != seq:
            raise NotFound(f"there is no event number {seq}: it may be too old to be kept")
        return found[0]


def timeline(journal: Journal, uid: str, **shown: str) -> str:
    """Render the timeline of all events recorded for the maintenance or run with this uid, "" for none."""
    found = journal.listed(Query(maintenance=uid, limit=LONGEST, newest=True)) if uid else []
    return render_template("timeline.html", uid=uid, entries=found, picture=swimlanes.draw(found), lanes=swimlanes, **shown)


def _moment(text: str) -> datetime | None:
    try:
        return parse_moment(text) if text else None
    except ValueError as error:
        raise BadRequest(f"since: {error}") from None


def pretty(entry: Entry) -> str:
    """Format the event as indented JSON, without environment variables' values, which a recorded rule contains."""
    return json.dumps(without_values(json.loads(JSONFormat().write(entry.event))), indent=2, ensure_ascii=False)
