"""Tests of the pages about runs of the upgrade mutex, with run records as the functions write them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import requests

from console.web.context import KNOWN_SECONDS
from eventing import events
from eventing.journal.store import Journal
from kube.mutex.objects import NAMESPACE, RUN, path_of
from kube.paths import Object
from localcluster.web_console import Console
from tests.console.commands import mutex_runs
from tests.console.web.callers import LOOKS as RIGHTS
from tests.console.web.callers import account
from tests.console.web.layout import broken_words, overlapping, spilling
from tests.console.web.site import SECONDS, Browser, Site
from tests.console.web.test_display_modes import LOOKS, SIGHTS, faults

PAGE = f"/upgrades/{NAMESPACE}/example"
BAD_GATEWAY = """
  window.refused ??= 0;
  window.away = arguments[0];
  if (!window.watching) document.addEventListener("htmx:beforeSend", (event) => {
    if (!window.away || event.target.id !== "run") return;
    const ask = event.detail.xhr;
    Object.defineProperty(ask, "status", {value: 502});
    Object.defineProperty(ask, "response", {value: "<h1>502 Bad Gateway</h1>"});
    ask.addEventListener("load", () => { window.refused += 1; });
  });
  window.watching = true;
"""
"""Script that makes the page receive 502 responses, as from a proxy of a stopped console, or real ones again."""
STEPS = (
    *((events.RUN_FOUND, "resync-runs"), (events.RUN_VALIDATED, "check-run"), (events.UPGRADE_FOUND, "detect-upgrade")),
    *((events.POOLS_CLAIMED, "claim-pools"), (events.POOLS_PAUSED, "pause-pools")),
)


@pytest.fixture(scope="module")
def runs(site: Site) -> Iterator[Object]:
    """Yield the run config of an active run with recorded events; another run config has a halted run."""
    with mutex_runs.kinds(site.scene.cluster):
        run = mutex_runs.create(site.scene.admin, "example")
        failure = {**mutex_runs.STOPPED, "at": mutex_runs.AT, "message": "Job disks-1 did not complete: BackoffLimitExceeded"}
        mutex_runs.create(site.scene.admin, "stopped", failure=failure)
        _record(site, run)
        yield run


def _record(site: Site, run: Object) -> None:
    reference = events.Reference.of({"kind": RUN, **run})
    cause = None
    with closing(Journal(site.scene.product.journal)) as book:
        for kind, step in STEPS:
            cause = events.event(kind, step, reference, cause=cause)
            book.write(cause)


@pytest.mark.slow
@pytest.mark.parametrize("look", SIGHTS)
@pytest.mark.parametrize("page", ["upgrades", "upgrade", "upgrade-stopped"])
def test_a_page_is_accessible_and_fits(browser: Browser, runs: Object, page: str, look: str) -> None:
    """Check that axe finds no serious violation, that no texts break or overlap, and that the page fits the window."""
    size, dark = SIGHTS[look]
    browser.look(size, dark=dark)
    browser.open({"upgrades": "/upgrades", "upgrade": PAGE, "upgrade-stopped": f"/upgrades/{NAMESPACE}/stopped"}[page])
    if page == "upgrade":
        browser.until(lambda: browser.all(".lanes svg a"))
    if page == "upgrade-stopped":
        browser.until(lambda: "No event of this run" in browser.text("section"))

    assert faults(browser) == []
    assert browser.script("return document.documentElement.scrollWidth <= innerWidth")
    assert broken_words(browser, "main") == []
    assert overlapping(browser, "main") == []
    assert spilling(browser, "table.cards td, table.cards th") == []
    assert browser.errors() == []
    folder = os.environ.get("SCREENSHOTS")
    if folder and look in LOOKS:
        Path(folder).mkdir(parents=True, exist_ok=True)
        browser.driver.save_screenshot(f"{folder}/{page}-{look}.png")


def test_the_list_says_what_each_run_waits_for(browser: Browser, runs: Object) -> None:
    browser.open("/upgrades")
    shown = browser.text("table.runs")
    assert f"{NAMESPACE}/example" in shown
    assert "disks-1 of rule" in shown
    assert "BackoffLimitExceeded" in shown


def test_a_run_has_its_steps_nodes_jobs_and_timeline(browser: Browser, runs: Object) -> None:
    """Check that the page shows steps, nodes, Jobs and timeline, with the text of the command line."""
    browser.open(PAGE)
    assert "Nodes upgraded (1 of 3)" in browser.text("table.steps")
    assert f"kubectl logs -n {NAMESPACE} job/disks-1" in browser.text("table.upgraded")
    assert "Waits for: Job" in browser.text(".waits")
    names = [element.text for element in browser.until(lambda: browser.all(".lanes .name"))]
    assert names == ["check-run", "detect-upgrade", "claim-pools", "pause-pools", "resync-runs"]
    browser.open(f"/upgrades/{NAMESPACE}/stopped")
    assert f"kubectl maintenance mutex retry {NAMESPACE}/stopped" in browser.text(".fault")


@pytest.mark.slow
def test_the_page_changes_by_itself(browser: Browser, site: Site, runs: Object) -> None:
    """Check that the page follows the run, and that its timeline follows new events."""
    browser.open(PAGE)
    browser.until(lambda: browser.all(".lanes svg a"))
    marks = len(browser.all(".lanes circle"))
    with closing(Journal(site.scene.product.journal)) as book:
        book.write(events.event(events.NODE_CLEARED, "run-job", events.Reference.of({"kind": RUN, **runs}), "worker-2"))
    uid = runs["metadata"]["uid"]
    mutex_runs.write(site.scene.admin, "example", step="ReleasingNode", **mutex_runs.begun(uid))
    browser.until(lambda: "ReleasingNode" in browser.text("#run .facts"))
    browser.until(lambda: len(browser.all(".lanes circle")) > marks)
    mutex_runs.write(site.scene.admin, "example", **mutex_runs.begun(uid))


@pytest.mark.slow
def test_a_page_survives_a_proxy_that_cannot_answer(browser: Browser, site: Site, runs: Object) -> None:
    """Check that a page keeps its content on a proxy's 502 response, retries, and then shows the current state."""
    browser.open(PAGE)
    uid = runs["metadata"]["uid"]
    browser.script(BAD_GATEWAY, True)
    browser.until(lambda: browser.script("return window.refused") > 1)
    assert "Nodes upgraded (1 of 3)" in browser.text("table.steps")

    mutex_runs.write(site.scene.admin, "example", step="ReleasingNode", **mutex_runs.begun(uid))
    browser.script(BAD_GATEWAY, False)
    browser.until(lambda: "ReleasingNode" in browser.text("#run .facts"))
    mutex_runs.write(site.scene.admin, "example", **mutex_runs.begun(uid))
    browser.errors()


