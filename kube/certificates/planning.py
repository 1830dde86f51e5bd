"""What comes next for the certificates of one component: one write, decided anew after each. Pure.

Every write leaves a state from which the next look goes on, whoever crashed meanwhile; docs/certificates.md draws them:

1. a new authority is kept as the next one: nobody is shown anything of it;
2. it is published beside all that were trusted: in the servers' Secrets, in what the API server reads, then for all;
3. a pause after that it signs, at once where no server works by another one;
4. every server gets a certificate of it. An authority leaves the bundle when it expires, and not before.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from kube.certificates import holders, issuing
from kube.certificates.components import LABEL, Component, renewal, rounded_up
from kube.certificates.holders import CERTIFICATE, KEY, NEXT_CERTIFICATE, NEXT_KEY, TRUSTED
from kube.certificates.injection import carrier_path, carries, injected
from kube.certificates.issuing import Pair
from kube.certificates.state import State, bundle, without
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


def next_write(state: State, now: datetime, pause: timedelta) -> Write | None:
    """The write that brings the component forward; None when there is nothing to do, or only to wait.

    `pause` is how long what clients trust is published before a server shows a certificate of it.
    """
    return (
        _made(state, now)
        or _shared(state, now)
        or _published(state, now)
        or _taken(state, now, pause)
        or _issued(state, now)
        or _noted(state, now)
    )


def after(state: State, write: Write, answer: Object) -> State:
    """The state with the object that the API server has answered to a write."""
    kind, name = write.of
    if kind == "ConfigMap":
        return replace(state, publication=answer)
    if kind != "Secret":
        return replace(state, carriers=(*without(state, write.of).carriers, {**answer, "kind": kind}))
    if name == state.component.authority:
        return replace(state, authority=answer)
    others = [server for server in state.servers if holders.name_of(server) != name]
    servers = tuple(sorted((*others, answer), key=holders.name_of))
    return replace(state, servers=servers, gone=tuple(held for held in state.gone if held.secret != name))


def _made(state: State, now: datetime) -> Write | None:
    """A new authority, kept as the next one, where there is none, it is due, or somebody asks for it."""
    newest, authority = state.upcoming or state.current, state.authority
    if newest and not (authority and holders.is_asked_for(authority)) and not _is_due(newest, state.component, now):
        return None
    made = issuing.new_authority(state.component, now)
    trusted = made.certificate + "".join(bundle(state, now))
    entries = holders.encoded({NEXT_CERTIFICATE: made.certificate, NEXT_KEY: made.key, TRUSTED: trusted})
    name = state.component.authority
    if authority:
        return _patch(MADE, state, authority, {"data": entries, "metadata": {"annotations": {holders.RENEW: None}}})
    return _create(MADE, state, name, {"type": "Opaque", "data": entries})


def _shared(state: State, now: datetime) -> Write | None:
    """The bundle into what has another one: servers' Secrets, and what the API server reads. Before it is published:
    from then on the pause counts, for all of them."""
    text = "".join(bundle(state, now))
    readable = (server for server in state.servers if holders.current(server))
    for secret in (*([state.authority] if state.authority else []), *readable):
        if holders.text(secret, TRUSTED) != text:
            return _patch(SHARED, state, secret, {"data": holders.encoded({TRUSTED: text})})
    for carrier in state.carriers:
        if not carries(carrier, text):
            of = carrier["kind"], holders.name_of(carrier)
            return Write(SHARED, of, carrier_path(carrier), injected(carrier, text))
    return None


def _published(state: State, now: datetime) -> Write | None:
    """The bundle in the ConfigMap, with the moment for each that was not there before."""
    wanted, since = bundle(state, now), holders.published(state.publication)
    marks = {issuing.fingerprint(each) for each in wanted}
    if holders.bundle_of(state.publication) == wanted and marks == since.keys():
        return None
    return _publication(PUBLISHED, state, now)


def _taken(state: State, now: datetime, pause: timedelta) -> Write | None:
    """The next authority signs from now on: every client has had its time to read of it, or there is none."""
    upcoming, authority = state.upcoming, state.authority
    if not upcoming or not authority:
        return None
    since = holders.published(state.publication).get(issuing.fingerprint(upcoming.certificate), now)
    if now - since < pause and _works_by_another(state, upcoming, now):
        return None
    pair = holders.encoded({CERTIFICATE: upcoming.certificate, KEY: upcoming.key})
    return _patch(TAKEN, state, authority, {"data": {**pair, NEXT_CERTIFICATE: None, NEXT_KEY: None}})


def _works_by_another(state: State, authority: Pair, now: datetime) -> bool:
    """Whether a server shows a certificate that clients of another authority take."""
    shown = (holders.current(server) for server in state.servers)
    working = (pair.certificate for pair in shown if pair and issuing.is_valid(pair.certificate, now))
    return any(not issuing.is_signed_by(certificate, authority.certificate) for certificate in working)


def _issued(state: State, now: datetime) -> Write | None:
    """A certificate for the first server that needs one; for one that is missing whichever authority there is."""
    signer = state.current or state.upcoming
    if not signer:
        return None
    text = "".join(bundle(state, now))
    for server in state.servers:
        names = holders.names_of(server, state.known)
        if names and _needs(server, names, state, now):
            entries = _entries(signer, names, state, now, text)
            return _patch(ISSUED, state, server, {"data": entries, "metadata": {"annotations": {holders.RENEW: None}}})
    for gone in state.gone:
        if gone.names:
            entries = _entries(signer, gone.names, state, now, text)
            metadata = {"annotations": {holders.NAMES: ",".join(gone.names)}}
            return _create(ISSUED, state, gone.secret, {"type": gone.kind, "data": entries, "metadata": metadata})
    return None


def _entries(signer: Pair, names: Iterable[str], state: State, now: datetime, bundle: str) -> dict[str, str]:
    made = issuing.new_serving(signer, names, state.component, now)
    return holders.encoded({CERTIFICATE: made.certificate, KEY: made.key, TRUSTED: bundle})


def _needs(server: Object, names: Iterable[str], state: State, now: datetime) -> bool:
    """Whether a server needs another certificate now. One that is merely due waits for an authority that is to come."""
    shown = holders.current(server)
    if not shown or not issuing.is_valid(shown.certificate, now) or holders.is_asked_for(server):
        return True
    if state.current is None:
        return False  # what it shows is trusted; the next authority is published, and will sign
    if not issuing.is_signed_by(shown.certificate, state.current.certificate):
        return True
    if set(names) != set(issuing.names(shown.certificate)):
        return True
    return state.upcoming is None and _is_due(shown, state.component, now)


def _noted(state: State, now: datetime) -> Write | None:
    """What is known of the Secrets, where the ConfigMap says something else."""
    there = (state.publication or {}).get("data") or {}
    return None if _data(state, now).items() <= there.items() else _publication(NOTED, state, now)


def _publication(reason: str, state: State, now: datetime) -> Write:
    since = holders.published(state.publication)
    marks = (issuing.fingerprint(each) for each in bundle(state, now))
    moments = {mark: timestamp(since.get(mark, rounded_up(now))) for mark in marks}
    annotations = {holders.PUBLISHED: json.dumps(moments, sort_keys=True)}
    name, data = state.component.publication, _data(state, now)
    metadata = {"name": name, "namespace": state.namespace, "labels": {LABEL: state.component.name}}
    if state.publication is None:
        body = {"metadata": {**metadata, "annotations": annotations}, "data": data}
        return Write(reason, ("ConfigMap", name), holders.publications_path(state.namespace), body, creates=True)
    body = {"metadata": {"annotations": annotations, **_version(state.publication)}, "data": data}
    return Write(reason, ("ConfigMap", name), holders.publications_path(state.namespace, name), body)


def _data(state: State, now: datetime) -> dict[str, str]:
    there = [holders.held(secret, state.known, state.component) for secret in state.secrets]
    return holders.publication_data(bundle(state, now), [*there, *state.gone])


def _is_due(pair: Pair, component: Component, now: datetime) -> bool:
    """Whether a pair is to be replaced: it is a period old, or not valid at all."""
    read = pair.parsed
    due = renewal(read.not_valid_before_utc, read.not_valid_after_utc, component)
    return now >= due or not issuing.is_valid(pair.certificate, now)


def _patch(reason: str, state: State, secret: Object, change: Object) -> Write:
    name = holders.name_of(secret)
    metadata = {**change.get("metadata", {}), **_version(secret)}
    return Write(
        reason, ("Secret", name), holders.secrets_path(state.namespace, name), {**change, "metadata": metadata}
    )


def _create(reason: str, state: State, name: str, content: Object) -> Write:
    labels = {"labels": {LABEL: state.component.name}}
    metadata = {**content.get("metadata", {}), "name": name, "namespace": state.namespace, **labels}
    path = holders.secrets_path(state.namespace)
    return Write(reason, ("Secret", name), path, {**content, "metadata": metadata}, creates=True)


def _version(item: Object) -> Object:
    return {"resourceVersion": item["metadata"]["resourceVersion"]}
