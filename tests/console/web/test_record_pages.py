"""Tests for the live list of events, the panel of an event, and the pages about certificates and CPU labels.

`make screenshots` runs these tests to write the screenshots in docs/screenshots.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from cloudevents.core.v1.event import CloudEvent
from selenium.webdriver.common.keys import Keys

from console.operations.components import may_component_be_installed
from eventing import events
from eventing.dead_letters import DeadLetter, add_dead_letter_extensions
from eventing.events import ObjectReference, build_event
from eventing.journal.entries import Attempt
from eventing.journal.store import Journal
from functions.certificates.renewal import renew_all
from functions.certificates.settings import Settings
from kube.certificates import objects
from kube.certificates.components import COMPONENT_LABEL
from kube.cpu_labels.capabilities import CAPABILITIES_LABEL
from kube.cpu_labels.node_patch import FEATURE_LABEL_PREFIX, MODEL_LABEL_PREFIX
from kube.maintenance.groups import MEDIK8S
from kube.nodes import build_node_path
from kube.paths import DEFAULT_NAMESPACE
from localcluster.access import UNPRIVILEGED
from localcluster.web_console import WebConsole
from tests.console.web.callers import VIEW_PERMISSIONS, create_account_header, get_page
from tests.console.web.layout import find_broken_words, find_overflowing_texts, find_overlapping_texts
from tests.console.web.site import Browser, Site
from tests.console.web.test_display_modes import ALL_DISPLAY_MODES, DISPLAY_MODES, find_axe_violations

RECORDED_NODE = "recorded-node-17.rack-b.example.com"
LONG_ERROR = "no response from the API server: Internal error occurred: failed calling webhook " * 4
EVENT_TABS = ("summary", "attempts", "replay", "json")
PAGES = ("events", "events-by-time", "dead-letters", "certificates", "cpu-labels", "redrive", *EVENT_TABS)
PAGE_PATHS = {
    "events": "/events",
    "events-by-time": "/events?view=time",
    "dead-letters": "/dead-letters",
    "certificates": "/certificates",
    "cpu-labels": "/cpu-labels",
}
SCREENSHOTS = {
    "certificates": "certificates",
    "cpu-labels": "cpu-labels",
    "json": "event-json",
}
"""Map from page to name of the page's screenshot; test_display_modes.py saves the screenshots of other pages."""
PERMISSIONS = {
    "/certificates": ["list configmaps"],
    "/cpu-labels": ["list configmaps", "list hyperconvergeds", "list kubevirts"],
}
"""Map from URL path to permissions that the page requires in addition to those for the other pages."""
CONFIGMAPS_PATH = objects.build_configmaps_path(DEFAULT_NAMESPACE)
COUNT_UPDATES_SCRIPT = """
  window.updateCount = 0;
  document.getElementById("tail").addEventListener("tail", () => { window.updateCount += 1; });
"""
RECORD_ARRIVALS_SCRIPT = """
  window.groupsWithArrivals = [];
  document.addEventListener("htmx:afterSwap", () => {
    for (const row of document.querySelectorAll("tr.arrived")) groupsWithArrivals.push(row.closest("details").id);
  });
"""
"""Script that records which groups had rows marked as new after any update; the next update removes these marks."""
UPDATE_SCRIPT = "const before = window.updateCount; updateTail(); return window.updateCount - before"
"""Script that runs the page's two-second timer once; it returns 1 if the list is requested, or 0 if it is paused."""


def build_reference(name: str) -> ObjectReference:
    return ObjectReference(MEDIK8S.api_version, name, f"{name}-uid", kind="NodeMaintenance")


def record_event(site: Site, name: str, event_type: str = events.NODE_TAINTED, **fields: Any) -> CloudEvent:
    """Record an event about the maintenance of a node, and return the event."""
    event = build_event(event_type, fields.pop("step", "taint"), build_reference(name), name, **fields)
    with closing(Journal(site.environment.product.journal)) as journal:
        journal.write_event(event)
    return event


