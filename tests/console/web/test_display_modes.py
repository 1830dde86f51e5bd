"""Tests of every page in light, dark and phone display modes: accessibility, layout, browser errors and speed.

`make screenshots` runs them to write screenshots into docs/screenshots.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator
from contextlib import closing
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from _pytest.mark import ParameterSet
from cloudevents.core.v1.event import CloudEvent
from selenium.webdriver import Chrome

from console.web.node_rows import key
from eventing import events
from eventing.journal.entries import Attempt
from eventing.journal.store import Journal
from kube.maintenance.groups import KUBEVIRT, MEDIK8S
from kube.nodes import NODES
from localcluster.product import Product
from tests.chain.environment import Scene
from tests.console.web.layout import box, broken_words, overlapping, spilling
from tests.console.web.site import DESK, PHONE, Browser, Site
from tests.machine_speed import is_below

pytestmark = pytest.mark.slow

AXE = (Path(__file__).parent / "axe" / "axe.min.js").read_text()
LOOKS = {"light": (DESK, False), "dark": (DESK, True), "phone": (PHONE, False)}
SIGHTS = {**LOOKS, "dark phone": (PHONE, True)}
STILL = ("nodes", "window", "node", "timeline", "event", "events", "dead-letters", "error")
"""Pages and dialogs that the tests only view; the row's menu has tests of its own."""
PLAIN = {"events": "/events", "dead-letters": "/dead-letters", "error": "/nodes/no-such-node"}
SMALLEST_BOX, SMALLEST_TARGET = 16, 24
"""Minimum size in pixels of a checkbox, and of a target for a finger or mouse (WCAG 2.5.8)."""
MANY = 500
PAINT_MILLISECONDS = 1000


@pytest.fixture(scope="module")
def rack(site: Site) -> Iterator[list[str]]:
    """Yield the names of eight nodes in all possible states; the last node has two-digit numbers of pods."""
    scene = site.scene
    names = [scene.node(f"rack-{number}.example.com") for number in range(1, 9)]
    namespace = scene.namespace()
    scene.deployment(namespace, names[0], 3)
    scene.budget(namespace, {"app": "web"}, name="web", allowed=0, minAvailable=3)
    scene.pods(names[0], 5, namespace=namespace)
    scene.pods(names[1], 4, namespace=namespace)
    scene.pods(names[2], 6, namespace=namespace, delete="600s", grace=900)
    crowded = scene.namespace()
    scene.deployment(crowded, names[7], 15)
    scene.budget(crowded, {"app": "web"}, name="all", allowed=0, maxUnavailable=0)
    scene.pods(names[7], 3, namespace=crowded, delete="600s", grace=900)
    paths = [
        scene.maintain(names[0], reason="new power supply"),
        scene.maintain(names[1], group=KUBEVIRT.api_version, reason="BIOS update"),
        scene.maintain(names[2], reason="new disk"),
        scene.maintain(names[7], reason="firmware"),
    ]
    scene.cluster.kubectl("cordon", names[3])
    scene.reaches(paths[1])
    scene.reaches(paths[0], lambda item: len((item.get("status") or {}).get("blockedPods") or []) == 3)
    scene.reaches(paths[2], lambda item: (item.get("status") or {}).get("pendingCount") == 6)
    scene.reaches(paths[3], lambda item: len((item.get("status") or {}).get("blockedPods") or []) == 15)
    _fail(scene.product, names[0])
    yield names
    for path in paths:
        scene.delete(path)


def _fail(product: Product, node: str) -> None:
    """Record a failed attempt with a long error message, which must not displace the texts next to it."""
    words = "no answer from the API server: Internal error occurred: failed calling webhook " * 4
    fields = {"id": "failed", "source": "/begin", "type": events.MAINTENANCE_BEGUN, "node": node}
    with closing(Journal(product.journal)) as book:
        book.write(CloudEvent(fields, {"node": node}))
        now = datetime.now(timezone.utc)
        book.write_attempts([Attempt("/begin", "failed", "cordon", now, 30.0, 503, (), words)])


def show(browser: Browser, page: str, rack: list[str]) -> None:
    """Open a page, or a menu or dialog on it."""
    if page in ("nodes", "menu", "window"):
        browser.open("/nodes", q="rack-")
    if page == "menu":
        box(browser, f"#{key(rack[4])} summary")  # scrolls the menu's button into view
        browser.menu(rack[4])
    if page == "window":
        for name in rack[4:7]:
            browser.choose(name)
        browser.one(".bulk button").click()
        browser.window()
    if page in ("node", "timeline", "event"):
        browser.open(f"/nodes/{rack[0]}")
        browser.until(lambda: browser.all(".lanes svg a"))
    if page == "timeline":
        browser.script("document.querySelector('.lanes').previousElementSibling.scrollIntoView()")
    if page == "event":
        mark = browser.one(".lanes a[aria-label^='pods.evicted']")
        browser.script("arguments[0].focus()", mark)
        mark.send_keys("\n")
        browser.until(lambda: "pods.evicted" in browser.text("#window-body h2"))
    if page in PLAIN:
        browser.open(PLAIN[page])


