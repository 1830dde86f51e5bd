"""Reads a namespace's Secrets and ConfigMaps with the component label, and the cluster's CA injection targets."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from kube.certificates import objects
from kube.certificates.ca_injection import METADATA_ONLY_KINDS, TARGET_PATHS, build_target_path, parse_source_secret
from kube.certificates.component_state import ComponentState
from kube.certificates.components import COMPONENT_LABEL, COMPONENTS, Component
from kube.certificates.objects import (
    CERT_MANAGER_ANNOTATION,
    CERT_MANAGER_REASON,
    NOT_RENEWED_REASON,
    UNKNOWN_COMPONENT_REASON,
    CertificateSummary,
    build_certificate_event,
    get_name,
)
from kube.client.api import JSON, METADATA_ONLY, Api, gather_all, get_or_none
from kube.client.api_errors import Unavailable
from kube.client.paging import list_all, list_or_empty
from kube.kubernetes_events import KubernetesEvent
from kube.paths import Object

LIST_TIMEOUT_SECONDS, TICK_LIST_TIMEOUT_SECONDS = 0.6, 1.2
"""Timeouts for listing all CA injection targets, in seconds; a pass has 1.6 s in total.

After `LIST_TIMEOUT_SECONDS`, a pass continues without the lists, because repairs do not need them. On a tick of the
PingSource, the function waits up to `TICK_LIST_TIMEOUT_SECONDS` for the lists, and then makes another pass with them.
If the previous tick had no time left for that pass, the function waits for the lists before its first pass.
"""

MAX_SERVER_SECRETS = 50
"""Maximum number of a component's server Secrets; missing Secrets beyond this number are not recreated.

Without this limit, a client with write access to the ConfigMap could cause the creation of any number of Secrets.
"""


@dataclass(frozen=True)
class NamespaceSnapshot:
    """A namespace's certificates: the state of each component, and an Event for each Secret that is not renewed."""

    states: tuple[ComponentState, ...]
    skipped_events: tuple[KubernetesEvent, ...]


async def list_injection_targets(api: Api, namespaces: Collection[str]) -> list[Object]:
    """Return all CA injection targets that request the CA bundle of a Secret in one of these namespaces.

    An API server without API aggregation has no APIServices. Raises `Unavailable` if the lists take longer than
    `TICK_LIST_TIMEOUT_SECONDS`.
    """
    calls = gather_all(*(_list_targets_of_kind(api, kind, path, namespaces) for kind, path in TARGET_PATHS.items()))
    try:
        lists = await asyncio.wait_for(calls, TICK_LIST_TIMEOUT_SECONDS)
    except asyncio.TimeoutError:
        raise Unavailable(
            0, f"the API server did not return all CA injection targets within {TICK_LIST_TIMEOUT_SECONDS} s"
        ) from None
    return [item for items in lists for item in items]


async def _list_targets_of_kind(api: Api, kind: str, path: str, namespaces: Collection[str]) -> list[Object]:
    items = await list_or_empty(api, path, accept=METADATA_ONLY if kind in METADATA_ONLY_KINDS else JSON)
    targets = [{**item, "kind": kind} for item in items if parse_source_secret(item)[0] in namespaces]
    if kind not in METADATA_ONLY_KINDS:
        return targets
    complete_targets = await gather_all(*(get_or_none(api.get(build_target_path(item))) for item in targets))
    return [{**item, "kind": kind} for item in complete_targets if item]


async def reread_injection_targets(api: Api, targets: Iterable[Object]) -> list[Object]:
    """Read these CA injection targets again, and omit those that no longer exist.

    The function lists each object by its name, because that requires no `get` permission.
    """
    reads = (
        list_all(api, TARGET_PATHS[item["kind"]], field_selector=f"metadata.name={item['metadata']['name']}")
        for item in targets
    )
    return [item for result in await gather_all(*reads) for item in result.items]


