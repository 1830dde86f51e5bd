"""Builds the writes that create and renew certificates."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime

from kube.certificates import certificate_objects
from kube.certificates.components import COMPONENT_LABEL, round_up_to_second
from kube.certificates.state import ComponentState, build_bundle, list_publishable_fingerprints
from kube.paths import Object
from kube.times import format_time


@dataclass(frozen=True)
class Write:
    """A request that creates an object, or a merge patch with the resourceVersion of the object that was read.

    Attributes:
        reason: What the write does, in one word for metrics and Events.
        target: Kind and name of the object.
    """

    reason: str
    target: tuple[str, str]
    path: str
    body: Object
    is_create: bool = False

    def __repr__(self) -> str:
        """Return a representation without the body: a Secret's body contains keys."""
        return f"Write({self.reason} {self.target[0]} {self.target[1]})"


CA_CREATED, BUNDLE_INJECTED, BUNDLE_PUBLISHED, CA_ACTIVATED, CERTIFICATE_ISSUED, STATUS_UPDATED = (
    "Made",
    "Shared",
    "Published",
    "Taken",
    "Issued",
    "Noted",
)
"""Reasons of writes.

- `CA_CREATED`: A new CA is stored, which will replace the signing CA.
- `BUNDLE_INJECTED`: The bundle is written to Secrets and CA injection targets.
- `BUNDLE_PUBLISHED`: The bundle is written to the ConfigMap.
- `CA_ACTIVATED`: The next CA starts to sign.
- `CERTIFICATE_ISSUED`: A server's certificate is issued.
- `STATUS_UPDATED`: The data about the Secrets is updated.
"""


def build_secret_patch(reason: str, state: ComponentState, secret: Object, change: Object) -> Write:
    """Build the write that changes an existing Secret."""
    name = certificate_objects.get_name(secret)
    metadata = {**change.get("metadata", {}), **build_version_precondition(secret)}
    path = certificate_objects.build_secrets_path(state.namespace, name)
    return Write(reason, ("Secret", name), path, {**change, "metadata": metadata})


def build_secret_creation(reason: str, state: ComponentState, name: str, content: Object) -> Write:
    """Build the write that creates a Secret."""
    labels = {"labels": {COMPONENT_LABEL: state.component.name}}
    metadata = {**content.get("metadata", {}), "name": name, "namespace": state.namespace, **labels}
    path = certificate_objects.build_secrets_path(state.namespace)
    return Write(reason, ("Secret", name), path, {**content, "metadata": metadata}, is_create=True)


def build_configmap_write(reason: str, state: ComponentState, now: datetime) -> Write:
    """Build the write of the ConfigMap, with the time since which each certificate counts as published."""
    since = certificate_objects.parse_published_times(state.bundle_configmap, now)
    times = {
        fingerprint: format_time(since.get(fingerprint, round_up_to_second(now)))
        for fingerprint in list_publishable_fingerprints(state, now)
    }
    annotations = {certificate_objects.PUBLISHED_ANNOTATION: json.dumps(times, sort_keys=True)}
    name, data = state.component.bundle_configmap_name, build_configmap_data(state, now)
    metadata = {"name": name, "namespace": state.namespace, "labels": {COMPONENT_LABEL: state.component.name}}
    if state.bundle_configmap is None:
        body = {"metadata": {**metadata, "annotations": annotations}, "data": data}
        return Write(
            reason,
            ("ConfigMap", name),
            certificate_objects.build_configmaps_path(state.namespace),
            body,
            is_create=True,
        )
    body = {
        "metadata": {"annotations": annotations, **build_version_precondition(state.bundle_configmap)},
        "data": data,
    }
    return Write(reason, ("ConfigMap", name), certificate_objects.build_configmaps_path(state.namespace, name), body)


def build_configmap_data(state: ComponentState, now: datetime) -> dict[str, str]:
    """Build the desired `data` of the ConfigMap."""
    existing = [certificate_objects.build_summary(secret, state.summaries, state.component) for secret in state.secrets]
    return certificate_objects.build_configmap_data(build_bundle(state, now), [*existing, *state.missing_servers])


def build_version_precondition(obj: Object) -> Object:
    """Return the precondition that makes a patch fail if another client changed the object."""
    return {"resourceVersion": obj["metadata"]["resourceVersion"]}
