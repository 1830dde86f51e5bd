"""Tests for every page in light, dark and phone display mode: accessibility, layout, browser errors and speed.

`make screenshots` runs these tests to write the screenshots in docs/screenshots.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import closing
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from _pytest.mark import ParameterSet
from cloudevents.core.v1.event import CloudEvent
from selenium.webdriver import Chrome
from selenium.webdriver.common.keys import Keys

from console.web.node_rows import build_html_id
from eventing import events
from eventing.journal.entries import Attempt
from eventing.journal.store import Journal
from kube.maintenance.groups import KUBEVIRT, MEDIK8S
from kube.nodes import NODES_PATH
from localcluster.product import Product
from tests.chain.environment import EventChainEnvironment
from tests.console.web.layout import find_broken_words, find_overflowing_texts, find_overlapping_texts, measure_box
from tests.console.web.site import DESKTOP_VIEWPORT, PHONE_VIEWPORT, Browser, Site
from tests.machine_speed import is_below_scaled_limit

pytestmark = pytest.mark.slow

AXE = (Path(__file__).parent / "axe" / "axe.min.js").read_text()
DISPLAY_MODES = {"light": (DESKTOP_VIEWPORT, False), "dark": (DESKTOP_VIEWPORT, True), "phone": (PHONE_VIEWPORT, False)}
ALL_DISPLAY_MODES = {**DISPLAY_MODES, "dark phone": (PHONE_VIEWPORT, True)}
STATIC_PAGES = (
    *("home", "nodes", "window", "node", "node-crowded", "node-drained", "node-returned", "timeline"),
    *("event", "events", "dead-letters", "error"),
)
"""The pages and dialogs of the parametrized tests; separate tests open a row's menu."""
PAGE_PATHS = {"home": "/", "events": "/events", "dead-letters": "/dead-letters", "error": "/nodes/no-such-node"}
NODES_OF_PAGES = {"node-crowded": 7, "node-drained": 1, "node-returned": 4}
"""Map from page name to index of the page's node: one with fifteen blocked pods, one drained, or one restored."""
MIN_CHECKBOX_PIXELS, MIN_TARGET_PIXELS = 16, 24
"""Minimum size in pixels of a checkbox, and of a pointer target (WCAG 2.5.8)."""
OVERFLOW_SELECTOR = ", ".join(
    (
        *("table.nodes td", "table.nodes th", ".buttons", ".tools form", ".segmented", ".stepper li", ".tile"),
        *(".queue li", ".cause", ".facts div"),
    )
)
"""Elements whose content must not be wider than the element."""
PLOT_WIDTHS_SCRIPT = """
  return [".plot", ".plot svg"].map(selector => document.querySelector(selector).getBoundingClientRect().width);
"""
"""Python constant with a script that returns the width of the timeline's visible part, and of the whole timeline."""
NODE_COUNT, NODE_PARTS = 1000, 8
"""Number of nodes, and number of parts in which a test creates and deletes them."""
PAINT_MILLISECONDS = 1000


@pytest.fixture(scope="module")
def nodes_in_all_states(site: Site) -> Iterator[list[str]]:
    """Yield the names of eight nodes in all possible states; the last node has a two-digit number of pods."""
    environment = site.environment
    names = [environment.create_node(f"rack-{number}.example.com") for number in range(1, 9)]
    namespace = environment.create_namespace()
    environment.create_deployment(namespace, names[0], 3)
    environment.create_budget(namespace, {"app": "web"}, name="web", disruptions_allowed=0, minAvailable=3)
    environment.create_pods(names[0], 5, namespace=namespace)
    environment.create_pods(names[1], 4, namespace=namespace)
    environment.create_pods(names[2], 6, namespace=namespace, delete="600s", grace=900)
    crowded_namespace = environment.create_namespace()
    environment.create_deployment(crowded_namespace, names[7], 15)
    environment.create_budget(crowded_namespace, {"app": "web"}, name="all", disruptions_allowed=0, maxUnavailable=0)
    environment.create_pods(names[7], 3, namespace=crowded_namespace, delete="600s", grace=900)
    paths = [
        environment.create_maintenance(names[0], reason="new power supply"),
        environment.create_maintenance(names[1], api_version=KUBEVIRT.api_version, reason="BIOS update"),
        environment.create_maintenance(names[2], reason="new disk"),
        environment.create_maintenance(names[7], reason="firmware"),
    ]
    environment.cluster.kubectl("cordon", names[3])
    returned_path = environment.create_maintenance(names[4], reason="kernel update")
    environment.wait_for_state(returned_path)
    environment.request_deletion(returned_path)
    environment.wait_for_deletion(returned_path)
    environment.wait_for_state(paths[1])
    environment.wait_for_state(
        paths[0], lambda maintenance: len((maintenance.get("status") or {}).get("blockedPods") or []) == 3
    )
    environment.wait_for_state(paths[2], lambda maintenance: (maintenance.get("status") or {}).get("pendingCount") == 6)
    environment.wait_for_state(
        paths[3], lambda maintenance: len((maintenance.get("status") or {}).get("blockedPods") or []) == 15
    )
    _record_failure(environment.product, names[0])
    yield names
    for path in paths:
        environment.request_deletion(path)


