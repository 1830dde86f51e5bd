"""Tests for the home page, which lists the nodes that are stuck, in progress or drained."""

from __future__ import annotations

from contextlib import closing
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from cloudevents.core.v1.event import CloudEvent

from console.web.node_rows import START, STOP, NodeFacts, Row, build_row
from console.web.overview_views import (
    Alerts,
    HaltedRun,
    Overview,
    StalledNode,
    format_headline,
    list_stalled_nodes,
    select_tone,
)
from eventing import events
from eventing.dead_letters import DeadLetter, add_dead_letter_extensions
from eventing.journal.entries import REDRIVE_PREFIX, Attempt
from eventing.journal.store import Journal
from kube.times import parse_time
from localcluster.web_console import WebConsole
from tests.console.web.callers import get_page
from tests.console.web.site import Browser, Site
from tests.kube.samples import make_maintenance

EMPTY_OVERVIEW = Overview.from_rows([])
STOPPED_RUN = HaltedRun("ns", "run", "Failed", "a Job failed", "")
NODE = NodeFacts("node-1", is_ready=True, is_cordoned=True, version="", taints=())
CREATED, CHANGED = "2026-01-01T00:00:00Z", "2026-01-01T01:00:00Z"
RUNNING = {"phase": "Running", "evictionPods": 2, "pendingPods": ["web-1"], "lastUpdate": CHANGED}
BLOCKED = {
    **RUNNING,
    "blockedPods": [{"namespace": "ns", "name": "web-1", "reason": "DisruptionBudget", "message": ""}],
}
CHECK = "check the functions with kubectl maintenance status node-1"
FAST_STALL_PROGRAM = """
from console.web import overview_views, streams
overview_views.START_SECONDS, streams.KEEPALIVE_SECONDS = 3.0, 0.5
from console.cli import main
main()
"""
"""Python script that runs the console with shorter times until a maintenance is stalled and a page is updated."""


def build_sample_row(name: str, state: str, tone: str, since: str = "2026-01-01T00:00:00Z") -> Row:
    return Row(name, "Ready", state, tone, STOP, percent=0, since=since)


def test_nodes_are_grouped_by_urgency() -> None:
    """Check that stuck, in-progress and drained nodes are listed, the oldest maintenance first, and others counted."""
    overview = Overview.from_rows(
        [
            build_sample_row("a", "Blocked", "bad", "2026-01-02T00:00:00Z"),
            build_sample_row("b", "Step failed", "bad", "2026-01-01T00:00:00Z"),
            build_sample_row("c", "Draining", "busy"),
            build_sample_row("d", "Drained", "done"),
            Row("e", "Ready", "Cordoned", "off", START),
            Row("f", "NotReady", "In service", "off", START),
            Row("g", "Ready", "In service", "ok", START),
        ]
    )

    assert [row.name for row in overview.stuck] == ["b", "a"]
    assert [row.name for row in (*overview.in_progress, *overview.drained)] == ["c", "d"]
    assert (overview.node_count, overview.cordoned_count, overview.not_ready_count) == (7, 1, 1)


@pytest.mark.parametrize(
    ("stuck_count", "alerts", "expected_verdict", "expected_tone"),
    [
        (0, Alerts(), "Nothing is stuck", "ok"),
        (1, Alerts(), "1 node needs attention", "bad"),
        (2, Alerts(), "2 nodes need attention", "bad"),
        (0, Alerts(dead_letter_count=1), "1 dead letter needs attention", "bad"),
        (2, Alerts((STOPPED_RUN,), 3), "2 nodes, 1 upgrade run and 3 dead letters need attention", "bad"),
        (0, Alerts(journal_error="no file"), "The journal cannot be read", "warn"),
        (1, Alerts(journal_error="no file"), "1 node needs attention", "bad"),
    ],
)
def test_headline_names_stuck_nodes(
    stuck_count: int, alerts: Alerts, expected_verdict: str, expected_tone: str
) -> None:
    overview = Overview.from_rows(
        [build_sample_row(f"node-{number}", "Blocked", "bad") for number in range(stuck_count)]
    )

    assert format_headline(overview, alerts) == expected_verdict
    assert select_tone(overview, alerts) == expected_tone


def build_status_row(status: dict[str, Any] | None, **metadata: str) -> Row:
    """Build the row of a node whose maintenance has this status."""
    maintenance = make_maintenance(status)
    metadata = {**maintenance["metadata"], "creationTimestamp": CREATED, **metadata}
    return build_row("node-1", NODE, [{**maintenance, "metadata": metadata}])


@pytest.mark.parametrize(
    ("row", "last_change", "seconds", "expected_reason"),
    [
        (build_status_row(None), CREATED, 30, f"No function has begun this maintenance: {CHECK}"),
        (build_status_row({"lastError": "Lease is held", "lastUpdate": CHANGED}), CHANGED, 30, "Lease is held"),
        (
            build_status_row(RUNNING),
            CHANGED,
            300,
            f"This drain has made no progress for more than 5 minutes: {CHECK}",
        ),
        (
            build_status_row(BLOCKED, deletionTimestamp="2026-01-01T02:00:00Z"),
            "2026-01-01T02:00:00Z",
            30,
            f"No function has restored this node yet: {CHECK}",
        ),
    ],
    ids=["not-begun", "waiting", "no-progress", "not-restored"],
)
def test_maintenance_without_status_change_is_stalled(
    row: Row, last_change: str, seconds: int, expected_reason: str
) -> None:
    limit = parse_time(last_change) + timedelta(seconds=seconds)

    assert list_stalled_nodes([row], limit) == ()
    assert list_stalled_nodes([row], limit + timedelta(seconds=1)) == (StalledNode(row, expected_reason),)


