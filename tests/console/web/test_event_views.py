"""Tests for the timeline, the event pages, replays and redrives, mostly in a real browser."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import datetime, timedelta, timezone
from html import unescape
from pathlib import Path

import pytest
import requests
from cloudevents.core.v1.event import CloudEvent
from flask.testing import FlaskClient

from console.operations.dead_letter_redrive import list_open_dead_letters
from console.web.app import create_app
from console.web.callers import identify_by_kubeconfig
from console.web.event_filter import PAGE_SIZE
from console.web.event_views import MAX_TIMELINE_EVENTS
from eventing.dead_letters import DeadLetter, add_dead_letter_extensions
from eventing.events import (
    MAINTENANCE_BEGUN,
    MAINTENANCE_PENDING,
    MAINTENANCE_RESTORE_PENDING,
    NODE_DONE,
    NODE_DRAINED,
    NODE_RESTORED,
    NODE_TAINTED,
    RESOURCE_ADDED,
    RESOURCE_UPDATED,
    ObjectReference,
    build_event,
    shorten_type,
)
from eventing.http_binding import encode_binary
from eventing.journal.entries import DISCARD_PREFIX, Attempt, Query
from eventing.journal.store import Journal
from kube.client.sync_client import SyncClient
from kube.maintenance.groups import MEDIK8S
from kube.maintenance.objects import ENDER_ANNOTATION, REQUESTER_ANNOTATION
from kube.mutex.objects import API_VERSION, RUN_KIND
from localcluster.http_receiver import Receiver
from localcluster.web_console import WebConsole
from tests.console.web.callers import get_page
from tests.console.web.site import Browser, Site

OLDER_LINK = re.compile(r'<a href="([^"]+)">Older events</a>')
HIDDEN_FIELD = re.compile(r'<input type="hidden" name="([^"]+)" value="([^"]*)">')


@pytest.fixture(scope="module")
def drained_node(site: Site) -> str:
    """Return the name of a node that a maintenance has drained."""
    environment = site.environment
    node = environment.create_node("recorded-1")
    environment.create_pods(node, 2)
    path = environment.create_maintenance(node, reason="<img src=x onerror=alert(1)>")
    environment.wait_for_state(path)
    return node


def build_reference(node: str) -> ObjectReference:
    return ObjectReference(MEDIK8S.api_version, node, f"uid-{node}")


@contextmanager
def open_console(site: Site, journal: Journal, functions_url: str = "") -> Iterator[FlaskClient]:
    """Yield a client for a console with another journal, in this process."""
    client = SyncClient(str(site.environment.cluster.kubeconfig))
    with closing(client):
        identify = identify_by_kubeconfig(client.api)
        app = create_app(client, identify, journal=journal, functions_url=functions_url, broker_url=functions_url)
        with closing(app.extensions["live"]), app.test_client() as console:
            yield console


def list_event_types_with_attempts(site: Site, node: str) -> list[str]:
    journal = Journal(site.environment.product.journal)
    types = [entry.event.get_type() for entry in journal.select(Query(node=node)) if entry.attempts]
    journal.close()
    return types


def open_complete_timeline(browser: Browser, site: Site, node: str) -> None:
    """Open the node's page once its journal entries are complete, because attempts are recorded with a delay."""
    browser.wait_until(
        lambda: any(event_type.endswith("node.drained") for event_type in list_event_types_with_attempts(site, node))
    )
    browser.open(f"/nodes/{node}")
    browser.wait_until(lambda: browser.find_all(".lanes svg a"))


