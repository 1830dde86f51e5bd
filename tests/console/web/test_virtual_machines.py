"""Tests for virtual machines on a node's page, and in the dialog that starts the node's maintenance."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from console.web.context import AVAILABILITY_TTL_SECONDS, Availability
from kube.client.api import Api
from kube.client.api_errors import Unavailable
from kube.maintenance.groups import MEDIK8S
from kube.virtualization.lookup import is_vmi_kind_served
from kube.virtualization.vmis import build_vmi_path
from localcluster.processes import wait_until_ready
from localcluster.web_console import WebConsole
from tests.console.commands import virtual_machines
from tests.console.web.callers import VIEW_PERMISSIONS as RIGHTS
from tests.console.web.callers import FormSession, create_account_header
from tests.console.web.layout import find_broken_words, find_overflowing_texts, find_overlapping_texts
from tests.console.web.site import TIMEOUT_SECONDS, Browser, Site
from tests.console.web.test_display_modes import ALL_DISPLAY_MODES, DISPLAY_MODES, find_axe_violations
from tests.kubevirt import MIGRATABLE, get_instances_path
from tests.proofs import proves

VM_SECTION_SELECTOR = "section.machines"
VM_VIEW_PERMISSIONS = [
    *RIGHTS,
    "list pods",
    *(f"get {plural}" for plural in virtual_machines.KUBEVIRT_PLURALS[:2]),
    *(f"list {plural}" for plural in virtual_machines.KUBEVIRT_PLURALS[2:]),
]
"""Permissions for viewing all parts of a node's page."""


@pytest.fixture(scope="module")
def vm_node(site: Site) -> Iterator[str]:
    """Create four different virtual machines on a node, and yield the node's name once the console shows them."""
    name = site.environment.create_node("machines-1.example.com")
    with virtual_machines.install_kubevirt_crds(site.environment.cluster):
        virtual_machines.create_vms(site.environment.client, name)
        url = site.build_url(f"/nodes/{name}")
        wait_until_ready(
            "the machines", lambda: "machines/live" in requests.get(url, timeout=10).text, [], TIMEOUT_SECONDS
        )
        yield name
        virtual_machines.delete_vms(site.environment.client)


@proves("X-3")
def test_page_without_kubevirt_has_no_vm_table(browser: Browser, site: Site) -> None:
    """Check that the node's page has no table of VMs without KubeVirt's CRDs, which later tests install."""
    name = site.environment.create_node("machines-0.example.com")
    wait_until_ready(
        "the node's page", lambda: requests.get(site.build_url(f"/nodes/{name}"), timeout=10).status_code == 200, []
    )
    browser.open(f"/nodes/{name}")
    assert "takes new pods" in browser.get_text("main")
    assert browser.find_all(VM_SECTION_SELECTOR) == []


@pytest.mark.slow
@pytest.mark.parametrize("display_mode", ALL_DISPLAY_MODES)
def test_page_with_vms_is_accessible_and_fits_window(browser: Browser, vm_node: str, display_mode: str) -> None:
    """Check that axe finds no serious violations, no word is broken, no texts overlap, and the page fits the window."""
    size, is_dark = ALL_DISPLAY_MODES[display_mode]
    browser.emulate_display(size, is_dark=is_dark)
    browser.open(f"/nodes/{vm_node}")
    assert "machines/live" in browser.get_text(VM_SECTION_SELECTOR)

    assert find_axe_violations(browser) == []
    assert browser.run_script("return document.documentElement.scrollWidth <= innerWidth")
    assert find_broken_words(browser, "main") == []
    assert find_overlapping_texts(browser, "main") == []
    assert find_overflowing_texts(browser, "table.cards td, table.cards th") == []
    assert browser.take_errors() == []
    folder = os.environ.get("SCREENSHOTS")
    if folder and display_mode in DISPLAY_MODES:
        Path(folder).mkdir(parents=True, exist_ok=True)
        browser.driver.save_screenshot(f"{folder}/machines-{display_mode}.png")


@proves("OSV-2", "OSV-3")
def test_page_lists_same_vms_as_status_command(browser: Browser, vm_node: str) -> None:
    browser.open(f"/nodes/{vm_node}")
    rows = [" ".join(row.text.split()) for row in browser.find_all(f"{VM_SECTION_SELECTOR} tbody tr")]
    assert rows == [
        "machines/live Running LiveMigrate Always yes moves to another node, without interruption "
        f"Running to node-3 {virtual_machines.MIGRATION_NAME}",
        "machines/manual Running – Manual yes stops shut down, and not started again –",
        "machines/plain Running – RerunOnFailure yes restarts shut down, and started on another node –",
        "machines/stuck Running LiveMigrate Always no: no disk blocks until it can be migrated, or is shut down –",
    ]