@pytest.fixture(scope="module")
def recorded_events(site: Site) -> CloudEvent:
    """Record a short chain of events with a failed attempt and a dead letter; return the event with the attempts."""
    started_at = datetime.now(timezone.utc)
    cordoned = record_event(site, RECORDED_NODE, events.NODE_CORDONED, step="cordon")
    event = record_event(site, RECORDED_NODE, cause=cordoned)
    evicted = record_event(site, RECORDED_NODE, events.PODS_EVICTED, step="evict", cause=event)
    reply = {"id": evicted.get_id(), "source": evicted.get_source(), "type": evicted.get_type(), "specversion": "1.0"}
    failure = Attempt(event.get_source(), event.get_id(), "evict", started_at, 0.25, 503, (), LONG_ERROR)
    success = Attempt(
        event.get_source(), event.get_id(), "evict", started_at + timedelta(seconds=1), 0.031, 200, (reply,)
    )
    tainted = Attempt(cordoned.get_source(), cordoned.get_id(), "taint", started_at, 0.012, 200)
    with closing(Journal(site.environment.product.journal)) as journal:
        journal.write_attempts([failure, success, tainted])
        for function in ("status", "evict"):
            destination = f"{site.environment.product.functions_url}/{function}"
            journal.write_event(add_dead_letter_extensions(event, DeadLetter(destination, 503, LONG_ERROR)))
    return event


@pytest.fixture(scope="module")
def certificates(site: Site) -> Iterator[None]:
    """Create a certificate of the component `macpool`, its CA, and a Secret that does not contain a certificate yet."""
    client, secrets_path = site.environment.client, objects.build_secrets_path(DEFAULT_NAMESPACE)
    labels, names = {COMPONENT_LABEL: "macpool"}, {objects.DNS_NAMES_ANNOTATION: "kubemacpool-service.example.svc"}
    client.create(secrets_path, {"metadata": {"name": "pool-server", "labels": labels, "annotations": names}})
    assert client.run(renew_all(client.api, Settings(), datetime.now(timezone.utc))).errors == []
    yield
    for path in (secrets_path, CONFIGMAPS_PATH):
        for obj in client.list(path, label_selector=f"{COMPONENT_LABEL}=macpool")["items"]:
            client.delete(f"{path}/{obj['metadata']['name']}", uid=obj["metadata"]["uid"])


@pytest.fixture(scope="module")
def cpu_labels(site: Site) -> Iterator[None]:
    """Create nodes with CPU labels, and a ConfigMap with a valid entry, an invalid entry and an unknown node."""
    client = site.environment.client
    names = [site.environment.create_node(f"cpu-{number}") for number in range(1, 6)]
    features = {f"{FEATURE_LABEL_PREFIX}feature-{number}": "true" for number in range(30)}
    for name in names:
        labels = {f"{MODEL_LABEL_PREFIX}{model}": "true" for model in ("Haswell", "Nehalem", "Penryn")}
        client.patch(build_node_path(name), {"metadata": {"labels": {**labels, **features}}})
    entries = {
        "rack": {"nodes": [*names[:4], "cpu-absent"], "models": ["Penryn"], "features": ["avx2"]},
        names[4]: {"models": ["Penryn"], "cpu": "Unheard"},
    }
    metadata = {"name": "cpus", "labels": {CAPABILITIES_LABEL: ""}}
    data = {key: json.dumps(entry) for key, entry in entries.items()}
    configmap = client.create(CONFIGMAPS_PATH, {"metadata": metadata, "data": data})
    yield
    client.delete(f"{CONFIGMAPS_PATH}/cpus", uid=configmap["metadata"]["uid"])


def open_event_panel(browser: Browser, tab: str) -> None:
    """Open the event with several attempts, and select one of its tabs."""
    browser.open("/events", node=RECORDED_NODE, type=events.NODE_TAINTED, view="time")
    browser.find_all("#tail tbody th a")[-1].click()
    browser.wait_until(lambda: browser.get_text("#window-body h2") == "node.tainted")
    if tab != "summary":
        browser.select_tab(tab)


