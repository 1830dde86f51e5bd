"""What comes next for the certificates of one component: one write, decided anew after each. Pure.

Every write leaves a state from which the next look goes on, whoever crashed meanwhile; docs/certificates.md draws them:

1. a new authority is kept as the next one: nobody is shown anything of it;
2. it is published beside all that were trusted: in the servers' Secrets, in what the API server reads, then for all;
3. a pause after that it signs, at once where no server works by another one;
4. every server gets a certificate of it. An authority leaves the bundle when it expires, and not before.

What the API server refuses is left out, and what can be done without it goes on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta

from kube.certificates import holders, issuing
from kube.certificates.components import Component, renewal, rounded_up
from kube.certificates.holders import CERTIFICATE, KEY, NEXT_CERTIFICATE, NEXT_KEY, TRUSTED
from kube.certificates.injection import carrier_path, carries, injected
from kube.certificates.issuing import Pair
from kube.certificates.state import State, bundle, counted, is_crowded, is_held_back, kind_and_name
from kube.certificates.writes import (
    ISSUED,
    MADE,
    NOTED,
    PUBLISHED,
    SHARED,
    TAKEN,
    Write,
    creation,
    patch,
    publication,
    publication_data,
)
from kube.paths import Object
from kube.times import timestamp


def next_write(state: State, now: datetime, pause: timedelta) -> Write | None:
    """The write that brings the component forward; None when there is nothing to do, or only to wait.

    `pause` is how long what clients trust is published before a server shows a certificate of it.
    """
    return (
        _made(state, now)
        or next(_shared(state, now), None)
        or _published(state, now)
        or _taken(state, now, pause)
        or next(_issued(state, now, pause), None)
        or _noted(state, now)
    )


def after(state: State, write: Write, answer: Object) -> State:
    """The state with the object that the API server has answered to a write."""
    kind, name = write.of
    if kind == "ConfigMap":
        return replace(state, publication=answer)
    if kind != "Secret":
        others = (carrier for carrier in state.carriers if kind_and_name(carrier) != write.of)
        return replace(state, carriers=(*others, {**answer, "kind": kind}))
    if name == state.component.authority:
        return replace(state, authority=answer)
    servers = [server for server in state.servers if holders.name_of(server) != name]
    gone = tuple(held for held in state.gone if held.secret != name)
    return replace(state, servers=tuple(sorted((*servers, answer), key=holders.name_of)), gone=gone)


def _made(state: State, now: datetime) -> Write | None:
    """A new authority, kept as the next one, where there is none, it is due, or somebody asks for it."""
    newest, authority, name = state.upcoming or state.current, state.authority, state.component.authority
    if not (state.servers or state.gone) or ("Secret", name) in state.refused:
        return None
    is_asked = authority and holders.is_asked_for(authority) and not is_crowded(state, now)
    if newest and not is_asked and not _is_due(newest, state.component, now):
        return None
    made = issuing.new_authority(state.component, now)
    trusted = made.certificate + "".join(bundle(state, now))
    entries = holders.encoded({NEXT_CERTIFICATE: made.certificate, NEXT_KEY: made.key, TRUSTED: trusted})
    if authority:
        return patch(MADE, state, authority, {"data": entries, "metadata": {"annotations": {holders.RENEW: None}}})
    return creation(MADE, state, name, {"type": "Opaque", "data": entries})


def _shared(state: State, now: datetime) -> Iterator[Write]:
    """The bundle into what has another one: servers' Secrets, and what the API server reads. Before it is published:
    from then on the pause counts, for all of them."""
    text = "".join(bundle(state, now))
    readable = (server for server in state.servers if holders.current(server))
    for secret in (*([state.authority] if state.authority else []), *readable):
        if kind_and_name(secret) not in state.refused and holders.text(secret, TRUSTED) != text:
            yield patch(
                SHARED, state, secret, {"data": holders.encoded({TRUSTED: text}), **_moment(secret, state, now)}
            )
    for carrier in state.carriers:
        if kind_and_name(carrier) not in state.refused and not carries(carrier, text):
            yield Write(SHARED, kind_and_name(carrier), carrier_path(carrier), injected(carrier, text))


def _moment(secret: Object, state: State, now: datetime) -> Object:
    """Since when whoever reads a Secret knows the authority that signs, where that is since now."""
    known = issuing.certificates(holders.text(secret, TRUSTED))
    if state.current is None or issuing.certificates(state.current.certificate)[0] in known:
        return {}
    return {"metadata": {"annotations": {holders.TOLD: timestamp(rounded_up(now))}}}


def _published(state: State, now: datetime) -> Write | None:
    """The bundle in the ConfigMap, with the moment for each that was not there before."""
    if ("ConfigMap", state.component.publication) in state.refused:
        return None
    since = holders.published(state.publication, now)
    if holders.bundle_of(state.publication) == bundle(state, now) and set(counted(state, now)) == since.keys():
        return None
    return publication(PUBLISHED, state, now)


def _taken(state: State, now: datetime, pause: timedelta) -> Write | None:
    """The next authority signs from now on: clients have had their time to read of it, and none is left behind; or
    nothing works by another."""
    upcoming, authority = state.upcoming, state.authority
    if not upcoming or not authority or kind_and_name(authority) in state.refused:
        return None
    is_early = now - (_since(state, upcoming, now) or now) < pause or is_held_back(state, now)
    if is_early and (state.signs(now) or _works_by_another(state, upcoming, now)):
        return None
    pair = holders.encoded({CERTIFICATE: upcoming.certificate, KEY: upcoming.key})
    return patch(TAKEN, state, authority, {"data": {**pair, NEXT_CERTIFICATE: None, NEXT_KEY: None}})


def _since(state: State, authority: Pair, now: datetime) -> datetime | None:
    """Since when an authority counts as published; None while it does not."""
    return holders.published(state.publication, now).get(issuing.fingerprint(authority.certificate))


def _works_by_another(state: State, authority: Pair, now: datetime) -> bool:
    """Whether a server shows a certificate that clients of another authority take."""
    shown = (holders.current(server) for server in state.servers)
    working = (pair.certificate for pair in shown if pair and issuing.is_valid(pair.certificate, now))
    return any(not issuing.is_signed_by(certificate, authority.certificate) for certificate in working)


def _issued(state: State, now: datetime, pause: timedelta) -> Iterator[Write]:
    """A certificate for each server that needs one; for one that is missing whichever authority there is."""
    signer = state.current if state.signs(now) else state.upcoming
    if not signer or not issuing.is_valid(signer.certificate, now):
        return
    text = "".join(bundle(state, now))
    for server in state.servers:
        names = holders.names_of(server, state.known)
        if names and kind_and_name(server) not in state.refused and _needs(server, names, state, now, pause):
            entries = _entries(signer, names, state, now, text)
            annotations = {holders.RENEW: None, holders.TOLD: None}
            yield patch(ISSUED, state, server, {"data": entries, "metadata": {"annotations": annotations}})
    for gone in state.gone:
        if gone.names and ("Secret", gone.secret) not in state.refused:
            entries = _entries(signer, gone.names, state, now, text)
            metadata = {"annotations": {holders.NAMES: ",".join(gone.names)}}
            yield creation(ISSUED, state, gone.secret, {"type": gone.kind, "data": entries, "metadata": metadata})


def _entries(signer: Pair, names: Iterable[str], state: State, now: datetime, trusted: str) -> dict[str, str]:
    made = issuing.new_serving(signer, names, state.component, now)
    return holders.encoded({CERTIFICATE: made.certificate, KEY: made.key, TRUSTED: trusted})


def _needs(server: Object, names: Iterable[str], state: State, now: datetime, pause: timedelta) -> bool:
    """Whether a server needs another certificate now. One that works waits for an authority that is to come, unless
    that does not, and for its clients to have read of the one that is there."""
    shown = holders.current(server)
    if not shown or not issuing.is_valid(shown.certificate, now):
        return True
    if state.current is None or not state.signs(now):
        return False
    if not issuing.is_signed_by(shown.certificate, state.current.certificate):
        return _is_known(state.current, server, state, now, pause)
    if holders.is_asked_for(server) or set(names) != set(issuing.names(shown.certificate)):
        return True
    return _is_due(shown, state.component, now) and (
        state.upcoming is None
        or (_is_stuck(state, state.upcoming, now, pause) and _is_outlived(shown, state.current, state, now))
    )


def _is_stuck(state: State, upcoming: Pair, now: datetime, pause: timedelta) -> bool:
    """Whether the next authority is held back, and no pause of it is running either."""
    since = _since(state, upcoming, now)
    return is_held_back(state, now) and (since is None or now - since >= pause)


def _is_outlived(shown: Pair, signer: Pair, state: State, now: datetime) -> bool:
    """Whether a certificate that is issued now ends later. Of an authority that ends soon, none does: without this they
    would be issued faster and faster."""
    return issuing.serving_ends(signer, state.component, now) > shown.parsed.not_valid_after_utc


def _is_known(authority: Pair, server: Object, state: State, now: datetime, pause: timedelta) -> bool:
    """Whether clients have had their time to read of an authority: in the ConfigMap, and in the server's Secret."""
    published = _since(state, authority, now) or now
    return all(now - since >= pause for since in (published, holders.told(server, now)) if since)


def _noted(state: State, now: datetime) -> Write | None:
    """What is known of the Secrets, where the ConfigMap says something else."""
    there = (state.publication or {}).get("data") or {}
    is_refused = ("ConfigMap", state.component.publication) in state.refused
    return (
        None if is_refused or publication_data(state, now).items() <= there.items() else publication(NOTED, state, now)
    )


def _is_due(pair: Pair, component: Component, now: datetime) -> bool:
    """Whether a pair is to be replaced: it is a period old, or not valid at all."""
    read = pair.parsed
    due = renewal(read.not_valid_before_utc, read.not_valid_after_utc, component)
    return now >= due or not issuing.is_valid(pair.certificate, now)
