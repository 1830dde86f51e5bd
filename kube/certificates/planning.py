"""Plans the next write for the certificates of one component; callers plan again after each write.

Each write leaves a state from which the next pass can continue, even after a crash. docs/certificates.md describes the
states:

1. A new CA is stored as the next CA in the CA's Secret; no other object contains it yet.
2. The new CA is published in addition to all trusted CAs: in Secrets and CA injection targets, then in the ConfigMap.
3. After a waiting period, the new CA signs. It signs immediately if the current CA cannot sign and no server relies on
    a different CA.
4. The new CA issues a certificate for every server. An old CA stays in the bundle until it expires.

An object that the API server does not allow to write is skipped, and everything that does not depend on it continues.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cached_property

from kube.certificates import ca_injection, component_state, key_pairs, objects
from kube.certificates.component_state import ComponentState
from kube.certificates.components import COMPONENT_LABEL
from kube.certificates.key_pairs import KeyPair
from kube.certificates.objects import (
    CA_ENTRY,
    CA_INCLUSION_TIME_ANNOTATION,
    CERTIFICATE_ENTRY,
    NEXT_CERTIFICATE_ENTRY,
    NEXT_PRIVATE_KEY_ENTRY,
    PRIVATE_KEY_ENTRY,
    RENEW_ANNOTATION,
)
from kube.paths import Object
from kube.times import format_time

CA_CREATED, BUNDLE_INJECTED, BUNDLE_PUBLISHED = "Made", "Shared", "Published"
CA_ACTIVATED, CERTIFICATE_ISSUED, STATUS_UPDATED = "Taken", "Issued", "Noted"
"""Reasons of writes.

- `CA_CREATED`: A new CA, which will replace the signing CA, is stored.
- `BUNDLE_INJECTED`: The CA bundle is written to Secrets and CA injection targets.
- `BUNDLE_PUBLISHED`: The CA bundle is written to the ConfigMap.
- `CA_ACTIVATED`: The next CA becomes the signing CA.
- `CERTIFICATE_ISSUED`: A server's certificate is issued.
- `STATUS_UPDATED`: The public data about the Secrets is updated.
"""


@dataclass(frozen=True)
class Write:
    """A request that creates an object, or that patches it with the resourceVersion that was read as a precondition.

    Attributes:
        reason: Purpose of the write, in one word for metrics and Events.
        target: Kind and name of the object.
    """

    reason: str
    target: tuple[str, str]
    path: str
    body: Object
    is_create: bool = False

    def __repr__(self) -> str:
        """Return a representation without the body, because a Secret's body contains keys."""
        return f"Write({self.reason} {self.target[0]} {self.target[1]})"


def plan_next_write(state: ComponentState, now: datetime, propagation_delay: timedelta) -> Write | None:
    """Return the write that advances the component's certificates; None if no write is due.

    `propagation_delay` is the time for which a CA must be published before a server uses a certificate from it.
    """
    planner = _Planner(state, now, propagation_delay)
    return (
        planner.plan_ca_creation()
        or next(planner.plan_injection(), None)
        or planner.plan_publication()
        or planner.plan_ca_activation()
        or next(planner.plan_issuance(), None)
        or planner.plan_status_update()
    )


def apply_response(state: ComponentState, write: Write, response: Object) -> ComponentState:
    """Return the state, updated with the object that the API server returned for a write."""
    kind, name = write.target
    if kind == "ConfigMap":
        return replace(state, bundle_configmap=response)
    if kind != "Secret":
        others = (target for target in state.injection_targets if objects.get_kind_and_name(target) != write.target)
        return replace(state, injection_targets=(*others, {**response, "kind": kind}))
    if name == state.component.ca_secret_name:
        return replace(state, ca_secret=response)
    servers = [server for server in state.server_secrets if objects.get_name(server) != name]
    return replace(
        state,
        server_secrets=tuple(sorted((*servers, response), key=objects.get_name)),
        missing_servers=tuple(summary for summary in state.missing_servers if summary.secret != name),
    )


def round_up_to_second(time: datetime) -> datetime:
    """Round up to a whole second, the precision of `format_time`, so that a waiting period is never too short."""
    return time + timedelta(microseconds=-time.microsecond % 1_000_000)