def test_timeline_shows_lanes_and_event_details(browser: Browser, site: Site, drained_node: str) -> None:
    """Check that the timeline shows emitters and attempts, and that an event is shown as JSON without script errors."""
    open_complete_timeline(browser, site, drained_node)

    lane_names = browser.run_script(
        "return [...document.querySelectorAll('.lanes .name')].map(item => item.textContent)"
    )
    assert {"begin", "cordon", "taint", "evict", "status"} <= set(lane_names)
    marker_labels = browser.run_script(
        "return [...document.querySelectorAll('.lanes a')].map(a => a.getAttribute('aria-label'))"
    )
    assert "node.tainted, emitted by taint" in marker_labels
    browser.open_event("node.drained")
    browser.select_tab("json")
    text = browser.get_text("#window-body pre")
    assert '"type": "dev.nodemaintenance.node.drained"' in text
    assert f'"node": "{drained_node}"' in text
    browser.click("dialog[open] .cancel")
    browser.wait_until(lambda: not browser.find_all("dialog[open]"))
    assert browser.take_errors() == []


def test_dry_replay_shows_recorded_and_new_response(browser: Browser, site: Site, drained_node: str) -> None:
    """Check that a dry replay shows each function's recorded and new response, and causes only dry-run writes."""
    open_complete_timeline(browser, site, drained_node)
    writes_before = len(site.environment.list_product_writes())
    browser.open_event("node.cordoned")

    assert browser.replay_event() == [["taint", "same", "200 node.tainted", "200 node.tainted"]]
    writes = [
        entry for entry in site.environment.list_product_writes()[writes_before:] if drained_node in entry["requestURI"]
    ]
    assert all("dryRun=All" in entry["requestURI"] for entry in writes)
    assert browser.take_errors() == []


def test_events_page_filters_by_node_type_and_failure(browser: Browser, site: Site, drained_node: str) -> None:
    """Check that the events page has the same filters as the command line, and reports an invalid time."""
    open_complete_timeline(browser, site, drained_node)
    (maintenance,) = site.environment.client.list(MEDIK8S.path, field_selector=f"spec.nodeName={drained_node}")["items"]

    browser.open("/events", node=drained_node, type="dev.nodemaintenance.node.drained", since="1h")
    assert {cell.text for cell in browser.find_all("tbody th")} == {"node.drained"}
    browser.open("/events", maintenance=maintenance["metadata"]["uid"])
    assert len(browser.find_all("tbody tr")) >= 8
    assert "evict 200" in browser.get_text("tbody")
    browser.open("/events", maintenance=maintenance["metadata"]["name"], failed="yes")
    assert browser.get_text("main .empty-state strong") == "No events match this filter."
    browser.open("/events", since="soon")
    assert "400 Bad Request" in browser.get_text("main")


@pytest.mark.slow
def test_dead_letter_shows_reason_and_is_redriven_after_confirmation(
    browser: Browser, site: Site, drained_node: str
) -> None:
    """Check that a dead letter is shown with its reason, and that it is redriven only after a confirmation."""
    journal = Journal(site.environment.product.journal)
    (begun_entry,) = journal.select(Query(node=drained_node, types=("dev.nodemaintenance.maintenance.begun",)))
    message = encode_binary(begun_entry.event)
    dead_letter_headers = {
        "ce-knativeerrordest": site.environment.product.get_function_url("cordon"),
        "ce-knativeerrorcode": "503",
    }
    response = requests.post(
        site.environment.product.get_function_url("record"),
        message.body,
        headers={**message.headers, **dead_letter_headers},
        timeout=10,
    )
    assert response.status_code == 204
    query = Query(dead_letters_only=True, node=drained_node)
    assert len(journal.select(query)) == 1

    browser.open("/dead-letters")
    assert "503" in browser.get_text("tbody")
    browser.click("tbody form button")
    assert "Redrive this event?" in browser.wait_for_dialog()
    # The console delivers the dead letter only after the user has confirmed the dialog.
    assert not any(attempt.replay for attempt in journal.select(query)[0].attempts)
    browser.click("dialog[open] .buttons button")
    browser.wait_until(lambda: "Redriven" in browser.wait_for_dialog())
    assert "cordon" in browser.wait_for_dialog()
    assert "failed" not in browser.wait_for_dialog()
    browser.open("/dead-letters")
    assert "maintenance.begun" in browser.get_text("[aria-labelledby=redriven-title] tbody")
    journal.close()


