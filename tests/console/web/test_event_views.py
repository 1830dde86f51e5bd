"""Tests of the timeline, the event pages and a dry replay, mostly in a real browser."""

from __future__ import annotations

import re
from contextlib import closing
from datetime import datetime, timezone
from pathlib import Path

import pytest
import requests
from cloudevents.core.v1.event import CloudEvent

from console.web.app import create_app
from console.web.callers import as_owner
from eventing.dead_letters import DeadLetter, as_dead_letter
from eventing.events import MAINTENANCE_BEGUN, RESOURCE_ADDED
from eventing.journal.entries import Attempt, Query
from eventing.journal.store import Journal
from eventing.http_binding import binary
from kube.client.sync_client import Cluster
from kube.maintenance.groups import MEDIK8S
from localcluster.web_console import Console
from tests.console.web.callers import look
from tests.console.web.site import Browser, Site
from tests.receiver import Receiver

FIELD = re.compile(r'<input type="hidden" name="([^"]+)" value="([^"]*)">')


@pytest.fixture(scope="module")
def drained(site: Site) -> str:
    """Return a node whose maintenance has drained it."""
    scene = site.scene
    node = scene.node("recorded-1")
    scene.pods(node, 2)
    path = scene.maintain(node, reason="<img src=x onerror=alert(1)>")
    scene.reaches(path)
    return node


def entries(site: Site, node: str) -> list[str]:
    journal = Journal(site.scene.product.journal)
    found = [entry.event.get_type() for entry in journal.select(Query(node=node)) if entry.attempts]
    journal.close()
    return found


def opened(browser: Browser, site: Site, node: str) -> None:
    """Open the node's page once its journal entries are complete; attempts are recorded with a delay."""
    browser.until(lambda: any(kind.endswith("node.drained") for kind in entries(site, node)))
    browser.open(f"/nodes/{node}")
    browser.until(lambda: browser.all(".lanes svg a"))


def test_the_timeline_shows_a_lane_for_each_function_and_opens_each_event(
    browser: Browser, site: Site, drained: str
) -> None:
    """Check that the timeline shows emitters and attempts, and that an event opens as JSON without running scripts."""
    opened(browser, site, drained)

    lanes = browser.script("return [...document.querySelectorAll('.lanes text.name')].map(item => item.textContent)")
    assert {"begin", "cordon", "taint", "evict", "status"} <= set(lanes)
    marks = browser.script("return [...document.querySelectorAll('.lanes a')].map(a => a.getAttribute('aria-label'))")
    assert "node.tainted, emitted by taint" in marks
    browser.press("node.drained")
    shown = browser.text("#window-body pre")
    assert '"type": "dev.nodemaintenance.node.drained"' in shown
    assert f'"node": "{drained}"' in shown
    browser.one("dialog[open] .cancel").click()
    browser.until(lambda: not browser.all("dialog[open]"))
    assert browser.errors() == []


def test_one_event_is_replayed_dry_and_shown_then_and_now(browser: Browser, site: Site, drained: str) -> None:
    """Check that a replay shows each function's recorded and new response, and that it only causes dry-run writes."""
    opened(browser, site, drained)
    before = len(site.scene.our_writes())
    browser.press("node.cordoned")

    assert browser.replay() == [["taint", "same", "200 node.tainted", "200 node.tainted"]]
    writes = [entry for entry in site.scene.our_writes()[before:] if drained in entry["requestURI"]]
    assert all("dryRun=All" in entry["requestURI"] for entry in writes)
    assert browser.errors() == []


def test_the_events_page_narrows_by_node_type_and_failure(browser: Browser, site: Site, drained: str) -> None:
    """Check that the page has the filters of the command line, and that an invalid time is an error."""
    opened(browser, site, drained)
    (maintenance,) = site.scene.admin.list(MEDIK8S.path, fields=f"spec.nodeName={drained}")["items"]

    browser.open("/events", node=drained, type="dev.nodemaintenance.node.drained", since="1h")
    assert [item.text for item in browser.all("tbody th")] == ["node.drained"]
    browser.open("/events", maintenance=maintenance["metadata"]["uid"])
    assert len(browser.all("tbody tr")) >= 8
    assert "evict 200" in browser.text("tbody")
    browser.open("/events", maintenance=maintenance["metadata"]["name"], failed="yes")
    assert browser.text("main .empty") == "No event is like that."
    browser.open("/events", since="soon")
    assert "400 Bad Request" in browser.text("main")


@pytest.mark.slow
def test_a_dead_letter_says_why_and_is_redriven_behind_a_confirmation(
    browser: Browser, site: Site, drained: str
) -> None:
    """Check that a dead letter shows its reason, and that it is redriven only after a confirmation."""
    journal = Journal(site.scene.product.journal)
    (begun,) = journal.select(Query(node=drained, types=("dev.nodemaintenance.maintenance.begun",)))
    message = binary(begun.event)
    dead = {"ce-knativeerrordest": site.scene.product.function_url("cordon"), "ce-knativeerrorcode": "503"}
    taken = requests.post(
        site.scene.product.function_url("record"), message.body, headers={**message.headers, **dead}, timeout=10
    )
    assert taken.status_code == 204
    (letter,) = journal.select(Query(dead=True))

    browser.open("/dead-letters")
    assert "503" in browser.text("tbody")
    browser.one("tbody form button").click()
    assert "Deliver this event again, for real?" in browser.window()
    assert journal.select(Query(dead=True))[0].attempts == letter.attempts  # only the confirmation delivers it
    browser.one("dialog[open] .buttons button").click()
    browser.until(lambda: "Redriven" in browser.window())
    assert "cordon" in browser.window()
    assert "failed" not in browser.window()
    browser.open("/dead-letters")
    assert "redriven" in browser.text("tbody")
    journal.close()