@pytest.fixture(scope="module")
def shown(request: pytest.FixtureRequest, driver: Chrome, site: Site, rack: list[str]) -> tuple[Browser, str, str]:
    """Return a browser with a page in a display mode, and the names of both; all tests of a page share one load."""
    page, look = request.param
    size, dark = SIGHTS[look]
    driver.delete_all_cookies()
    browser = Browser(driver, site.console)
    browser.look(size, dark=dark)
    browser.errors()
    show(browser, page, rack)
    return browser, page, look


def each(pages: Iterable[str], looks: Iterable[str]) -> list[ParameterSet]:
    """Return parameters for each page in each display mode.

    pytest groups the tests that share a parameter if it has the same position in their lists.
    """
    return [pytest.param(both, id="-".join(both)) for both in itertools.product(pages, looks)]


def faults(browser: Browser) -> list[str]:
    """Return the violations that axe calls serious or critical, each with its element."""
    browser.script(AXE)
    run = "axe.run(document, {resultTypes: ['violations']}).then(arguments[arguments.length - 1])"
    found: dict[str, Any] = browser.driver.execute_async_script(run)
    grave = [item for item in found["violations"] if item["impact"] in ("serious", "critical")]
    return [f"{item['id']}: {node['html']} {node['failureSummary']}" for item in grave for node in item["nodes"]]


@pytest.mark.parametrize("shown", [*each(STILL, LOOKS), *each(["menu"], LOOKS)], indirect=True, scope="module")
def test_a_page_is_accessible_and_fits(shown: tuple[Browser, str, str]) -> None:
    """Check that axe finds no serious violation, the page fits the window, and the browser reports no errors."""
    browser, page, look = shown

    assert faults(browser) == []
    assert browser.script("return document.documentElement.scrollWidth <= innerWidth")
    assert page == "error" or browser.errors() == []  # the browser also reports the status of an error page
    folder = os.environ.get("SCREENSHOTS")
    if folder:
        Path(folder).mkdir(parents=True, exist_ok=True)
        browser.driver.save_screenshot(f"{folder}/{page}-{look}.png")


@pytest.mark.parametrize("shown", [*each(STILL, LOOKS), *each(STILL, ["dark phone"])], indirect=True, scope="module")
def test_no_word_is_broken_and_no_text_is_on_another(shown: tuple[Browser, str, str]) -> None:
    """Check that no word is broken, that no texts overlap, and that no content overflows."""
    browser, page, _ = shown
    where = "dialog[open]" if page in ("window", "event") else "main"

    assert broken_words(browser, where) == []
    assert overlapping(browser, where) == []
    assert spilling(browser, "table.nodes td, table.nodes th, .buttons, .tools form") == []


@pytest.mark.parametrize("look", SIGHTS)
def test_a_crowded_row_has_room_for_its_numbers(browser: Browser, rack: list[str], look: str) -> None:
    """OSV-9: A row with two-digit numbers overflows no cell and overlaps no text."""
    size, dark = SIGHTS[look]
    browser.look(size, dark=dark)
    browser.open("/nodes", q=rack[7])

    assert browser.cell(rack[7], "pods") == "18 of 18 left, 15 blocked"
    assert spilling(browser, f"#{key(rack[7])} td") == []
    assert overlapping(browser, f"#{key(rack[7])}") == []


@pytest.mark.parametrize("look", SIGHTS)
@pytest.mark.parametrize(("number", "items"), [(0, 1), (3, 2), (4, 1)], ids=["stop", "note", "start"])
def test_a_rows_menu_is_readable(browser: Browser, rack: list[str], look: str, number: int, items: int) -> None:
    """OSV-7: A row's menu is readable, inside the window and on top; the node's own page has the same menu."""
    size, dark = SIGHTS[look]
    browser.look(size, dark=dark)
    browser.open("/nodes", q="rack-")
    row = f"#{key(rack[number])}"
    box(browser, f"{row} summary")  # scrolls the menu's button into view
    assert len(browser.menu(rack[number])) == items
    fits(browser, f"{row} summary", f"{row}-offers")

    browser.open(f"/nodes/{rack[number]}")
    browser.one(".actions summary").click()
    fits(browser, ".actions summary", ".actions ul")