@pytest.mark.slow
def test_open_dead_letters_are_listed_before_redriven_dead_letters(site: Site, tmp_path: Path) -> None:
    """X-6: open dead letters are listed first, and the page states whether it omits older dead letters."""
    file, attempted_at = tmp_path / "journal.db", datetime.now(timezone.utc)
    with closing(Journal(file)) as journal:
        for number in range(230):
            event = CloudEvent({"id": str(number), "source": "/s", "type": MAINTENANCE_BEGUN}, {})
            journal.write_event(add_dead_letter_extensions(event, DeadLetter("http://in/cordon", 503, "away")))
        with WebConsole(site.environment.cluster, tmp_path, "--journal", file) as console:
            console_site = Site(site.environment, console)
            page_before = get_page(console_site, "/dead-letters").text
            journal.write_attempts(
                Attempt("/s", str(number), "cordon", attempted_at, 0.1, 204, replay=f"redrive {number}")
                for number in range(30, 230)
            )
            page_after = get_page(console_site, "/dead-letters").text

    assert "These are the newest 200, 200 of them open; once they are redriven, older ones are shown." in page_before
    assert "Redrive these 200" in page_before
    assert "These are the newest 200, 30 of them open." in page_after
    assert "Redrive all" in page_after
    assert page_after.count(">Redrive</button>") == 30
    numbers = re.findall(r'<td data-label="Number">(\d+)</td>', page_after)
    assert numbers == [*map(str, range(30, 0, -1)), *map(str, range(230, 60, -1))]


@pytest.mark.slow
def test_console_waits_for_journal_and_never_creates_it(site: Site, tmp_path: Path) -> None:
    """X-6: the console waits for a journal that does not exist yet, and never creates it; only `record` does.

    The pages show the journal once it exists. After its file was replaced, they show only the new journal.
    """
    file = tmp_path / "journal.db"
    with WebConsole(site.environment.cluster, tmp_path, "--journal", file) as console:
        console_site = Site(site.environment, console)
        response_before = get_page(console_site, "/events")
        assert (response_before.status_code, file.exists()) == (503, False)
        assert "file does not exist yet: the function record creates it" in response_before.text

        for event_type in ("before.event", "after.event"):
            with closing(Journal(file)) as journal:
                journal.write_event(CloudEvent({"id": "1", "source": "/s", "type": event_type}, {}))
            page = get_page(console_site, "/events").text
            assert [name for name in ("before.event", "after.event") if name in page] == [event_type]
            for name in tmp_path.glob("journal.db*"):
                name.unlink()


def test_form_does_not_redrive_dead_letter_of_replaced_journal(site: Site, receiver: Receiver, tmp_path: Path) -> None:
    """X-6: A form does not redrive a different dead letter that has the same number in a replaced journal."""
    file = tmp_path / "journal.db"
    with (
        closing(Journal(file, create=False, defer_not_ready=True)) as journal,
        open_console(site, journal, receiver.url) as console,
    ):
        pages = []
        for event_id in ("1", "2"):
            for database_file in tmp_path.glob("journal.db*"):
                database_file.unlink()
            event = CloudEvent({"id": event_id, "source": "/s", "type": MAINTENANCE_BEGUN}, {})
            with closing(Journal(file)) as new_journal:
                dead_letter = DeadLetter("http://gone/cordon", 503, "away")
                new_journal.write_event(add_dead_letter_extensions(event, dead_letter))
            pages.append(dict(HIDDEN_FIELD.findall(console.get("/dead-letters").text)))
        old_response = console.post("/dead-letters/redrive", data={**pages[0], "confirm": "yes"})
        new_response = console.post("/dead-letters/redrive", data=pages[1])

    assert pages[0]["letter"] == pages[1]["letter"]
    assert old_response.status_code == 404
    assert "another dead letter has this number now: nothing was done; load the page again" in old_response.text
    assert new_response.status_code == 200
    assert pages[1].items() <= dict(HIDDEN_FIELD.findall(new_response.text)).items()
    assert receiver.requests == []


