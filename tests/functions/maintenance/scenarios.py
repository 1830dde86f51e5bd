"""Scenarios of the maintenance steps: the cluster state just before a step, and the event that triggers it."""

from __future__ import annotations

from collections.abc import Callable

from cloudevents.core.base import BaseCloudEvent

from eventing import events
from kube.maintenance import objects as m
from kube.nodes import node_path
from tests.functions.conftest import Functions, forget
from tests.functions.event_builders import added, node_updated, said, tick, updated
from tests.workload import Workload

Scene = Callable[[Functions, Workload], BaseCloudEvent]
"""Prepares a maintenance for which the step is next, and returns the event that triggers the step."""


def begin(_functions: Functions, work: Workload) -> BaseCloudEvent:
    node = work.node()
    work.pods(node, f"bare-{node}")
    work.daemonset(f"agent-{node}", node)
    return added(work.maintenance(node))


def again(functions: Functions, work: Workload) -> BaseCloudEvent:
    item = work.maintenance(work.node())
    functions.begin(item)
    return added(work.again(item))


def cordon(functions: Functions, work: Workload) -> BaseCloudEvent:
    return functions.begin(work.maintenance(work.node()))


def taint(functions: Functions, work: Workload) -> BaseCloudEvent:
    return functions.chain(work.maintenance(work.node()), "begin", "cordon")


def evict(functions: Functions, work: Workload) -> BaseCloudEvent:
    node = work.node()
    work.pods(node, f"bare-{node}")
    return functions.prepare(work.maintenance(node))


def drained(functions: Functions, work: Workload) -> BaseCloudEvent:
    node = work.node()
    work.daemonset(f"agent-{node}", node)
    return functions.prepare(work.maintenance(node))


def status(functions: Functions, work: Workload) -> BaseCloudEvent:
    return functions.begin(work.maintenance(work.node()))


def restore(functions: Functions, work: Workload) -> BaseCloudEvent:
    item = work.maintenance(work.node())
    functions.prepare(item)
    work.delete(m.path(item))
    return updated(work.again(item))


def guard(functions: Functions, work: Workload) -> BaseCloudEvent:
    node = work.node()
    item = work.maintenance(node)
    functions.prepare(item)
    functions.answer("status", said(events.PODS_EVICTED, item))
    work.admin.patch(node_path(node), {"spec": {"unschedulable": None}})
    return node_updated(work.read_node(node))


def resync_node(functions: Functions, work: Workload) -> BaseCloudEvent:
    forget(work.admin)
    functions.begin(work.maintenance(work.node()))
    return tick()


def resync_pods(functions: Functions, work: Workload) -> BaseCloudEvent:
    forget(work.admin)
    functions.prepare(work.maintenance(work.node()))
    return tick()
