"""The functions' subscriptions, as in the filters of their Triggers, used to read a journal without a cluster.

A test compares this table with the manifests. Optional components may not be installed. The table therefore omits their
functions' subscriptions to events that also occur without the component: the tick of the PingSource, `node.tainted`,
and an updated NodeMaintenance for `publish-conditions`. It also omits `record`, which subscribes to all events.
"""

from __future__ import annotations

from collections.abc import Mapping

from cloudevents.core.base import BaseCloudEvent

from eventing import events
from eventing.events import REFERENCE_TYPES, RESOURCE_TYPES

SUBSCRIPTIONS: tuple[tuple[str, Mapping[str, str]], ...] = (
    ("begin", {"type": events.RESOURCE_ADDED, "kind": "NodeMaintenance"}),
    ("begin", {"type": events.MAINTENANCE_PENDING}),
    ("cordon", {"type": events.MAINTENANCE_BEGUN}),
    ("cordon", {"type": events.NODE_DRIFTED}),
    ("taint", {"type": events.NODE_CORDONED}),
    ("evict", {"more": "true"}),
    ("status", {"progress": "true"}),
    ("restore", {"type": events.RESOURCE_UPDATED, "kind": "NodeMaintenance"}),
    ("restore", {"type": events.MAINTENANCE_RESTORE_PENDING}),
    ("guard", {"type": events.RESOURCE_UPDATED, "kind": "Node"}),
    ("guard", {"type": events.RESOURCE_DELETED, "kind": "Node"}),
    ("resync", {"type": events.TICK}),
    *(("check-rule", {"type": kind, "kind": "MutexRule"}) for kind in RESOURCE_TYPES),
    ("check-rule", {"type": events.RULE_CHECK_PENDING}),
    *(("check-target", {"type": kind, "kind": "MutexTarget"}) for kind in RESOURCE_TYPES),
    ("check-target", {"type": events.TARGET_CHECK_PENDING}),
    ("check-run", {"type": events.RESOURCE_ADDED, "kind": "MutexRunConfig"}),
    ("check-run", {"type": events.RESOURCE_UPDATED, "kind": "MutexRunConfig"}),
    ("check-run", {"type": events.RUN_CHECK_PENDING}),
    ("detect-upgrade", {"type": events.RUN_VALIDATED}),
    ("claim-pools", {"type": events.UPGRADE_DETECTED}),
    ("pause-pools", {"type": events.POOLS_CLAIMED}),
    ("label-nodes", {"type": events.POOLS_PAUSED}),
    ("edit-pools", {"type": events.NODES_LABELLED}),
    ("run-job", {"job": "true"}),
    ("run-job", {"type": events.REFERENCE_UPDATED, "kind": "Job"}),
    ("run-job", {"type": events.REFERENCE_DELETED, "kind": "Job"}),
    ("release-node", {"type": events.NODE_PREJOBS_DONE}),
    ("await-version", {"type": events.NODE_RELEASED}),
    ("await-version", {"type": events.REFERENCE_UPDATED, "kind": "Node"}),
    ("restore-pools", {"type": events.RUN_NODES_DONE}),
    ("restore-pools", {"type": events.RUN_RESTORE_PENDING}),
    ("resync-runs", {"survey": "true"}),
    ("resync-runs", {"type": events.REFERENCE_UPDATED, "kind": "MachineConfigPool"}),
    ("resync-runs", {"type": events.REFERENCE_UPDATED, "kind": "ClusterVersion"}),
    ("migrate", {"type": events.REFERENCE_UPDATED, "kind": "VirtualMachineInstance"}),
    ("migrate", {"type": events.REFERENCE_UPDATED, "kind": "VirtualMachineInstanceMigration"}),
    ("migrate", {"type": events.REFERENCE_DELETED, "kind": "VirtualMachineInstanceMigration"}),
    ("protect", {"type": events.REFERENCE_ADDED, "kind": "VirtualMachineInstance"}),
    ("protect", {"type": events.REFERENCE_UPDATED, "kind": "VirtualMachineInstance"}),
    *(("protect", {"type": kind, "kind": "VirtualMachineInstanceMigration"}) for kind in REFERENCE_TYPES),
    *(("label-cpu", {"type": kind, "kind": "ConfigMap"}) for kind in REFERENCE_TYPES),
    *(("label-cpu", {"type": kind, "kind": "HyperConverged"}) for kind in REFERENCE_TYPES),
    ("label-cpu", {"type": events.LABELS_DUE}),
)
"""Pairs of a function and its Trigger's filter attributes, in the order of a maintenance and of an upgrade run."""


def parse_function_name(trigger_name: str) -> str:
    """Return the name of the function that the Trigger calls: the Trigger `evict-on-more` calls `evict`."""
    return trigger_name.partition("-on-")[0]


def list_subscribers(event: BaseCloudEvent) -> tuple[str, ...]:
    """Return the names of the functions that subscribe to the event."""
    attributes = {name: str(value) for name, value in event.get_attributes().items()}
    return tuple(name for name, filter_attributes in SUBSCRIPTIONS if filter_attributes.items() <= attributes.items())