def test_discarded_dead_letter_is_closed_and_names_user(site: Site, receiver: Receiver, tmp_path: Path) -> None:
    """X-6: The dialog of a redrive discards a dead letter instead, which delivers nothing and records the user."""
    with closing(Journal(tmp_path / "journal.db")) as journal:
        event = CloudEvent({"id": "1", "source": "/s", "type": MAINTENANCE_BEGUN}, {})
        journal.write_event(add_dead_letter_extensions(event, DeadLetter("http://gone/cordon", 503, "away")))
        with open_console(site, journal, receiver.url) as console:
            fields = dict(HIDDEN_FIELD.findall(console.get("/dead-letters").text))
            dialog = console.post("/dead-letters/redrive", data=fields).text
            unconfirmed = console.post("/dead-letters/discard", data=fields)
            open_before = list_open_dead_letters(journal)
            response = console.post("/dead-letters/discard", data={**fields, "confirm": "yes"})
            page = console.get("/dead-letters").text

        assert 'action="/dead-letters/discard"' in dialog
        assert (unconfirmed.status_code, len(open_before)) == (404, 1)
        assert (response.status_code, list_open_dead_letters(journal)) == (200, [])
    assert "1 dead letter discarded" in response.text
    assert "discarded by admin at " in page
    assert receiver.requests == []


def test_dead_letter_is_discarded_in_dialog_of_redrive(browser: Browser, site: Site) -> None:
    """X-6: *Discard* in the dialog closes the dead letter without a delivery, and the list then names the user."""
    event = build_event(MAINTENANCE_BEGUN, "begin", build_reference("discarded-1"), "discarded-1")
    query = Query(dead_letters_only=True, node="discarded-1")
    with closing(Journal(site.environment.product.journal)) as journal:
        journal.write_event(add_dead_letter_extensions(event, DeadLetter("http://gone/cordon", 503, "away")))
        (dead_letter,) = journal.select(query)
        browser.open("/dead-letters")
        redrive_button = f"button[aria-label='Redrive event {dead_letter.seq}']"
        browser.click(redrive_button)
        assert "discard it: nothing is delivered" in browser.wait_for_dialog()
        assert journal.select(query)[0].attempts == ()

        browser.click("dialog[open] form[action$='/discard'] button")
        browser.wait_until(lambda: "1 dead letter discarded" in browser.wait_for_dialog())
        browser.click("dialog[open] .buttons a")
        browser.wait_until(lambda: "discarded-1" in browser.get_text("[aria-labelledby=redriven-title] tbody"))
        (attempt,) = journal.select(query)[0].attempts

    assert "discarded by admin at " in browser.get_text("[aria-labelledby=redriven-title] tbody")
    assert browser.find_all(redrive_button) == []
    assert attempt.replay.startswith(DISCARD_PREFIX)
    assert browser.take_errors() == []


