"""The home page: nodes that need attention, nodes in progress, drained nodes, and other problems, with live updates."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import NamedTuple

from flask import Response, render_template

from console.operations import upgrade_runs
from console.operations.dead_letter_redrive import list_open_dead_letters
from console.operations.errors import OperationError
from console.operations.run_reports import STOPPED_STEPS, build_report
from console.web.callers import LIST_RUNS
from console.web.cluster_state import ClusterState
from console.web.context import ConsoleContext
from console.web.node_rows import STATE_CORDONED, Row
from console.web.polling import render_stale_banner
from console.web.streams import KEEPALIVE_COMMENT, PageStreams, format_sse, render_once_per_state
from eventing.journal.store import JournalError
from kube.client.api_errors import ApiError
from kube.paths import Object
from kube.text_limits import format_count
from kube.times import parse_time_or_none

MAX_LISTED_NODES = 10
"""Maximum number of nodes in each list on the page; a link leads to the complete list."""
REREAD_SECONDS = 10.0
"""Minimum seconds between two reads of the upgrade runs and the dead letters, which the console does not watch."""

START_SECONDS, PROGRESS_SECONDS = 30.0, 300.0
"""Seconds without a status change after which a maintenance counts as stalled.

The first applies before the maintenance begins and while it ends, the second during the drain. The status of a healthy
drain may remain unchanged for minutes, because a pod may use its whole grace period.
"""


class StalledNode(NamedTuple):
    """A node whose maintenance makes no progress although no pod is blocked, with the reason in one sentence."""

    row: Row
    reason: str


def list_stalled_nodes(rows: Sequence[Row], now: datetime) -> tuple[StalledNode, ...]:
    """Return the nodes whose maintenance is stalled, the oldest maintenance first."""
    reasons = ((row, _explain_stall(row, now)) for row in rows)
    return tuple(
        sorted((StalledNode(row, reason) for row, reason in reasons if reason), key=lambda node: node.row.since)
    )


def _explain_stall(row: Row, now: datetime) -> str:
    """Return why the maintenance in progress is stalled, or "" if it is not; an ending one's blocker is outdated."""
    last_change = parse_time_or_none(row.last_change)
    if row.urgency != 1 or last_change is None:
        return ""
    is_ending, limit = not row.offered_action, START_SECONDS
    if is_ending:
        problem = "No function has restored this node yet"
    elif row.total_pods is None:
        problem = "No function has begun this maintenance"
    else:
        limit = PROGRESS_SECONDS
        problem = f"This drain has made no progress for more than {PROGRESS_SECONDS / 60:.0f} minutes"
    if (now - last_change).total_seconds() <= limit:
        return ""
    if row.blocker and not is_ending:
        return row.blocker
    return f"{problem}: check the functions with kubectl maintenance status {row.name}"


@dataclass(frozen=True)
class Overview:
    """Summary of all nodes for the home page.

    Attributes:
        stuck: Nodes whose maintenance needs an administrator to continue.
        stalled: Nodes whose maintenance makes no progress; `in_progress` contains them too.
        in_progress: Nodes whose maintenance is in progress.
        drained: Drained nodes, which wait until an administrator ends the maintenance.
        cordoned_count: Number of nodes that are cordoned without a maintenance.
        not_ready_count: Number of nodes that are not ready or do not exist.
    """

    node_count: int
    stuck: Sequence[Row]
    stalled: Sequence[StalledNode]
    in_progress: Sequence[Row]
    drained: Sequence[Row]
    cordoned_count: int
    not_ready_count: int

    @classmethod
    def from_rows(cls, rows: Sequence[Row], stalled: Sequence[StalledNode] = ()) -> Overview:
        """Build the summary from the rows of the node list; each list begins with the oldest maintenance."""
        by_urgency: dict[int, list[Row]] = {}
        for row in sorted(rows, key=lambda row: row.since):
            by_urgency.setdefault(row.urgency, []).append(row)
        return cls(
            node_count=len(rows),
            stuck=by_urgency.get(0, []),
            stalled=stalled,
            in_progress=by_urgency.get(1, []),
            drained=by_urgency.get(2, []),
            cordoned_count=sum(not row.is_in_maintenance and row.state == STATE_CORDONED for row in rows),
            not_ready_count=sum(row.readiness != "Ready" for row in rows),
        )


class HaltedRun(NamedTuple):
    """A halted or invalid upgrade run, with the reason and the time since which it is halted ("" if unknown)."""

    namespace: str
    name: str
    step: str
    reason: str
    since: str

    @classmethod
    def from_report(cls, report: Object) -> HaltedRun:
        """Select the fields that the home page shows from a report by `build_report`."""
        wait = report["waits"] or {"what": "", "since": ""}
        return cls(report["namespace"], report["name"], report["step"], wait["what"], wait["since"])


