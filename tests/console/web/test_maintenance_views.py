"""Tests of starting, following and stopping maintenances in a real browser (OSV-7 to OSV-9)."""

from __future__ import annotations

import pytest
from selenium.webdriver.common.keys import Keys

from console.web.node_rows import key
from kube.maintenance.groups import GROUPS, MEDIK8S
from tests.chain.environment import Scene
from tests.console.web.site import Browser, Site
from tests.proofs import proves


@pytest.fixture
def scene(site: Site) -> Scene:
    return site.scene


def nodes(scene: Scene, name: str, count: int = 1) -> list[str]:
    """Create nodes of this test, with this prefix and a number, and return their names."""
    return [scene.node(f"{name}-{number}") for number in range(1, count + 1)]


def maintenances(scene: Scene, node: str) -> list[dict[str, object]]:
    items: list[dict[str, object]] = scene.admin.list(MEDIK8S.path, fields=f"spec.nodeName={node}")["items"]
    return items


@proves("OSV-7", "OSV-8")
def test_one_node_is_taken_out_and_given_back(browser: Browser, scene: Scene) -> None:
    """OSV-7, OSV-8: A user starts and stops a maintenance by menu and dialog, and the row updates without a reload."""
    (node,) = nodes(scene, "solo")
    scene.pods(node, 2)
    browser.nodes(node)
    loaded = browser.script("return performance.timeOrigin")

    assert browser.menu(node) == ["Start Maintenance"]
    browser.one(f"#{key(node)}-offers a").click()
    assert "Take solo-1 out of service?" in browser.window()
    assert maintenances(scene, node) == []  # only the confirmation changes anything
    browser.confirm("new disk")

    browser.until(lambda: browser.cell(node, "state") == "Drained")
    assert browser.cell(node, "progress") == "100 %"
    assert browser.cell(node, "why") == "new disk"
    (made,) = maintenances(scene, node)
    assert made["spec"] == {"nodeName": node, "reason": "new disk"}
    assert made["metadata"]["annotations"]["nodemaintenance.dev/requested-by"] == "admin"  # type: ignore[index]

    assert browser.menu(node) == ["Stop Maintenance"]
    browser.one(f"#{key(node)}-offers a").click()
    browser.confirm()
    browser.until(lambda: browser.cell(node, "state") == "In service")
    assert not scene.spec(node).get("unschedulable")
    assert browser.script("return performance.timeOrigin") == loaded  # the page was never reloaded
    assert browser.errors() == []


@pytest.mark.slow
@proves("OSV-7")
def test_three_nodes_are_taken_out_at_once_from_the_list(browser: Browser, scene: Scene) -> None:
    """OSV-7: A user starts and stops the maintenance of several nodes from the list."""
    names = nodes(scene, "trio", 3)
    browser.nodes(*names)
    for name in names:
        browser.choose(name)
    assert browser.text("#count") == "3 chosen"

    browser.one(".bulk button").click()
    text = browser.window()
    assert all(name in text for name in names)
    browser.confirm("rack move")

    for name in names:
        browser.until(lambda name=name: browser.cell(name, "state") == "Drained")  # type: ignore[misc]
        assert browser.cell(name, "why") == "rack move"
    assert browser.text("#messages") == "Maintenance of trio-1, trio-2, trio-3 begins."
    assert browser.text("#count") == "None chosen"

    browser.one("#all").click()
    browser.one(".bulk button.secondary").click()
    browser.confirm()
    for name in names:
        browser.until(lambda name=name: browser.cell(name, "state") == "In service")  # type: ignore[misc]


@proves("OSV-7", "OSV-9")
def test_a_drain_that_a_budget_blocks_says_so_and_goes_on_when_it_opens(browser: Browser, scene: Scene) -> None:
    """OSV-9, KNM-5: The page shows the blocking budget with counts and remedy, and updates without a reload."""
    (node,) = nodes(scene, "held")
    namespace = scene.namespace()
    scene.deployment(namespace, node, 3)
    scene.pods(node, 3)
    scene.budget(namespace, {"app": "web"}, name="web", allowed=0, minAvailable=3)
    browser.nodes(node)
    browser.menu(node)
    browser.one(f"#{key(node)}-offers a").click()
    browser.confirm("<script>document.title = 'owned'</script>")

    browser.until(lambda: browser.cell(node, "pods") == "3 of 6 left, 3 blocked")
    assert browser.cell(node, "state") == "Blocked"
    assert "budget web needs 3 healthy pods and has 3" in browser.cell(node, "why")

    browser.one(f"#{key(node)} th a").click()
    browser.until(lambda: "kubectl -n" in browser.text("main"))
    shown = browser.text("main")
    for words in (
        *("Running", "50 %, 3 of 6 pods left", "3 / 3", "1 more ready pod under this budget", "Last error:", "admin"),
        *(f"kubectl -n {namespace} edit pdb web", "medik8s.io/drain:NoSchedule", "takes no new pods"),
    ):
        assert words in shown
    # OSV-7: a script in a reason is displayed as text and not executed
    assert "<script>document.title = 'owned'</script>" in shown
    assert browser.driver.title == "held-1 · Node maintenance"

    scene.allow(namespace, scene.node("held-spare"))
    scene.cluster.kubectl("scale", "deployment/web", "-n", namespace, "--replicas=4")
    browser.until(lambda: "Succeeded" in browser.text("main"))
    assert "100 %" in browser.text("main")

    browser.one(".actions summary").click()
    browser.one(".actions li a").click()
    browser.confirm()
    browser.until(lambda: "Not in maintenance." in browser.text("main"))
    assert browser.driver.current_url.endswith("/nodes/held-1")
    assert browser.errors() == []