def _record_failure(product: Product, node: str) -> None:
    """Record a failed attempt with a long error message, which must not overlap the texts next to it."""
    message = "no response from the API server: Internal error occurred: failed calling webhook " * 4
    fields = {"id": "failed", "source": "/begin", "type": events.MAINTENANCE_BEGUN, "node": node}
    with closing(Journal(product.journal)) as journal:
        journal.write_event(CloudEvent(fields, {"node": node}))
        attempted_at = datetime.now(timezone.utc)
        journal.write_attempts([Attempt("/begin", "failed", "cordon", attempted_at, 30.0, 503, (), message)])


def open_page(browser: Browser, page: str, names: list[str]) -> None:
    """Open a page, or a menu or dialog on a page."""
    if page in ("nodes", "menu", "window"):
        browser.open("/nodes", q="rack-")
    if page == "menu":
        measure_box(browser, f"#{build_html_id(names[4])} summary")  # `measure_box` scrolls to the button.
        browser.open_menu(names[4])
    if page == "window":
        for name in names[4:7]:
            browser.select_node(name)
        browser.click(".bulk button")
        browser.wait_for_dialog()
    if page in NODES_OF_PAGES:
        browser.open(f"/nodes/{names[NODES_OF_PAGES[page]]}")
        browser.wait_until(lambda: not browser.find_all(".loading"))
    if page in ("node", "timeline", "event"):
        browser.open(f"/nodes/{names[0]}")
        browser.wait_until(lambda: browser.find_all(".lanes svg a"))
    if page == "timeline":
        browser.run_script("document.querySelector('.lanes').previousElementSibling.scrollIntoView()")
    if page == "event":
        marker = browser.wait_for_element(".lanes a[aria-label^='pods.evicted']")
        browser.run_script("arguments[0].focus()", marker)
        marker.send_keys("\n")
        browser.wait_until(lambda: "pods.evicted" in browser.get_text("#window-body h2"))
    if page in PAGE_PATHS:
        browser.open(PAGE_PATHS[page])


@pytest.fixture(scope="module")
def browser_page_and_mode(
    request: pytest.FixtureRequest, chrome_driver: Chrome, site: Site, nodes_in_all_states: list[str]
) -> tuple[Browser, str, str]:
    """Return a browser that shows a page in a display mode, the page's name, and the name of the display mode.

    The page is loaded once for all tests with the same parameters.
    """
    page, display_mode = request.param
    size, is_dark = ALL_DISPLAY_MODES[display_mode]
    chrome_driver.delete_all_cookies()
    browser = Browser(chrome_driver, site.console)
    browser.emulate_display(size, is_dark=is_dark)
    browser.take_errors()
    open_page(browser, page, nodes_in_all_states)
    return browser, page, display_mode


def build_parameters(pages: Iterable[str], display_modes: Iterable[str]) -> list[ParameterSet]:
    """Build the parameters for each page in each display mode.

    pytest groups tests by parameter only if the parameter has the same index in all parameter lists.
    """
    return [
        pytest.param(combination, id="-".join(combination)) for combination in itertools.product(pages, display_modes)
    ]


