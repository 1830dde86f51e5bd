"""Test of the web console in a real browser, on the real engines."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from selenium.webdriver import Chrome

from console.web.node_rows import key
from eventing import events
from eventing.journal.store import Journal, Query
from kube.maintenance.groups import MEDIK8S
from localcluster.web_console import Console
from tests.console.web.site import Browser, start_browser
from tests.e2e.environment import Stage

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def driver() -> Iterator[Chrome]:
    """Yield one browser for all engines."""
    driver = start_browser()
    yield driver
    driver.quit()


@pytest.fixture
def browser(stage: Stage, driver: Chrome, tmp_path: Path) -> Iterator[Browser]:
    """Yield the browser with a console that finds the broker and the functions by the Broker and the Triggers."""
    with Console(stage.local, tmp_path, "--journal", stage.product.journal) as console:
        browser = Browser(driver, console)
        browser.look()
        yield browser


def test_a_maintenance_is_started_seen_replayed_and_stopped(stage: Stage, browser: Browser) -> None:
    """OSV-7, OSV-8: the console starts a maintenance, follows it, replays an event and ends the maintenance."""
    node = stage.nodes[0]
    drains = stage.drains("300ms", nodes=[node])
    browser.nodes(node)

    browser.menu(node)
    browser.one(f"#{key(node)}-offers a").click()
    browser.confirm("new disk")
    browser.until(lambda: browser.cell(node, "state") == "Drained")
    (made,) = stage.admin.list(MEDIK8S.path, fields=f"spec.nodeName={node}")["items"]
    drains.maintenances.append(made)
    with closing(Journal(stage.product.journal)) as book:
        tainting = Query(maintenance=made["metadata"]["uid"], types=(events.NODE_CORDONED,))
        browser.until(lambda: any(entry.attempts for entry in book.select(tainting)))
    drains.check()

    browser.open(f"/nodes/{node}")
    browser.press("node.cordoned")
    assert browser.replay() == [["taint", "same", "200 node.tainted", "200 node.tainted"]]

    browser.nodes(node)
    browser.menu(node)
    browser.one(f"#{key(node)}-offers a").click()
    browser.confirm()
    browser.until(lambda: browser.cell(node, "state") == "In service")
    drains.await_gone(20)
    assert browser.errors() == []
