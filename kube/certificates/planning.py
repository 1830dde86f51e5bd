"""Plans the next write for the certificates of one component; callers plan again after each write.

Every write leaves a state from which the next pass can continue, even after a crash. docs/certificates.md shows the
states:

1. A new CA is stored as the next CA in the CA's Secret, and no other object contains it.
2. The new CA is published in addition to all trusted CAs: in Secrets and CA injection targets, then in the ConfigMap.
3. After a waiting period, the new CA signs. It signs immediately if the current CA cannot sign and no server relies on
   a different CA.
4. The new CA issues a certificate for every server. A CA leaves the bundle only when it expires.

An object that the API server refuses to write is skipped, and everything that does not depend on it continues.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta

from kube.certificates import certificate_objects, key_pairs
from kube.certificates.ca_injection import build_injection_patch, build_target_path, has_bundle
from kube.certificates.certificate_objects import (
    CA_ENTRY,
    CERTIFICATE_ENTRY,
    NEXT_CERTIFICATE_ENTRY,
    NEXT_PRIVATE_KEY_ENTRY,
    PRIVATE_KEY_ENTRY,
)
from kube.certificates.components import Component, compute_renewal_time, round_up_to_second
from kube.certificates.key_pairs import KeyPair
from kube.certificates.state import (
    ComponentState,
    build_bundle,
    get_kind_and_name,
    is_bundle_full,
    is_next_ca_blocked,
    list_publishable_fingerprints,
)
from kube.certificates.writes import (
    BUNDLE_INJECTED,
    BUNDLE_PUBLISHED,
    CA_ACTIVATED,
    CA_CREATED,
    CERTIFICATE_ISSUED,
    STATUS_UPDATED,
    Write,
    build_configmap_data,
    build_configmap_write,
    build_secret_creation,
    build_secret_patch,
)
from kube.paths import Object
from kube.times import format_time


def plan_next_write(state: ComponentState, now: datetime, propagation_delay: timedelta) -> Write | None:
    """Return the write that advances the component, or None if there is nothing to do now.

    `propagation_delay` is how long a CA must have been published before a server uses a certificate issued by it.
    """
    return (
        _plan_ca_creation(state, now)
        or next(_plan_injection(state, now), None)
        or _plan_publication(state, now)
        or _plan_ca_activation(state, now, propagation_delay)
        or next(_plan_issuance(state, now, propagation_delay), None)
        or _plan_status_update(state, now)
    )


def apply_response(state: ComponentState, write: Write, response: Object) -> ComponentState:
    """Return the state, updated with the object that the API server returned for a write."""
    kind, name = write.target
    if kind == "ConfigMap":
        return replace(state, bundle_configmap=response)
    if kind != "Secret":
        others = (target for target in state.injection_targets if get_kind_and_name(target) != write.target)
        return replace(state, injection_targets=(*others, {**response, "kind": kind}))
    if name == state.component.ca_secret_name:
        return replace(state, ca_secret=response)
    servers = [server for server in state.server_secrets if certificate_objects.get_name(server) != name]
    return replace(
        state,
        server_secrets=tuple(sorted((*servers, response), key=certificate_objects.get_name)),
        missing_servers=tuple(summary for summary in state.missing_servers if summary.secret != name),
    )


def _plan_ca_creation(state: ComponentState, now: datetime) -> Write | None:
    """Return the write that stores a new next CA if there is no CA, its renewal is due, or a user requested it."""
    newest, ca_secret, name = state.next_ca or state.current_ca, state.ca_secret, state.component.ca_secret_name
    if not (state.server_secrets or state.missing_servers) or ("Secret", name) in state.unwritable:
        return None
    is_requested = ca_secret and certificate_objects.is_renewal_requested(ca_secret) and not is_bundle_full(state, now)
    if newest and not is_requested and not _is_renewal_due(newest, state.component, now):
        return None
    new_ca = key_pairs.create_ca(state.component, now)
    trusted = new_ca.certificate + "".join(build_bundle(state, now))
    entries = certificate_objects.encode_entries(
        {NEXT_CERTIFICATE_ENTRY: new_ca.certificate, NEXT_PRIVATE_KEY_ENTRY: new_ca.key, CA_ENTRY: trusted}
    )
    if ca_secret:
        return build_secret_patch(
            CA_CREATED,
            state,
            ca_secret,
            {"data": entries, "metadata": {"annotations": {certificate_objects.RENEW_ANNOTATION: None}}},
        )
    return build_secret_creation(CA_CREATED, state, name, {"type": "Opaque", "data": entries})


def _plan_injection(state: ComponentState, now: datetime) -> Iterator[Write]:
    """Yield the writes that set the bundle in Secrets and CA injection targets that contain a different bundle.

    These writes precede the publication in the ConfigMap, which starts the waiting period for all clients.
    """
    bundle_pem = "".join(build_bundle(state, now))
    readable = (server for server in state.server_secrets if certificate_objects.get_current_key_pair(server))
    for secret in (*([state.ca_secret] if state.ca_secret else []), *readable):
        if (
            get_kind_and_name(secret) not in state.unwritable
            and certificate_objects.decode_entry(secret, CA_ENTRY) != bundle_pem
        ):
            yield build_secret_patch(
                BUNDLE_INJECTED,
                state,
                secret,
                {
                    "data": certificate_objects.encode_entries({CA_ENTRY: bundle_pem}),
                    **_build_ca_inclusion_annotation(secret, state, now),
                },
            )
    for target in state.injection_targets:
        if get_kind_and_name(target) not in state.unwritable and not has_bundle(target, bundle_pem):
            yield Write(
                BUNDLE_INJECTED,
                get_kind_and_name(target),
                build_target_path(target),
                build_injection_patch(target, bundle_pem),
            )


def _build_ca_inclusion_annotation(secret: Object, state: ComponentState, now: datetime) -> Object:
    """Return the annotation that records the addition of the signing CA to `ca.crt`, {} if `ca.crt` contains it."""
    known_cas = key_pairs.parse_certificates(certificate_objects.decode_entry(secret, CA_ENTRY))
    if state.current_ca is None or key_pairs.parse_certificates(state.current_ca.certificate)[0] in known_cas:
        return {}
    return {
        "metadata": {
            "annotations": {certificate_objects.CA_INCLUSION_TIME_ANNOTATION: format_time(round_up_to_second(now))}
        }
    }


def _plan_publication(state: ComponentState, now: datetime) -> Write | None:
    """Return the write that publishes the bundle in the ConfigMap, or None if it is published already."""
    if ("ConfigMap", state.component.bundle_configmap_name) in state.unwritable:
        return None
    since = certificate_objects.parse_published_times(state.bundle_configmap, now)
    if (
        certificate_objects.parse_published_bundle(state.bundle_configmap) == build_bundle(state, now)
        and set(list_publishable_fingerprints(state, now)) == since.keys()
    ):
        return None
    return build_configmap_write(BUNDLE_PUBLISHED, state, now)


def _plan_ca_activation(state: ComponentState, now: datetime, propagation_delay: timedelta) -> Write | None:
    """Return the write that makes the next CA the signing CA, or None if the write is not due.

    The write is due after the waiting period, unless the next CA is blocked (`is_next_ca_blocked`). The write is due
    immediately if the current CA cannot sign and no server uses a valid certificate from a different CA.
    """
    next_ca, ca_secret = state.next_ca, state.ca_secret
    if not next_ca or not ca_secret or get_kind_and_name(ca_secret) in state.unwritable:
        return None
    is_early = now - (_get_publication_time(state, next_ca, now) or now) < propagation_delay or is_next_ca_blocked(
        state, now
    )
    if is_early and (state.has_valid_ca(now) or _is_other_ca_in_use(state, next_ca, now)):
        return None
    pair = certificate_objects.encode_entries({CERTIFICATE_ENTRY: next_ca.certificate, PRIVATE_KEY_ENTRY: next_ca.key})
    return build_secret_patch(
        CA_ACTIVATED, state, ca_secret, {"data": {**pair, NEXT_CERTIFICATE_ENTRY: None, NEXT_PRIVATE_KEY_ENTRY: None}}
    )


def _get_publication_time(state: ComponentState, ca: KeyPair, now: datetime) -> datetime | None:
    """Return the time at which the ConfigMap first published a CA, or None if the CA does not count as published."""
    return certificate_objects.parse_published_times(state.bundle_configmap, now).get(
        key_pairs.compute_fingerprint(ca.certificate)
    )


def _is_other_ca_in_use(state: ComponentState, ca: KeyPair, now: datetime) -> bool:
    """Return whether any server uses a valid certificate that this CA has not signed."""
    pairs = (certificate_objects.get_current_key_pair(server) for server in state.server_secrets)
    working = (pair.certificate for pair in pairs if pair and key_pairs.is_valid(pair.certificate, now))
    return any(not key_pairs.is_signed_by(certificate, ca.certificate) for certificate in working)


def _plan_issuance(state: ComponentState, now: datetime, propagation_delay: timedelta) -> Iterator[Write]:
    """Yield the writes that issue the certificates that servers need, or recreate missing Secrets.

    If the current CA cannot sign, the next CA signs.
    """
    ca = state.current_ca if state.has_valid_ca(now) else state.next_ca
    if not ca or not key_pairs.is_valid(ca.certificate, now):
        return
    bundle_pem = "".join(build_bundle(state, now))
    for server in state.server_secrets:
        names = certificate_objects.find_server_names(server, state.summaries)
        if (
            names
            and get_kind_and_name(server) not in state.unwritable
            and _needs_certificate(server, names, state, now, propagation_delay)
        ):
            entries = _issue_secret_entries(ca, names, state, now, bundle_pem)
            annotations = {
                certificate_objects.RENEW_ANNOTATION: None,
                certificate_objects.CA_INCLUSION_TIME_ANNOTATION: None,
            }
            yield build_secret_patch(
                CERTIFICATE_ISSUED, state, server, {"data": entries, "metadata": {"annotations": annotations}}
            )
    for missing in state.missing_servers:
        if missing.names and ("Secret", missing.secret) not in state.unwritable:
            entries = _issue_secret_entries(ca, missing.names, state, now, bundle_pem)
            metadata = {"annotations": {certificate_objects.DNS_NAMES_ANNOTATION: ",".join(missing.names)}}
            yield build_secret_creation(
                CERTIFICATE_ISSUED, state, missing.secret, {"type": missing.kind, "data": entries, "metadata": metadata}
            )


def _issue_secret_entries(
    ca: KeyPair, names: Iterable[str], state: ComponentState, now: datetime, bundle_pem: str
) -> dict[str, str]:
    pair = key_pairs.issue_serving_certificate(ca, names, state.component, now)
    return certificate_objects.encode_entries(
        {CERTIFICATE_ENTRY: pair.certificate, PRIVATE_KEY_ENTRY: pair.key, CA_ENTRY: bundle_pem}
    )


def _needs_certificate(
    server_secret: Object, names: Iterable[str], state: ComponentState, now: datetime, propagation_delay: timedelta
) -> bool:
    """Return whether a server needs a new certificate now.

    A missing or expired certificate is replaced immediately. A certificate from a different CA is replaced once clients
    have had time to read the signing CA. A certificate due for renewal waits for the next CA if there is one, unless
    that CA is blocked.
    """
    current_pair = certificate_objects.get_current_key_pair(server_secret)
    if not current_pair or not key_pairs.is_valid(current_pair.certificate, now):
        return True
    if state.current_ca is None or not state.has_valid_ca(now):
        return False
    if not key_pairs.is_signed_by(current_pair.certificate, state.current_ca.certificate):
        return _is_ca_propagated(state.current_ca, server_secret, state, now, propagation_delay)
    if certificate_objects.is_renewal_requested(server_secret) or set(names) != set(
        key_pairs.get_subject_alt_names(current_pair.certificate)
    ):
        return True
    return _is_renewal_due(current_pair, state.component, now) and (
        state.next_ca is None
        or (
            _is_next_ca_stuck(state, state.next_ca, now, propagation_delay)
            and _would_extend_validity(current_pair, state.current_ca, state, now)
        )
    )


def _is_next_ca_stuck(state: ComponentState, next_ca: KeyPair, now: datetime, propagation_delay: timedelta) -> bool:
    """Return whether the next CA is blocked, and its waiting period is over or has not started."""
    since = _get_publication_time(state, next_ca, now)
    return is_next_ca_blocked(state, now) and (since is None or now - since >= propagation_delay)


def _would_extend_validity(current_pair: KeyPair, ca: KeyPair, state: ComponentState, now: datetime) -> bool:
    """Return whether a certificate issued now expires later than the existing one.

    A CA that expires soon cannot issue a certificate with a later expiry. Without this check, the CA would issue
    certificates more and more often.
    """
    return (
        key_pairs.compute_serving_not_after(ca, state.component, now)
        > current_pair.parsed_certificate.not_valid_after_utc
    )


def _is_ca_propagated(
    ca: KeyPair, server_secret: Object, state: ComponentState, now: datetime, propagation_delay: timedelta
) -> bool:
    """Return whether clients have had time to read a CA, both in the ConfigMap and in the server's Secret."""
    published = _get_publication_time(state, ca, now) or now
    return all(
        now - since >= propagation_delay
        for since in (published, certificate_objects.parse_ca_inclusion_time(server_secret, now))
        if since
    )


def _plan_status_update(state: ComponentState, now: datetime) -> Write | None:
    """Return the write that updates the ConfigMap's data about the Secrets, None if the data is up to date."""
    existing = (state.bundle_configmap or {}).get("data") or {}
    is_unwritable = ("ConfigMap", state.component.bundle_configmap_name) in state.unwritable
    return (
        None
        if is_unwritable or build_configmap_data(state, now).items() <= existing.items()
        else build_configmap_write(STATUS_UPDATED, state, now)
    )


def _is_renewal_due(pair: KeyPair, component: Component, now: datetime) -> bool:
    """Return whether a key pair must be replaced: its renewal time has passed, or it is not valid now."""
    certificate = pair.parsed_certificate
    due = compute_renewal_time(certificate.not_valid_before_utc, certificate.not_valid_after_utc, component)
    return now >= due or not key_pairs.is_valid(pair.certificate, now)
