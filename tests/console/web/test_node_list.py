"""Tests for filters, search, sorting and selection in the list of nodes, in a real browser."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from selenium.webdriver.common.keys import Keys

from console.web.node_rows import build_html_id
from kube.nodes import build_node_path
from tests.chain.environment import EventChainEnvironment
from tests.console.web.site import Browser, Site

NAMES = ["list-1", "list-2", "list-10"]
COUNT_REQUESTS_SCRIPT = "return performance.getEntriesByType('resource').length"


@pytest.fixture(scope="module")
def environment(site: Site) -> Iterator[EventChainEnvironment]:
    """Yield the environment with three nodes; `list-2` is a worker, and `list-10` is cordoned."""
    for name in NAMES:
        site.environment.create_node(name)
    labels = {"node-role.kubernetes.io/worker": ""}
    site.environment.client.patch(build_node_path("list-2"), {"metadata": {"labels": labels}})
    site.environment.cluster.kubectl("cordon", "list-10")
    yield site.environment
    site.environment.cluster.kubectl("uncordon", "list-10")


@pytest.fixture
def list_browser(browser: Browser, environment: EventChainEnvironment) -> Browser:
    """Return the browser with the list of the three nodes, once the list shows the cordoned node."""
    browser.open("/nodes", q="list-")
    browser.wait_until(lambda: browser.get_cell_text("list-10", "state") == "Cordoned")
    return browser


def type_search(browser: Browser, text: str) -> None:
    field = browser.wait_for_element("#filter input[type=search]")
    field.send_keys(Keys.CONTROL, "a")
    field.send_keys(text)


def get_query(browser: Browser) -> str:
    return str(browser.run_script("return location.search"))


def test_search_and_filter_are_instant_and_survive_reload(list_browser: Browser) -> None:
    """Check that search and filter send no request, and that a reload keeps both because they are in the URL."""
    browser = list_browser
    assert browser.list_node_names() == ["list-10", "list-1", "list-2"]  # the cordoned node first
    request_count = browser.run_script(COUNT_REQUESTS_SCRIPT)

    type_search(browser, "LIST-1")
    assert browser.list_node_names() == ["list-10", "list-1"]
    browser.click("a[data-state=cordoned]")
    assert browser.list_node_names() == ["list-10"]
    assert get_query(browser) == "?q=LIST-1&state=cordoned"
    assert browser.run_script(COUNT_REQUESTS_SCRIPT) == request_count

    browser.driver.refresh()
    assert browser.list_node_names() == ["list-10"]
    assert browser.get_text(".segmented [aria-current]").startswith("Cordoned by others")
    browser.click("a[data-state='']")
    type_search(browser, "nothing-has-this-name")
    assert browser.list_node_names() == []
    assert browser.get_text("#none:not([hidden]) strong") == "No nodes match this filter."


def test_order_survives_reload_and_live_update(list_browser: Browser, environment: EventChainEnvironment) -> None:
    """Check that a click on a column heading sorts the rows, and that a reload and a live update keep the order."""
    browser = list_browser
    browser.wait_for_element("a[data-sort=name]").send_keys(Keys.ENTER)
    assert browser.list_node_names() == ["list-1", "list-2", "list-10"]
    browser.click("a[data-sort=name]")
    assert browser.list_node_names() == ["list-10", "list-2", "list-1"]
    assert browser.find_all("th[aria-sort=descending] a[data-sort=name]")
    assert get_query(browser) == "?q=list-&sort=name&order=desc"

    browser.open("/nodes", q="list-", sort="name", order="desc")
    assert browser.list_node_names() == ["list-10", "list-2", "list-1"]
    environment.create_node("list-5")
    browser.wait_until(lambda: browser.list_node_names() == ["list-10", "list-5", "list-2", "list-1"])
    environment.cluster.kubectl("delete", "node", "list-5")
    browser.wait_until(lambda: browser.list_node_names() == ["list-10", "list-2", "list-1"])

    browser.click("a[data-sort=roles]")
    assert browser.list_node_names() == ["list-2", "list-1", "list-10"]  # nodes without a role last
    assert browser.get_cell_text("list-2", "roles") == "worker"


def test_live_update_moves_row_and_keeps_selection_and_focus(
    list_browser: Browser, environment: EventChainEnvironment
) -> None:
    """Check that a changed row moves to its new position, and keeps its selection and the keyboard focus."""
    browser = list_browser
    checkbox = browser.wait_for_element(f"#{build_html_id('list-2')} input")
    checkbox.send_keys(Keys.SPACE)

    environment.cluster.kubectl("cordon", "list-2")
    browser.wait_until(lambda: browser.list_node_names() == ["list-2", "list-10", "list-1"])
    assert checkbox.is_selected()
    assert browser.driver.switch_to.active_element == checkbox
    environment.cluster.kubectl("uncordon", "list-2")
    browser.wait_until(lambda: browser.list_node_names() == ["list-10", "list-1", "list-2"])


def test_selected_rows_outside_filter_are_counted(list_browser: Browser) -> None:
    """Check that a search keeps the selection, and that the page shows how many selected rows are hidden."""
    browser = list_browser
    browser.select_node("list-1")
    type_search(browser, "list-10")
    assert browser.get_text("#count") == "1 selected, 1 of them not shown"

    browser.click("#all")
    assert browser.get_text("#count") == "2 selected, 1 of them not shown"
    type_search(browser, "list-")
    assert browser.get_text("#count") == "2 selected"
    assert not browser.wait_for_element(f"#{build_html_id('list-2')} input").is_selected()