def test_past_drain_is_found_by_filters_and_on_older_pages(site: Site, tmp_path: Path) -> None:
    """Check that a drain before the newest 200 events is on the next page, and on the page of each filter."""
    now = datetime.now(timezone.utc)
    reference, yesterday = build_reference("past-1"), now - timedelta(days=1)
    drain = [build_event(event_type, "evict", reference, "past-1") for event_type in (MAINTENANCE_BEGUN, NODE_DRAINED)]
    busy_events = (
        build_event(NODE_TAINTED, "taint", build_reference("busy-1"), "busy-1", seed=str(number))
        for number in range(PAGE_SIZE)
    )
    filters = (
        {"node": "past-1"},
        {"maintenance": "uid-past-1"},
        {"type": NODE_DRAINED},
        {"since": "2d", "until": "1h"},
    )
    with closing(Journal(tmp_path / "journal.db")) as journal:
        journal.write_events([*((event, yesterday) for event in drain), *((event, now) for event in busy_events)])
        with open_console(site, journal) as console:
            newest_page = console.get("/events").text
            link = OLDER_LINK.search(newest_page)
            assert link
            older_page = console.get(unescape(link[1])).text
            filtered_pages = [console.get("/events", query_string=fields).text for fields in filters]
            pruned_page = console.get("/events", query_string={"node": "busy-1", "before": "1"}).text

    node_link = 'href="/nodes/past-1"'
    assert node_link not in newest_page
    assert "These are the newest 200 events; older ones match, too." in newest_page
    assert node_link in older_page
    assert "These are the oldest events that match." in older_page
    assert [page.count('id="tail"') for page in (newest_page, older_page)] == [1, 0]
    assert [node_link in page for page in filtered_pages] == [True] * len(filters)
    assert not any(map(OLDER_LINK.search, filtered_pages))
    assert '<a href="/events?node=busy-1">Newest events</a>' in pruned_page


def test_timeline_shows_last_drain_although_upgrade_run_followed(site: Site, tmp_path: Path) -> None:
    """Check that a node's timeline shows its last maintenance, and leads to the events of a later upgrade run.

    The timeline states that it omits older events.
    """
    run = ObjectReference(API_VERSION, "upgrade", "uid-run", "default", kind=RUN_KIND)
    reference = build_reference("past-1")
    with closing(Journal(tmp_path / "journal.db")) as journal:
        journal.write_event(build_event(NODE_DRAINED, "evict", reference, "past-1"))
        journal.write_event(build_event(NODE_DONE, "run-job", run, "past-1"))
        with open_console(site, journal) as console:
            page = console.get("/timeline/past-1").text
            node_page = console.get("/events", query_string={"node": "past-1"}).text
            now = datetime.now(timezone.utc)
            journal.write_events(
                (build_event(NODE_TAINTED, "taint", reference, "past-1", seed=str(number)), now)
                for number in range(MAX_TIMELINE_EVENTS)
            )
            long_page = console.get("/timeline/past-1").text

    assert "node.drained, emitted by evict" in page
    assert "node.done" not in page
    assert "/events?node=past-1" in page
    assert 'id="group-uid-run"' in node_page
    assert ["Older events are not shown." in text for text in (page, long_page)] == [False, True]


@pytest.mark.parametrize("event_type", [MAINTENANCE_PENDING, MAINTENANCE_RESTORE_PENDING, NODE_RESTORED])
def test_timeline_shows_last_drain_whose_first_events_were_removed(site: Site, tmp_path: Path, event_type: str) -> None:
    """Check that each event outside of the drain itself is enough to find a node's last maintenance."""
    with closing(Journal(tmp_path / "journal.db")) as journal:
        journal.write_event(build_event(event_type, "restore", build_reference("past-1"), "past-1"))
        with open_console(site, journal) as console:
            page = console.get("/timeline/past-1").text

    assert f"{shorten_type(event_type)}, emitted by restore" in page


def test_events_page_and_timeline_show_who_gave_drain_up(site: Site, tmp_path: Path) -> None:
    """Check that both pages name the users and the remaining pods of a maintenance that was given up."""
    users = {REQUESTER_ANNOTATION: "alice", ENDER_ANNOTATION: "bob"}
    times = {"creationTimestamp": "2026-03-01T10:00:00Z", "deletionTimestamp": "2026-03-01T10:03:00Z"}
    reference = build_reference("past-1")
    deleted = CloudEvent(
        {"id": "deleted", "source": "/apis", "type": RESOURCE_UPDATED, "kind": "NodeMaintenance"},
        {
            "metadata": {"name": reference.name, "uid": reference.uid, "annotations": users, **times},
            "spec": {"nodeName": "past-1", "reason": "new disk"},
            "status": {"phase": "Running", "evictionPods": 5, "pendingCount": 2},
        },
    )
    with closing(Journal(tmp_path / "journal.db")) as journal:
        journal.write_event(deleted)
        journal.write_event(build_event(NODE_RESTORED, "restore", reference, "past-1"))
        with open_console(site, journal) as console:
            pages = [console.get(path).text for path in ("/events", "/timeline/past-1")]

    given_up = "given up after 3m: 2 of 5 pods remained"
    assert [page.count(given_up) for page in pages] == [2, 2]
    assert all(f'<span class="tag off">{given_up}</span>' in page for page in pages)
    assert all(f"Requested by alice; reason: new disk; ended by bob; {given_up}" in page for page in pages)


