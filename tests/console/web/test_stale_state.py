"""Tests of the console while the cluster does not answer, and while a page is hidden."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import pytest
from cloudevents.core.v1.event import CloudEvent
from flask import Flask
from selenium.webdriver import Chrome

from console.operations.maintenance_watch import served_groups
from console.web import cluster_state as following
from console.web.app import create_app
from console.web.callers import as_owner
from console.web.cluster_state import STALE_SECONDS, Live
from eventing import events
from eventing.dead_letters import DeadLetter, as_dead_letter
from eventing.journal.store import Journal
from kube.client.api import Api
from kube.client.sync_client import Cluster
from kube.maintenance.groups import MEDIK8S, Group
from kube.mutex.objects import NAMESPACE, RUN
from localcluster.access import write_kubeconfig
from localcluster.processes import await_ready
from localcluster.web_console import Console
from tests.console.commands import mutex_runs
from tests.console.web.callers import look
from tests.console.web.site import Browser, Site
from tests.receiver import PATIENCE, Answer, Received, Receiver
from tests.relay import Relay

pytestmark = pytest.mark.slow

T = TypeVar("T")
CLOSING_SECONDS = 0.2
"""Seconds to wait until connections that were cut during their TLS handshake are closed; no callback reports it."""
HIDE = """
  Object.defineProperty(document, "hidden", {value: arguments[0], configurable: true});
  document.dispatchEvent(new Event("visibilitychange"));
"""
"""Script that hides a page or shows it again, as switching tabs does; a headless browser never hides a page."""
HASTY = """
from console.web import live
live.CHECK_SECONDS, live.STALE_SECONDS = 0.2, 2.0
from console.cli import main
main()
"""
"""Program that runs the console with a shorter time until the state is stale.

The tests with `Clock` cover the real duration.
"""


@pytest.fixture(scope="module")
def relay(site: Site) -> Iterator[Relay]:
    """Yield a relay to the API server that can be cut."""
    relay = Relay(urlsplit(site.scene.cluster.url).port or 0)
    yield relay
    relay.close()


@pytest.fixture(scope="module")
def kubeconfig(site: Site, relay: Relay, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a kubeconfig of the administrator that connects through the relay."""
    cluster, file = site.scene.cluster, tmp_path_factory.mktemp("relay") / "kubeconfig"
    write_kubeconfig(file, f"https://127.0.0.1:{relay.port}", cluster.certificate, "admin", cluster.token())
    return file


class Clock:
    """A clock like `time.monotonic` that tests can advance."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.ahead


@pytest.fixture
def app(kubeconfig: Path, relay: Relay, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Flask, Clock]]:
    """Yield the console's app in this process, and the clock that it uses."""
    clock, cluster = Clock(), Cluster(str(kubeconfig))
    monkeypatch.setattr("console.web.app.Live", lambda door: Live(door, clock))
    monkeypatch.setattr(following, "CHECK_SECONDS", 0.2)
    app = create_app(cluster, as_owner(cluster.api))
    yield app, clock
    relay.mend()
    app.extensions["live"].close()
    cluster.run(asyncio.sleep(CLOSING_SECONDS))
    cluster.close()


def ready(app: Flask) -> tuple[int, str]:
    answer = app.test_client().get("/health/readiness")
    return answer.status_code, answer.text


def missed(live: Live) -> None:
    """Wait until the console, which checks the cluster five times a second here, has no answer for a second."""
    await_ready("the console to miss the cluster", lambda: live.age() > 1, [], 10)


def test_after_a_minute_without_the_cluster_the_console_is_not_ready(app: tuple[Flask, Clock], relay: Relay) -> None:
    """Check that the console is not ready after a minute without the cluster, so that a Service does not use it.

    The console is ready again as soon as the cluster answers.
    """
    console, clock = app
    live = console.extensions["live"]
    live.now()
    assert ready(console)[0] == 200

    relay.cut()
    missed(live)
    clock.ahead += 44
    assert ready(console)[0] == 200
    clock.ahead += 16
    assert ready(console)[0] == 503
    assert "what is shown was last known to be so" in ready(console)[1]

    relay.mend()
    await_ready("the console", lambda: ready(console)[0] == 200, [], 20)