@pytest.mark.slow
def test_open_dead_letters_are_shown_before_the_newer_ones_that_were_redriven(site: Site, tmp_path: Path) -> None:
    """X-6: The page lists dead letters that await a redrive before newer redriven ones, and states what it omits."""
    file, at = tmp_path / "journal.db", datetime.now(timezone.utc)
    with closing(Journal(file)) as book:
        for number in range(230):
            event = CloudEvent({"id": str(number), "source": "/s", "type": MAINTENANCE_BEGUN}, {})
            book.write(as_dead_letter(event, DeadLetter("http://in/cordon", 503, "away")))
        with Console(site.scene.cluster, tmp_path, "--journal", file) as console:
            here = Site(site.scene, console)
            before = look(here, "/dead-letters").text
            book.write_attempts(
                Attempt("/s", str(number), "cordon", at, 0.1, 204, replay=f"redrive {number}")
                for number in range(30, 230)
            )
            after = look(here, "/dead-letters").text

    assert "These are the newest 200, 200 of them open; once they are redriven, older ones are shown." in before
    assert "Redrive these 200" in before
    assert "These are the newest 200, 30 of them open." in after
    assert "Redrive all" in after
    assert after.count(">Redrive</button>") == 30
    assert after.index("<td>30</td>") < after.index("<td>1</td>") < after.index("<td>230</td>")


@pytest.mark.slow
def test_a_journal_that_is_not_there_yet_is_made_by_nobody_but_record(site: Site, tmp_path: Path) -> None:
    """X-6: The console waits for a journal that does not exist yet, and never creates it; `record` does.

    The pages show the journal once it exists, and only the new one after the file was replaced.
    """
    file = tmp_path / "journal.db"
    with Console(site.scene.cluster, tmp_path, "--journal", file) as console:
        here = Site(site.scene, console)
        awaited = look(here, "/events")
        assert (awaited.status_code, file.exists()) == (503, False)
        assert "there is no such file yet: the function record makes it" in awaited.text

        for kind in ("before.it", "behind.it"):
            with closing(Journal(file)) as book:
                book.write(CloudEvent({"id": "1", "source": "/s", "type": kind}, {}))
            shown = look(here, "/events").text
            assert [one for one in ("before.it", "behind.it") if one in shown] == [kind]
            for one in tmp_path.glob("journal.db*"):
                one.unlink()


def test_a_form_redrives_no_other_letter_of_its_number(site: Site, receiver: Receiver, tmp_path: Path) -> None:
    """X-6: A form does not redrive another dead letter that has the same number in a replaced journal."""
    file, cluster = tmp_path / "journal.db", Cluster(str(site.scene.cluster.kubeconfig))
    with closing(cluster), closing(Journal(file, create=False, awaited=True)) as journal:
        identify = as_owner(cluster.api)
        app = create_app(cluster, identify, journal=journal, functions=receiver.url, broker=receiver.url)
        with closing(app.extensions["live"]), app.test_client() as console:
            pages = []
            for key in ("1", "2"):
                for one in tmp_path.glob("journal.db*"):
                    one.unlink()
                event = CloudEvent({"id": key, "source": "/s", "type": MAINTENANCE_BEGUN}, {})
                with closing(Journal(file)) as book:
                    book.write(as_dead_letter(event, DeadLetter("http://gone/cordon", 503, "away")))
                pages.append(dict(FIELD.findall(console.get("/dead-letters").text)))
            refused = console.post("/dead-letters/redrive", data={**pages[0], "confirm": "yes"})
            asked = console.post("/dead-letters/redrive", data=pages[1])

    assert pages[0]["letter"] == pages[1]["letter"]
    assert refused.status_code == 404
    assert "another dead letter has that number now: nothing was redriven; load the page again" in refused.text
    assert asked.status_code == 200
    assert pages[1].items() <= dict(FIELD.findall(asked.text)).items()
    assert receiver.requests == []


def test_an_event_is_shown_without_values_of_the_environment(site: Site) -> None:
    """Check that environment values in a recorded rule are redacted, since viewers of nodes may not read them."""
    env = [{"name": "TOKEN", "value": "hunter-of-two"}]
    attributes = {"id": "rule-1", "source": "/apis", "type": RESOURCE_ADDED, "kind": "MutexRule"}
    with closing(Journal(site.scene.product.journal)) as journal:
        journal.write(CloudEvent({**attributes, "datacontenttype": "application/json"}, {"spec": {"env": env}}))
        (entry,) = journal.select(Query(ids=("rule-1",)))

    shown = requests.get(site.url(f"/events/{entry.seq}"), timeout=10).text

    assert "TOKEN" in shown
    assert "hunter-of-two" not in shown


@pytest.mark.slow
def test_large_events_are_listed_without_their_data(site: Site) -> None:
    """X-6: Listing large events takes a fraction of the memory that their data would take."""
    with closing(Journal(site.scene.product.journal)) as journal:
        for number in range(12):
            attributes = {"id": f"large-{number}", "source": "/large", "type": "large"}
            journal.write(CloudEvent({**attributes, "datacontenttype": "application/json"}, {"x": [[]] * 600_000}))
    before = peak(site)

    page = requests.get(site.url("/events", type="large"), timeout=30).text

    assert page.count('<th scope="row">') == 12
    assert peak(site) - before < 120 * 1024


def peak(site: Site) -> int:
    """Return the peak memory of the console's processes in KiB."""
    process = site.console.server.process
    assert process
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    statuses = [Path(f"/proc/{pid}/status").read_text() for pid in (process.pid, *children)]
    return max(int(line.split()[1]) for status in statuses for line in status.splitlines() if "VmHWM" in line)
