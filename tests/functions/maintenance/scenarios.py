"""Scenarios for the maintenance steps: the cluster state just before a step, and the event that triggers the step."""

from __future__ import annotations

from collections.abc import Callable

from cloudevents.core.base import BaseCloudEvent

from eventing import events
from kube.maintenance import objects as m
from kube.nodes import build_node_path
from tests.functions.conftest import Functions, delete_maintenances
from tests.functions.event_builders import (
    build_added_event,
    build_node_updated_event,
    build_product_event,
    build_tick,
    build_updated_event,
)
from tests.workload import Workload

Scenario = Callable[[Functions, Workload], BaseCloudEvent]
"""Function that runs a maintenance up to a step, and returns the event that triggers the step."""


def prepare_begin(_functions: Functions, workload: Workload) -> BaseCloudEvent:
    node = workload.take_node()
    workload.create_bare_pods(node, f"bare-{node}")
    workload.create_daemonset(f"agent-{node}", node)
    return build_added_event(workload.create_maintenance(node))


def prepare_duplicate_begin(functions: Functions, workload: Workload) -> BaseCloudEvent:
    maintenance = workload.create_maintenance(workload.take_node())
    functions.run_begin(maintenance)
    return build_added_event(workload.read_maintenance(maintenance))


def prepare_cordon(functions: Functions, workload: Workload) -> BaseCloudEvent:
    return functions.run_begin(workload.create_maintenance(workload.take_node()))


def prepare_taint(functions: Functions, workload: Workload) -> BaseCloudEvent:
    return functions.run_chain(workload.create_maintenance(workload.take_node()), "begin", "cordon")


def prepare_evict(functions: Functions, workload: Workload) -> BaseCloudEvent:
    node = workload.take_node()
    workload.create_bare_pods(node, f"bare-{node}")
    return functions.run_until_tainted(workload.create_maintenance(node))


def prepare_evict_on_drained_node(functions: Functions, workload: Workload) -> BaseCloudEvent:
    node = workload.take_node()
    workload.create_daemonset(f"agent-{node}", node)
    return functions.run_until_tainted(workload.create_maintenance(node))


def prepare_status(functions: Functions, workload: Workload) -> BaseCloudEvent:
    return functions.run_begin(workload.create_maintenance(workload.take_node()))


def prepare_restore(functions: Functions, workload: Workload) -> BaseCloudEvent:
    maintenance = workload.create_maintenance(workload.take_node())
    functions.run_until_tainted(maintenance)
    workload.delete(m.build_path(maintenance))
    return build_updated_event(workload.read_maintenance(maintenance))


def prepare_guard(functions: Functions, workload: Workload) -> BaseCloudEvent:
    node = workload.take_node()
    maintenance = workload.create_maintenance(node)
    functions.run_until_tainted(maintenance)
    functions.invoke("status", build_product_event(events.PODS_EVICTED, maintenance))
    workload.client.patch(build_node_path(node), {"spec": {"unschedulable": None}})
    return build_node_updated_event(workload.read_node(node))


def prepare_resync_with_node_read(functions: Functions, workload: Workload) -> BaseCloudEvent:
    delete_maintenances(workload.client)
    functions.run_begin(workload.create_maintenance(workload.take_node()))
    return build_tick()


def prepare_resync_with_pod_read(functions: Functions, workload: Workload) -> BaseCloudEvent:
    delete_maintenances(workload.client)
    functions.run_until_tainted(workload.create_maintenance(workload.take_node()))
    return build_tick()
