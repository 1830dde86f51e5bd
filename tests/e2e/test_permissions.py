"""Tests that a function has exactly the permissions of its `Touches:` lines, and reports missing ones."""

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
"""Timeout until a function has reported a missing permission, including the function's startup."""
FORBIDDEN_CASES = (
    # On its first pass, `begin` also creates the Lease of the active install.
    ("begin", "restore", "(create resource leases|list resource pods)"),
    ("cordon", "evict", "patch resource nodes"),
    ("taint", "status", "patch resource nodes"),
    # `evict` first reads the Lease of the active install.
    ("evict", "cordon", "get resource leases"),
)
"""Each function, another function's account with whose token it runs, and a request that this account may not send."""
only_on_knative = pytest.mark.parametrize("environment", ["knative"], indirect=True)


@pytest.mark.parametrize("function", DEFAULT_FUNCTIONS)
def test_permissions_of_function_match_touches_lines(environment: E2eEnvironment, function: str) -> None:
    """Check that a function's permissions, as the API server reports them, equal the function's `Touches:` lines."""
    assert_permissions_as_documented(environment, function)


def test_missing_permission_of_function_is_reported_in_status(environment: E2eEnvironment) -> None:
    """Check that `lastError` names the missing permission and the account if a function uses another account's token.

    Each function is tested on a separate node, whose pods stay. Once all functions use the tokens of their own
    accounts, all drains succeed.
    """
    drains = environment.prepare_drains("300ms", nodes=environment.nodes[: len(FORBIDDEN_CASES)])
    for node, case in zip(drains.nodes, FORBIDDEN_CASES, strict=True):
        _assert_drain_reports_missing_permission(drains, node, environment, *case)
    drains.wait_until_succeeded()
    drains.assert_each_pod_evicted_once()
    assert not any(maintenance["status"].get("lastError") for maintenance in drains.get_current_maintenances())
    drains.end_maintenances()


def _assert_drain_reports_missing_permission(
    drains: NodeDrains, node: str, environment: E2eEnvironment, function: str, account: str, forbidden: str
) -> None:
    """Drain a node while a function uses another account's token; assert that the status reports the failure."""
    with run_with_token_of_other_account(environment, function, account):
        drains.create_maintenances([node])
        error = wait_for_error(drains, account)
        maintenance = drains.get_current_maintenances()[-1]
        assert re.search(f"cannot {forbidden}", remove_quotes(error))
        assert m.get_phase(maintenance) != m.SUCCEEDED
        assert m.get_condition(maintenance, "Drained").get("status") != "True"
        evicted_names = [entry["objectRef"]["name"] for entry in drains.audit.list_evictions()]
        # A tick may have resumed the drains of earlier nodes, so the log may contain evictions from these nodes.
        assert not [name for name in evicted_names if name.startswith(f"{node}-")]


def test_missing_permission_of_restore_is_reported_in_status(environment: E2eEnvironment) -> None:
    """Check that `restore` with another account's token reports the missing permission; the node stays cordoned."""
    drains = environment.prepare_drains("300ms", nodes=environment.nodes[:1])
    drains.create_maintenances()
    drains.wait_until_succeeded()
    with run_with_token_of_other_account(environment, "restore", "begin"):
        drains.request_deletion(drains.maintenances[0])
        error = wait_for_error(drains, "begin")
        assert "cannot patch resource nodes" in remove_quotes(error)
        spec = drains.workload.read_node(environment.nodes[0])["spec"]
        assert spec["unschedulable"]
        assert spec["taints"]
        assert m.has_finalizer(drains.get_current_maintenances()[0])
    drains.wait_until_restored()


def test_missing_permission_of_status_is_logged(environment: E2eEnvironment) -> None:
    """Check that `status` with another account's token logs the missing permission and writes no status.

    With the token of its own account, `status` writes the status, and the maintenance succeeds.
    """
    drains = environment.prepare_drains("300ms", nodes=environment.nodes[:1])
    with run_with_token_of_other_account(environment, "status", "taint") as log_size:
        drains.create_maintenances()
        wait_for_log(environment, "status", "taint", "get resource leases", log_size)
        assert not drains.get_current_maintenances()[0].get("status")
    drains.wait_until_succeeded()
    drains.end_maintenances()


@only_on_knative
def test_missing_permission_of_resync_is_logged(environment: E2eEnvironment) -> None:
    """Check that `resync` with another account's token logs the missing permission."""
    with run_with_token_of_other_account(environment, "resync", "cordon") as log_size:
        post_event(build_tick(), environment.product.broker_url)
        wait_for_log(environment, "resync", "cordon", "get resource leases", log_size)


@only_on_knative
def test_missing_permission_of_guard_is_logged(environment: E2eEnvironment) -> None:
    """Check that `guard` with another account's token logs the missing permission.

    With the token of its own account, `guard` cordons the node again.
    """
    drains = environment.prepare_drains("300ms", nodes=environment.nodes[:1])
    drains.create_maintenances()
    drains.wait_until_succeeded()
    with run_with_token_of_other_account(environment, "guard", "record") as log_size:
        environment.cluster.kubectl("uncordon", environment.nodes[0])
        wait_for_log(environment, "guard", "record", "get resource leases", log_size)
    drains.workload.wait_for_object(
        f"/api/v1/nodes/{environment.nodes[0]}", lambda node: bool(node and node["spec"].get("unschedulable"))
    )
    drains.end_maintenances()


@contextmanager
def run_with_token_of_other_account(environment: E2eEnvironment, function: str, account: str) -> Iterator[int]:
    """Run a function with another account's token while the block runs; yield the log's size before the block."""
    server = environment.product.functions[function]
    original_kubeconfig, log_size_before = server.env["KUBECONFIG"], server.log.stat().st_size

    def restart_with_kubeconfig(kubeconfig: str) -> None:
        environment.histogram.record(function)
        environment.product.kill_functions(function)
        server.env["KUBECONFIG"] = kubeconfig
        environment.product.start_functions(function)

    restart_with_kubeconfig(str(write_account_kubeconfig(environment.cluster, OWN_NAMESPACE, account)))
    try:
        yield log_size_before
    finally:
        restart_with_kubeconfig(original_kubeconfig)


def wait_for_error(drains: NodeDrains, account: str) -> str:
    """Wait until `lastError` of the last maintenance names the account, and return the error."""
    name = drains.maintenances[-1]["metadata"]["name"]
    user = f'"system:serviceaccount:{OWN_NAMESPACE}:{account}"'

    def does_last_error_name_account(maintenance: object) -> bool:
        return isinstance(maintenance, dict) and user in ((maintenance.get("status") or {}).get("lastError") or "")

    maintenance = drains.workload.wait_for_object(
        f"{MEDIK8S.path}/{name}", does_last_error_name_account, TIMEOUT_SECONDS
    )
    error = str(maintenance["status"]["lastError"])
    print(error)
    return error


def wait_for_log(environment: E2eEnvironment, function: str, account: str, forbidden: str, log_position: int) -> None:
    """Wait until the function's log contains, after `log_position`, an error about the account's missing permission."""
    pattern = rf"system:serviceaccount:{OWN_NAMESPACE}:{account} cannot {forbidden}"
    log = environment.product.functions[function].log
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not re.search(pattern, remove_quotes(log.read_bytes()[log_position:].decode(errors="replace"))):
        assert time.monotonic() < deadline, f"{function} has not logged {pattern!r} in {log}"
        time.sleep(0.1)


def remove_quotes(text: str) -> str:
    """Return the text without quotation marks and backslashes, because a JSON log escapes quotation marks."""
    return text.replace("\\", "").replace('"', "")
