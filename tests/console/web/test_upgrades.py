"""Tests for the pages about upgrade runs, with run records as the functions write them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import requests

from console.web.context import AVAILABILITY_TTL_SECONDS
from eventing import events
from eventing.journal.store import Journal
from kube.mutex.objects import DEFAULT_NAMESPACE, RUN_KIND, build_path
from kube.paths import Object
from localcluster.web_console import WebConsole
from tests.console.commands import mutex_runs
from tests.console.web.callers import VIEW_PERMISSIONS as RIGHTS
from tests.console.web.callers import create_account_header
from tests.console.web.layout import find_broken_words, find_overflowing_texts, find_overlapping_texts
from tests.console.web.site import TIMEOUT_SECONDS, Browser, Site
from tests.console.web.test_display_modes import ALL_DISPLAY_MODES, DISPLAY_MODES, find_axe_violations

RUN_PATH = f"/upgrades/{DEFAULT_NAMESPACE}/example"
BAD_GATEWAY_SCRIPT = """
  window.badGatewayCount ??= 0;
  window.isDown = arguments[0];
  if (!window.watching) document.addEventListener("htmx:beforeSend", (event) => {
    if (!window.isDown || event.target.id !== "run") return;
    const request = event.detail.xhr;
    Object.defineProperty(request, "status", {value: 502});
    Object.defineProperty(request, "response", {value: "<h1>502 Bad Gateway</h1>"});
    request.addEventListener("load", () => { window.badGatewayCount += 1; });
  });
  window.watching = true;
"""
"""Script that makes all requests of a page fail with 502, as from the proxy of a stopped console, or succeed again."""
EVENT_STEPS = (
    *(
        (events.RUN_CHECK_PENDING, "resync-runs"),
        (events.RUN_VALIDATED, "check-run"),
        (events.UPGRADE_DETECTED, "detect-upgrade"),
    ),
    *((events.POOLS_CLAIMED, "claim-pools"), (events.POOLS_PAUSED, "pause-pools")),
)


@pytest.fixture(scope="module")
def active_run(site: Site) -> Iterator[Object]:
    """Create MutexRunConfigs with an active and a halted run; record events of the active run, and yield it."""
    with mutex_runs.install_mutex_crds(site.environment.cluster):
        run = mutex_runs.create_run_config(site.environment.client, "example")
        failure = {
            **mutex_runs.HALTED_FAILURE,
            "at": mutex_runs.FIVE_MINUTES_AGO,
            "message": "Job disks-1 did not complete: BackoffLimitExceeded",
        }
        mutex_runs.create_run_config(site.environment.client, "stopped", failure=failure)
        _record_events(site, run)
        yield run


def _record_events(site: Site, run: Object) -> None:
    reference = events.ObjectReference.from_object({"kind": RUN_KIND, **run})
    cause = None
    with closing(Journal(site.environment.product.journal)) as journal:
        for event_type, step in EVENT_STEPS:
            cause = events.build_event(event_type, step, reference, cause=cause)
            journal.write_event(cause)


@pytest.mark.slow
@pytest.mark.parametrize("display_mode", ALL_DISPLAY_MODES)
@pytest.mark.parametrize("page", ["upgrades", "upgrade", "upgrade-stopped"])
def test_page_about_upgrade_runs_is_accessible_and_fits_window(
    browser: Browser, active_run: Object, page: str, display_mode: str
) -> None:
    """Check that axe finds no serious violations, no word is broken, no texts overlap, and the page fits the window."""
    size, is_dark = ALL_DISPLAY_MODES[display_mode]
    browser.emulate_display(size, is_dark=is_dark)
    browser.open(
        {"upgrades": "/upgrades", "upgrade": RUN_PATH, "upgrade-stopped": f"/upgrades/{DEFAULT_NAMESPACE}/stopped"}[
            page
        ]
    )
    if page == "upgrade":
        browser.wait_until(lambda: browser.find_all(".lanes svg a"))
    if page == "upgrade-stopped":
        browser.wait_until(lambda: "No events of this run" in browser.get_text("[aria-label=Timeline]"))

    assert find_axe_violations(browser) == []
    assert browser.run_script("return document.documentElement.scrollWidth <= innerWidth")
    assert find_broken_words(browser, "main") == []
    assert find_overlapping_texts(browser, "main") == []
    assert find_overflowing_texts(browser, "table.cards td, table.cards th, .stepper li, .command") == []
    assert browser.take_errors() == []
    folder = os.environ.get("SCREENSHOTS")
    if folder and display_mode in DISPLAY_MODES:
        Path(folder).mkdir(parents=True, exist_ok=True)
        browser.driver.save_screenshot(f"{folder}/{page}-{display_mode}.png")


def test_list_of_runs_shows_what_each_run_waits_for(browser: Browser, active_run: Object) -> None:
    browser.open("/upgrades")
    text = browser.get_text("table.runs")
    assert f"{DEFAULT_NAMESPACE}/example" in text
    assert "disks-1 of rule" in text
    assert "BackoffLimitExceeded" in text


def test_run_page_has_steps_nodes_jobs_and_timeline(browser: Browser, active_run: Object) -> None:
    """Check that the page shows steps, nodes, Jobs and timeline, with the same texts as the command line."""
    browser.open(RUN_PATH)
    assert "Nodes upgraded (1 of 3)" in browser.get_text(".stepper")
    assert f"kubectl logs -n {DEFAULT_NAMESPACE} job/disks-1" in browser.get_text("table.upgraded")
    assert "Waits for: Job" in browser.get_text(".waits")
    names = [element.text for element in browser.wait_until(lambda: browser.find_all(".lanes .name"))]
    assert names == ["check-run", "detect-upgrade", "claim-pools", "pause-pools", "resync-runs"]
    browser.open(f"/upgrades/{DEFAULT_NAMESPACE}/stopped")
    assert f"kubectl maintenance mutex retry {DEFAULT_NAMESPACE}/stopped" in browser.get_text(".fault")


@pytest.mark.slow
def test_run_page_is_updated(browser: Browser, site: Site, active_run: Object) -> None:
    """Check that a changed run updates the run's page, and that new events update the page's timeline."""
    browser.open(RUN_PATH)
    browser.wait_until(lambda: browser.find_all(".lanes svg a"))
    marker_count = len(browser.find_all(".lanes circle"))
    with closing(Journal(site.environment.product.journal)) as journal:
        journal.write_event(
            events.build_event(
                events.NODE_PREJOBS_DONE,
                "run-job",
                events.ObjectReference.from_object({"kind": RUN_KIND, **active_run}),
                "worker-2",
            )
        )
    uid = active_run["metadata"]["uid"]
    mutex_runs.write_run_status(
        site.environment.client, "example", step="ReleasingNode", **mutex_runs.build_run_record(uid)
    )
    browser.wait_until(lambda: "ReleasingNode" in browser.get_text("#run .panel-head .state"))
    browser.wait_until(lambda: len(browser.find_all(".lanes circle")) > marker_count)
    mutex_runs.write_run_status(site.environment.client, "example", **mutex_runs.build_run_record(uid))


@pytest.mark.slow
def test_page_recovers_from_bad_gateway_responses(browser: Browser, site: Site, active_run: Object) -> None:
    """Check that a page keeps its content after a proxy's 502 response, retries, and then shows the current state."""
    browser.open(RUN_PATH)
    uid = active_run["metadata"]["uid"]
    browser.run_script(BAD_GATEWAY_SCRIPT, True)
    browser.wait_until(lambda: browser.run_script("return window.badGatewayCount") > 1)
    assert "Nodes upgraded (1 of 3)" in browser.get_text(".stepper")

    mutex_runs.write_run_status(
        site.environment.client, "example", step="ReleasingNode", **mutex_runs.build_run_record(uid)
    )
    browser.run_script(BAD_GATEWAY_SCRIPT, False)
    browser.wait_until(lambda: "ReleasingNode" in browser.get_text("#run .panel-head .state"))
    mutex_runs.write_run_status(site.environment.client, "example", **mutex_runs.build_run_record(uid))
    browser.take_errors()


