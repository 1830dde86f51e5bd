"""Tests for the console while the cluster does not respond, and for hidden pages."""

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

from console.operations.maintenance_actions import list_served_groups
from console.web import cluster_state
from console.web.app import create_app
from console.web.callers import identify_by_kubeconfig
from console.web.cluster_state import STALE_AFTER_SECONDS, ClusterWatcher
from eventing import events
from eventing.dead_letters import DeadLetter, add_dead_letter_extensions
from eventing.journal.store import Journal
from kube.client.api import Api
from kube.client.sync_client import SyncClient
from kube.maintenance.groups import MEDIK8S, ApiGroup
from kube.mutex.objects import DEFAULT_NAMESPACE, RUN_KIND
from localcluster.access import write_kubeconfig
from localcluster.http_receiver import TIMEOUT_SECONDS, ReceivedRequest, Receiver, Response
from localcluster.processes import wait_until_ready
from localcluster.web_console import WebConsole
from tests.console.commands import mutex_runs
from tests.console.web.callers import get_page
from tests.console.web.site import Browser, Site
from tests.relay import Relay

pytestmark = pytest.mark.slow

T = TypeVar("T")
CONNECTION_CLOSE_SECONDS = 0.2
"""Seconds after which connections that were cut during the TLS handshake are closed; no callback reports this."""
SET_HIDDEN_SCRIPT = """
  Object.defineProperty(document, "hidden", {value: arguments[0], configurable: true});
  document.dispatchEvent(new Event("visibilitychange"));
"""
"""Script that hides or shows a page, as if the user switched tabs; a headless browser never hides pages."""
FAST_STALE_PROGRAM = """
from console.web import cluster_state
cluster_state.CRD_CHECK_SECONDS, cluster_state.STALE_AFTER_SECONDS = 0.2, 2.0
from console.cli import main
main()
"""
"""Python script that runs the console with a shorter time until the state counts as stale.

The tests with `Clock` cover the real duration.
"""


@pytest.fixture(scope="module")
def api_server_relay(site: Site) -> Iterator[Relay]:
    """Yield an interruptible relay to the API server."""
    relay = Relay(urlsplit(site.environment.cluster.url).port or 0)
    yield relay
    relay.close()


@pytest.fixture(scope="module")
def relay_kubeconfig(site: Site, api_server_relay: Relay, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the administrator's kubeconfig for connections through the relay."""
    cluster, kubeconfig = site.environment.cluster, tmp_path_factory.mktemp("relay") / "kubeconfig"
    write_kubeconfig(
        kubeconfig, f"https://127.0.0.1:{api_server_relay.port}", cluster.certificate, "admin", cluster.get_token()
    )
    return kubeconfig


class Clock:
    """A clock like `time.monotonic` that tests can advance."""

    def __init__(self) -> None:
        self.offset_seconds = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.offset_seconds


@pytest.fixture
def app_and_clock(
    relay_kubeconfig: Path, api_server_relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Flask, Clock]]:
    """Yield the console's Flask app in this process, and the clock that the app uses."""
    clock, cluster = Clock(), SyncClient(str(relay_kubeconfig))
    monkeypatch.setattr("console.web.app.ClusterWatcher", lambda client: ClusterWatcher(client, clock))
    monkeypatch.setattr(cluster_state, "CRD_CHECK_SECONDS", 0.2)
    app = create_app(cluster, identify_by_kubeconfig(cluster.api))
    yield app, clock
    api_server_relay.restore()
    app.extensions["live"].close()
    cluster.run(asyncio.sleep(CONNECTION_CLOSE_SECONDS))
    cluster.close()


def get_readiness(app: Flask) -> tuple[int, str]:
    response = app.test_client().get("/health/readiness")
    return response.status_code, response.text


def wait_until_checks_are_overdue(watcher: ClusterWatcher) -> None:
    """Wait until the cluster has not responded for a second, although the console has sent several requests."""
    wait_until_ready("a second without a response", lambda: watcher.get_age_seconds() > 1, [], 10)


def test_console_is_unready_after_a_minute_without_cluster(
    app_and_clock: tuple[Flask, Clock], api_server_relay: Relay
) -> None:
    """Check that the console is unready after a minute without the cluster, so that a Service sends it no requests.

    The console is ready again as soon as the cluster responds.
    """
    console, clock = app_and_clock
    watcher = console.extensions["live"]
    watcher.get_state()
    assert get_readiness(console)[0] == 200

    api_server_relay.cut()
    wait_until_checks_are_overdue(watcher)
    clock.offset_seconds += 44
    assert get_readiness(console)[0] == 200
    clock.offset_seconds += 16
    assert get_readiness(console)[0] == 503
    assert "nodes and maintenances were last confirmed" in get_readiness(console)[1]

    api_server_relay.restore()
    wait_until_ready("the console", lambda: get_readiness(console)[0] == 200, [], 20)


