"""Each function's rights on a real engine: exactly what it says that it touches; with another's, it fails aloud."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from eventing.replay.again import post
from kube.maintenance import objects as m
from kube.maintenance.groups import MEDIK8S
from localcluster.functions import SERVED
from localcluster.knative.kubelet import kubeconfig
from tests.e2e.listing import assert_as_documented
from tests.e2e.stage import Drains, Stage
from tests.e2e.ticks import tick
from tests.manifests.touches import OURS

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("whole_again")]
SECONDS = 20.0
"""Seconds until a failure is told; a function's process needs some to start."""
STEPS = (
    ("begin", "restore", "(create resource leases|list resource pods)"),  # the first one takes the claim
    ("cordon", "evict", "patch resource nodes"),
    ("taint", "status", "patch resource nodes"),
    ("evict", "cordon", "get resource leases"),  # whose install acts is asked first
)
"""A function, the account whose token it is given, and what that may not."""
on_knative = pytest.mark.parametrize("stage", ["knative"], indirect=True)


@pytest.mark.parametrize("function", SERVED)
def test_the_api_server_lists_exactly_what_a_function_touches(stage: Stage, function: str) -> None:
    """Asked with the very token that the function's process has."""
    assert_as_documented(stage, function)


def test_a_step_with_anothers_token_fails_in_the_status(stage: Stage) -> None:
    """Each on a node of its own. `lastError` names right and account; no pod goes; with the right one all ends well."""
    drains = stage.drains("300ms", nodes=stage.nodes[: len(STEPS)])
    for node, step in zip(drains.nodes, STEPS, strict=True):
        _fails(drains, node, stage, *step)
    drains.await_succeeded()
    drains.check()
    assert not any(item["status"].get("lastError") for item in drains.live())
    drains.end()


def _fails(drains: Drains, node: str, stage: Stage, function: str, account: str, may_not: str) -> None:
    """Begin the drain of a node while a step has another's token."""
    with borrowed(stage, function, account):
        drains.begin([node])
        said = await_error(drains, account)
        item = drains.live()[-1]
        assert re.search(f"cannot {may_not}", unquoted(said))
        assert m.phase(item) != m.SUCCEEDED
        assert m.condition(item, "Drained").get("status") != "True"
        asked = [entry["objectRef"]["name"] for entry in drains.audit.evictions()]
        assert not [name for name in asked if name.startswith(f"{node}-")]  # a tick may have brought others further


def test_a_restore_with_anothers_token_fails_in_the_status(stage: Stage) -> None:
    """The node is not half given back: object, cordon and taints stay until the right token is there."""
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
    """Nobody else may write the status, so it claims nothing; the broker tries again until the right token is there."""
    drains = stage.drains("300ms", nodes=stage.nodes[:1])
    with borrowed(stage, "status", "taint") as position:
        drains.begin()
        await_log(stage, "status", "taint", "get resource leases", position)
        assert not drains.live()[0].get("status")
    drains.await_succeeded()
    drains.end()


@on_knative
def test_a_resync_with_anothers_token_says_so_in_its_log(stage: Stage) -> None:
    """It speaks of no one maintenance; the tick is tried again, and told as undeliverable in the end."""
    with borrowed(stage, "resync", "cordon") as position:
        post(tick(), stage.product.broker_url)
        await_log(stage, "resync", "cordon", "get resource leases", position)


@on_knative
def test_a_guard_with_anothers_token_says_so_in_its_log(stage: Stage) -> None:
    """What it would have seen to is seen to as soon as it may."""
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
    """Run a function with another account's token while the block runs; gives how long its log was before."""
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
    """The `lastError` of the last maintenance that speaks of an account, as soon as it is there."""
    name = drains.maintenances[-1]["metadata"]["name"]
    user = f'"system:serviceaccount:{OURS}:{account}"'

    def told(item: object) -> bool:
        return isinstance(item, dict) and user in ((item.get("status") or {}).get("lastError") or "")

    found = drains.work.wait_for(f"{MEDIK8S.path}/{name}", told, SECONDS)
    said = str(found["status"]["lastError"])
    print(said)
    return said


def await_log(stage: Stage, function: str, account: str, may_not: str, position: int) -> None:
    """Wait until a function's log, from a position on, says what an account may not."""
    wanted = rf"system:serviceaccount:{OURS}:{account} cannot {may_not}"
    log = stage.product.functions[function].log
    deadline = time.monotonic() + SECONDS
    while not re.search(wanted, unquoted(log.read_bytes()[position:].decode(errors="replace"))):
        assert time.monotonic() < deadline, f"{function} does not say in {log}: {wanted}"
        time.sleep(0.1)


def unquoted(text: str) -> str:
    """The text without quotation marks, which a log in JSON has backslashes before."""
    return text.replace("\\", "").replace('"', "")