def open_page(browser: Browser, page: str) -> str:
    """Open a page, an event's tab or the redrive dialog; return the CSS selector of its content."""
    if page in PAGE_PATHS:
        browser.open(PAGE_PATHS[page])
        return "main"
    if page == "redrive":
        browser.open("/dead-letters")
        browser.click(".panel-head form button")
        browser.wait_for_dialog()
    else:
        open_event_panel(browser, page)
    return "dialog[open]"


@pytest.mark.slow
@pytest.mark.parametrize("display_mode", ALL_DISPLAY_MODES)
@pytest.mark.parametrize("page", PAGES)
@pytest.mark.usefixtures("recorded_events", "certificates", "cpu_labels")
def test_page_about_records_is_accessible_and_fits_window(browser: Browser, page: str, display_mode: str) -> None:
    """Check that axe finds no serious violations, no word is broken, no texts overlap, and the page fits the window."""
    size, is_dark = ALL_DISPLAY_MODES[display_mode]
    browser.emulate_display(size, is_dark=is_dark)

    selector = open_page(browser, page)

    assert find_axe_violations(browser) == []
    assert browser.run_script("return document.documentElement.scrollWidth <= innerWidth")
    assert find_broken_words(browser, selector) == []
    assert find_overlapping_texts(browser, selector) == []
    assert find_overflowing_texts(browser, "table.cards td, table.cards th, .tools, .tabs, .side-panel, summary") == []
    assert browser.take_errors() == []
    folder = os.environ.get("SCREENSHOTS")
    if folder and display_mode in DISPLAY_MODES and page in SCREENSHOTS:
        Path(folder).mkdir(parents=True, exist_ok=True)
        browser.driver.save_screenshot(f"{folder}/{SCREENSHOTS[page]}-{display_mode}.png")


def test_events_are_grouped_by_maintenance_with_links_to_cause_and_effects(
    browser: Browser, recorded_events: CloudEvent
) -> None:
    """Check that a group contains its maintenance's events, and that an event links to its cause and its effects."""
    browser.open("/events", node=RECORDED_NODE)
    assert RECORDED_NODE in browser.get_text(".group summary .title")
    assert {"node.cordoned", "node.tainted", "pods.evicted"} <= {item.text for item in browser.find_all(".group th a")}

    open_event_panel(browser, "summary")
    browser.click("dialog[open] .effects a")
    browser.wait_until(lambda: browser.get_text("#window-body h2") == "pods.evicted")
    browser.click("dialog[open] .properties a[hx-get]")
    browser.wait_until(lambda: browser.get_text("#window-body h2") == "node.tainted")

    browser.select_tab("attempts")
    rows = [row.text for row in browser.find_all("dialog[open] table.attempts tbody tr")]
    assert len(rows) == 2
    assert LONG_ERROR.strip() in rows[0]
    assert "pods.evicted" in rows[1]
    browser.select_tab("json")
    assert '"type": "dev.nodemaintenance.node.tainted"' in browser.get_text("#window-body pre")
    assert browser.find_all("#window-body .json-key")


@pytest.mark.usefixtures("recorded_events")
def test_event_panel_is_usable_with_the_keyboard_alone(browser: Browser) -> None:
    """Check that Enter opens an event, Tab reaches its tabs, and Escape returns to the event in the list."""
    browser.open("/events", node=RECORDED_NODE)
    link = browser.wait_for_element("#tail tbody th a")
    link_id = link.get_attribute("id")
    browser.run_script("arguments[0].focus()", link)
    link.send_keys(Keys.ENTER)
    browser.wait_until(lambda: browser.run_script("return document.activeElement.innerText") == "Summary")

    browser.driver.switch_to.active_element.send_keys(Keys.TAB)
    browser.driver.switch_to.active_element.send_keys(Keys.ENTER)
    browser.wait_for_element("dialog[open] .tabs a[href$='tab=attempts'][aria-current]")
    browser.wait_until(lambda: "Attempts" in browser.run_script("return document.activeElement.innerText"))
    browser.driver.switch_to.active_element.send_keys(Keys.ESCAPE)

    browser.wait_until(lambda: not browser.find_all("dialog[open]"))
    assert browser.run_script("return document.activeElement.id") == link_id


