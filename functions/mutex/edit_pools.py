"""Edit the pools' selectors: a node with the labels is the target's, one without is the canary's (step 5, MUT-36, 37).

The targets come first and the canary last, when all labels are there: until then nobody can be released. A target that
is refused keeps no other one waiting, but the canary.

In: `nodes.labelled`. Out: `pools.edited`.
Touches: mutexrunconfigs get, list; mutexrunconfigs/status patch; mutexrules get; machineconfigpools get, patch.
"""

from __future__ import annotations

from cloudevents.core.base import BaseCloudEvent

from eventing import events
from functions.mutex.ongoing import read_redoing
from functions.mutex.pool_writing import change_pools, recorded
from functions.mutex.subject import Replies, telling
from kube.door.sync_client import Cluster
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
    """Write each selector that is another; so it does again when somebody applied a pool's own file, halted or not."""
    found = read_redoing(event, cluster, "editedAt")
    if found is None or not found.record.get("labelledAt") or found.stage is Stage.DONE:
        return []  # of a run that is done it comes late: the pools are being given back
    wanted, canary = selectors(found.record), found.record["canary"]["name"]
    changed = change_pools(
        found, wanted, lambda pool: selector_patch(pool, wanted[name_of(pool)]), event, cluster, last=canary
    )
    said = f"deleted since: {named(changed.gone)}" if changed.gone else ""
    found = recorded(found, "edited", changed, Verdict(UPDATED, True, "UpdateSucceeded", said), cluster)
    return found.answer_going_on(events.POOLS_EDITED, "edit-pools", event)