def test_vm_table_is_updated(browser: Browser, site: Site, vm_node: str) -> None:
    """Check that a change of the node updates the table of VMs without a reload of the page."""
    browser.open(f"/nodes/{vm_node}")
    admin, path = site.environment.client, build_vmi_path(virtual_machines.VM_NAMESPACE, "stuck")
    conditions_before = admin.get(path)["status"]["conditions"]
    admin.patch(path, {"status": {"conditions": [MIGRATABLE]}})
    try:
        site.environment.cluster.kubectl("cordon", vm_node)
        browser.wait_until(
            lambda: (
                "no disk" not in browser.get_text(VM_SECTION_SELECTOR)
                and "machines/stuck" in browser.get_text(VM_SECTION_SELECTOR)
            )
        )
    finally:
        site.environment.cluster.kubectl("uncordon", vm_node)
        admin.patch(path, {"status": {"conditions": conditions_before}})


@proves("OSV-7")
def test_dialog_shows_drain_effect_on_vms(site: Site, vm_node: str) -> None:
    with requests.Session() as session:
        dialog = FormSession(site, session).post("/start", vm_node)
    assert dialog.status_code == 200
    for line in (
        "1 virtual machine will block the drain: machines/stuck (no disk)",
        "1 virtual machine will be shut down and not started again: machines/manual (runStrategy Manual)",
        "1 virtual machine will be shut down and started on another node: machines/plain",
        "1 virtual machine will move to another node without interruption: machines/live",
    ):
        assert line in dialog.text
    assert site.environment.client.list(MEDIK8S.path, field_selector=f"spec.nodeName={vm_node}")["items"] == []


@pytest.mark.slow
def test_vms_are_hidden_without_permission(site: Site, vm_node: str, tmp_path: Path) -> None:
    """Check that the page names the missing permission instead of the VMs if the user may not read VMs.

    The console's own ServiceAccount does not need the permission to read VMs.
    """
    with WebConsole(site.environment.cluster, tmp_path, address="0.0.0.0") as console:  # noqa: S104
        console_site = Site(site.environment, console)
        viewer_headers = create_account_header(site.environment, "views-nodes", RIGHTS)
        reader_headers = create_account_header(site.environment, "reads-machines", VM_VIEW_PERMISSIONS)
        url = console_site.build_url(f"/nodes/{vm_node}")
        responses = [requests.get(url, headers=headers, timeout=10) for headers in (viewer_headers, reader_headers)]
    assert [response.status_code for response in responses] == [200, 200]
    assert ["machines/live" in response.text for response in responses] == [False, True]
    assert "cannot show the virtual machines of node " in responses[0].text


def test_new_crds_are_detected_within_test_timeout() -> None:
    """Check that the console detects new CRDs sooner than these tests time out."""
    assert AVAILABILITY_TTL_SECONDS < TIMEOUT_SECONDS


def test_failed_discovery_keeps_cached_result(site: Site, vm_node: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that dialogs still warn about VMs if discovery fails, because the console uses the cached result."""
    monkeypatch.setattr("console.web.context.AVAILABILITY_TTL_SECONDS", 0.0)
    errors = iter([None, Unavailable(429, "too many requests")])

    async def fail_second_discovery(api: Api) -> bool:
        if error := next(errors):
            raise error
        return await is_vmi_kind_served(api)

    availability = Availability(site.environment.cluster.get_client(), {"vms": fail_second_discovery})

    assert [availability.is_available("vms") for _ in range(2)] == [True, True]


def test_deleted_vm_is_removed_from_table(site: Site, vm_node: str) -> None:
    """Check that the table omits a VM that was deleted after the page was loaded."""
    node_name = site.environment.create_node("machines-2.example.com")
    url = site.build_url(f"/nodes/{node_name}/machines")
    virtual_machines.create_vm(site.environment.client, node_name, "last", "Always")
    assert "machines/last" in requests.get(url, timeout=10).text
    admin = site.environment.client
    vmi = admin.get(f"{get_instances_path(virtual_machines.VM_NAMESPACE)}/last")
    admin.delete(f"{get_instances_path(virtual_machines.VM_NAMESPACE)}/last", uid=vmi["metadata"]["uid"])
    assert "machines/last" not in requests.get(url, timeout=10).text
