"""Edit the pools' selectors: targets select the labelled nodes, the canary the others (step 5, MUT-36, 37).

The step edits the targets first and the canary last, when all labels are set; until then no node can be released. A
target pool that cannot be written delays only the canary.

In: `nodes.labelled`. Out: `pools.edited`.
Touches: mutexrunconfigs get, list; mutexrunconfigs/status patch; mutexrules get; machineconfigpools get, patch.
"""

from __future__ import annotations

from cloudevents.core.base import BaseCloudEvent

from eventing import events
from functions.mutex.active_run import read_redoing
from functions.mutex.pool_patching import change_pools, recorded
from functions.mutex.event_objects import Replies, telling
from kube.client.sync_client import Cluster
from kube.mutex.claims import selectors
from kube.mutex.objects import Verdict
from kube.mutex.pools import name_of, selector_patch
from kube.mutex.run_record import Stage
from kube.mutex.validation import named

CONSUMES = (events.NODES_LABELLED,)
EMITS = (events.POOLS_EDITED,)
UPDATED = "MCPUpdated"


@telling(UPDATED, "UpdateFailed")
def edit_pools(event: BaseCloudEvent, cluster: Cluster) -> Replies:
    """Write each selector that differs from the run's.

    The step also does this after another client applied a pool's original manifest, even if the run is halted.
    """
    found = read_redoing(event, cluster, "editedAt")
    if found is None or not found.record.get("labelledAt") or found.stage is Stage.DONE:
        return []  # a late event: the run is done, and its pools are being restored
    wanted, canary = selectors(found.record), found.record["canary"]["name"]
    changed = change_pools(
        found, wanted, lambda pool: selector_patch(pool, wanted[name_of(pool)]), event, cluster, last=canary
    )
    said = f"deleted since: {named(changed.gone)}" if changed.gone else ""
    found = recorded(found, "edited", changed, Verdict(UPDATED, True, "UpdateSucceeded", said), cluster)
    return found.answer_going_on(events.POOLS_EDITED, "edit-pools", event)