def test_new_event_appears_and_groups_stay_as_the_user_left_them(browser: Browser, site: Site) -> None:
    """Check that the live list shows a new event, keeps a closed group closed, and keeps the keyboard focus."""
    record_event(site, "tail-1")
    browser.open("/events")
    browser.click("#group-tail-1-uid[open] summary")
    browser.wait_for_element("#group-tail-1-uid:not([open])")
    browser.run_script(RECORD_ARRIVALS_SCRIPT)

    record_event(site, "tail-2")

    browser.wait_until(lambda: "group-tail-2-uid" in browser.run_script("return window.groupsWithArrivals"))
    browser.wait_for_element("#group-tail-2-uid[open]")
    assert browser.find_all("#group-tail-1-uid:not([open])")
    assert browser.run_script("return document.activeElement.id") == "group-tail-1-uid-title"
    assert "group-tail-1-uid" not in browser.run_script("return window.groupsWithArrivals")
    assert browser.take_errors() == []


@pytest.mark.usefixtures("recorded_events")
def test_live_list_is_paused_while_the_user_reads(browser: Browser) -> None:
    """Check that the list is not refreshed while an event is open, after scrolling, and after a click on Pause."""
    browser.open("/events")
    browser.run_script(COUNT_UPDATES_SCRIPT)
    assert browser.run_script(UPDATE_SCRIPT) == 1
    assert browser.get_text("#tail-state") == "Live"

    browser.click("#tail details[open] tbody th a")
    browser.wait_for_dialog()
    assert browser.run_script(UPDATE_SCRIPT) == 0
    assert browser.get_text("#tail-state") == "Paused while an event is open"
    browser.click("dialog[open] .cancel")
    assert browser.run_script(UPDATE_SCRIPT) == 1

    browser.run_script("document.body.style.minHeight = '300vh'; window.scrollTo(0, 1000)")
    assert browser.run_script(UPDATE_SCRIPT) == 0
    assert browser.get_text("#tail-state").startswith("Paused while you read")
    browser.run_script("window.scrollTo(0, 0)")
    browser.click("#tail-button")
    assert browser.run_script(UPDATE_SCRIPT) == 0
    assert browser.get_text("#tail-state") == "Paused"
    browser.click("#tail-button")
    assert browser.run_script(UPDATE_SCRIPT) == 1


@pytest.mark.usefixtures("recorded_events")
def test_unchanged_list_of_events_is_not_sent_again(site: Site) -> None:
    """Check that an open page gets an empty response while the list is unchanged, and the list after a change."""
    path = f"/events/tail?node={RECORDED_NODE}"
    page = get_page(site, path).text
    version = page.partition('name="version" value="')[2].partition('"')[0]

    assert get_page(site, f"{path}&version={version}").status_code == 204
    assert "node.tainted" in get_page(site, f"{path}&version=other").text


@pytest.mark.usefixtures("certificates")
def test_certificates_page_has_each_certificate_with_state_and_renewal(browser: Browser) -> None:
    """Check that the page lists the CA before the serving certificate, each with its state and renewal time."""
    browser.open("/certificates")
    rows = browser.find_all("[aria-labelledby=component-macpool] tbody tr")

    assert [row.text.split()[0] for row in rows] == ["macpool-certificate-authority", "pool-server"]
    assert "CA" in rows[0].text.split()
    assert all("valid" in row.text for row in rows)
    assert "kubemacpool-service.example.svc" in rows[1].text
    browser.wait_until(lambda: "in 364 d" in rows[1].text or "in 365 d" in rows[1].text)