def find_axe_violations(browser: Browser) -> list[str]:
    """Return the violations that axe rates as serious or critical, each with its element."""
    browser.run_script(AXE)
    axe_call = "axe.run(document, {resultTypes: ['violations']}).then(arguments[arguments.length - 1])"
    report: dict[str, Any] = browser.driver.execute_async_script(axe_call)
    violations = [violation for violation in report["violations"] if violation["impact"] in ("serious", "critical")]
    return [
        f"{violation['id']}: {node['html']} {node['failureSummary']}"
        for violation in violations
        for node in violation["nodes"]
    ]


@pytest.mark.parametrize(
    "browser_page_and_mode",
    [*build_parameters(STATIC_PAGES, DISPLAY_MODES), *build_parameters(["menu"], DISPLAY_MODES)],
    indirect=True,
    scope="module",
)
def test_page_is_accessible_and_fits_window(browser_page_and_mode: tuple[Browser, str, str]) -> None:
    """Check that axe finds no serious violations, the page fits into the window, and the browser reports no errors."""
    browser, page, display_mode = browser_page_and_mode

    assert find_axe_violations(browser) == []
    assert browser.run_script("return document.documentElement.scrollWidth <= innerWidth")
    # The browser also logs the error status of the page `error`.
    assert page == "error" or browser.take_errors() == []
    folder = os.environ.get("SCREENSHOTS")
    if folder:
        Path(folder).mkdir(parents=True, exist_ok=True)
        browser.driver.save_screenshot(f"{folder}/{page}-{display_mode}.png")


@pytest.mark.parametrize(
    "browser_page_and_mode",
    [*build_parameters(STATIC_PAGES, DISPLAY_MODES), *build_parameters(STATIC_PAGES, ["dark phone"])],
    indirect=True,
    scope="module",
)
def test_page_has_no_broken_words_or_overlapping_texts(browser_page_and_mode: tuple[Browser, str, str]) -> None:
    """Check that no words are broken, that no texts overlap, and that no content overflows."""
    browser, page, _ = browser_page_and_mode
    selector = "dialog[open]" if page in ("window", "event") else "main"

    assert find_broken_words(browser, selector) == []
    assert find_overlapping_texts(browser, selector) == []
    assert find_overflowing_texts(browser, OVERFLOW_SELECTOR) == []


@pytest.mark.parametrize("display_mode", ALL_DISPLAY_MODES)
def test_two_digit_numbers_fit_into_row(browser: Browser, nodes_in_all_states: list[str], display_mode: str) -> None:
    """OSV-9: In a row with two-digit numbers, no cell overflows and no texts overlap."""
    size, is_dark = ALL_DISPLAY_MODES[display_mode]
    browser.emulate_display(size, is_dark=is_dark)
    browser.open("/nodes", q=nodes_in_all_states[7])

    assert browser.get_cell_text(nodes_in_all_states[7], "progress") == "18 of 18 remaining, 15 blocked"
    assert find_overflowing_texts(browser, f"#{build_html_id(nodes_in_all_states[7])} td") == []
    assert find_overlapping_texts(browser, f"#{build_html_id(nodes_in_all_states[7])}") == []


@pytest.mark.parametrize("display_mode", ALL_DISPLAY_MODES)
def test_timeline_fills_width_and_can_be_zoomed(
    browser: Browser, nodes_in_all_states: list[str], display_mode: str
) -> None:
    """Check that the timeline fills its panel, that its labels are clock times, and that the keyboard zooms it."""
    size, is_dark = ALL_DISPLAY_MODES[display_mode]
    browser.emulate_display(size, is_dark=is_dark)
    browser.open(f"/nodes/{nodes_in_all_states[1]}")
    browser.wait_until(lambda: browser.find_all(".plot svg a"))

    plot_width, initial_width = browser.run_script(PLOT_WIDTHS_SCRIPT)
    assert initial_width >= plot_width >= 0.6 * size[0]
    labels = [text for tick in browser.find_all(".plot .tick") if (text := tick.text)]
    assert labels
    assert all(re.fullmatch(r"\d\d:\d\d:\d\d\.\d", label) for label in labels)
    browser.wait_for_element("#zoom-in").send_keys(Keys.ENTER)
    assert browser.run_script(PLOT_WIDTHS_SCRIPT)[1] == pytest.approx(2 * initial_width, abs=2)
    assert find_overlapping_texts(browser, ".timeline") == []
    browser.wait_for_element("#zoom-fit").send_keys(Keys.ENTER)
    assert browser.run_script(PLOT_WIDTHS_SCRIPT)[1] == pytest.approx(plot_width, abs=2)