def test_what_has_not_changed_is_not_sent_again(site: Site, runs: Object) -> None:
    """Check that a page, which polls every two seconds, gets an empty response if nothing has changed."""
    version = site.scene.admin.get(path_of(RUN, NAMESPACE, "example"))["metadata"]["resourceVersion"]
    assert requests.get(site.url(f"{PAGE}/status", version=version), timeout=10).status_code == 204
    assert requests.get(site.url(f"{PAGE}/status", version="1"), timeout=10).headers["HX-Trigger"] == "moved"


def test_a_run_that_is_not_there_is_404(site: Site, runs: Object) -> None:
    answer = requests.get(site.url(f"/upgrades/{NAMESPACE}/nobody"), timeout=10)
    assert answer.status_code == 404
    assert f"there is no MutexRunConfig {NAMESPACE}/nobody" in answer.text


@pytest.mark.slow
def test_only_who_may_list_runs_sees_them(site: Site, runs: Object, tmp_path: Path) -> None:
    """Check that the page needs the caller's own permission to list runs; the console's account does not need it."""
    with Console(site.scene.cluster, tmp_path, address="0.0.0.0") as console:  # noqa: S104
        there = Site(site.scene, console)
        looks = account(site.scene, "looks", RIGHTS)
        reads = account(site.scene, "reads", [*RIGHTS, "list mutexrunconfigs"])
        answers = [requests.get(there.url(PAGE), headers=headers, timeout=10) for headers in (looks, reads)]
    assert [answer.status_code for answer in answers] == [403, 200]
    assert "mutexrunconfigs" in answers[0].text


def test_each_page_leads_to_the_runs_once_there_are_some(browser: Browser, site: Site, runs: Object) -> None:
    """Check that each page links to the runs within seconds after the CRD was installed."""
    assert KNOWN_SECONDS < SECONDS

    def leads_there() -> bool:
        browser.open("/nodes")
        return "Upgrades" in browser.text("nav")

    browser.until(leads_there)