@pytest.mark.usefixtures("cpu_labels")
def test_cpu_labels_page_has_groups_of_nodes_and_problems(browser: Browser) -> None:
    """Check that nodes with the same labels share a row, and that each problem names its object and a remedy."""
    browser.open("/cpu-labels")
    rows = {row.text.split()[0]: row.text for row in browser.find_all("table.cpu-labels tbody tr")}

    assert "4 nodes" in rows["4"]
    assert "change pending" in rows["4"]
    assert "30 features" in rows["4"]
    assert "no such node" in rows["cpu-absent"]
    assert "not changed" in rows["cpu-5"]
    problems = browser.get_text(".problems")
    assert "ConfigMap cpus" in problems
    assert 'data["cpu-5"].cpu "Unheard" is unknown: use a model name' in problems
    assert "CPUNodeUnknown" in problems


@pytest.mark.slow
@pytest.mark.parametrize("path", PERMISSIONS)
def test_page_requires_the_permissions_of_the_caller(site: Site, tmp_path: Path, path: str) -> None:
    """Check that the caller needs the permissions to read the objects, but the console's ServiceAccount does not."""
    name = path.strip("/")
    with WebConsole(site.environment.cluster, tmp_path, address="0.0.0.0") as console:  # noqa: S104 - as in a cluster
        console_site = Site(site.environment, console)
        viewer, reader = (
            create_account_header(site.environment, f"{name}-{role}", [*VIEW_PERMISSIONS, *permissions])
            for role, permissions in (("views", []), ("reads", PERMISSIONS[path]))
        )
        responses = [get_page(console_site, path, headers) for headers in (viewer, reader)]

    assert [response.status_code for response in responses] == [403, 200]
    assert "cannot list resource &#34;configmaps&#34;" in responses[0].text


@pytest.fixture
def triggers(site: Site) -> Iterator[str]:
    """Install the CRD of Trigger, create the Trigger of `renew-certificates`, and yield its namespace."""
    cluster, client = site.environment.cluster, site.environment.client
    names = {"plural": "triggers", "singular": "trigger", "kind": "Trigger", "listKind": "TriggerList"}
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    version = {"name": "v1", "served": True, "storage": True, "schema": schema}
    spec = {"group": "eventing.knative.dev", "scope": "Namespaced", "names": names, "versions": [version]}
    definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    definition = client.create(definitions, {"metadata": {"name": "triggers.eventing.knative.dev"}, "spec": spec})
    cluster.kubectl("wait", "--for=condition=Established", "crd/triggers.eventing.knative.dev", "--timeout=30s")
    cluster.kubectl("get", "triggers", "-A")
    metadata = {"name": "renew", "labels": {"nodemaintenance.dev/function": "renew-certificates"}}
    body = {"apiVersion": "eventing.knative.dev/v1", "kind": "Trigger", "metadata": metadata}
    client.create(f"/apis/eventing.knative.dev/v1/namespaces/{DEFAULT_NAMESPACE}/triggers", body)
    yield DEFAULT_NAMESPACE
    client.delete(f"{definitions}/triggers.eventing.knative.dev", uid=definition["metadata"]["uid"])


def test_triggers_determine_the_installed_components(site: Site, triggers: str) -> None:
    """Check that a component without Triggers counts as not installed, unless the Triggers are unknown."""
    client = site.environment.client
    unprivileged = client.api.with_impersonation(UNPRIVILEGED)

    assert client.run(may_component_be_installed(client.api, triggers, "renew-certificates"))
    assert not client.run(may_component_be_installed(client.api, triggers, "label-cpu"))
    assert client.run(may_component_be_installed(client.api, "default", "label-cpu"))
    assert client.run(may_component_be_installed(unprivileged, triggers, "label-cpu"))


def test_navigation_has_the_pages_of_components_that_may_be_installed(site: Site) -> None:
    """Check that the navigation contains the pages about certificates and CPU labels if no Triggers exist."""
    navigation = get_page(site, "/nodes").text.partition("<nav")[2].partition("</nav>")[0]

    assert "Certificates" in navigation
    assert "CPU labels" in navigation
