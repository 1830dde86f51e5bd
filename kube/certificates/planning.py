"""Plans the next write for the certificates of one component; it plans again after each write.

Every write leaves a state from which the next pass can continue, even after a crash. docs/certificates.md shows the
states:

1. A new CA is stored as the next one, and no other object contains it.
2. It is published in addition to all trusted CAs: in the Secrets, in the CA injection targets, then in the ConfigMap.
3. After a waiting period it signs. It signs at once if the current CA cannot and no server relies on another CA.
4. Every server gets a certificate from it. A CA leaves the bundle when it expires, and not before.

An object that the API server refuses to write is left out, and everything that does not depend on it continues.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta

from kube.certificates import certificate_objects, key_pairs
from kube.certificates.components import Component, renewal, rounded_up
from kube.certificates.certificate_objects import CERTIFICATE, KEY, NEXT_CERTIFICATE, NEXT_KEY, TRUSTED
from kube.certificates.ca_injection import carrier_path, carries, injected
from kube.certificates.key_pairs import Pair
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
    """Return the write that advances the component, or None if there is nothing to do now.

    `pause` is how long a CA must be published before a server uses a certificate from it.
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
    """Return the state with the object that the API server returned for a write."""
    kind, name = write.of
    if kind == "ConfigMap":
        return replace(state, publication=answer)
    if kind != "Secret":
        others = (carrier for carrier in state.carriers if kind_and_name(carrier) != write.of)
        return replace(state, carriers=(*others, {**answer, "kind": kind}))
    if name == state.component.authority:
        return replace(state, authority=answer)
    servers = [server for server in state.servers if certificate_objects.name_of(server) != name]
    gone = tuple(held for held in state.gone if held.secret != name)
    return replace(state, servers=tuple(sorted((*servers, answer), key=certificate_objects.name_of)), gone=gone)


def _made(state: State, now: datetime) -> Write | None:
    """Return the write that stores a new CA as the next one, if a CA is missing, due, or requested by a user."""
    newest, authority, name = state.upcoming or state.current, state.authority, state.component.authority
    if not (state.servers or state.gone) or ("Secret", name) in state.refused:
        return None
    is_asked = authority and certificate_objects.is_asked_for(authority) and not is_crowded(state, now)
    if newest and not is_asked and not _is_due(newest, state.component, now):
        return None
    made = key_pairs.new_authority(state.component, now)
    trusted = made.certificate + "".join(bundle(state, now))
    entries = certificate_objects.encoded({NEXT_CERTIFICATE: made.certificate, NEXT_KEY: made.key, TRUSTED: trusted})
    if authority:
        return patch(MADE, state, authority, {"data": entries, "metadata": {"annotations": {certificate_objects.RENEW: None}}})
    return creation(MADE, state, name, {"type": "Opaque", "data": entries})


def _shared(state: State, now: datetime) -> Iterator[Write]:
    """Yield the writes of the bundle into Secrets and CA injection targets that contain another one.

    They precede the publication in the ConfigMap, because the waiting period of all clients starts with it.
    """
    text = "".join(bundle(state, now))
    readable = (server for server in state.servers if certificate_objects.current(server))
    for secret in (*([state.authority] if state.authority else []), *readable):
        if kind_and_name(secret) not in state.refused and certificate_objects.text(secret, TRUSTED) != text:
            yield patch(
                SHARED, state, secret, {"data": certificate_objects.encoded({TRUSTED: text}), **_moment(secret, state, now)}
            )
    for carrier in state.carriers:
        if kind_and_name(carrier) not in state.refused and not carries(carrier, text):
            yield Write(SHARED, kind_and_name(carrier), carrier_path(carrier), injected(carrier, text))


def _moment(secret: Object, state: State, now: datetime) -> Object:
    """Return the annotation for when the Secret's readers got the signing CA, or {} if they already had it."""
    known = key_pairs.certificates(certificate_objects.text(secret, TRUSTED))
    if state.current is None or key_pairs.certificates(state.current.certificate)[0] in known:
        return {}
    return {"metadata": {"annotations": {certificate_objects.TOLD: timestamp(rounded_up(now))}}}


def _published(state: State, now: datetime) -> Write | None:
    """Return the write of the bundle into the ConfigMap, with the publication time of each new certificate."""
    if ("ConfigMap", state.component.publication) in state.refused:
        return None
    since = certificate_objects.published(state.publication, now)
    if certificate_objects.bundle_of(state.publication) == bundle(state, now) and set(counted(state, now)) == since.keys():
        return None
    return publication(PUBLISHED, state, now)


def _taken(state: State, now: datetime, pause: timedelta) -> Write | None:
    """Return the write that makes the next CA the signing one.

    That is due after the waiting period, unless the next CA is held back. It is due at once if the current CA cannot
    sign and no server works with a certificate of another CA.
    """
    upcoming, authority = state.upcoming, state.authority
    if not upcoming or not authority or kind_and_name(authority) in state.refused:
        return None
    is_early = now - (_since(state, upcoming, now) or now) < pause or is_held_back(state, now)
    if is_early and (state.signs(now) or _works_by_another(state, upcoming, now)):
        return None
    pair = certificate_objects.encoded({CERTIFICATE: upcoming.certificate, KEY: upcoming.key})
    return patch(TAKEN, state, authority, {"data": {**pair, NEXT_CERTIFICATE: None, NEXT_KEY: None}})


