"""Tests for starting, watching and stopping maintenances in a real browser (OSV-7 to OSV-9)."""

from __future__ import annotations

import pytest
from selenium.webdriver.common.keys import Keys

from console.web.node_rows import build_html_id
from kube.maintenance.groups import GROUPS, MEDIK8S
from kube.pods import format_key
from tests.chain.environment import EventChainEnvironment
from tests.console.web.layout import find_overlapping_texts
from tests.console.web.site import Browser, Site
from tests.proofs import proves


@pytest.fixture
def environment(site: Site) -> EventChainEnvironment:
    return site.environment


def create_nodes(environment: EventChainEnvironment, prefix: str, count: int = 1) -> list[str]:
    """Create nodes with this name prefix and a number, and return their names."""
    return [environment.create_node(f"{prefix}-{number}") for number in range(1, count + 1)]


def list_maintenances(environment: EventChainEnvironment, node: str) -> list[dict[str, object]]:
    maintenances: list[dict[str, object]] = environment.client.list(
        MEDIK8S.path, field_selector=f"spec.nodeName={node}"
    )["items"]
    return maintenances


@proves("OSV-7")
def test_maintenance_is_started_on_page_of_node(browser: Browser, environment: EventChainEnvironment) -> None:
    """OSV-7: *Actions › Start Maintenance* on a node's page opens a dialog, whose button has the same text."""
    (node,) = create_nodes(environment, "paged")
    browser.open_nodes(node)
    browser.click(f"#{build_html_id(node)} th a")

    browser.wait_until(lambda: browser.get_text(".actions summary") == "Actions")
    browser.click(".actions summary")
    assert [item.text for item in browser.find_all(".actions li")] == ["Start Maintenance"]
    browser.click(".actions li a")
    dialog = browser.wait_for_dialog()
    assert "Take paged-1 out of service?" in dialog
    assert "no pods to evict" in dialog
    assert browser.get_text("dialog[open] .buttons button") == "Start Maintenance"
    assert list_maintenances(environment, node) == []  # Nothing is created before the confirmation.
    browser.confirm_dialog("new disk")

    browser.wait_until(lambda: "Succeeded" in browser.get_text("main"))
    assert browser.driver.current_url.endswith("/nodes/paged-1")
    (maintenance,) = list_maintenances(environment, node)
    assert maintenance["spec"] == {"nodeName": node, "reason": "new disk"}
    assert browser.take_errors() == []


@proves("OSV-7", "OSV-8")
def test_maintenance_of_one_node_is_started_and_stopped(browser: Browser, environment: EventChainEnvironment) -> None:
    """OSV-7, OSV-8: a user starts and stops a maintenance in the row's menu, and the row is updated live."""
    (node,) = create_nodes(environment, "solo")
    environment.create_pods(node, 2)
    browser.open_nodes(node)
    time_origin = browser.run_script("return performance.timeOrigin")

    assert browser.open_menu(node) == ["Start Maintenance"]
    browser.click(f"#{build_html_id(node)}-offers a")
    assert "Take solo-1 out of service?" in browser.wait_for_dialog()
    assert list_maintenances(environment, node) == []  # Nothing is created before the confirmation.
    browser.confirm_dialog("new disk")

    browser.wait_until(lambda: browser.get_cell_text(node, "state") == "Drained")
    assert browser.get_cell_text(node, "progress") == "2 pods evicted"
    assert browser.get_cell_text(node, "why") == "new disk"
    (maintenance,) = list_maintenances(environment, node)
    assert maintenance["spec"] == {"nodeName": node, "reason": "new disk"}
    assert maintenance["metadata"]["annotations"]["nodemaintenance.dev/requested-by"] == "admin"  # type: ignore[index]

    assert browser.open_menu(node) == ["Stop Maintenance"]
    browser.click(f"#{build_html_id(node)}-offers a")
    browser.confirm_dialog()
    browser.wait_until(lambda: browser.get_cell_text(node, "state") == "In service")
    assert not environment.get_node_spec(node).get("unschedulable")
    assert browser.run_script("return performance.timeOrigin") == time_origin  # The page was not reloaded.
    assert browser.take_errors() == []


def test_buttons_are_shown_while_node_is_selected(browser: Browser, environment: EventChainEnvironment) -> None:
    """OSV-7: the buttons for several nodes are shown only while a node is selected, and the keyboard reaches them."""
    (node,) = create_nodes(environment, "unselected")
    browser.open_nodes(node)
    buttons = browser.find_all(".bulk button")

    assert not any(button.is_displayed() for button in buttons)
    browser.wait_for_element(f"#{build_html_id(node)} input").send_keys(Keys.SPACE)
    assert all(button.is_displayed() for button in buttons)
    assert browser.get_text("#count") == browser.get_text(".bulk .number") == "1 selected"
    browser.wait_for_element(".bulk button[type=reset]").send_keys(Keys.ENTER)
    browser.wait_until(lambda: browser.get_text("#count") == "")
    assert not any(button.is_displayed() for button in buttons)

    browser.select_node(node)
    browser.wait_for_element(".bulk button").send_keys(Keys.ENTER)
    assert "Take unselected-1 out of service?" in browser.wait_for_dialog()
    assert browser.take_errors() == []


