"""Tests of virtual machines on the page of their node, and in the confirmation dialog of its maintenance."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from console.web.context import KNOWN_SECONDS, Served
from kube.client.api import Api
from kube.client.api_errors import Unavailable
from kube.maintenance.groups import MEDIK8S
from kube.virtualization.lookup import is_served
from kube.virtualization.vmis import instance_path
from localcluster.processes import await_ready
from localcluster.web_console import Console
from tests.console.commands import virtual_machines
from tests.console.web.callers import LOOKS as RIGHTS
from tests.console.web.callers import Form, account
from tests.console.web.layout import broken_words, overlapping, spilling
from tests.console.web.site import SECONDS, Browser, Site
from tests.console.web.test_display_modes import LOOKS, SIGHTS, faults
from tests.kubevirt import ABLE, instances
from tests.proofs import proves

SECTION = "section.machines"
READS = [
    *RIGHTS,
    "list pods",
    *(f"get {kind}" for kind in virtual_machines.KINDS[:2]),
    *(f"list {kind}" for kind in virtual_machines.KINDS[2:]),
]
"""Permissions for viewing every part of a node's page."""


@pytest.fixture(scope="module")
def host(site: Site) -> Iterator[str]:
    """Yield a node with four different virtual machines, once the console has detected the CRDs."""
    name = site.scene.node("machines-1.example.com")
    with virtual_machines.kinds(site.scene.cluster):
        virtual_machines.each_kind(site.scene.admin, name)
        shown = site.url(f"/nodes/{name}")
        await_ready("the machines", lambda: "machines/live" in requests.get(shown, timeout=10).text, [], SECONDS)
        yield name
        virtual_machines.clear(site.scene.admin)


@proves("X-3")
def test_a_cluster_without_virtual_machines_has_no_table_of_them(browser: Browser, site: Site) -> None:
    """Check that the page has no table of VMs without KubeVirt's CRDs; this test runs before they are installed."""
    name = site.scene.node("machines-0.example.com")
    await_ready("its page", lambda: requests.get(site.url(f"/nodes/{name}"), timeout=10).status_code == 200, [])
    browser.open(f"/nodes/{name}")
    assert "takes new pods" in browser.text("main")
    assert browser.all(SECTION) == []


@pytest.mark.slow
@pytest.mark.parametrize("look", SIGHTS)
def test_the_page_is_accessible_and_fits(browser: Browser, host: str, look: str) -> None:
    """Check that axe finds no serious violation, that no texts break or overlap, and that the page fits the window."""
    size, dark = SIGHTS[look]
    browser.look(size, dark=dark)
    browser.open(f"/nodes/{host}")
    assert "machines/live" in browser.text(SECTION)

    assert faults(browser) == []
    assert browser.script("return document.documentElement.scrollWidth <= innerWidth")
    assert broken_words(browser, "main") == []
    assert overlapping(browser, "main") == []
    assert spilling(browser, "table.cards td, table.cards th") == []
    assert browser.errors() == []
    folder = os.environ.get("SCREENSHOTS")
    if folder and look in LOOKS:
        Path(folder).mkdir(parents=True, exist_ok=True)
        browser.driver.save_screenshot(f"{folder}/machines-{look}.png")


@proves("OSV-2", "OSV-3")
def test_the_page_says_of_each_machine_what_the_command_says(browser: Browser, host: str) -> None:
    browser.open(f"/nodes/{host}")
    rows = [" ".join(row.text.split()) for row in browser.all(f"{SECTION} tbody tr")]
    assert rows == [
        "machines/live Running LiveMigrate Always yes moves to another node, without a break "
        f"Running to node-3 {virtual_machines.MOVING}",
        "machines/manual Running – Manual yes stops shut down, and not started again –",
        "machines/plain Running – RerunOnFailure yes restarts shut down, and started on another node –",
        "machines/stuck Running LiveMigrate Always no: no disk blocks until it can be migrated, or is shut down –",
    ]


def test_the_table_changes_with_the_page(browser: Browser, site: Site, host: str) -> None:
    """Check that the table is read again after a change, while the rest of the page stays."""
    browser.open(f"/nodes/{host}")
    admin, path = site.scene.admin, instance_path(virtual_machines.SPACE, "stuck")
    before = admin.get(path)["status"]["conditions"]
    admin.patch(path, {"status": {"conditions": [ABLE]}})
    try:
        site.scene.cluster.kubectl("cordon", host)
        browser.until(lambda: "no disk" not in browser.text(SECTION) and "machines/stuck" in browser.text(SECTION))
    finally:
        site.scene.cluster.kubectl("uncordon", host)
        admin.patch(path, {"status": {"conditions": before}})


@proves("OSV-7")
def test_the_window_says_before_what_becomes_of_machines(site: Site, host: str) -> None:
    with requests.Session() as session:
        asked = Form(site, session).post("/start", host)
    assert asked.status_code == 200
    for line in (
        "1 virtual machine will hold the drain up: machines/stuck (no disk)",
        "1 virtual machine will be shut down and not started again: machines/manual (runStrategy Manual)",
        "1 virtual machine will be shut down and started on another node: machines/plain",
        "1 virtual machine will move to another node without a break: machines/live",
    ):
        assert line in asked.text
    assert site.scene.admin.list(MEDIK8S.path, fields=f"spec.nodeName={host}")["items"] == []


@pytest.mark.slow
def test_only_who_may_read_machines_sees_them(site: Site, host: str, tmp_path: Path) -> None:
    """Check that a user without permission to read VMs sees the rest of the page and the missing permission.

    The console's own account does not need these permissions.
    """
    with Console(site.scene.cluster, tmp_path, address="0.0.0.0") as console:  # noqa: S104
        there = Site(site.scene, console)
        looks = account(site.scene, "looks-at-nodes", RIGHTS)
        reads = account(site.scene, "reads-machines", READS)
        shown = there.url(f"/nodes/{host}")
        answers = [requests.get(shown, headers=headers, timeout=10) for headers in (looks, reads)]
    assert [answer.status_code for answer in answers] == [200, 200]
    assert ["machines/live" in answer.text for answer in answers] == [False, True]
    assert "are not shown: " in answers[0].text


def test_a_cluster_that_gets_virtual_machines_is_seen_soon() -> None:
    """Check that the console detects new CRDs within the timeout of these tests."""
    assert KNOWN_SECONDS < SECONDS


def test_a_cluster_that_does_not_answer_once_has_machines_as_before(
    site: Site, host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that a failed discovery keeps the cached answer, so that the dialog still warns about VMs."""
    monkeypatch.setattr("console.web.context.KNOWN_SECONDS", 0.0)
    refusals = iter([None, Unavailable(429, "too many requests")])

    async def asked(api: Api) -> bool:
        if refusal := next(refusals):
            raise refusal
        return await is_served(api)

    has_machines = Served(site.scene.cluster.door(), asked)

    assert [has_machines(), has_machines()] == [True, True]


def test_a_machine_that_is_on_no_node_any_more_is_gone(site: Site, host: str) -> None:
    """Check that the table leaves out a VM that was deleted after the page was loaded."""
    other = site.scene.node("machines-2.example.com")
    shown = site.url(f"/nodes/{other}/machines")
    virtual_machines.machine(site.scene.admin, other, "last", "Always")
    assert "machines/last" in requests.get(shown, timeout=10).text
    admin = site.scene.admin
    item = admin.get(f"{instances(virtual_machines.SPACE)}/last")
    admin.delete(f"{instances(virtual_machines.SPACE)}/last", uid=item["metadata"]["uid"])
    assert "machines/last" not in requests.get(shown, timeout=10).text