def test_command_is_copied(browser: Browser, nodes_in_all_states: list[str]) -> None:
    """OSV-13: the button next to a remedy's command copies the command."""
    browser.open(f"/nodes/{nodes_in_all_states[0]}")
    command = browser.get_text(".remedy code")
    assert command.startswith("kubectl -n ")

    browser.wait_for_element(".remedy .copy").send_keys(Keys.ENTER)

    browser.wait_until(lambda: browser.get_text(".remedy .copy") == "Copied")
    browser.open("/nodes")
    search_field = browser.wait_for_element("#filter input[type=search]")
    search_field.send_keys(Keys.CONTROL, "v")
    assert search_field.get_property("value") == command


@pytest.mark.parametrize("display_mode", ALL_DISPLAY_MODES)
@pytest.mark.parametrize(
    ("node_index", "item_count"), [(0, 1), (3, 2), (4, 1)], ids=["stop", "start and note", "start"]
)
def test_row_menu_is_readable(
    browser: Browser, nodes_in_all_states: list[str], display_mode: str, node_index: int, item_count: int
) -> None:
    """OSV-7: a row's menu is readable, inside the window and on top; the node's page has the same menu."""
    size, is_dark = ALL_DISPLAY_MODES[display_mode]
    browser.emulate_display(size, is_dark=is_dark)
    browser.open("/nodes", q="rack-")
    row = f"#{build_html_id(nodes_in_all_states[node_index])}"
    measure_box(browser, f"{row} summary")  # `measure_box` scrolls to the button.
    assert len(browser.open_menu(nodes_in_all_states[node_index])) == item_count
    check_menu_layout(browser, f"{row} summary", f"{row}-offers")

    browser.open(f"/nodes/{nodes_in_all_states[node_index]}")
    browser.click(".actions summary")
    check_menu_layout(browser, ".actions summary", ".actions ul")


def check_menu_layout(browser: Browser, button: str, menu: str) -> None:
    """Check that the menu is below its button and on top, and that its items are on one line and can be clicked."""
    opacity_script = "return getComputedStyle(document.querySelector(arguments[0])).opacity"
    browser.wait_until(lambda: browser.run_script(opacity_script, menu) == "1")
    menu_box, item_box, button_box = (
        measure_box(browser, selector, scroll=False) for selector in (menu, f"{menu} li a", button)
    )

    assert menu_box["inside"]
    assert menu_box["top"] >= button_box["bottom"] - 1
    assert 180 <= menu_box["width"] <= 360
    assert item_box["width"] >= 150
    assert MIN_TARGET_PIXELS <= item_box["height"] <= 40
    assert item_box["onTop"]
    assert find_broken_words(browser, menu) == []
    assert find_overflowing_texts(browser, f"{menu}, {menu} li, {menu} a") == []


@pytest.mark.parametrize(
    ("page", "selector", "display_mode"),
    [
        # The phone layout has no table headings, and therefore no checkbox that selects all rows.
        *(("/nodes", "#all", mode) for mode in ("light", "dark")),
        *(("/nodes", "#nodes td.pick input", mode) for mode in ALL_DISPLAY_MODES),
        *(("/events", "input[name=failed]", mode) for mode in ALL_DISPLAY_MODES),
    ],
)
def test_checkbox_is_visible_and_clickable(
    browser: Browser, nodes_in_all_states: list[str], page: str, selector: str, display_mode: str
) -> None:
    """Check that a row's checkbox is square, and that a click at its center selects it."""
    size, is_dark = ALL_DISPLAY_MODES[display_mode]
    browser.emulate_display(size, is_dark=is_dark)
    browser.open(page)
    box = measure_box(browser, selector)

    assert min(box["width"], box["height"]) >= MIN_CHECKBOX_PIXELS
    assert abs(box["width"] - box["height"]) < 2
    assert box["onTop"]
    browser.click(selector)
    assert browser.wait_for_element(selector).is_selected()


