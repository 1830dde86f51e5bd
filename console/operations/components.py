"""Checks the Triggers in a namespace to determine whether an optional component of the product is installed."""

from __future__ import annotations

from console.operations.replay_targets import FUNCTION_LABEL
from eventing.subscriptions import parse_function_name
from kube.client.api import Api, get_or_none
from kube.client.api_errors import Denied
from kube.paths import Object


async def may_component_be_installed(api: Api, namespace: str, function: str) -> bool:
    """Return whether the component of this function may be installed in the namespace.

    The function returns False only if Triggers exist in the namespace and none of them calls `function`. It returns
    True if the user may not list Triggers, or if there are none because events are delivered without Knative.
    """
    try:
        triggers = await get_or_none(api.list(f"/apis/eventing.knative.dev/v1/namespaces/{namespace}/triggers"))
    except Denied:
        return True
    functions = {_get_function_name(trigger) for trigger in (triggers or {}).get("items") or []}
    return function in functions or not functions


def _get_function_name(trigger: Object) -> str:
    metadata = trigger["metadata"]
    return str((metadata.get("labels") or {}).get(FUNCTION_LABEL) or parse_function_name(metadata["name"]))