@dataclass(frozen=True)
class _Planner:
    """Plans the writes for one component that are due at `now`; the arguments are those of `plan_next_write`."""

    state: ComponentState
    now: datetime
    propagation_delay: timedelta

    def plan_ca_creation(self) -> Write | None:
        """Plan to store a next CA if there is no CA, the renewal is due, or a user has requested a new CA."""
        state, ca_secret, newest = self.state, self.state.ca_secret, self.state.next_ca or self.state.current_ca
        name = state.component.ca_secret_name
        if not (state.server_secrets or state.missing_servers) or ("Secret", name) in state.unwritable:
            return None
        is_requested = ca_secret and objects.is_renewal_requested(ca_secret) and not state.has_too_many_cas(self.now)
        if newest and not is_requested and not self._is_renewal_due(newest):
            return None
        new_ca = key_pairs.create_ca(state.component, self.now)
        entries = objects.encode_entries(
            {
                NEXT_CERTIFICATE_ENTRY: new_ca.certificate,
                NEXT_PRIVATE_KEY_ENTRY: new_ca.key,
                CA_ENTRY: new_ca.certificate + self._bundle_text,
            }
        )
        if ca_secret is None:
            return self._build_write(CA_CREATED, ("Secret", name), {"type": objects.OPAQUE_TYPE, "data": entries})
        return self._build_secret_patch(CA_CREATED, ca_secret, entries, {RENEW_ANNOTATION: None})

    def plan_injection(self) -> Iterator[Write]:
        """Plan writes of the CA bundle to the Secrets and CA injection targets that contain a different bundle.

        These writes precede the publication in the ConfigMap, which starts the waiting period for all clients.
        """
        state, bundle = self.state, self._bundle_text
        for secret in state.secrets:
            is_readable = secret is state.ca_secret or component_state.get_current_key_pair(secret)
            if is_readable and state.can_write(secret) and objects.decode_entry(secret, CA_ENTRY) != bundle:
                entries = objects.encode_entries({CA_ENTRY: bundle})
                yield self._build_secret_patch(BUNDLE_INJECTED, secret, entries, self._build_inclusion_time(secret))
        for target in state.injection_targets:
            if state.can_write(target) and not ca_injection.has_ca_bundle_and_annotated_rules(target, bundle):
                path, patch = ca_injection.build_target_path(target), ca_injection.build_injection_patch(target, bundle)
                yield Write(BUNDLE_INJECTED, objects.get_kind_and_name(target), path, patch)

    def plan_publication(self) -> Write | None:
        """Plan to publish the CA bundle in the ConfigMap; return None if the bundle is already published."""
        is_published = (
            component_state.parse_published_bundle(self.state.bundle_configmap) == self._bundle
            and set(self._list_publishable_fingerprints()) == self._published_times.keys()
        )
        return None if is_published else self._build_configmap_write(BUNDLE_PUBLISHED)

    def plan_ca_activation(self) -> Write | None:
        """Plan the write that makes the next CA the signing CA; return None if it is not due.

        The write is due after the waiting period, unless the next CA is blocked (`_is_next_ca_blocked`). It is due
        immediately if the current CA cannot sign and no server uses a valid certificate from a different CA.
        """
        next_ca, ca_secret = self.state.next_ca, self.state.ca_secret
        if not next_ca or not ca_secret or not self.state.can_write(ca_secret):
            return None
        published = self._get_publication_time(next_ca) or self.now
        is_early = self.now - published < self.propagation_delay or self._is_next_ca_blocked
        is_other_ca_in_use = any(
            not key_pairs.is_signed_by(certificate, next_ca.certificate)
            for certificate in self._list_valid_certificates(self.state.server_secrets)
        )
        if is_early and (self._signing_ca or is_other_ca_in_use):
            return None
        pair = {CERTIFICATE_ENTRY: next_ca.certificate, PRIVATE_KEY_ENTRY: next_ca.key}
        entries = {**objects.encode_entries(pair), NEXT_CERTIFICATE_ENTRY: None, NEXT_PRIVATE_KEY_ENTRY: None}
        return self._build_secret_patch(CA_ACTIVATED, ca_secret, entries, {})

    def plan_issuance(self) -> Iterator[Write]:
        """Plan writes that issue the certificates that servers need, or that recreate missing Secrets.

        If the current CA cannot sign, the next CA signs.
        """
        state, ca = self.state, self._signing_ca or self.state.next_ca
        if not ca or not key_pairs.is_valid(ca.certificate, self.now):
            return
        for server in state.server_secrets:
            names = component_state.find_server_names(server, state.summaries)
            if names and state.can_write(server) and self._needs_certificate(server, names):
                annotations = {RENEW_ANNOTATION: None, CA_INCLUSION_TIME_ANNOTATION: None}
                entries = self._issue_secret_entries(ca, names)
                yield self._build_secret_patch(CERTIFICATE_ISSUED, server, entries, annotations)
        for missing in state.missing_servers:
            target = ("Secret", missing.secret)
            if missing.names and target not in state.unwritable:
                metadata = {"annotations": {objects.DNS_NAMES_ANNOTATION: ",".join(missing.names)}}
                entries = self._issue_secret_entries(ca, missing.names)
                content = {"type": missing.kind, "data": entries, "metadata": metadata}
                yield self._build_write(CERTIFICATE_ISSUED, target, content)

    def plan_status_update(self) -> Write | None:
        """Plan the update of the public data about the Secrets in the ConfigMap; return None if it is up to date."""
        existing = (self.state.bundle_configmap or {}).get("data") or {}
        is_current = self._build_configmap_data().items() <= existing.items()
        return None if is_current else self._build_configmap_write(STATUS_UPDATED)

    @cached_property
    def _bundle(self) -> list[str]:
        return self.state.build_bundle(self.now)

    @property
    def _bundle_text(self) -> str:
        return "".join(self._bundle)

    @cached_property
    def _published_times(self) -> dict[str, datetime]:
        return objects.parse_published_times(self.state.bundle_configmap, self.now)

    @property
    def _signing_ca(self) -> KeyPair | None:
        """Return the current CA if its certificate is valid now, otherwise None."""
        ca = self.state.current_ca
        return ca if ca and key_pairs.is_valid(ca.certificate, self.now) else None

    @property
    def _is_next_ca_blocked(self) -> bool:
        """Return whether there is a next CA that must not sign yet.

        It must not sign if a client that trusts the component's certificates cannot receive it, or if the clients are
        unknown.
        """
        next_ca = self.state.next_ca
        return next_ca is not None and (self.state.are_targets_unknown or self._has_client_without_next_ca(next_ca))

    def _has_client_without_next_ca(self, next_ca: KeyPair) -> bool:
        """Return whether a known client trusts a server with a valid certificate but cannot receive the next CA."""
        state = self.state
        trusted_texts = [
            *(ca_injection.get_trusted_bundle(item) for item in state.injection_targets if not state.can_write(item)),
            *(objects.decode_entry(item, CA_ENTRY) for item in state.server_secrets if not state.can_write(item)),
        ]
        valid_certificates = self._list_valid_certificates(filter(state.can_write, state.server_secrets))
        return any(
            next_ca.certificate not in bundle
            and any(key_pairs.is_signed_by(certificate, ca) for certificate in valid_certificates for ca in bundle)
            for bundle in map(key_pairs.parse_certificates, trusted_texts)
        )

    def _list_valid_certificates(self, servers: Iterable[Object]) -> list[str]:
        """Return those certificates of the servers that are valid now."""
        pairs = map(component_state.get_current_key_pair, servers)
        return [pair.certificate for pair in pairs if pair and key_pairs.is_valid(pair.certificate, self.now)]

    def _list_publishable_fingerprints(self) -> list[str]:
        """Return the fingerprints of the CA certificates whose publication time the ConfigMap must record.

        These are all certificates in the bundle, except for the next CA as long as a client cannot receive it. If the
        clients are unknown, a waiting period that has started continues. Otherwise, slow list requests would restart it
        again and again.
        """
        next_ca, unreceived = self.state.next_ca, ""
        if next_ca:
            is_unpublished = self.state.are_targets_unknown and self._get_publication_time(next_ca) is None
            unreceived = next_ca.certificate if is_unpublished or self._has_client_without_next_ca(next_ca) else ""
        return [key_pairs.compute_fingerprint(certificate) for certificate in self._bundle if certificate != unreceived]

    def _get_publication_time(self, ca: KeyPair) -> datetime | None:
        """Return the time when the ConfigMap first published the CA; None if the CA does not count as published."""
        return self._published_times.get(key_pairs.compute_fingerprint(ca.certificate))

    def _needs_certificate(self, server_secret: Object, names: Iterable[str]) -> bool:
        """Return whether a server needs a new certificate now.

        A missing or expired certificate is replaced immediately. A certificate from a different CA is replaced after
        clients have had time to read the signing CA. A certificate that is due for renewal waits for the next CA if
        there is one, unless that CA is blocked.
        """
        pair, ca = component_state.get_current_key_pair(server_secret), self._signing_ca
        if not pair or not key_pairs.is_valid(pair.certificate, self.now):
            return True
        if ca is None:
            return False
        if not key_pairs.is_signed_by(pair.certificate, ca.certificate):
            return self._is_ca_propagated(ca, server_secret)
        if objects.is_renewal_requested(server_secret):
            return True
        if set(names) != set(key_pairs.get_subject_alt_names(pair.certificate)):
            return True
        return self._is_renewal_due(pair) and (
            self.state.next_ca is None
            or (self._is_next_ca_stuck(self.state.next_ca) and self._would_extend_validity(pair, ca))
        )

    def _is_ca_propagated(self, ca: KeyPair, server_secret: Object) -> bool:
        """Return whether clients have had time to read the CA in the ConfigMap and in the server's Secret."""
        published = self._get_publication_time(ca) or self.now
        included = objects.parse_ca_inclusion_time(server_secret, self.now)
        return self.now - max(published, included or published) >= self.propagation_delay

    def _is_next_ca_stuck(self, next_ca: KeyPair) -> bool:
        """Return whether the next CA is blocked, and its waiting period is over or has not started."""
        since = self._get_publication_time(next_ca)
        return self._is_next_ca_blocked and (since is None or self.now - since >= self.propagation_delay)

    def _would_extend_validity(self, pair: KeyPair, ca: KeyPair) -> bool:
        """Return whether a certificate issued now would expire later than the existing one.

        If the CA itself expires soon, it cannot issue a certificate that expires later. Without this check, it would
        issue certificates more and more often.
        """
        not_after = key_pairs.compute_serving_not_after(ca, self.state.component, self.now)
        return not_after > key_pairs.get_not_after(pair.certificate)

    def _is_renewal_due(self, pair: KeyPair) -> bool:
        """Return whether a certificate must be replaced, because its renewal time has passed or it is not valid now."""
        due = key_pairs.compute_renewal_time(pair.parsed_certificate, self.state.component)
        return self.now >= due or not key_pairs.is_valid(pair.certificate, self.now)

    def _build_inclusion_time(self, secret: Object) -> dict[str, str]:
        """Return the annotation with the time when the signing CA was added to `ca.crt`; {} if it was there already."""
        included_cas = key_pairs.parse_certificates(objects.decode_entry(secret, CA_ENTRY))
        current_ca = self.state.current_ca
        if current_ca is None or key_pairs.parse_certificates(current_ca.certificate)[0] in included_cas:
            return {}
        return {CA_INCLUSION_TIME_ANNOTATION: format_time(round_up_to_second(self.now))}

    def _issue_secret_entries(self, ca: KeyPair, names: Iterable[str]) -> dict[str, str]:
        pair = key_pairs.issue_serving_certificate(ca, names, self.state.component, self.now)
        return objects.encode_entries(
            {CERTIFICATE_ENTRY: pair.certificate, PRIVATE_KEY_ENTRY: pair.key, CA_ENTRY: self._bundle_text}
        )

    def _build_secret_patch(
        self, reason: str, secret: Object, data: Mapping[str, str | None], annotations: Mapping[str, str | None]
    ) -> Write:
        content = {"data": data, "metadata": {"annotations": annotations}}
        return self._build_write(reason, ("Secret", objects.get_name(secret)), content, secret)

    def _build_configmap_write(self, reason: str) -> Write | None:
        """Build the write of the ConfigMap, including the publication time of each certificate.

        Returns None if the ConfigMap cannot be written.
        """
        target = ("ConfigMap", self.state.component.bundle_configmap_name)
        if target in self.state.unwritable:
            return None
        times = {
            fingerprint: format_time(self._published_times.get(fingerprint, round_up_to_second(self.now)))
            for fingerprint in self._list_publishable_fingerprints()
        }
        annotations = {objects.PUBLISHED_ANNOTATION: json.dumps(times, sort_keys=True)}
        content = {"metadata": {"annotations": annotations}, "data": self._build_configmap_data()}
        return self._build_write(reason, target, content, self.state.bundle_configmap)

    def _build_configmap_data(self) -> dict[str, str]:
        """Build the desired `data` of the ConfigMap from the CA bundle and the summaries."""
        state = self.state
        existing = [component_state.build_summary(secret, state.summaries, state.component) for secret in state.secrets]
        status = {summary.secret: summary.as_data() for summary in (*existing, *state.missing_servers)}
        text = json.dumps(status, indent=1, sort_keys=True) + "\n"
        return {objects.BUNDLE_ENTRY: self._bundle_text, objects.STATUS_ENTRY: text}

    def _build_write(
        self, reason: str, target: tuple[str, str], content: Object, existing: Object | None = None
    ) -> Write:
        """Build the write that patches the Secret or ConfigMap `existing`, or creates it if `existing` is None.

        A patch fails if another client has changed the object since it was read.
        """
        kind, name = target
        build_path = objects.build_secrets_path if kind == "Secret" else objects.build_configmaps_path
        namespace, metadata = self.state.namespace, content.get("metadata") or {}
        if existing:
            metadata = {**metadata, "resourceVersion": existing["metadata"]["resourceVersion"]}
            return Write(reason, target, build_path(namespace, name), {**content, "metadata": metadata})
        labels = {COMPONENT_LABEL: self.state.component.name}
        metadata = {**metadata, "name": name, "namespace": namespace, "labels": labels}
        return Write(reason, target, build_path(namespace), {**content, "metadata": metadata}, is_create=True)