@pytest.mark.parametrize("display_mode", ALL_DISPLAY_MODES)
def test_label_of_checkbox_is_clickable(browser: Browser, nodes_in_all_states: list[str], display_mode: str) -> None:
    """Check that a click on a checkbox's label selects the checkbox, and that the label is large enough."""
    size, is_dark = ALL_DISPLAY_MODES[display_mode]
    browser.emulate_display(size, is_dark=is_dark)
    browser.open("/events")
    label_box = measure_box(browser, "label:has(input[name=failed])")

    assert label_box["height"] >= MIN_TARGET_PIXELS
    assert label_box["width"] >= 80
    browser.run_script(
        "document.elementFromPoint(arguments[0], arguments[1]).click()", label_box["right"] - 5, label_box["top"] + 5
    )
    assert browser.wait_for_element("input[name=failed]").is_selected()


@pytest.fixture
def browser_with_many_nodes(browser: Browser, site: Site) -> Iterator[Browser]:
    """Create 1,000 nodes, yield the browser once the console shows them, and delete them afterwards."""
    create_nodes(site.environment, NODE_COUNT)
    browser.open("/nodes", q="many-1000")
    browser.wait_until(lambda: int(browser.get_text("#count-all")) >= NODE_COUNT)
    yield browser
    browser.driver.get("about:blank")  # An open page would be updated after each deletion of a node.
    for part in range(NODE_PARTS):  # A single request for all nodes could exceed the client's timeout.
        query = {"labelSelector": f"crowd={part}"}
        site.environment.client.run(site.environment.client.api.request("DELETE", NODES_PATH, query=query))


@pytest.mark.alone
def test_1000_nodes_are_painted_within_a_second_and_updated(
    browser_with_many_nodes: Browser, site: Site, nodes_in_all_states: list[str]
) -> None:
    """Check that the browser paints 1,000 nodes within a second, and shows a change without a reload."""
    environment, browser = site.environment, browser_with_many_nodes
    browser.open("/nodes")

    row_count = browser.run_script("return document.querySelectorAll('#nodes tr').length")
    paint_milliseconds = browser.run_script(
        "return performance.getEntriesByName('first-contentful-paint')[0].startTime"
    )
    print(f"\nfirst contentful paint with {row_count} nodes: {paint_milliseconds:.0f} ms")
    assert row_count >= NODE_COUNT
    assert is_below_scaled_limit(paint_milliseconds, PAINT_MILLISECONDS)
    environment.cluster.kubectl("cordon", "many-250")
    browser.wait_until(lambda: browser.get_cell_text("many-250", "state").startswith("Cordoned"))
    assert browser.find_all(f"#{build_html_id('many-250')}")


def create_nodes(environment: EventChainEnvironment, count: int) -> None:
    """Create Node objects that no simulated kubelet manages, in parts, each of which has the client's time limit."""
    metadata_list = [
        {"name": f"many-{index}", "labels": {"crowd": str(index % NODE_PARTS)}} for index in range(1, count + 1)
    ]
    nodes = [{"apiVersion": "v1", "kind": "Node", "metadata": metadata} for metadata in metadata_list]
    for part in range(NODE_PARTS):
        creations = (environment.client.api.create(NODES_PATH, body) for body in nodes[part::NODE_PARTS])
        environment.client.gather_all(*creations)


def test_console_and_command_line_use_same_api_group() -> None:
    """Check that the console and the command line create maintenances in the same API group by default."""
    from console.terminal.options import GROUPS_BY_NAME
    from console.web.callers import NEW_MAINTENANCE_GROUP

    assert next(iter(GROUPS_BY_NAME.values())) is NEW_MAINTENANCE_GROUP is MEDIK8S
