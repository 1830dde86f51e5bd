"""Validate: reject a NodeMaintenance that cannot or must not begin, and warn about its drain's effects (NMO-18 to 23).

The webhook reads the objects that a rejection depends on from the API server, because its watch cache may be outdated.
If the webhook cannot read the objects for a warning, it omits the warning.

In: an AdmissionReview of a NodeMaintenance to be created. Out: an AdmissionReview.
Touches: nodemaintenances get, list, watch; nodes get, list; pods list; poddisruptionbudgets get, list, watch.
"""

from __future__ import annotations

import asyncio
import logging
from datetime import datetime, timezone

from functions.admission.watch_cache import WatchCache
from kube.admission import verdicts
from kube.admission.reviews import AdmissionRequest, build_review_response
from kube.client.api import Api, gather_all, get_or_none
from kube.client.api_errors import ApiError
from kube.maintenance import objects as m
from kube.maintenance import quorum
from kube.maintenance.lookup import read_control_plane
from kube.nodes import build_node_path
from kube.paths import Object, encode_path_segment

POD_LIST_TIMEOUT_SECONDS = 1.5
"""Time limit for listing the node's pods, which only warnings need; without the list, the warnings are omitted."""
log = logging.getLogger("functions")


async def validate(review_request: AdmissionRequest, cache: WatchCache, api: Api) -> Object:
    """Return the AdmissionReview response. Raises `ApiError` if an object that a rejection depends on cannot be read.

    A dry-run request gets the same response, because the webhook writes nothing (`sideEffects: None`).
    """
    if not review_request.is_create:
        return build_review_response(review_request)
    maintenance = review_request.object
    if schedule_error := verdicts.find_schedule_error(maintenance):
        return build_review_response(review_request, schedule_error)
    name = m.get_node_name(maintenance)
    node, pods = await gather_all(get_or_none(api.get(build_node_path(name))), _list_pods_or_empty(name, cache))
    if node is None:
        return build_review_response(review_request, verdicts.build_unknown_node_message(name))
    other = await _find_conflict(maintenance, cache, api)
    if other is not None:
        return build_review_response(review_request, verdicts.build_conflict_message(name, other))
    control_plane = await read_control_plane(api, "", quorum.is_disruption) if quorum.is_control_plane(node) else None
    if control_plane and (blocker := quorum.find_disruption_blocker(node, control_plane)):
        return build_review_response(review_request, blocker)
    namespaces = {pod["metadata"]["namespace"] for pod in pods}
    warnings = verdicts.build_warnings(maintenance, pods, cache.list_budgets(namespaces), datetime.now(timezone.utc))
    if control_plane and quorum.has_single_control_plane_node(control_plane):
        warnings = [verdicts.build_sole_control_plane_warning(name), *warnings]
    return build_review_response(review_request, warnings=warnings)


async def _list_pods_or_empty(node: str, cache: WatchCache) -> list[Object]:
    """Return the node's pods from the API server's cache; if the list fails, log the reason and return no pods."""
    try:
        return await asyncio.wait_for(cache.list_pods(node), POD_LIST_TIMEOUT_SECONDS)
    except ApiError as error:
        reason = error.message
    except asyncio.TimeoutError:
        reason = "the request timed out"
    log.warning('cannot list the pods of node "%s" for warnings: %s', node, reason)
    return []


async def _find_conflict(maintenance: Object, cache: WatchCache, api: Api) -> m.Maintenance | None:
    """Return another maintenance of the same node that prevents `maintenance` from beginning, or None if there is none.

    The watch cache may be outdated, so the function confirms a cached conflict with the API server's current objects.
    """
    cached = cache.list_maintenances(m.get_node_name(maintenance))
    if verdicts.find_conflict(maintenance, cached) is None:
        return None
    paths = [f"{m.get_group(item).path}/{encode_path_segment(item['metadata']['name'])}" for item in cached]
    current = await gather_all(*(get_or_none(api.get(path)) for path in paths))
    node = m.get_node_name(maintenance)
    return verdicts.find_conflict(
        maintenance, (item for item in current if item is not None and m.get_node_name(item) == node)
    )
