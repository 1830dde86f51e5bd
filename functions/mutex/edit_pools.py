"""Edit the pools' selectors: targets select labelled nodes, the canary selects released nodes (step 5, MUT-36, 37).

The step runs when all nodes are labelled. It edits the target pools first and the canary pool last, so that the canary
selects no node too early. If a target pool cannot be written, the step still edits the other target pools, but not the
canary.

In: `nodes.labelled`. Out: `pools.edited`.
Touches: mutexrunconfigs get, list; mutexrunconfigs/status patch; mutexrules get; machineconfigpools get, patch.
"""

from __future__ import annotations

from cloudevents.core.base import BaseCloudEvent

from eventing import events
from functions.mutex.active_run import read_repairable_run
from functions.mutex.event_objects import Replies, log_failure, report_refusals
from functions.mutex.pool_patching import patch_pools, record_pool_changes
from functions.steps import step
from kube.client.sync_client import SyncClient
from kube.mutex.claims import build_run_selectors
from kube.mutex.objects import Condition
from kube.mutex.pools import build_selector_patch, get_name
from kube.mutex.run_record import Stage
from kube.mutex.validation import format_names

UPDATED_CONDITION = "MCPUpdated"


@step("edit-pools", consumes=(events.NODES_LABELLED,), emits=(events.POOLS_EDITED,), on_failure=log_failure)
@report_refusals(UPDATED_CONDITION, "UpdateFailed")
def edit_pools(event: BaseCloudEvent, client: SyncClient) -> Replies:
    """Write the selector that the run requires into each pool with a different selector.

    The step also repairs a selector after another client applied a pool's original manifest, even in a halted run.
    """
    active_run = read_repairable_run(event, client, "editedAt")
    if active_run is None or not active_run.record.get("labelledAt") or active_run.stage is Stage.NODES_DONE:
        return []  # After all nodes are done, the pools must not be edited again, because they are being restored.
    selectors, canary = build_run_selectors(active_run.record), active_run.record["canary"]["name"]
    changes = patch_pools(
        active_run,
        selectors,
        lambda pool: build_selector_patch(pool, selectors[get_name(pool)]),
        event,
        client,
        last_pool=canary,
    )
    message = f"deleted since the run began: {format_names(changes.missing)}" if changes.missing else ""
    active_run = record_pool_changes(
        active_run, "edited", changes, Condition(UPDATED_CONDITION, True, "UpdateSucceeded", message), client
    )
    return active_run.build_reply_unless_halted(events.POOLS_EDITED, "edit-pools", event)
