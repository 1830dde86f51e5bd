"""Every page, light, dark and on a phone: readable by all, nothing refused by the browser, fast; pictures on request.

`make screenshots` writes the pictures into docs/screenshots.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from console.web.rows import key
from kube.maintenance.groups import KUBEVIRT, MEDIK8S
from tests.chain.scene import Scene
from tests.console.web.site import DESK, PHONE, Browser, Site

AXE = (Path(__file__).parent / "axe" / "axe.min.js").read_text()
LOOKS = {"light": (DESK, False), "dark": (DESK, True), "phone": (PHONE, False)}
PAGES = ("nodes", "menu", "window", "node", "timeline", "event", "events", "dead-letters", "error")
PLAIN = {"events": "/events", "dead-letters": "/dead-letters", "error": "/nodes/no-such-node"}
MANY = 500
PAINT_MILLISECONDS = 1000


@pytest.fixture(scope="module")
def rack(site: Site) -> Iterator[list[str]]:
    """Eight nodes in all the states there are."""
    scene = site.scene
    names = [scene.node(f"rack-{number}.example.com") for number in range(1, 9)]
    namespace = scene.namespace()
    scene.deployment(namespace, names[0], 3)
    scene.budget(namespace, {"app": "web"}, name="web", allowed=0, minAvailable=3)
    scene.pods(names[0], 5, namespace=namespace)
    scene.pods(names[1], 4, namespace=namespace)
    scene.pods(names[2], 6, namespace=namespace, delete="600s", grace=900)
    paths = [
        scene.maintain(names[0], reason="new power supply"),
        scene.maintain(names[1], group=KUBEVIRT.api_version, reason="BIOS update"),
        scene.maintain(names[2], reason="new disk"),
    ]
    scene.cluster.kubectl("cordon", names[3])
    scene.reaches(paths[1])
    scene.reaches(paths[0], lambda item: len((item.get("status") or {}).get("blockedPods") or []) == 3)
    scene.reaches(paths[2], lambda item: (item.get("status") or {}).get("pendingCount") == 6)
    yield names
    for path in paths:
        scene.delete(path)


def show(browser: Browser, page: str, rack: list[str]) -> None:
    """Bring a page, or something that opens on it, before the eyes."""
    if page in ("nodes", "menu", "window"):
        browser.open("/nodes", q="rack-")
    if page == "menu":
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


def faults(browser: Browser) -> list[str]:
    """What axe calls serious or critical, each with where it is."""
    browser.script(AXE)
    run = "axe.run(document, {resultTypes: ['violations']}).then(arguments[arguments.length - 1])"
    found: dict[str, Any] = browser.driver.execute_async_script(run)
    grave = [item for item in found["violations"] if item["impact"] in ("serious", "critical")]
    return [f"{item['id']}: {node['html']} {node['failureSummary']}" for item in grave for node in item["nodes"]]


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_accessible_and_fits(browser: Browser, rack: list[str], page: str, look: str) -> None:
    """axe finds nothing serious; nothing is wider than the window; the browser refused nothing."""
    size, dark = LOOKS[look]
    browser.look(size, dark=dark)
    show(browser, page, rack)

    assert faults(browser) == []
    assert browser.script("return document.documentElement.scrollWidth <= innerWidth")
    assert page == "error" or browser.errors() == []  # an error's status is told there, too
    folder = os.environ.get("SCREENSHOTS")
    if folder:
        Path(folder).mkdir(parents=True, exist_ok=True)
        browser.driver.save_screenshot(f"{folder}/{page}-{look}.png")


@pytest.mark.alone
def test_500_nodes_are_painted_within_a_second_and_follow(browser: Browser, site: Site, rack: list[str]) -> None:
    """The first paint by the browser's own clock; a change of one of them shows by itself."""
    scene = site.scene
    make(scene, MANY)
    browser.open("/nodes", q="many-500")
    browser.until(lambda: int(browser.text("#counts").split()[0]) >= MANY)  # the console has heard of all
    browser.open("/nodes")

    shown = browser.script("return document.querySelectorAll('#nodes tr').length")
    paint = browser.script("return performance.getEntriesByName('first-contentful-paint')[0].startTime")
    print(f"\nfirst contentful paint with {shown} nodes: {paint:.0f} ms")
    assert shown >= MANY
    assert paint < PAINT_MILLISECONDS
    scene.cluster.kubectl("cordon", "many-250")
    browser.until(lambda: browser.cell("many-250", "state").startswith("Cordoned"))
    assert browser.all(f"#{key('many-250')}")


def make(scene: Scene, number: int) -> None:
    """Make Node objects that nobody plays a kubelet for."""
    bodies = [
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"many-{each}"}} for each in range(1, number + 1)
    ]
    scene.admin.together(*(scene.admin.api.create("/api/v1/nodes", body) for body in bodies))


def test_the_console_starts_new_maintenances_in_the_group_of_the_command_line() -> None:
    """One rule for both."""
    from console.commands.start import GROUPS
    from console.web.acting import NEW_GROUP

    assert next(iter(GROUPS.values())) is NEW_GROUP is MEDIK8S