@pytest.mark.slow
def test_a_budget_that_lets_no_pod_go_has_to_be_changed(browser: Browser, scene: Scene) -> None:
    """OSV-13: For a budget with `maxUnavailable: 0`, the page suggests a looser budget and not more ready pods."""
    (node,) = nodes(scene, "closed")
    namespace = scene.namespace()
    scene.deployment(namespace, node, 2)
    scene.budget(namespace, {"app": "web"}, name="all", allowed=0, maxUnavailable=0)
    path = scene.maintain(node)
    scene.reaches(path, lambda item: len((item.get("status") or {}).get("blockedPods") or []) == 2)

    browser.open(f"/nodes/{node}")
    shown = browser.text("main")

    assert f"a looser budget: kubectl -n {namespace} edit pdb all (this one lets no pod go, however many" in shown
    assert "more ready pod" not in shown
    scene.delete(path)


@pytest.mark.slow
@pytest.mark.parametrize("group", GROUPS)
def test_maintenances_of_every_group_are_shown_and_stopped(browser: Browser, scene: Scene, group: str) -> None:
    """C2, X-7: The console shows and stops maintenances of every API group, also those that other tools created."""
    node = scene.node(f"group-{list(GROUPS).index(group)}")
    browser.nodes(node)
    scene.maintain(node, group=group, reason="by kubectl")

    browser.until(lambda: browser.cell(node, "state") == "Drained")
    assert browser.cell(node, "why") == "by kubectl"
    assert browser.menu(node) == ["Stop Maintenance"]
    browser.one(f"#{key(node)}-offers a").click()
    browser.confirm()
    browser.until(lambda: browser.cell(node, "state") == "In service")


def test_a_node_that_comes_or_goes_appears_and_disappears(browser: Browser, scene: Scene) -> None:
    """Check that nodes appear in and disappear from the list, which is sorted naturally by name."""
    scene.node("come-2")
    browser.nodes("come-2")

    scene.node("come-10")
    scene.node("come-1")
    browser.until(lambda: listed(browser) == ["come-1", "come-2", "come-10"])
    scene.cluster.kubectl("delete", "node", "come-2")
    browser.until(lambda: listed(browser) == ["come-1", "come-10"])


def listed(browser: Browser) -> list[str]:
    """Return the node names in the list, read in one call."""
    found: list[str] = browser.script("return [...document.querySelectorAll('tbody th')].map(item => item.innerText)")
    return found


@pytest.mark.slow
@proves("OSV-8")
def test_a_node_cordoned_by_hand_is_told_from_one_in_maintenance(browser: Browser, scene: Scene) -> None:
    """OSV-8: For a node that was cordoned by hand, the menu explains why it offers no stop."""
    (node,) = nodes(scene, "byhand")
    scene.cluster.kubectl("cordon", node)
    browser.nodes(node)
    browser.until(lambda: browser.cell(node, "state") == "Cordoned")

    items = browser.menu(node)

    assert items[0] == "Start Maintenance"
    assert items[1].startswith("Cordoned by hand: there is no maintenance to stop.")
    assert len(items) == 2


def test_menu_and_window_work_by_keyboard(browser: Browser, scene: Scene) -> None:
    """Check that menu and dialog can be opened, left and confirmed by keyboard without losing the focus."""
    (node,) = nodes(scene, "keys")
    browser.nodes(node)
    summary = browser.one(f"#{key(node)} summary")

    summary.send_keys(Keys.ENTER)
    summary.send_keys(Keys.ARROW_DOWN)
    assert focused(browser) == "Start Maintenance"
    browser.driver.switch_to.active_element.send_keys(Keys.ESCAPE)
    assert browser.driver.switch_to.active_element == summary
    assert not browser.all("details[open]")

    summary.send_keys(Keys.ARROW_DOWN)
    browser.driver.switch_to.active_element.send_keys(Keys.ENTER)
    browser.window()
    browser.until(lambda: browser.script("return document.activeElement.name") == "reason")
    browser.driver.switch_to.active_element.send_keys(Keys.ESCAPE)
    browser.until(lambda: not browser.all("dialog[open]"))
    assert maintenances(scene, node) == []

    assert browser.driver.switch_to.active_element == summary
    summary.send_keys(Keys.ARROW_DOWN)
    browser.driver.switch_to.active_element.send_keys(Keys.ENTER)
    browser.window()
    browser.until(lambda: browser.script("return document.activeElement.name") == "reason")
    browser.driver.switch_to.active_element.send_keys("by keys", Keys.ENTER)
    browser.until(lambda: browser.cell(node, "state") == "Drained")
    assert browser.cell(node, "why") == "by keys"


def focused(browser: Browser) -> str:
    return str(browser.script("return document.activeElement.innerText"))
