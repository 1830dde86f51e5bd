"""Tests of the functions' permissions on a real engine: exactly those of their `Touches:` lines, and clear failures."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from eventing.replay.function_client import post
from kube.maintenance import objects as m
from kube.maintenance.groups import MEDIK8S
from localcluster.functions import SERVED
from localcluster.knative.fake_kubelet import kubeconfig
from tests.e2e.permissions import assert_as_documented
from tests.e2e.environment import Drains, Stage
from tests.e2e.ticks import tick
from tests.manifests.documented_rights import OURS

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("whole_again")]
SECONDS = 20.0
"""Timeout in seconds until a failure is reported; a function's process takes some of them to start."""
STEPS = (
    ("begin", "restore", "(create resource leases|list resource pods)"),  # the first pass creates the install lease
    ("cordon", "evict", "patch resource nodes"),
    ("taint", "status", "patch resource nodes"),
    ("evict", "cordon", "get resource leases"),  # checked first, to find out whether this install is active
)
"""A function, the account whose token it is given, and what that account may not do."""
on_knative = pytest.mark.parametrize("stage", ["knative"], indirect=True)


@pytest.mark.parametrize("function", SERVED)
def test_the_api_server_lists_exactly_what_a_function_touches(stage: Stage, function: str) -> None:
    """API server permissions of a function, asked with its own token, equal its `Touches:` lines."""
    assert_as_documented(stage, function)


def test_a_step_with_anothers_token_fails_in_the_status(stage: Stage) -> None:
    """Steps with another account's token fail with the permission and the account in `lastError`, and evict no pod.

    Each step is tested on its own node. With its own token, each drain succeeds.
    """
    drains = stage.drains("300ms", nodes=stage.nodes[: len(STEPS)])
    for node, step in zip(drains.nodes, STEPS, strict=True):
        _fails(drains, node, stage, *step)
    drains.await_succeeded()
    drains.check()
    assert not any(item["status"].get("lastError") for item in drains.live())
    drains.end()


def _fails(drains: Drains, node: str, stage: Stage, function: str, account: str, may_not: str) -> None:
    """Begin the drain of a node while a step has another account's token."""
    with borrowed(stage, function, account):
        drains.begin([node])
        said = await_error(drains, account)
        item = drains.live()[-1]
        assert re.search(f"cannot {may_not}", unquoted(said))
        assert m.phase(item) != m.SUCCEEDED
        assert m.condition(item, "Drained").get("status") != "True"
        asked = [entry["objectRef"]["name"] for entry in drains.audit.evictions()]
        assert not [name for name in asked if name.startswith(f"{node}-")]  # a tick may have advanced other drains


def test_a_restore_with_anothers_token_fails_in_the_status(stage: Stage) -> None:
    """Check that `restore` with another account's token leaves object, cordon and taints until it has its own."""
    drains = stage.drains("300ms", nodes=stage.nodes[:1])
    drains.begin()
    drains.await_succeeded()
    with borrowed(stage, "restore", "begin"):
        drains.request_end(drains.maintenances[0])
        said = await_error(drains, "begin")
        assert "cannot patch resource nodes" in unquoted(said)
        spec = drains.work.read_node(stage.nodes[0])["spec"]
        assert spec["unschedulable"]
        assert spec["taints"]
        assert m.has_finalizer(drains.live()[0])
    drains.await_gone()


def test_a_status_with_anothers_token_says_so_in_its_log(stage: Stage) -> None:
    """Check that `status` with another account's token logs the missing permission and writes no status.

    With its own token it writes the status, and the maintenance succeeds.
    """
    drains = stage.drains("300ms", nodes=stage.nodes[:1])
    with borrowed(stage, "status", "taint") as position:
        drains.begin()
        await_log(stage, "status", "taint", "get resource leases", position)
        assert not drains.live()[0].get("status")
    drains.await_succeeded()
    drains.end()


@on_knative
def test_a_resync_with_anothers_token_says_so_in_its_log(stage: Stage) -> None:
    """Check that `resync` with another account's token logs the missing permission."""
    with borrowed(stage, "resync", "cordon") as position:
        post(tick(), stage.product.broker_url)
        await_log(stage, "resync", "cordon", "get resource leases", position)


@on_knative
def test_a_guard_with_anothers_token_says_so_in_its_log(stage: Stage) -> None:
    """Check that `guard` with another account's token logs the missing permission.

    With its own token it cordons the node again.
    """
    drains = stage.drains("300ms", nodes=stage.nodes[:1])
    drains.begin()
    drains.await_succeeded()
    with borrowed(stage, "guard", "record") as position:
        stage.local.kubectl("uncordon", stage.nodes[0])
        await_log(stage, "guard", "record", "get resource leases", position)
    drains.work.wait_for(
        f"/api/v1/nodes/{stage.nodes[0]}", lambda node: bool(node and node["spec"].get("unschedulable"))
    )
    drains.end()


@contextmanager
def borrowed(stage: Stage, function: str, account: str) -> Iterator[int]:
    """Run a function with another account's token while the block runs; yield the log's size before."""
    server = stage.product.functions[function]
    own, size = server.env["KUBECONFIG"], server.log.stat().st_size

    def run_as(identity: str) -> None:
        stage.histogram.note(function)
        stage.product.kill_functions(function)
        server.env["KUBECONFIG"] = identity
        stage.product.start_functions(function)

    run_as(str(kubeconfig(stage.local, OURS, account)))
    try:
        yield size
    finally:
        run_as(own)


def await_error(drains: Drains, account: str) -> str:
    """Return the last maintenance's `lastError` once it names the account."""
    name = drains.maintenances[-1]["metadata"]["name"]
    user = f'"system:serviceaccount:{OURS}:{account}"'

    def told(item: object) -> bool:
        return isinstance(item, dict) and user in ((item.get("status") or {}).get("lastError") or "")

    found = drains.work.wait_for(f"{MEDIK8S.path}/{name}", told, SECONDS)
    said = str(found["status"]["lastError"])
    print(said)
    return said


def await_log(stage: Stage, function: str, account: str, may_not: str, position: int) -> None:
    """Wait until the function's log, after `position`, contains what the account may not do."""
    wanted = rf"system:serviceaccount:{OURS}:{account} cannot {may_not}"
    log = stage.product.functions[function].log
    deadline = time.monotonic() + SECONDS
    while not re.search(wanted, unquoted(log.read_bytes()[position:].decode(errors="replace"))):
        assert time.monotonic() < deadline, f"{function} does not say in {log}: {wanted}"
        time.sleep(0.1)


def unquoted(text: str) -> str:
    """Return the text without quotation marks and backslashes, since a JSON log escapes quotation marks."""
    return text.replace("\\", "").replace('"', "")