@pytest.mark.slow
@proves("OSV-7")
def test_maintenances_of_three_nodes_are_started_and_stopped_together(
    browser: Browser, environment: EventChainEnvironment
) -> None:
    """OSV-7: a user starts and stops the maintenances of several nodes in the list."""
    names = create_nodes(environment, "trio", 3)
    browser.open_nodes(*names)
    for name in names:
        browser.select_node(name)
    assert browser.get_text("#count") == "3 selected"

    browser.click(".bulk button")
    text = browser.wait_for_dialog()
    assert all(name in text for name in names)
    browser.confirm_dialog("rack move")

    for name in names:
        browser.wait_until(lambda name=name: browser.get_cell_text(name, "state") == "Drained")  # type: ignore[misc]
        assert browser.get_cell_text(name, "why") == "rack move"
    assert browser.get_text("#messages") == "Maintenance of trio-1, trio-2, trio-3 begins."
    assert browser.get_text("#count") == ""

    browser.click("#all")
    browser.click(".bulk button.secondary")
    browser.confirm_dialog()
    for name in names:
        browser.wait_until(lambda name=name: browser.get_cell_text(name, "state") == "In service")  # type: ignore[misc]


@proves("OSV-7", "OSV-9")
def test_blocked_drain_shows_reason_and_continues(browser: Browser, environment: EventChainEnvironment) -> None:
    """OSV-9, KNM-5: the page shows the blocking PodDisruptionBudget with counts and remedy, and is updated live."""
    (node,) = create_nodes(environment, "held")
    namespace = environment.create_namespace()
    environment.create_deployment(namespace, node, 3)
    environment.create_pods(node, 3)
    environment.create_budget(namespace, {"app": "web"}, name="web", disruptions_allowed=0, minAvailable=3)
    browser.open_nodes(node)
    browser.open_menu(node)
    browser.click(f"#{build_html_id(node)}-offers a")
    browser.confirm_dialog("<script>document.title = 'owned'</script>")

    browser.wait_until(lambda: browser.get_cell_text(node, "progress") == "3 of 6 remaining, 3 blocked")
    assert browser.get_cell_text(node, "state") == "Blocked"
    assert "budget web needs 3 healthy pods and has 3" in browser.get_cell_text(node, "why")

    browser.click(f"#{build_html_id(node)} th a")
    browser.wait_until(lambda: "kubectl scale" in browser.get_text("main"))
    text = browser.get_text("main")
    for expected in (
        *("Running", "50 %, 3 of 6 pods remaining", "3 / 3", "1 more ready pod under this budget", "admin"),
        *("Evicting 3 of 6", "3 pods blocked"),
        *(name for name in map(format_key, environment.list_pods_on(node)) if name.startswith(f"{namespace}/")),
        *(
            f'kubectl -n {namespace} patch pdb web -p \'{{"spec":{{"minAvailable":2}}}}\'',
            "medik8s.io/drain:NoSchedule",
            "takes no new pods",
        ),
    ):
        assert expected in text
    assert "Last error:" not in text
    # OSV-7: a script in a maintenance's reason is displayed as text and not executed.
    assert "<script>document.title = 'owned'</script>" in text
    assert browser.driver.title == "held-1 · Node maintenance"

    environment.allow_deployment_on_node(namespace, environment.create_node("held-spare"))
    command = browser.get_text(".scale-commands code")
    assert command == f"kubectl scale deployment/web -n {namespace} --replicas=4"
    headings = browser.run_script("return [...document.querySelectorAll('main h2')].map(heading => heading.innerText)")
    scale_index = headings.index("Scale up the workload")
    assert headings.index("What blocks the drain") < scale_index < headings.index("Node")
    assert find_overlapping_texts(browser, "main") == []
    environment.cluster.kubectl(*command.split()[1:])
    browser.wait_until(lambda: "Succeeded" in browser.get_text("main"))
    assert "100 %" in browser.get_text("main")
    browser.wait_until(lambda: browser.find_all(".scale-commands code") == [])

    browser.click(".actions summary")
    browser.click(".actions li a")
    browser.confirm_dialog()
    browser.wait_until(lambda: "Not in maintenance." in browser.get_text("main"))
    assert browser.driver.current_url.endswith("/nodes/held-1")
    assert browser.take_errors() == []