def test_page_of_deleted_node_redirects_to_its_recorded_events(site: Site, tmp_path: Path) -> None:
    """Check that the links of recorded events to a node that no longer exists lead to the node's events."""
    with closing(Journal(tmp_path / "journal.db")) as journal:
        journal.write_event(build_event(NODE_RESTORED, "restore", build_reference("past-1"), "past-1"))
        with open_console(site, journal) as console:
            deleted, unknown = (console.get(path, follow_redirects=False) for path in ("/nodes/past-1", "/nodes/none"))

    assert (deleted.status_code, deleted.headers["Location"]) == (302, "/events?node=past-1")
    assert unknown.status_code == 404


def test_summary_of_event_contains_that_node_no_longer_exists(site: Site, tmp_path: Path) -> None:
    """Check that the summary of `node.restored` states that the deletion of the node ended the maintenance."""
    data = {"nodeDeleted": True}
    with closing(Journal(tmp_path / "journal.db")) as journal:
        journal.write_event(build_event(NODE_RESTORED, "restore", build_reference("past-1"), "past-1", data=data))
        with open_console(site, journal) as console:
            page = console.get(f"/events/{journal.select()[0].seq}").text

    assert "the node no longer exists" in page


def test_environment_values_of_event_are_redacted(site: Site) -> None:
    """Check that environment variables in a recorded MutexRule are redacted, because viewers may not read them."""
    env = [{"name": "TOKEN", "value": "hunter-of-two"}]
    attributes = {"id": "rule-1", "source": "/apis", "type": RESOURCE_ADDED, "kind": "MutexRule"}
    with closing(Journal(site.environment.product.journal)) as journal:
        journal.write_event(CloudEvent({**attributes, "datacontenttype": "application/json"}, {"spec": {"env": env}}))
        (entry,) = journal.select(Query(ids=("rule-1",)))

    page = requests.get(site.build_url(f"/events/{entry.seq}", tab="json"), timeout=10).text

    assert "TOKEN" in page
    assert "hunter-of-two" not in page


@pytest.mark.slow
def test_large_events_are_listed_within_memory_limit(site: Site) -> None:
    """X-6: listing large events takes only a fraction of the memory that the parsed events would need."""
    with closing(Journal(site.environment.product.journal)) as journal:
        for number in range(12):
            attributes = {"id": f"large-{number}", "source": "/large", "type": "large"}
            journal.write_event(
                CloudEvent({**attributes, "datacontenttype": "application/json"}, {"x": [[]] * 600_000})
            )
    peak_before = measure_peak_memory_kib(site)

    page = requests.get(site.build_url("/events", type="large"), timeout=30).text

    assert page.count('<th scope="row">') == 12
    assert measure_peak_memory_kib(site) - peak_before < 120 * 1024


def measure_peak_memory_kib(site: Site) -> int:
    """Return the highest peak memory of the console's processes in KiB."""
    process = site.console.server.process
    assert process
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    statuses = [Path(f"/proc/{pid}/status").read_text() for pid in (process.pid, *children)]
    return max(int(line.split()[1]) for status in statuses for line in status.splitlines() if "VmHWM" in line)
