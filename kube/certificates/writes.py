"""The writes that advance certificates: their reasons and their bodies."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime

from kube.certificates import certificate_objects
from kube.certificates.components import LABEL, rounded_up
from kube.certificates.state import State, bundle, counted
from kube.paths import Object
from kube.times import timestamp


@dataclass(frozen=True)
class Write:
    """One write: a new object, or a merge patch with the resourceVersion that it is based on.

    Attributes:
        reason: What the write does, in one word for metrics and Events.
        of: Kind and name of the object.
    """

    reason: str
    of: tuple[str, str]
    path: str
    body: Object
    creates: bool = False

    def __repr__(self) -> str:
        """Return a representation without the body: a Secret's body contains keys."""
        return f"Write({self.reason} {self.of[0]} {self.of[1]})"


MADE, SHARED, PUBLISHED, TAKEN, ISSUED, NOTED = "Made", "Shared", "Published", "Taken", "Issued", "Noted"
"""Reasons of writes.

- `MADE`: A new CA is stored as the next one.
- `SHARED`: The bundle is written to Secrets and CA injection targets.
- `PUBLISHED`: The bundle is written to the ConfigMap.
- `TAKEN`: The next CA starts to sign.
- `ISSUED`: A server's certificate is issued.
- `NOTED`: The data about the Secrets is updated.
"""


def patch(reason: str, state: State, secret: Object, change: Object) -> Write:
    """Build the write that changes an existing Secret."""
    name = certificate_objects.name_of(secret)
    metadata = {**change.get("metadata", {}), **version(secret)}
    path = certificate_objects.secrets_path(state.namespace, name)
    return Write(reason, ("Secret", name), path, {**change, "metadata": metadata})


def creation(reason: str, state: State, name: str, content: Object) -> Write:
    """Build the write that creates a Secret."""
    labels = {"labels": {LABEL: state.component.name}}
    metadata = {**content.get("metadata", {}), "name": name, "namespace": state.namespace, **labels}
    path = certificate_objects.secrets_path(state.namespace)
    return Write(reason, ("Secret", name), path, {**content, "metadata": metadata}, creates=True)


def publication(reason: str, state: State, now: datetime) -> Write:
    """Build the write of the ConfigMap, with the time since when each certificate counts as published."""
    since = certificate_objects.published(state.publication, now)
    moments = {mark: timestamp(since.get(mark, rounded_up(now))) for mark in counted(state, now)}
    annotations = {certificate_objects.PUBLISHED: json.dumps(moments, sort_keys=True)}
    name, data = state.component.publication, publication_data(state, now)
    metadata = {"name": name, "namespace": state.namespace, "labels": {LABEL: state.component.name}}
    if state.publication is None:
        body = {"metadata": {**metadata, "annotations": annotations}, "data": data}
        return Write(reason, ("ConfigMap", name), certificate_objects.publications_path(state.namespace), body, creates=True)
    body = {"metadata": {"annotations": annotations, **version(state.publication)}, "data": data}
    return Write(reason, ("ConfigMap", name), certificate_objects.publications_path(state.namespace, name), body)


def publication_data(state: State, now: datetime) -> dict[str, str]:
    """Build the desired `data` of the ConfigMap."""
    there = [certificate_objects.held(secret, state.known, state.component) for secret in state.secrets]
    return certificate_objects.publication_data(bundle(state, now), [*there, *state.gone])


def version(item: Object) -> Object:
    """Return the precondition that makes a patch fail if another client has changed the object."""
    return {"resourceVersion": item["metadata"]["resourceVersion"]}
