"""Test for the web console in a real browser, on each real engine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from selenium.webdriver import Chrome

from console.web.node_rows import build_html_id
from eventing import events
from eventing.journal.store import Journal, Query
from kube.maintenance.groups import MEDIK8S
from localcluster.web_console import WebConsole
from tests.console.web.site import Browser, start_browser
from tests.e2e.environment import E2eEnvironment

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def driver() -> Iterator[Chrome]:
    """Yield one browser that the tests of all engines share."""
    driver = start_browser()
    yield driver
    driver.quit()


@pytest.fixture
def browser(environment: E2eEnvironment, driver: Chrome, tmp_path: Path) -> Iterator[Browser]:
    """Yield a browser whose console reads the addresses of Broker and functions from the Broker and its Triggers."""
    with WebConsole(environment.cluster, tmp_path, "--journal", environment.product.journal) as console:
        browser = Browser(driver, console)
        browser.emulate_display()
        yield browser


def test_console_starts_and_stops_maintenance_and_replays_event(environment: E2eEnvironment, browser: Browser) -> None:
    """OSV-7, OSV-8: the console starts a maintenance, shows its progress, replays an event, and stops it."""
    node = environment.nodes[0]
    drains = environment.prepare_drains("300ms", nodes=[node])
    browser.open_nodes(node)

    browser.open_menu(node)
    browser.click(f"#{build_html_id(node)}-offers a")
    browser.confirm_dialog("new disk")
    browser.wait_until(lambda: browser.get_cell_text(node, "state") == "Drained")
    (maintenance,) = environment.client.list(MEDIK8S.path, field_selector=f"spec.nodeName={node}")["items"]
    drains.maintenances.append(maintenance)
    with closing(Journal(environment.product.journal)) as journal:
        tainting = Query(maintenance=maintenance["metadata"]["uid"], types=(events.NODE_CORDONED,))
        browser.wait_until(lambda: any(entry.attempts for entry in journal.select(tainting)))
    drains.assert_each_pod_evicted_once()

    browser.open(f"/nodes/{node}")
    browser.open_event("node.cordoned")
    assert browser.replay_event() == [["taint", "same", "200 node.tainted", "200 node.tainted"]]

    browser.open_nodes(node)
    browser.open_menu(node)
    browser.click(f"#{build_html_id(node)}-offers a")
    browser.confirm_dialog()
    browser.wait_until(lambda: browser.get_cell_text(node, "state") == "In service")
    drains.wait_until_restored(20)
    assert browser.take_errors() == []