@pytest.mark.slow
def test_page_suggests_relaxing_pdb_that_never_allows_disruptions(
    browser: Browser, environment: EventChainEnvironment
) -> None:
    """OSV-13: if a PDB has `maxUnavailable: 0`, the page suggests relaxing the PDB, not waiting for ready pods."""
    (node,) = create_nodes(environment, "closed")
    namespace = environment.create_namespace()
    environment.create_deployment(namespace, node, 2)
    environment.create_budget(namespace, {"app": "web"}, name="all", disruptions_allowed=0, maxUnavailable=0)
    path = environment.create_maintenance(node)
    environment.wait_for_state(
        path, lambda maintenance: len((maintenance.get("status") or {}).get("blockedPods") or []) == 2
    )

    browser.open(f"/nodes/{node}")
    text = browser.get_text("main")

    remedy = "a looser budget (this one allows no eviction, however many pods are ready)"
    assert remedy in text
    command = browser.get_text(".remedy code")
    assert command == f'kubectl -n {namespace} patch pdb all -p \'{{"spec":{{"maxUnavailable":1}}}}\''
    assert "more ready pod" not in text
    environment.request_deletion(path)


@pytest.mark.slow
@pytest.mark.parametrize("group", GROUPS)
def test_maintenances_of_every_api_group_can_be_stopped(
    browser: Browser, environment: EventChainEnvironment, group: str
) -> None:
    """C2, X-7: the console shows and stops maintenances of every API group, even those that other tools created."""
    node = environment.create_node(f"group-{list(GROUPS).index(group)}")
    browser.open_nodes(node)
    environment.create_maintenance(node, api_version=group, reason="by kubectl")

    browser.wait_until(lambda: browser.get_cell_text(node, "state") == "Drained")
    assert browser.get_cell_text(node, "why") == "by kubectl"
    assert browser.open_menu(node) == ["Stop Maintenance"]
    browser.click(f"#{build_html_id(node)}-offers a")
    browser.confirm_dialog()
    browser.wait_until(lambda: browser.get_cell_text(node, "state") == "In service")


def test_list_is_updated_with_new_and_deleted_nodes(browser: Browser, environment: EventChainEnvironment) -> None:
    """Check that new nodes appear in the list, that deleted nodes disappear, and that names are sorted naturally."""
    environment.create_node("come-2")
    browser.open_nodes("come-2")

    environment.create_node("come-10")
    environment.create_node("come-1")
    browser.wait_until(lambda: browser.list_node_names() == ["come-1", "come-2", "come-10"])
    environment.cluster.kubectl("delete", "node", "come-2")
    browser.wait_until(lambda: browser.list_node_names() == ["come-1", "come-10"])


@pytest.mark.slow
@proves("OSV-8")
def test_menu_of_manually_cordoned_node_offers_no_stop(browser: Browser, environment: EventChainEnvironment) -> None:
    """OSV-8: the menu of a manually cordoned node explains why there is no maintenance to stop."""
    (node,) = create_nodes(environment, "byhand")
    environment.cluster.kubectl("cordon", node)
    browser.open_nodes(node)
    browser.wait_until(lambda: browser.get_cell_text(node, "state") == "Cordoned")

    menu_items = browser.open_menu(node)

    assert menu_items[0] == "Start Maintenance"
    assert menu_items[1].startswith("Cordoned without a maintenance: ")
    assert len(menu_items) == 2


def test_menu_and_dialog_work_with_keyboard(browser: Browser, environment: EventChainEnvironment) -> None:
    """Check that menu and dialog can be opened, closed and confirmed with the keyboard, without losing the focus."""
    (node,) = create_nodes(environment, "keys")
    browser.open_nodes(node)
    summary = browser.wait_for_element(f"#{build_html_id(node)} summary")

    summary.send_keys(Keys.ENTER)
    summary.send_keys(Keys.ARROW_DOWN)
    assert get_focused_text(browser) == "Start Maintenance"
    browser.driver.switch_to.active_element.send_keys(Keys.ESCAPE)
    assert browser.driver.switch_to.active_element == summary
    assert not browser.find_all("details[open]")

    summary.send_keys(Keys.ARROW_DOWN)
    browser.driver.switch_to.active_element.send_keys(Keys.ENTER)
    browser.wait_for_dialog()
    browser.wait_until(lambda: browser.run_script("return document.activeElement.name") == "reason")
    browser.driver.switch_to.active_element.send_keys(Keys.ESCAPE)
    browser.wait_until(lambda: not browser.find_all("dialog[open]"))
    assert list_maintenances(environment, node) == []

    assert browser.driver.switch_to.active_element == summary
    summary.send_keys(Keys.ARROW_DOWN)
    browser.driver.switch_to.active_element.send_keys(Keys.ENTER)
    browser.wait_for_dialog()
    browser.wait_until(lambda: browser.run_script("return document.activeElement.name") == "reason")
    browser.driver.switch_to.active_element.send_keys("by keys", Keys.ENTER)
    browser.wait_until(lambda: browser.get_cell_text(node, "state") == "Drained")
    assert browser.get_cell_text(node, "why") == "by keys"


def get_focused_text(browser: Browser) -> str:
    return str(browser.run_script("return document.activeElement.innerText"))