def _since(state: State, authority: Pair, now: datetime) -> datetime | None:
    """Return since when a CA counts as published, or None if it does not."""
    return certificate_objects.published(state.publication, now).get(key_pairs.fingerprint(authority.certificate))


def _works_by_another(state: State, authority: Pair, now: datetime) -> bool:
    """Return whether a server uses a valid certificate that this CA has not signed."""
    shown = (certificate_objects.current(server) for server in state.servers)
    working = (pair.certificate for pair in shown if pair and key_pairs.is_valid(pair.certificate, now))
    return any(not key_pairs.is_signed_by(certificate, authority.certificate) for certificate in working)


def _issued(state: State, now: datetime, pause: timedelta) -> Iterator[Write]:
    """Yield the writes of a certificate for each server that needs one; missing Secrets are created again.

    If the current CA cannot sign, the next one does.
    """
    signer = state.current if state.signs(now) else state.upcoming
    if not signer or not key_pairs.is_valid(signer.certificate, now):
        return
    text = "".join(bundle(state, now))
    for server in state.servers:
        names = certificate_objects.names_of(server, state.known)
        if names and kind_and_name(server) not in state.refused and _needs(server, names, state, now, pause):
            entries = _entries(signer, names, state, now, text)
            annotations = {certificate_objects.RENEW: None, certificate_objects.TOLD: None}
            yield patch(ISSUED, state, server, {"data": entries, "metadata": {"annotations": annotations}})
    for gone in state.gone:
        if gone.names and ("Secret", gone.secret) not in state.refused:
            entries = _entries(signer, gone.names, state, now, text)
            metadata = {"annotations": {certificate_objects.NAMES: ",".join(gone.names)}}
            yield creation(ISSUED, state, gone.secret, {"type": gone.kind, "data": entries, "metadata": metadata})


def _entries(signer: Pair, names: Iterable[str], state: State, now: datetime, trusted: str) -> dict[str, str]:
    made = key_pairs.new_serving(signer, names, state.component, now)
    return certificate_objects.encoded({CERTIFICATE: made.certificate, KEY: made.key, TRUSTED: trusted})


def _needs(server: Object, names: Iterable[str], state: State, now: datetime, pause: timedelta) -> bool:
    """Return whether a server needs another certificate now.

    A missing or expired certificate is replaced at once. A certificate from another CA is replaced once clients have
    had the time to read the signing CA. A certificate that is due waits for the next CA, if there is one, unless that
    is held back.
    """
    shown = certificate_objects.current(server)
    if not shown or not key_pairs.is_valid(shown.certificate, now):
        return True
    if state.current is None or not state.signs(now):
        return False
    if not key_pairs.is_signed_by(shown.certificate, state.current.certificate):
        return _is_known(state.current, server, state, now, pause)
    if certificate_objects.is_asked_for(server) or set(names) != set(key_pairs.names(shown.certificate)):
        return True
    return _is_due(shown, state.component, now) and (
        state.upcoming is None
        or (_is_stuck(state, state.upcoming, now, pause) and _is_outlived(shown, state.current, state, now))
    )


def _is_stuck(state: State, upcoming: Pair, now: datetime, pause: timedelta) -> bool:
    """Return whether the next CA is held back, and its waiting period is not running."""
    since = _since(state, upcoming, now)
    return is_held_back(state, now) and (since is None or now - since >= pause)


def _is_outlived(shown: Pair, signer: Pair, state: State, now: datetime) -> bool:
    """Return whether a certificate issued now expires later than the existing one.

    A CA that expires soon cannot issue such a certificate. Without this check, it would issue certificates ever more
    often.
    """
    return key_pairs.serving_ends(signer, state.component, now) > shown.parsed.not_valid_after_utc


def _is_known(authority: Pair, server: Object, state: State, now: datetime, pause: timedelta) -> bool:
    """Return whether clients have had the time to read a CA, both in the ConfigMap and in the server's Secret."""
    published = _since(state, authority, now) or now
    return all(now - since >= pause for since in (published, certificate_objects.told(server, now)) if since)


def _noted(state: State, now: datetime) -> Write | None:
    """Return the write of the data about the Secrets, if the ConfigMap contains other data."""
    there = (state.publication or {}).get("data") or {}
    is_refused = ("ConfigMap", state.component.publication) in state.refused
    return (
        None if is_refused or publication_data(state, now).items() <= there.items() else publication(NOTED, state, now)
    )


def _is_due(pair: Pair, component: Component, now: datetime) -> bool:
    """Return whether a pair must be replaced: its renewal time has passed, or it is not valid now."""
    read = pair.parsed
    due = renewal(read.not_valid_before_utc, read.not_valid_after_utc, component)
    return now >= due or not key_pairs.is_valid(pair.certificate, now)