def fits(browser: Browser, button: str, menu: str) -> None:
    """Check that the open menu is below its button and on top, and that its item is on one line and can be clicked."""
    opacity = "return getComputedStyle(document.querySelector(arguments[0])).opacity"
    browser.until(lambda: browser.script(opacity, menu) == "1")
    shown, item, pressed = (box(browser, selector, scroll=False) for selector in (menu, f"{menu} li a", button))

    assert shown["inside"]
    assert shown["top"] >= pressed["bottom"] - 1
    assert 180 <= shown["width"] <= 360
    assert item["width"] >= 150
    assert SMALLEST_TARGET <= item["height"] <= 40
    assert item["onTop"]
    assert broken_words(browser, menu) == []
    assert spilling(browser, f"{menu}, {menu} li, {menu} a") == []


@pytest.mark.parametrize(
    ("page", "selector", "look"),
    [
        *(("/nodes", "#all", look) for look in ("light", "dark")),  # a phone shows no table headings
        *(("/nodes", "#nodes td.pick input", look) for look in SIGHTS),
        *(("/events", "input[name=failed]", look) for look in SIGHTS),
    ],
)
def test_a_box_can_be_seen_and_ticked(browser: Browser, rack: list[str], page: str, selector: str, look: str) -> None:
    """Check that a checkbox is square and that a click at its center selects it."""
    size, dark = SIGHTS[look]
    browser.look(size, dark=dark)
    browser.open(page)
    shown = box(browser, selector)

    assert min(shown["width"], shown["height"]) >= SMALLEST_BOX
    assert abs(shown["width"] - shown["height"]) < 2
    assert shown["onTop"]
    browser.one(selector).click()
    assert browser.one(selector).is_selected()


@pytest.mark.parametrize("look", SIGHTS)
def test_the_words_beside_a_box_tick_it_too(browser: Browser, rack: list[str], look: str) -> None:
    """Check that a click on a checkbox's label selects it, and that the label is high enough for a finger."""
    size, dark = SIGHTS[look]
    browser.look(size, dark=dark)
    browser.open("/events")
    label = box(browser, "label:has(input[name=failed])")

    assert label["height"] >= SMALLEST_TARGET
    assert label["width"] >= 80
    browser.script(
        "document.elementFromPoint(arguments[0], arguments[1]).click()", label["right"] - 5, label["top"] + 5
    )
    assert browser.one("input[name=failed]").is_selected()


@pytest.fixture
def crowd(browser: Browser, site: Site) -> Iterator[Browser]:
    """Yield the browser once the console shows 500 nodes, which are created and deleted while other tests may run."""
    make(site.scene, MANY)
    browser.open("/nodes", q="many-500")
    browser.until(lambda: int(browser.text("#counts").split()[0]) >= MANY)
    yield browser
    browser.driver.get("about:blank")  # otherwise the page would follow each deletion
    site.scene.admin.run(site.scene.admin.api.request("DELETE", NODES, query={"labelSelector": "crowd"}))


@pytest.mark.alone
def test_500_nodes_are_painted_within_a_second_and_follow(crowd: Browser, site: Site, rack: list[str]) -> None:
    """Check the first paint of 500 nodes by the browser's own clock, and that a change appears without a reload."""
    scene, browser = site.scene, crowd
    browser.open("/nodes")

    shown = browser.script("return document.querySelectorAll('#nodes tr').length")
    paint = browser.script("return performance.getEntriesByName('first-contentful-paint')[0].startTime")
    print(f"\nfirst contentful paint with {shown} nodes: {paint:.0f} ms")
    assert shown >= MANY
    assert is_below(paint, PAINT_MILLISECONDS)
    scene.cluster.kubectl("cordon", "many-250")
    browser.until(lambda: browser.cell("many-250", "state").startswith("Cordoned"))
    assert browser.all(f"#{key('many-250')}")


def make(scene: Scene, number: int) -> None:
    """Create Node objects without a simulated kubelet."""
    found = [{"name": f"many-{each}", "labels": {"crowd": ""}} for each in range(1, number + 1)]
    bodies = [{"apiVersion": "v1", "kind": "Node", "metadata": metadata} for metadata in found]
    scene.admin.together(*(scene.admin.api.create(NODES, body) for body in bodies))


def test_the_console_starts_new_maintenances_in_the_group_of_the_command_line() -> None:
    """Check that the console and the command line create maintenances in the same API group."""
    from console.commands.start import GROUPS
    from console.web.maintenance_views import NEW_GROUP

    assert next(iter(GROUPS.values())) is NEW_GROUP is MEDIK8S