@pytest.mark.parametrize(
    "row",
    [
        build_status_row(BLOCKED),
        build_status_row({**RUNNING, "phase": "Succeeded"}),
        build_status_row({**RUNNING, "phase": "Failed"}),
        build_row("node-1", NODE, []),
    ],
    ids=["blocked", "drained", "failed", "no-maintenance"],
)
def test_maintenance_that_is_stuck_or_drained_is_not_stalled(row: Row) -> None:
    assert list_stalled_nodes([row], parse_time(CHANGED) + timedelta(days=1)) == ()


def test_stalled_node_is_not_shown_as_ok() -> None:
    """Check that the headline counts a stalled maintenance, which also remains in the list of drains in progress."""
    row = build_status_row(None)
    overview = Overview.from_rows([row], [StalledNode(row, "No function has begun this maintenance")])

    assert format_headline(overview, Alerts()) == "1 node needs attention"
    assert select_tone(overview, Alerts()) == "bad"
    assert overview.in_progress == [row]


def test_page_shows_maintenance_that_cannot_begin(browser: Browser, site: Site, tmp_path: Path) -> None:
    """OSV-9: an open page lists a maintenance that no function begins, without a further change of the cluster."""
    environment = site.environment
    node = environment.create_node("stalled-1")
    console = WebConsole(environment.cluster, tmp_path)
    console.server.command[1:3] = ["-c", FAST_STALL_PROGRAM]
    with console:
        fast_browser = Browser(browser.driver, console)
        fast_browser.open("/")
        environment.product.kill_delivery()
        try:
            path = environment.create_maintenance(node)
            fast_browser.wait_until(lambda: node in fast_browser.get_text("section[aria-labelledby=progress]"))
            attention_selector = "section[aria-labelledby=attention]"
            reason = (
                f"No function has begun this maintenance: check the functions with kubectl maintenance status {node}"
            )
            fast_browser.wait_until(lambda: reason in fast_browser.get_text(attention_selector))
        finally:
            environment.product.start_delivery()
        fast_browser.wait_until(lambda: node not in fast_browser.get_text(attention_selector))
        assert fast_browser.take_errors() == []
        environment.request_deletion(path)
        environment.wait_for_deletion(path)


def test_page_shows_stuck_node_and_is_updated(browser: Browser, site: Site) -> None:
    """OSV-9: the home page shows a blocked drain with its cause, without a reload, until the maintenance is deleted."""
    environment = site.environment
    node, namespace = environment.create_node("overview-1"), environment.create_namespace()
    environment.create_deployment(namespace, node, 2)
    environment.create_budget(namespace, {"app": "web"}, name="web", disruptions_allowed=0, minAvailable=2)
    browser.open("/")
    assert node not in browser.get_text("#overview")

    path = environment.create_maintenance(node, reason="new disk")
    attention_selector = "section[aria-labelledby=attention]"
    browser.wait_until(lambda: "budget web needs 2 healthy pods" in browser.get_text(attention_selector))
    assert node in browser.get_text(attention_selector)
    assert browser.get_text(".verdict.bad h1").endswith("attention")

    environment.request_deletion(path)
    environment.wait_for_deletion(path)
    browser.wait_until(lambda: node not in browser.get_text("#overview"))
    assert browser.take_errors() == []


def test_page_counts_open_dead_letters(site: Site, tmp_path: Path) -> None:
    """Check that the home page counts the open dead letters, and links to the page that lists them.

    The second dead letter was redriven. Its function is known only from its failed attempt, not from its destination.
    """
    journal_file, now = tmp_path / "journal.db", datetime.now(timezone.utc)
    with closing(Journal(journal_file)) as store:
        for event_id, destination in (("1", "http://gone/cordon"), ("2", "http://gone")):
            event = CloudEvent({"id": event_id, "source": "/s", "type": events.MAINTENANCE_BEGUN}, {})
            store.write_event(add_dead_letter_extensions(event, DeadLetter(destination, 503, "away")))
        store.write_attempts(
            [
                Attempt("/s", "2", "cordon", now, 0.1, 503, error="away"),
                Attempt("/s", "2", "cordon", now, 0.1, 204, replay=f"{REDRIVE_PREFIX}1"),
            ]
        )
    with WebConsole(site.environment.cluster, tmp_path, "--journal", journal_file) as console:
        console_site = Site(site.environment, console)
        page, list_page = get_page(console_site, "/").text, get_page(console_site, "/dead-letters").text

    assert '<a href="/dead-letters">1 dead letter</a>' in page
    assert 'class="verdict bad"' in page
    assert list_page.count(">Redrive</button>") == 1


def test_page_without_readable_journal_shows_reason(site: Site, tmp_path: Path) -> None:
    """Check that the home page shows the nodes and the reason, but no green headline, if the journal is unreadable."""
    with WebConsole(site.environment.cluster, tmp_path, "--journal", tmp_path / "missing.db") as console:
        response = get_page(Site(site.environment, console), "/")

    assert response.status_code == 200
    assert "Dead letters are not counted: " in response.text
    assert 'class="verdict ok"' not in response.text
