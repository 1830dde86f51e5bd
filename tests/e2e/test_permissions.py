"""Tests of the functions' permissions on a real engine: exactly those of their `Touches:` lines, and clear failures."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from eventing.replay.function_client import post_event
from kube.maintenance import objects as m
from kube.maintenance.groups import MEDIK8S
from localcluster.functions import DEFAULT_FUNCTIONS
from localcluster.knative.fake_kubelet import write_account_kubeconfig
from tests.e2e.environment import E2eEnvironment, NodeDrains
from tests.e2e.permissions import assert_permissions_as_documented
from tests.e2e.ticks import build_tick
from tests.manifests.documented_rights import OWN_NAMESPACE

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("restore_product")]
TIMEOUT_SECONDS = 20.0
"""Timeout in seconds until a failure is reported; a function's process takes some of them to start."""
FORBIDDEN_STEPS = (
    ("begin", "restore", "(create resource leases|list resource pods)"),  # the first pass creates the install lease
    ("cordon", "evict", "patch resource nodes"),
    ("taint", "status", "patch resource nodes"),
    ("evict", "cordon", "get resource leases"),  # checked first, to find out whether this install is active
)
"""A function, the account whose token it is given, and what that account may not do."""
on_knative = pytest.mark.parametrize("environment", ["knative"], indirect=True)


@pytest.mark.parametrize("function", DEFAULT_FUNCTIONS)
def test_permissions_match_touches_lines(environment: E2eEnvironment, function: str) -> None:
    """API server permissions of a function, asked with its own token, equal its `Touches:` lines."""
    assert_permissions_as_documented(environment, function)


def test_step_with_other_token_fails_in_status(environment: E2eEnvironment) -> None:
    """Steps with another account's token fail with the permission and the account in `lastError`, and evict no pod.

    Each step is tested on its own node. With its own token, each drain succeeds.
    """
    drains = environment.prepare_drains("300ms", nodes=environment.nodes[: len(FORBIDDEN_STEPS)])
    for node, step in zip(drains.nodes, FORBIDDEN_STEPS, strict=True):
        _assert_step_fails(drains, node, environment, *step)
    drains.await_succeeded()
    drains.assert_each_pod_evicted_once()
    assert not any(item["status"].get("lastError") for item in drains.get_current_maintenances())
    drains.end_maintenances()


def _assert_step_fails(
    drains: NodeDrains, node: str, environment: E2eEnvironment, function: str, account: str, forbidden: str
) -> None:
    """Begin the drain of a node while a step has another account's token."""
    with run_with_other_token(environment, function, account):
        drains.create_maintenances([node])
        error = await_error(drains, account)
        item = drains.get_current_maintenances()[-1]
        assert re.search(f"cannot {forbidden}", remove_quotes(error))
        assert m.get_phase(item) != m.SUCCEEDED
        assert m.get_condition(item, "Drained").get("status") != "True"
        evicted_names = [entry["objectRef"]["name"] for entry in drains.audit.list_evictions()]
        assert not [
            name for name in evicted_names if name.startswith(f"{node}-")
        ]  # a tick may have advanced other drains


def test_restore_with_other_token_fails_in_status(environment: E2eEnvironment) -> None:
    """Check that `restore` with another account's token leaves object, cordon and taints until it has its own again."""
    drains = environment.prepare_drains("300ms", nodes=environment.nodes[:1])
    drains.create_maintenances()
    drains.await_succeeded()
    with run_with_other_token(environment, "restore", "begin"):
        drains.request_deletion(drains.maintenances[0])
        error = await_error(drains, "begin")
        assert "cannot patch resource nodes" in remove_quotes(error)
        spec = drains.workload.read_node(environment.nodes[0])["spec"]
        assert spec["unschedulable"]
        assert spec["taints"]
        assert m.has_finalizer(drains.get_current_maintenances()[0])
    drains.await_restored()


def test_status_with_other_token_logs_error(environment: E2eEnvironment) -> None:
    """Check that `status` with another account's token logs the missing permission and writes no status.

    With its own token it writes the status, and the maintenance succeeds.
    """
    drains = environment.prepare_drains("300ms", nodes=environment.nodes[:1])
    with run_with_other_token(environment, "status", "taint") as position:
        drains.create_maintenances()
        await_log(environment, "status", "taint", "get resource leases", position)
        assert not drains.get_current_maintenances()[0].get("status")
    drains.await_succeeded()
    drains.end_maintenances()


@on_knative
def test_resync_with_other_token_logs_error(environment: E2eEnvironment) -> None:
    """Check that `resync` with another account's token logs the missing permission."""
    with run_with_other_token(environment, "resync", "cordon") as position:
        post_event(build_tick(), environment.product.broker_url)
        await_log(environment, "resync", "cordon", "get resource leases", position)


@on_knative
def test_guard_with_other_token_logs_error(environment: E2eEnvironment) -> None:
    """Check that `guard` with another account's token logs the missing permission.

    With its own token it cordons the node again.
    """
    drains = environment.prepare_drains("300ms", nodes=environment.nodes[:1])
    drains.create_maintenances()
    drains.await_succeeded()
    with run_with_other_token(environment, "guard", "record") as position:
        environment.cluster.kubectl("uncordon", environment.nodes[0])
        await_log(environment, "guard", "record", "get resource leases", position)
    drains.workload.wait_for_object(
        f"/api/v1/nodes/{environment.nodes[0]}", lambda node: bool(node and node["spec"].get("unschedulable"))
    )
    drains.end_maintenances()


@contextmanager
def run_with_other_token(environment: E2eEnvironment, function: str, account: str) -> Iterator[int]:
    """Run a function with another account's token while the block runs; yield the log's size before."""
    server = environment.product.functions[function]
    own_kubeconfig, size = server.env["KUBECONFIG"], server.log.stat().st_size

    def run_as(identity: str) -> None:
        environment.histogram.record(function)
        environment.product.kill_functions(function)
        server.env["KUBECONFIG"] = identity
        environment.product.start_functions(function)

    run_as(str(write_account_kubeconfig(environment.cluster, OWN_NAMESPACE, account)))
    try:
        yield size
    finally:
        run_as(own_kubeconfig)


def await_error(drains: NodeDrains, account: str) -> str:
    """Return the last maintenance's `lastError` once it names the account."""
    name = drains.maintenances[-1]["metadata"]["name"]
    user = f'"system:serviceaccount:{OWN_NAMESPACE}:{account}"'

    def names_account(item: object) -> bool:
        return isinstance(item, dict) and user in ((item.get("status") or {}).get("lastError") or "")

    maintenance = drains.workload.wait_for_object(f"{MEDIK8S.path}/{name}", names_account, TIMEOUT_SECONDS)
    error = str(maintenance["status"]["lastError"])
    print(error)
    return error


def await_log(environment: E2eEnvironment, function: str, account: str, forbidden: str, log_position: int) -> None:
    """Wait until the function's log, after `log_position`, contains what the account may not do."""
    pattern = rf"system:serviceaccount:{OWN_NAMESPACE}:{account} cannot {forbidden}"
    log = environment.product.functions[function].log
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not re.search(pattern, remove_quotes(log.read_bytes()[log_position:].decode(errors="replace"))):
        assert time.monotonic() < deadline, f"{function} does not log in {log}: {pattern}"
        time.sleep(0.1)


def remove_quotes(text: str) -> str:
    """Return the text without quotation marks and backslashes, since a JSON log escapes quotation marks."""
    return text.replace("\\", "").replace('"', "")
