"""Validate: reject a NodeMaintenance that cannot or must not begin, and warn about its drain's effects (NMO-18 to 23).

A rejection depends on objects that were read for it, never on watched objects alone. A warning whose objects cannot be
read is left out.

In: an AdmissionReview of a NodeMaintenance to be created. Out: an AdmissionReview.
Touches: nodemaintenances get, list, watch; nodes get, list; pods list; poddisruptionbudgets get, list, watch.
"""

from __future__ import annotations

import asyncio
import logging
from datetime import datetime, timezone

from functions.admission.watch_cache import Watched
from kube.admission import refusals
from kube.admission.reviews import Question, answer
from kube.admission.warnings import sole_control_plane, warnings
from kube.client.api import Api, absent_ok
from kube.client.api_errors import ApiError
from kube.client.concurrent_requests import together
from kube.maintenance import objects as m
from kube.maintenance import quorum
from kube.maintenance.lookup import control_plane
from kube.nodes import node_path
from kube.paths import Object, pods_on, segment

SECONDS_FOR_PODS = 1.5
"""Time limit for reading pods: a user should not wait longer for warnings, and a rejection needs no pods."""
log = logging.getLogger("functions")


async def validate(question: Question, watched: Watched, api: Api) -> Object:
    """Return the review with the response, which is the same for a dry run: nothing is written (`sideEffects: None`).

    Raises `ApiError` if the objects that a rejection depends on cannot be read.
    """
    if not question.creates:
        return answer(question)
    wanted = question.object
    name = m.node_name(wanted)
    node, pods = await together(absent_ok(api.get(node_path(name))), _pods(name, watched, api))
    if node is None:
        return answer(question, refusals.unknown_node(name))
    other = await _in_the_way(wanted, watched, api)
    if other is not None:
        return answer(question, refusals.second_maintenance(name, other))
    plane = await control_plane(api, "", quorum.counts) if quorum.is_control_plane(node) else None
    if plane and (refused := quorum.refusal(node, plane)):
        return answer(question, refused)
    namespaces = {pod["metadata"]["namespace"] for pod in pods}
    found = warnings(wanted, pods, watched.budgets_in(namespaces), datetime.now(timezone.utc))
    if plane and quorum.is_sole(plane):
        found = [sole_control_plane(name), *found]
    return answer(question, warnings=found)


async def _pods(node: str, watched: Watched, api: Api) -> list[Object]:
    """Return the node's pods from the API server's cache; if they cannot be read, log that and return none."""
    try:
        return await asyncio.wait_for(_listed(node, watched, api), SECONDS_FOR_PODS)
    except ApiError as error:
        reason = error.message
    except asyncio.TimeoutError:
        reason = "no time was left to read them"
    log.warning("no warnings about the pods of node %s: %s", node, reason)
    return []


async def _listed(node: str, watched: Watched, api: Api) -> list[Object]:
    """List the node's pods, with one request for all concurrent reviews of the same node.

    Of many such reviews, each costs only its own evaluation.
    """

    async def read() -> list[Object]:
        path, fields = pods_on(node)
        async with watched.reading:
            items: list[Object] = (await api.list(path, fields=fields, version="0"))["items"]
        return items

    return await watched.shared(node, read)


async def _in_the_way(wanted: Object, watched: Watched, api: Api) -> m.Maintenance | None:
    """Return the other maintenance of the node that prevents this one, or None.

    Watched objects may be outdated, so they are read again before a rejection.
    """
    known = watched.of_node(m.node_name(wanted))
    if refusals.in_the_way(wanted, known) is None:
        return None
    paths = [f"{m.group(item).path}/{segment(item['metadata']['name'])}" for item in known]
    fresh = await together(*(absent_ok(api.get(path)) for path in paths))
    node = m.node_name(wanted)
    return refusals.in_the_way(wanted, (item for item in fresh if item is not None and m.node_name(item) == node))