class Alerts(NamedTuple):
    """Problems with upgrade runs and the journal, which the console reads periodically instead of watching them.

    Attributes:
        halted_runs: The halted or invalid upgrade runs; empty if the caller may not list MutexRunConfigs.
        dead_letter_count: Number of open dead letters, as on the page about dead letters.
        journal_error: The error if the journal cannot be read, "" if it can be read or none is configured.
    """

    halted_runs: tuple[HaltedRun, ...] = ()
    dead_letter_count: int = 0
    journal_error: str = ""


def select_tone(overview: Overview, alerts: Alerts) -> str:
    """Return the CSS class of the headline: "bad" for problems, "warn" for an unreadable journal, else "ok"."""
    if overview.stuck or overview.stalled or alerts.halted_runs or alerts.dead_letter_count:
        return "bad"
    return "warn" if alerts.journal_error else "ok"


def format_headline(overview: Overview, alerts: Alerts) -> str:
    """Return the page's headline: the number of problems, "Nothing is stuck", or that the journal cannot be read."""
    counts = (
        (len(overview.stuck) + len(overview.stalled), "node"),
        (len(alerts.halted_runs), "upgrade run"),
        (alerts.dead_letter_count, "dead letter"),
    )
    problems = [format_count(count, noun) for count, noun in counts if count]
    if not problems:
        return "The journal cannot be read" if alerts.journal_error else "Nothing is stuck"
    *first, last = problems
    total = sum(count for count, _ in counts)
    subject = f"{', '.join(first)} and {last}" if first else last
    return f"{subject} {'needs' if total == 1 else 'need'} attention"


class OverviewViews:
    """Views of the home page; `console.web.app` maps a URL to each public method."""

    def __init__(self, context: ConsoleContext, streams: PageStreams) -> None:
        self._context, self._streams = context, streams

    def home(self) -> str:
        """Render the home page."""
        state, user = self._context.read_state()
        values = _build_values(state, self._read_alerts(), _list_stalled_nodes_now(state))
        return render_template("home.html", user=user, **values)

    def live_home(self) -> Response:
        """Stream the content of the home page as server-sent events, after each change.

        After an idle period, the stream sends the content again if a maintenance has become stalled. The stream also
        reads the upgrade runs and the dead letters again, at most every `REREAD_SECONDS`.
        """
        state, _ = self._context.read_state()

        def iter_messages() -> Iterator[str]:
            latest, alerts, read_at, sent = state, self._read_alerts(), time.monotonic(), ""
            # Start with the current state, because the alerts may have changed since the page was rendered.
            for newer in self._streams.iter_states(state, include_current=True):
                latest = newer or latest
                if time.monotonic() - read_at >= REREAD_SECONDS:
                    alerts, read_at = self._read_alerts(), time.monotonic()
                html = _render_overview_once_per_state(latest, alerts)
                yield format_sse("overview", html, latest.version) if html != sent else KEEPALIVE_COMMENT
                sent = html

        return self._streams.build_response(iter_messages())

    def _read_alerts(self) -> Alerts:
        """Read the upgrade runs, with the caller's permissions, and the dead letters."""
        runs = self._list_stopped_runs() if self._context.has_runs() else ()
        try:
            return Alerts(runs, self._count_dead_letters())
        except JournalError as error:
            return Alerts(runs, journal_error=str(error))

    def _list_stopped_runs(self) -> tuple[HaltedRun, ...]:
        """Return the halted and invalid upgrade runs, or () if the runs cannot be read."""
        try:
            api, _ = self._context.get_api_and_user_name([LIST_RUNS])
            reports = map(build_report, self._context.client.run(upgrade_runs.list_runs(api)))
        except (ApiError, OperationError):  # The page about upgrade runs shows the error.
            return ()
        return tuple(HaltedRun.from_report(report) for report in reports if report["step"] in STOPPED_STEPS)

    def _count_dead_letters(self) -> int:
        return len(list_open_dead_letters(self._context.journal)) if self._context.has_journal else 0


def _list_stalled_nodes_now(state: ClusterState) -> tuple[StalledNode, ...]:
    return list_stalled_nodes(state.rows, datetime.now(timezone.utc))


def _build_values(state: ClusterState, alerts: Alerts, stalled: tuple[StalledNode, ...]) -> Object:
    overview = Overview.from_rows(state.rows, stalled)
    return {
        **{"overview": overview, "alerts": alerts, "max_listed": MAX_LISTED_NODES},
        **{"verdict": format_headline(overview, alerts), "tone": select_tone(overview, alerts)},
    }


def _render_overview_once_per_state(state: ClusterState, alerts: Alerts) -> str:
    stalled = _list_stalled_nodes_now(state)
    return render_once_per_state(state, (alerts, stalled), lambda: _render_overview(state, alerts, stalled))


def _render_overview(state: ClusterState, alerts: Alerts, stalled: tuple[StalledNode, ...]) -> str:
    values = _build_values(state, alerts, stalled)
    return render_template("overview.html", **values) + render_stale_banner(state.stale_since)