async def read_snapshot(api: Api, namespace: str, targets: Collection[Object] | None) -> NamespaceSnapshot:
    """Read a namespace's certificates; `targets` are the cluster's CA injection targets, None if unknown."""
    lists = (objects.build_secrets_path(namespace), objects.build_configmaps_path(namespace))
    secrets, configmaps = await gather_all(*(list_all(api, path, label_selector=COMPONENT_LABEL) for path in lists))
    kubernetes_events = {
        get_name(secret): kubernetes_event
        for secret in secrets.items
        if (kubernetes_event := _build_not_renewed_event(secret))
    }
    own_secrets = [secret for secret in secrets.items if get_name(secret) not in kubernetes_events]
    component_names = {objects.get_component_name(item) for item in [*own_secrets, *configmaps.items]}
    states = [
        await _read_component_state(api, component, namespace, own_secrets, configmaps.items, targets)
        for component in COMPONENTS.values()
        if component.name in component_names
    ]
    return NamespaceSnapshot(tuple(states), tuple(kubernetes_events.values()))


async def _read_component_state(
    api: Api,
    component: Component,
    namespace: str,
    secrets: Iterable[Object],
    configmaps: Iterable[Object],
    targets: Collection[Object] | None,
) -> ComponentState:
    own_secrets, own_configmaps = (
        {get_name(item): item for item in items if objects.get_component_name(item) == component.name}
        for items in (secrets, configmaps)
    )
    ca_secret = own_secrets.pop(component.ca_secret_name, None)
    bundle_configmap = own_configmaps.get(component.bundle_configmap_name)
    existing_names = {*map(get_name, secrets), component.ca_secret_name}
    summaries = objects.parse_summaries(bundle_configmap).items()
    unlisted = [summary for name, summary in summaries if summary.names and name not in existing_names]
    max_missing = max(MAX_SERVER_SECRETS - len(own_secrets), 0)
    missing_servers = await _select_summaries_without_secret(api, namespace, unlisted[:max_missing])
    names = {(namespace, name) for name in (*own_secrets, *(summary.secret for summary in missing_servers))}
    return ComponentState(
        component,
        namespace,
        ca_secret,
        bundle_configmap,
        tuple(own_secrets.values()),
        missing_servers,
        tuple(target for target in targets or () if parse_source_secret(target) in names),
        are_targets_unknown=targets is None,
        is_truncated=len(unlisted) > max_missing,
    )


async def _select_summaries_without_secret(
    api: Api, namespace: str, summaries: list[CertificateSummary]
) -> tuple[CertificateSummary, ...]:
    """Return the summaries whose Secret does not exist.

    A Secret that lacks only the component label still exists: a user has excluded it from renewal.
    """
    paths = (objects.build_secrets_path(namespace, summary.secret) for summary in summaries)
    secrets = await gather_all(*(get_or_none(api.get(path)) for path in paths))
    return tuple(summary for summary, secret in zip(summaries, secrets, strict=True) if secret is None)


def _build_not_renewed_event(secret: Object) -> KubernetesEvent | None:
    name, component_name = get_name(secret), objects.get_component_name(secret)
    namespace, target = secret["metadata"]["namespace"], ("Secret", name)
    if component_name not in COMPONENTS:
        return build_certificate_event(
            namespace,
            target,
            UNKNOWN_COMPONENT_REASON,
            f"the Secret is not renewed: label {COMPONENT_LABEL} has the unknown value {component_name!r}; "
            f"set one of {', '.join(COMPONENTS)}",
        )
    owner = next((component.name for component in COMPONENTS.values() if component.ca_secret_name == name), None)
    if owner not in (None, component_name):
        return build_certificate_event(
            namespace,
            target,
            NOT_RENEWED_REASON,
            f"the Secret is not renewed: its name is reserved for the CA of component {owner}; use another name",
        )
    if objects.get_annotation(secret, CERT_MANAGER_ANNOTATION):
        return build_certificate_event(
            namespace,
            target,
            CERT_MANAGER_REASON,
            "the Secret is not renewed: cert-manager renews it already; "
            f"delete its Certificate or remove the label {COMPONENT_LABEL}",
        )
    return None