def test_unchanged_page_is_not_sent_again(site: Site, active_run: Object) -> None:
    """Check that the page's two-second poll gets an empty response if the run has not changed."""
    version = site.environment.client.get(build_path(RUN_KIND, DEFAULT_NAMESPACE, "example"))["metadata"][
        "resourceVersion"
    ]
    assert requests.get(site.build_url(f"{RUN_PATH}/status", version=version), timeout=10).status_code == 204
    assert requests.get(site.build_url(f"{RUN_PATH}/status", version="1"), timeout=10).headers["HX-Trigger"] == "moved"


def test_page_of_unknown_run_gets_404(site: Site, active_run: Object) -> None:
    response = requests.get(site.build_url(f"/upgrades/{DEFAULT_NAMESPACE}/unknown"), timeout=10)
    assert response.status_code == 404
    assert f"MutexRunConfig &#34;{DEFAULT_NAMESPACE}/unknown&#34; not found" in response.text


@pytest.mark.slow
def test_run_page_requires_permission_to_list_runs(site: Site, active_run: Object, tmp_path: Path) -> None:
    """Check that the caller needs the permission to list MutexRunConfigs, but the console's ServiceAccount does not."""
    with WebConsole(site.environment.cluster, tmp_path, address="0.0.0.0") as console:  # noqa: S104
        console_site = Site(site.environment, console)
        viewer_headers = create_account_header(site.environment, "views", RIGHTS)
        reader_headers = create_account_header(site.environment, "reads", [*RIGHTS, "list mutexrunconfigs"])
        responses = [
            requests.get(console_site.build_url(RUN_PATH), headers=headers, timeout=10)
            for headers in (viewer_headers, reader_headers)
        ]
    assert [response.status_code for response in responses] == [403, 200]
    assert "mutexrunconfigs" in responses[0].text


def test_pages_link_to_runs_once_crd_is_installed(browser: Browser, site: Site, active_run: Object) -> None:
    """Check that pages link to the page about runs within seconds after the CRD was installed."""
    assert AVAILABILITY_TTL_SECONDS < TIMEOUT_SECONDS

    def has_link() -> bool:
        browser.open("/nodes")
        return "Upgrades" in browser.get_text("nav")

    browser.wait_until(has_link)