def test_stale_state_has_time_of_last_confirmation(app_and_clock: tuple[Flask, Clock], api_server_relay: Relay) -> None:
    """Check that a stale state contains the time of its last confirmation, and is current again after a new read."""
    console, clock = app_and_clock
    watcher = console.extensions["live"]
    state_before = watcher.get_state()
    assert state_before.stale_since == ""

    api_server_relay.cut()
    wait_until_checks_are_overdue(watcher)
    clock.offset_seconds += STALE_AFTER_SECONDS
    stale_state = watcher.wait_for_state(lambda state: bool(state.stale_since), 10)
    assert stale_state
    assert stale_state.nodes == state_before.nodes
    assert datetime.now(timezone.utc) - datetime.fromisoformat(
        stale_state.stale_since.replace("Z", "+00:00")
    ) < timedelta(minutes=1)

    api_server_relay.restore()
    assert watcher.wait_for_state(lambda state: not state.stale_since, 20)


def test_state_is_stale_until_all_lists_are_read(
    app_and_clock: tuple[Flask, Clock], api_server_relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that the state remains stale until all lists are read again, even if discovery already works."""
    console, clock = app_and_clock
    watcher, api = console.extensions["live"], console.extensions["live"]._client.api
    watcher.get_state()
    api_server_relay.cut()
    wait_until_checks_are_overdue(watcher)
    clock.offset_seconds += STALE_AFTER_SECONDS
    assert watcher.wait_for_state(lambda state: bool(state.stale_since), 10)
    completed_checks: list[int] = []
    is_called, list_objects = threading.Event(), api.list

    async def list_when_released(*arguments: str, **options: Any) -> Any:
        is_called.set()
        while not is_released.is_set():
            await asyncio.sleep(0.01)
        return await list_objects(*arguments, **options)

    async def list_groups_and_count_check(api: Api) -> list[ApiGroup]:
        groups = await list_served_groups(api)
        completed_checks.append(len(groups))
        return groups

    is_released = threading.Event()
    monkeypatch.setattr(api, "list", list_when_released)
    monkeypatch.setattr(cluster_state, "list_served_groups", list_groups_and_count_check)
    api_server_relay.restore()
    assert is_called.wait(20)
    wait_until_ready("four checks", lambda: len(completed_checks) > 3, [], 10)
    assert watcher.get_age_seconds() > STALE_AFTER_SECONDS
    assert watcher.get_state().stale_since

    is_released.set()
    assert watcher.wait_for_state(lambda state: not state.stale_since, 20)


def test_state_of_unchanged_cluster_is_not_stale(app_and_clock: tuple[Flask, Clock]) -> None:
    """Check that the state of an unchanged cluster does not become stale, because periodic checks confirm it."""
    console, clock = app_and_clock
    watcher = console.extensions["live"]
    state = watcher.get_state()

    clock.offset_seconds += STALE_AFTER_SECONDS + 1

    wait_until_ready("a check", lambda: watcher.get_age_seconds() < 1, [], 10)
    assert watcher.get_state().stale_since == ""
    assert watcher.get_state().version >= state.version


TEXT_BY_PAGE = {
    "/nodes": "relayed-1",
    "/nodes/relayed-1": "All events of this maintenance",
    f"/upgrades/{DEFAULT_NAMESPACE}/relayed-1": "All events of this run",
}
"""Map from URL path to a text on the page, taken from its timeline if it has one."""
COUNT_FAILURES_SCRIPT = """
  window.failedRequests = 0;
  document.addEventListener("htmx:afterRequest", (event) => {
    window.failedRequests += event.detail.xhr.status >= 500;
  });
"""


@dataclass(frozen=True)
class OutagePage:
    """A page's banner before an outage, and its text, banner and liveness status during the outage."""

    banner_before: str
    main_text: str
    banner: str
    liveness_status: int


class PageWindows:
    """One browser window for each page."""

    def __init__(self, browser: Browser) -> None:
        self._browser, self._driver = browser, browser.driver
        self._original_handle, self._handles = self._driver.current_window_handle, dict.fromkeys(TEXT_BY_PAGE, "")
        for path in TEXT_BY_PAGE:
            self._driver.switch_to.new_window("window")
            self._handles[path] = self._driver.current_window_handle
            browser.emulate_display()
            browser.open(path)

    def call_in_browser_window(self, path: str, observe: Callable[[], T]) -> T:
        """Call `observe` in the browser window of this page, and return the result."""
        self._driver.switch_to.window(self._handles[path])
        return observe()

    def call_in_each_browser_window(self, observe: Callable[[], T]) -> dict[str, T]:
        """Call `observe` in each browser window, and return a map from URL path to result."""
        return {path: self.call_in_browser_window(path, observe) for path in self._handles}

    def close(self) -> None:
        """Close the windows, and return to the original window."""
        self.call_in_each_browser_window(self._driver.close)
        self._driver.switch_to.window(self._original_handle)


@pytest.fixture(scope="module")
def pages_during_outage(
    site: Site,
    chrome_driver: Chrome,
    api_server_relay: Relay,
    relay_kubeconfig: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, OutagePage]:
    """Return a map from URL path to what the page shows during an outage; all pages recover before the tests run."""
    site.environment.create_node("relayed-1")
    folder = tmp_path_factory.mktemp("far")
    journal = folder / "journal.db"
    console = WebConsole(site.environment.cluster, folder, "--kubeconfig", relay_kubeconfig, "--journal", journal)
    console.server.command[1:3] = ["-c", FAST_STALE_PROGRAM]
    with mutex_runs.install_mutex_crds(site.environment.cluster), console:
        run = mutex_runs.create_run_config(site.environment.client, "relayed-1")
        with closing(Journal(journal)) as store:
            store.write_event(build_node_drained_event("relayed-1"))
            store.write_event(
                CloudEvent({"id": "run", "source": "/apis", "type": events.RESOURCE_ADDED, "kind": RUN_KIND}, run)
            )
        outage_site, browser = Site(site.environment, console), Browser(chrome_driver, console)

        def read_banner_of_current_page(text: str) -> str:
            browser.wait_until(lambda: text in browser.get_text("main"))
            browser.run_script(COUNT_FAILURES_SCRIPT)
            return browser.get_text("#stale")

        def observe_page_once_stale() -> tuple[str, str, int]:
            browser.wait_until(lambda: browser.get_text("#stale"))
            browser.wait_until(lambda: browser.get_text("#connection") == "outdated")
            if browser.find_all("[sse-connect] [hx-get]"):
                browser.wait_until(lambda: browser.run_script("return window.failedRequests"))
            return (
                browser.get_text("main"),
                browser.get_text("#stale"),
                get_page(outage_site, "/health/liveness").status_code,
            )

        with closing(PageWindows(browser)) as windows:
            banners_before = {
                path: windows.call_in_browser_window(path, partial(read_banner_of_current_page, text))
                for path, text in TEXT_BY_PAGE.items()
            }
            api_server_relay.cut()
            outage_observations = windows.call_in_each_browser_window(observe_page_once_stale)
            api_server_relay.restore()
            windows.call_in_each_browser_window(lambda: browser.wait_until(lambda: browser.get_text("#stale") == ""))
            windows.call_in_each_browser_window(
                lambda: browser.wait_until(lambda: browser.get_text("#connection") == "live")
            )
    return {path: OutagePage(banners_before[path], *outage_observations[path]) for path in TEXT_BY_PAGE}


@pytest.mark.parametrize("path", TEXT_BY_PAGE)
def test_open_page_shows_banner_during_outage(pages_during_outage: dict[str, OutagePage], path: str) -> None:
    """Check that an open page keeps its content during an outage, and shows a banner with the time of its data."""
    page = pages_during_outage[path]

    assert page.banner_before == ""
    assert "The API server does not respond" in page.banner
    assert TEXT_BY_PAGE[path] in page.main_text
    assert page.liveness_status == 200


def test_progress_dialog_of_redrive_recovers_from_failed_request(
    site: Site, browser: Browser, api_server_relay: Relay, relay_kubeconfig: Path, receiver: Receiver, tmp_path: Path
) -> None:
    """X-6: the progress dialog of a redrive keeps its content after a failed request, retries, and shows the result."""
    journal_file, release = tmp_path / "journal.db", threading.Event()

    def respond_when_released(_: ReceivedRequest) -> Response:
        release.wait(TIMEOUT_SECONDS)
        return Response(204)

    receiver.answers["/cordon"] = respond_when_released
    with closing(Journal(journal_file)) as store:
        event = CloudEvent({"id": "1", "source": "/s", "type": events.MAINTENANCE_BEGUN}, {})
        store.write_event(add_dead_letter_extensions(event, DeadLetter("http://gone/cordon", 503, "away")))
    urls = {"functions_url": receiver.url, "broker_url": receiver.url}
    options = ("--kubeconfig", relay_kubeconfig, "--journal", journal_file)
    with WebConsole(site.environment.cluster, tmp_path, *options, **urls) as console:
        outage_browser = Browser(browser.driver, console)
        outage_browser.open("/dead-letters")
        outage_browser.click("tbody form button")
        outage_browser.wait_for_dialog()
        outage_browser.click("dialog[open] .buttons button")
        outage_browser.wait_until(lambda: "Redriving: 0 of 1" in outage_browser.get_text("dialog[open]"))
        outage_browser.run_script(COUNT_FAILURES_SCRIPT)
        api_server_relay.cut()
        outage_browser.wait_until(lambda: outage_browser.run_script("return window.failedRequests"))
        assert "Redriving: 0 of 1" in outage_browser.get_text("dialog[open]")
        release.set()
        api_server_relay.restore()
        outage_browser.wait_until(lambda: outage_browser.get_text("#redriven h2") == "Redriven")


@pytest.mark.parametrize("path", ["/nodes", "/nodes/hidden-2"])
def test_hidden_page_receives_no_messages(site: Site, browser: Browser, path: str) -> None:
    """Check that a hidden page receives no messages, and shows all changes once it is visible again."""
    environment = site.environment
    node = environment.create_node(path.removeprefix("/nodes/") if path != "/nodes" else "hidden-1")
    browser.open(path, q=node)  # `q` filters the list; a node's page ignores the parameter.
    browser.run_script(
        "window.messageCount = 0; document.addEventListener('htmx:sseMessage', () => { window.messageCount += 1; })"
    )

    browser.run_script(SET_HIDDEN_SCRIPT, True)
    assert browser.get_text("#connection") == "paused"
    hidden_count = browser.get_text("#count-maintenance")
    path_of_maintenance = environment.create_maintenance(node)
    environment.wait_for_state(path_of_maintenance)
    hidden_text = browser.get_text("main")
    assert browser.run_script("return window.messageCount") == 0
    assert "Drained" not in hidden_text

    browser.run_script(SET_HIDDEN_SCRIPT, False)
    browser.wait_until(lambda: "Drained" in browser.get_text("main"))
    browser.wait_until(lambda: browser.get_text("#connection") == "live")
    if path == "/nodes":
        assert browser.get_text("#count-maintenance") != hidden_count
    environment.request_deletion(path_of_maintenance)
    environment.wait_for_deletion(path_of_maintenance)
    browser.wait_until(lambda: "In service" in browser.get_text("main"))


def test_message_about_empty_list_is_updated(site: Site, browser: Browser) -> None:
    """Check that the message about an empty list disappears once a node matches, and reappears after its deletion."""
    browser.open("/nodes", q="lonely")
    assert browser.get_text("#none:not([hidden]) strong") == "No nodes match this filter."

    name = site.environment.create_node("lonely-1")
    browser.wait_until(lambda: name in browser.get_text("table.nodes") and not browser.find_all("#none:not([hidden])"))
    site.environment.cluster.kubectl("delete", "node", name)
    browser.wait_until(lambda: browser.get_text("#none:not([hidden]) strong") == "No nodes match this filter.")


def build_node_drained_event(node: str) -> CloudEvent:
    """Build an event that reports a node as drained by a maintenance that no longer exists."""
    reference = events.ObjectReference(MEDIK8S.api_version, node, f"uid-{node}")
    return events.build_event(events.NODE_DRAINED, "evict", reference, node)


def build_heartbeat_event(number: int, node: str) -> CloudEvent:
    fields = {"id": f"beat-{number}", "source": "/apis", "type": events.RESOURCE_UPDATED, "kind": "Node"}
    return CloudEvent(fields, {"metadata": {"name": node}})


def test_timeline_finds_maintenance_before_many_heartbeats(site: Site, tmp_path: Path) -> None:
    """Check that the timeline finds the node's last maintenance even if many node heartbeats were recorded after it."""
    journal_file = tmp_path / "journal.db"
    with closing(Journal(journal_file)) as store:
        store.write_event(build_node_drained_event("beaten-1"))
        for number in range(200):
            store.write_event(build_heartbeat_event(number, "beaten-1"))
    with WebConsole(site.environment.cluster, tmp_path, "--journal", journal_file) as console:
        page = get_page(Site(site.environment, console), "/timeline/beaten-1").text

    assert "No maintenance of this node is recorded" not in page
    assert "/events?maintenance=uid-beaten-1" in page


def test_timeline_shows_draining_maintenance(site: Site) -> None:
    """X-7: the timeline shows the maintenance that drains the node, not a newer maintenance that has failed."""
    environment = site.environment
    node = environment.create_node("twice-1")
    first_path = environment.create_maintenance(node)
    environment.wait_for_state(first_path)
    second_path = environment.create_maintenance(node)
    environment.wait_for_state(
        second_path, lambda maintenance: (maintenance.get("status") or {}).get("phase") == "Failed"
    )
    wait_until_ready("the second maintenance", lambda: "(1 of 2)" in get_page(site, f"/nodes?q={node}").text, [], 10)

    page = get_page(site, f"/timeline/{node}").text

    uids = [environment.client.get(path)["metadata"]["uid"] for path in (first_path, second_path)]
    assert [f"/events?maintenance={uid}" in page for uid in uids] == [True, False]
    for path in (second_path, first_path):
        environment.request_deletion(path)
        environment.wait_for_deletion(path)