def test_what_is_old_says_since_when(app: tuple[Flask, Clock], relay: Relay) -> None:
    """Check that a stale state has the time at which it was last confirmed, and becomes current after a new read."""
    console, clock = app
    live = console.extensions["live"]
    before = live.now()
    assert before.stale == ""

    relay.cut()
    missed(live)
    clock.ahead += STALE_SECONDS
    old = live.when(lambda state: bool(state.stale), 10)
    assert old
    assert old.nodes == before.nodes
    assert datetime.now(timezone.utc) - datetime.fromisoformat(old.stale.replace("Z", "+00:00")) < timedelta(minutes=1)

    relay.mend()
    assert live.when(lambda state: not state.stale, 20)


def test_what_is_old_stays_so_until_all_lists_are_read_anew(
    app: tuple[Flask, Clock], relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that the state stays stale until all lists are read again, even if discovery already works."""
    console, clock = app
    live, api = console.extensions["live"], console.extensions["live"]._cluster.api
    live.now()
    relay.cut()
    missed(live)
    clock.ahead += STALE_SECONDS
    assert live.when(lambda state: bool(state.stale), 10)
    checks: list[int] = []
    asked, listed = threading.Event(), api.list

    async def slow(*words: str, **options: Any) -> Any:
        asked.set()
        while not released.is_set():
            await asyncio.sleep(0.01)
        return await listed(*words, **options)

    async def counted(door: Api) -> list[Group]:
        groups = await served_groups(door)
        checks.append(len(groups))
        return groups

    released = threading.Event()
    monkeypatch.setattr(api, "list", slow)
    monkeypatch.setattr(following, "served_groups", counted)
    relay.mend()
    assert asked.wait(20)
    await_ready("some checks", lambda: len(checks) > 3, [], 10)
    assert live.age() > STALE_SECONDS
    assert live.now().stale

    released.set()
    assert live.when(lambda state: not state.stale, 20)


def test_a_console_that_is_told_nothing_but_answers_is_not_old(app: tuple[Flask, Clock]) -> None:
    """Check that the state of a quiet cluster is not stale, because the periodic checks confirm it."""
    console, clock = app
    live = console.extensions["live"]
    state = live.now()

    clock.ahead += STALE_SECONDS + 1

    await_ready("a check", lambda: live.age() < 1, [], 10)
    assert live.now().stale == ""
    assert live.now().version >= state.version


PAGES = {
    "/nodes": "relayed-1",
    "/nodes/relayed-1": "All events of this maintenance",
    f"/upgrades/{NAMESPACE}/relayed-1": "All events of this run",
}
"""Page → text that it shows, from its timeline if it has one."""
COUNT_REFUSED = """
  window.refused = 0;
  document.addEventListener("htmx:afterRequest", (event) => { window.refused += event.detail.xhr.status >= 500; });
"""


@dataclass(frozen=True)
class Shown:
    """Observations of one page: the banner before the outage, then page text, banner and liveness during the outage."""

    before: str
    main: str
    banner: str
    alive: int


class Windows:
    """One browser window for each page."""

    def __init__(self, browser: Browser) -> None:
        self._browser, self._driver = browser, browser.driver
        self._home, self._handles = self._driver.current_window_handle, dict.fromkeys(PAGES, "")
        for path in PAGES:
            self._driver.switch_to.new_window("window")
            self._handles[path] = self._driver.current_window_handle
            browser.look()
            browser.open(path)

    def at(self, path: str, see: Callable[[], T]) -> T:
        """Return what `see` returns in the window of this page."""
        self._driver.switch_to.window(self._handles[path])
        return see()

    def each(self, see: Callable[[], T]) -> dict[str, T]:
        """Return what `see` returns in each window, by page."""
        return {path: self.at(path, see) for path in self._handles}

    def close(self) -> None:
        """Close the windows, and return to the original window."""
        self.each(self._driver.close)
        self._driver.switch_to.window(self._home)


@pytest.fixture(scope="module")
def outage(
    site: Site, driver: Chrome, relay: Relay, kubeconfig: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Shown]:
    """Return what the pages show while the connection to the cluster is cut, after all pages have recovered."""
    site.scene.node("relayed-1")
    folder = tmp_path_factory.mktemp("far")
    journal = folder / "journal.db"
    console = Console(site.scene.cluster, folder, "--kubeconfig", kubeconfig, "--journal", journal)
    console.server.command[1:3] = ["-c", HASTY]
    with mutex_runs.kinds(site.scene.cluster), console:
        run = mutex_runs.create(site.scene.admin, "relayed-1")
        with closing(Journal(journal)) as book:
            book.write(drained("relayed-1"))
            book.write(CloudEvent({"id": "run", "source": "/apis", "type": events.RESOURCE_ADDED, "kind": RUN}, run))
        far, browser = Site(site.scene, console), Browser(driver, console)

        def be_new(words: str) -> str:
            browser.until(lambda: words in browser.text("main"))
            browser.script(COUNT_REFUSED)
            return browser.text("#stale")

        def be_old() -> tuple[str, str, int]:
            browser.until(lambda: browser.text("#stale"))
            browser.until(lambda: browser.text("#connection") == "old")
            if browser.all("[sse-connect] [hx-get]"):
                browser.until(lambda: browser.script("return window.refused"))
            return browser.text("main"), browser.text("#stale"), look(far, "/health/liveness").status_code

        with closing(Windows(browser)) as windows:
            before = {path: windows.at(path, partial(be_new, words)) for path, words in PAGES.items()}
            relay.cut()
            away = windows.each(be_old)
            relay.mend()
            windows.each(lambda: browser.until(lambda: browser.text("#stale") == ""))
            windows.each(lambda: browser.until(lambda: browser.text("#connection") == "live"))
    return {path: Shown(before[path], *away[path]) for path in PAGES}


@pytest.mark.parametrize("path", PAGES)
def test_an_open_page_says_so_while_the_cluster_is_away(outage: dict[str, Shown], path: str) -> None:
    """Check that during an outage an open page keeps its content and shows a banner with the time of its data."""
    page = outage[path]

    assert page.before == ""
    assert "The cluster does not answer" in page.banner
    assert PAGES[path] in page.main
    assert page.alive == 200


def test_the_progress_of_a_redrive_outlasts_an_answer_that_fails(
    site: Site, browser: Browser, relay: Relay, kubeconfig: Path, receiver: Receiver, tmp_path: Path
) -> None:
    """X-6: The progress dialog of a redrive keeps its content after a failed request, retries, and shows the end."""
    file, go = tmp_path / "journal.db", threading.Event()

    def slow(_: Received) -> Answer:
        go.wait(PATIENCE)
        return Answer(204)

    receiver.answers["/cordon"] = slow
    with closing(Journal(file)) as book:
        event = CloudEvent({"id": "1", "source": "/s", "type": events.MAINTENANCE_BEGUN}, {})
        book.write(as_dead_letter(event, DeadLetter("http://gone/cordon", 503, "away")))
    where = {"functions": receiver.url, "broker": receiver.url}
    options = ("--kubeconfig", kubeconfig, "--journal", file)
    with Console(site.scene.cluster, tmp_path, *options, **where) as console:
        far = Browser(browser.driver, console)
        far.open("/dead-letters")
        far.one("tbody form button").click()
        far.window()
        far.one("dialog[open] .buttons button").click()
        far.until(lambda: "Redriving: 0 of 1" in far.text("dialog[open]"))
        far.script(COUNT_REFUSED)
        relay.cut()
        far.until(lambda: far.script("return window.refused"))
        assert "Redriving: 0 of 1" in far.text("dialog[open]")
        go.set()
        relay.mend()
        far.until(lambda: far.text("#redriven h2") == "Redriven")


@pytest.mark.parametrize("path", ["/nodes", "/nodes/hidden-2"])
def test_a_page_that_nobody_sees_has_no_stream(site: Site, browser: Browser, path: str) -> None:
    """Check that a hidden page receives no messages, and shows all changes when it is visible again."""
    scene = site.scene
    node = scene.node(path.removeprefix("/nodes/") if path != "/nodes" else "hidden-1")
    browser.open(path, q=node)  # filters the list; a node's page ignores the parameter
    browser.script("window.told = 0; document.addEventListener('htmx:sseMessage', () => { window.told += 1; })")

    browser.script(HIDE, True)
    assert browser.text("#connection") == "paused"
    counts = browser.text("#counts")
    made = scene.maintain(node)
    scene.reaches(made)
    shown = browser.text("main")
    assert browser.script("return window.told") == 0
    assert "Drained" not in shown

    browser.script(HIDE, False)
    browser.until(lambda: "Drained" in browser.text("main"))
    browser.until(lambda: browser.text("#connection") == "live")
    if path == "/nodes":
        assert browser.text("#counts") != counts
    scene.delete(made)
    scene.gone(made)
    browser.until(lambda: "In service" in browser.text("main"))


def test_a_list_that_gets_its_first_node_says_no_more_that_there_is_none(site: Site, browser: Browser) -> None:
    """Check that the list's empty message disappears with the first matching node, and returns after its deletion."""
    browser.open("/nodes", q="lonely")
    assert browser.text("#none") == "No node is like that."

    name = site.scene.node("lonely-1")
    browser.until(lambda: name in browser.text("table.nodes") and not browser.text("#none"))
    site.scene.cluster.kubectl("delete", "node", name)
    browser.until(lambda: browser.text("#none") == "No node is like that.")


def drained(node: str) -> CloudEvent:
    """Build the event that a maintenance, which no longer exists, drained the node."""
    about = events.Reference(MEDIK8S.api_version, node, f"uid-{node}")
    return events.event(events.NODE_DRAINED, "evict", about, node)


def heartbeat(number: int, node: str) -> CloudEvent:
    fields = {"id": f"beat-{number}", "source": "/apis", "type": events.RESOURCE_UPDATED, "kind": "Node"}
    return CloudEvent(fields, {"metadata": {"name": node}})


def test_a_timeline_is_found_however_many_heartbeats_came_after_it(site: Site, tmp_path: Path) -> None:
    """Check that the timeline finds the node's last maintenance, however many node updates followed it."""
    file = tmp_path / "journal.db"
    with closing(Journal(file)) as book:
        book.write(drained("beaten-1"))
        for number in range(200):
            book.write(heartbeat(number, "beaten-1"))
    with Console(site.scene.cluster, tmp_path, "--journal", file) as console:
        shown = look(Site(site.scene, console), "/timeline/beaten-1").text

    assert "No event of this node was recorded" not in shown
    assert "/events?maintenance=uid-beaten-1" in shown


def test_a_timeline_is_of_the_maintenance_that_the_page_shows(site: Site) -> None:
    """X-7: The timeline shows the maintenance that drains the node, not a newer one that was refused."""
    scene = site.scene
    node = scene.node("twice-1")
    first = scene.maintain(node)
    scene.reaches(first)
    second = scene.maintain(node)
    scene.reaches(second, lambda item: (item.get("status") or {}).get("phase") == "Failed")
    await_ready("the second one", lambda: "(1 of 2)" in look(site, f"/nodes?q={node}").text, [], 10)

    shown = look(site, f"/timeline/{node}").text

    uids = [scene.admin.get(path)["metadata"]["uid"] for path in (first, second)]
    assert [f"/events?maintenance={uid}" in shown for uid in uids] == [True, False]
    for path in (second, first):
        scene.delete(path)
        scene.gone(path)
