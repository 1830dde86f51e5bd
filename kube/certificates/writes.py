"""The writes that bring certificates forward: what each is called, and how its body is made. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime

from kube.certificates import holders
from kube.certificates.components import LABEL, rounded_up
from kube.certificates.state import State, bundle, counted
from kube.paths import Object
from kube.times import timestamp


@dataclass(frozen=True)
class Write:
    """One write: of a whole object where it is created, else a merge patch that names the version it rests on.

    Attributes:
        reason: what is done, in a word for metrics and Events.
        of: kind and name of the object.
    """

    reason: str
    of: tuple[str, str]
    path: str
    body: Object
    creates: bool = False

    def __repr__(self) -> str:
        """Without the body: a Secret's has keys."""
        return f"Write({self.reason} {self.of[0]} {self.of[1]})"


MADE, SHARED, PUBLISHED, TAKEN, ISSUED, NOTED = "Made", "Shared", "Published", "Taken", "Issued", "Noted"
"""Reasons: an authority is made; the bundle is put where servers and API server read it; it is published; the authority
signs from now on; a server's certificate is issued; what is known of the Secrets is noted."""


def patch(reason: str, state: State, secret: Object, change: Object) -> Write:
    """A change of a Secret that is there."""
    name = holders.name_of(secret)
    metadata = {**change.get("metadata", {}), **version(secret)}
    path = holders.secrets_path(state.namespace, name)
    return Write(reason, ("Secret", name), path, {**change, "metadata": metadata})


def creation(reason: str, state: State, name: str, content: Object) -> Write:
    """A Secret that is not there."""
    labels = {"labels": {LABEL: state.component.name}}
    metadata = {**content.get("metadata", {}), "name": name, "namespace": state.namespace, **labels}
    path = holders.secrets_path(state.namespace)
    return Write(reason, ("Secret", name), path, {**content, "metadata": metadata}, creates=True)


def publication(reason: str, state: State, now: datetime) -> Write:
    """The ConfigMap as it is to be, each certificate with the moment since when it counts as published."""
    since = holders.published(state.publication, now)
    moments = {mark: timestamp(since.get(mark, rounded_up(now))) for mark in counted(state, now)}
    annotations = {holders.PUBLISHED: json.dumps(moments, sort_keys=True)}
    name, data = state.component.publication, publication_data(state, now)
    metadata = {"name": name, "namespace": state.namespace, "labels": {LABEL: state.component.name}}
    if state.publication is None:
        body = {"metadata": {**metadata, "annotations": annotations}, "data": data}
        return Write(reason, ("ConfigMap", name), holders.publications_path(state.namespace), body, creates=True)
    body = {"metadata": {"annotations": annotations, **version(state.publication)}, "data": data}
    return Write(reason, ("ConfigMap", name), holders.publications_path(state.namespace, name), body)


def publication_data(state: State, now: datetime) -> dict[str, str]:
    """`data` of the ConfigMap as it is to be."""
    there = [holders.held(secret, state.known, state.component) for secret in state.secrets]
    return holders.publication_data(bundle(state, now), [*there, *state.gone])


def version(item: Object) -> Object:
    """What a patch names so that it fails once somebody else has written the object."""
    return {"resourceVersion": item["metadata"]["resourceVersion"]}
