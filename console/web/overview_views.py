"""The home page: nodes that need attention, nodes in progress, drained nodes, and other problems, with live updates."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
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

MAX_LISTED_NODES = 10
"""Maximum number of nodes in each list on the page; a link leads to the complete list."""
REREAD_SECONDS = 10.0
"""Minimum seconds between two reads of the upgrade runs and the dead letters, which the console does not watch."""


@dataclass(frozen=True)
class Overview:
    """Summary of all nodes for the home page.

    Attributes:
        stuck: Nodes whose maintenance needs an administrator to continue.
        in_progress: Nodes whose maintenance is in progress.
        drained: Drained nodes, which wait until an administrator ends the maintenance.
        cordoned_count: Number of nodes that are cordoned without a maintenance.
        not_ready_count: Number of nodes that are not ready or do not exist.
    """

    node_count: int
    stuck: Sequence[Row]
    in_progress: Sequence[Row]
    drained: Sequence[Row]
    cordoned_count: int
    not_ready_count: int

    @classmethod
    def from_rows(cls, rows: Sequence[Row]) -> Overview:
        """Build the summary from the rows of the node list; each list begins with the oldest maintenance."""
        by_urgency: dict[int, list[Row]] = {}
        for row in sorted(rows, key=lambda row: row.since):
            by_urgency.setdefault(row.urgency, []).append(row)
        return cls(
            node_count=len(rows),
            stuck=by_urgency.get(0, []),
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
    if overview.stuck or alerts.halted_runs or alerts.dead_letter_count:
        return "bad"
    return "warn" if alerts.journal_error else "ok"


def format_headline(overview: Overview, alerts: Alerts) -> str:
    """Return the page's headline: the number of problems, "Nothing is stuck", or that the journal cannot be read."""
    counts = (
        (len(overview.stuck), "node"),
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
        values = _build_values(state, self._read_alerts())
        return render_template("home.html", user=user, **values)

    def live_home(self) -> Response:
        """Stream the content of the home page as server-sent events, after each change.

        The stream also reads the upgrade runs and the dead letters again, at most every `REREAD_SECONDS`.
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


def _build_values(state: ClusterState, alerts: Alerts) -> Object:
    overview = Overview.from_rows(state.rows)
    return {
        **{"overview": overview, "alerts": alerts, "max_listed": MAX_LISTED_NODES},
        **{"verdict": format_headline(overview, alerts), "tone": select_tone(overview, alerts)},
    }


def _render_overview_once_per_state(state: ClusterState, alerts: Alerts) -> str:
    return render_once_per_state(state, alerts, lambda: _render_overview(state, alerts))


def _render_overview(state: ClusterState, alerts: Alerts) -> str:
    return render_template("overview.html", **_build_values(state, alerts)) + render_stale_banner(state.stale_since)
