"""Scenarios of the maintenance steps: the cluster state just before a step, and the event that triggers it."""

from __future__ import annotations

from collections.abc import Callable

from cloudevents.core.base import BaseCloudEvent

from eventing import events
from kube.maintenance import objects as m
from kube.nodes import build_node_path
from tests.functions.conftest import Functions, delete_maintenances
from tests.functions.event_builders import build_added, build_node_updated, build_own_event, build_tick, build_updated
from tests.workload import Workload

Scenario = Callable[[Functions, Workload], BaseCloudEvent]
"""Prepares a maintenance for which the step is next, and returns the event that triggers the step."""


def begin(_functions: Functions, workload: Workload) -> BaseCloudEvent:
    node = workload.take_node()
    workload.create_bare_pods(node, f"bare-{node}")
    workload.create_daemonset(f"agent-{node}", node)
    return build_added(workload.create_maintenance(node))


def begin_duplicate(functions: Functions, workload: Workload) -> BaseCloudEvent:
    item = workload.create_maintenance(workload.take_node())
    functions.run_begin(item)
    return build_added(workload.read_maintenance(item))


def cordon(functions: Functions, workload: Workload) -> BaseCloudEvent:
    return functions.run_begin(workload.create_maintenance(workload.take_node()))


def taint(functions: Functions, workload: Workload) -> BaseCloudEvent:
    return functions.run_chain(workload.create_maintenance(workload.take_node()), "begin", "cordon")


def evict(functions: Functions, workload: Workload) -> BaseCloudEvent:
    node = workload.take_node()
    workload.create_bare_pods(node, f"bare-{node}")
    return functions.run_until_tainted(workload.create_maintenance(node))


def evict_drained(functions: Functions, workload: Workload) -> BaseCloudEvent:
    node = workload.take_node()
    workload.create_daemonset(f"agent-{node}", node)
    return functions.run_until_tainted(workload.create_maintenance(node))


def status(functions: Functions, workload: Workload) -> BaseCloudEvent:
    return functions.run_begin(workload.create_maintenance(workload.take_node()))


def restore(functions: Functions, workload: Workload) -> BaseCloudEvent:
    item = workload.create_maintenance(workload.take_node())
    functions.run_until_tainted(item)
    workload.delete(m.build_path(item))
    return build_updated(workload.read_maintenance(item))


def guard(functions: Functions, workload: Workload) -> BaseCloudEvent:
    node = workload.take_node()
    item = workload.create_maintenance(node)
    functions.run_until_tainted(item)
    functions.invoke("status", build_own_event(events.PODS_EVICTED, item))
    workload.client.patch(build_node_path(node), {"spec": {"unschedulable": None}})
    return build_node_updated(workload.read_node(node))


def resync_node(functions: Functions, workload: Workload) -> BaseCloudEvent:
    delete_maintenances(workload.client)
    functions.run_begin(workload.create_maintenance(workload.take_node()))
    return build_tick()


def resync_pods(functions: Functions, workload: Workload) -> BaseCloudEvent:
    delete_maintenances(workload.client)
    functions.run_until_tainted(workload.create_maintenance(workload.take_node()))
    return build_tick()
