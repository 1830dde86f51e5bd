"""Which functions subscribe to which events: the filters of our Triggers, for whoever has a journal and no cluster.

A test compares it with the manifests that every install has: what a component adds may be missing from a recording for
a reason. Of an opt-in component it has what nobody but that one emits, so neither tick nor `node.tainted`.
`record`, which subscribes to everything, is left out.
"""

from __future__ import annotations

from collections.abc import Mapping

from cloudevents.core.base import BaseCloudEvent

from eventing import events
from eventing.event_types import CHANGES, REFERENCES

SUBSCRIPTIONS: tuple[tuple[str, Mapping[str, str]], ...] = (
    ("begin", {"type": events.RESOURCE_ADDED, "kind": "NodeMaintenance"}),
    ("begin", {"type": events.MAINTENANCE_FOUND}),
    ("cordon", {"type": events.MAINTENANCE_BEGUN}),
    ("cordon", {"type": events.NODE_DRIFTED}),
    ("taint", {"type": events.NODE_CORDONED}),
    ("evict", {"more": "true"}),
    ("status", {"progress": "true"}),
    ("restore", {"type": events.RESOURCE_UPDATED, "kind": "NodeMaintenance"}),
    ("restore", {"type": events.MAINTENANCE_ENDED}),
    ("guard", {"type": events.RESOURCE_UPDATED, "kind": "Node"}),
    ("guard", {"type": events.RESOURCE_DELETED, "kind": "Node"}),
    ("resync", {"type": events.TICK}),
    *(("check-rule", {"type": kind, "kind": "MutexRule"}) for kind in CHANGES),
    ("check-rule", {"type": events.RULE_FOUND}),
    *(("check-target", {"type": kind, "kind": "MutexTarget"}) for kind in CHANGES),
    ("check-target", {"type": events.TARGET_FOUND}),
    ("check-run", {"type": events.RESOURCE_ADDED, "kind": "MutexRunConfig"}),
    ("check-run", {"type": events.RESOURCE_UPDATED, "kind": "MutexRunConfig"}),
    ("check-run", {"type": events.RUN_FOUND}),
    ("detect-upgrade", {"type": events.RUN_VALIDATED}),
    ("claim-pools", {"type": events.UPGRADE_FOUND}),
    ("pause-pools", {"type": events.POOLS_CLAIMED}),
    ("label-nodes", {"type": events.POOLS_PAUSED}),
    ("edit-pools", {"type": events.NODES_LABELLED}),
    ("run-job", {"job": "true"}),
    ("run-job", {"type": events.REFERENCE_UPDATED, "kind": "Job"}),
    ("run-job", {"type": events.REFERENCE_DELETED, "kind": "Job"}),
    ("release-node", {"type": events.NODE_CLEARED}),
    ("await-version", {"type": events.NODE_RELEASED}),
    ("await-version", {"type": events.REFERENCE_UPDATED, "kind": "Node"}),
    ("restore-pools", {"type": events.RUN_COMPLETED}),
    ("restore-pools", {"type": events.RUN_ENDED}),
    ("resync-runs", {"survey": "true"}),
    ("resync-runs", {"type": events.REFERENCE_UPDATED, "kind": "MachineConfigPool"}),
    ("resync-runs", {"type": events.REFERENCE_UPDATED, "kind": "ClusterVersion"}),
    ("migrate", {"type": events.REFERENCE_UPDATED, "kind": "VirtualMachineInstance"}),
    ("migrate", {"type": events.REFERENCE_UPDATED, "kind": "VirtualMachineInstanceMigration"}),
    ("migrate", {"type": events.REFERENCE_DELETED, "kind": "VirtualMachineInstanceMigration"}),
    ("protect", {"type": events.REFERENCE_ADDED, "kind": "VirtualMachineInstance"}),
    ("protect", {"type": events.REFERENCE_UPDATED, "kind": "VirtualMachineInstance"}),
    *(("protect", {"type": kind, "kind": "VirtualMachineInstanceMigration"}) for kind in REFERENCES),
    *(("label-cpu", {"type": kind, "kind": "ConfigMap"}) for kind in REFERENCES),
    *(("label-cpu", {"type": kind, "kind": "HyperConverged"}) for kind in REFERENCES),
    ("label-cpu", {"type": events.LABELS_DUE}),
)
"""Function and the attributes in its Trigger's filter, in the order of a maintenance, and of a run."""


def function_of(trigger: str) -> str:
    """The function that a Trigger of ours calls, by the Trigger's name: `evict-on-more` calls `evict`."""
    return trigger.partition("-on-")[0]


def subscribers(event: BaseCloudEvent) -> tuple[str, ...]:
    """The functions that an event is delivered to."""
    attributes = {name: str(value) for name, value in event.get_attributes().items()}
    return tuple(name for name, wanted in SUBSCRIPTIONS if wanted.items() <= attributes.items())
