"""In-memory certificates of a component, which change only through the writes that the tested code plans."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

from kube.certificates import component_state, key_pairs, objects
from kube.certificates.ca_injection import parse_source_secret
from kube.certificates.component_state import ComponentState
from kube.certificates.components import COMPONENT_LABEL, COMPONENTS
from kube.certificates.planning import Write, plan_next_write
from kube.paths import Object

START_TIME = datetime(2026, 1, 1, tzinfo=timezone.utc)
PROPAGATION_DELAY = timedelta(minutes=10)
NAMESPACE = "somewhere"


class CertificateScenario:
    """Certificates of one component in one namespace, with a clock that the test sets."""

    def __init__(self, component: str = "kubevirt", *servers: str) -> None:
        self.component = COMPONENTS[component]
        self.now = START_TIME
        self.objects: dict[tuple[str, str], Object] = {}
        self.unwritable: set[tuple[str, str]] = set()
        self.are_targets_unknown = False
        self._versions = itertools.count(1)
        for name in servers:
            self.add_server(name)

    def add_server(self, name: str, dns_names: str = "", data: dict[str, str] | None = None) -> None:
        metadata = {
            "labels": {COMPONENT_LABEL: self.component.name},
            "annotations": {objects.DNS_NAMES_ANNOTATION: dns_names or f"{name}.svc"},
        }
        self.put_object(
            "Secret",
            name,
            {"metadata": metadata, "type": "Opaque", "data": objects.encode_entries(data or {})},
        )

    def put_object(self, kind: str, name: str, manifest: Object) -> None:
        metadata = {**manifest["metadata"], "name": name, "resourceVersion": str(next(self._versions))}
        self.objects[kind, name] = {**manifest, "kind": kind, "metadata": metadata}

    def build_state(self) -> ComponentState:
        """Return the component's state as `lookup` would read it from the API server."""
        secrets = {name: manifest for (kind, name), manifest in self.objects.items() if kind == "Secret"}
        ca_secret = secrets.pop(self.component.ca_secret_name, None)
        publication = self.objects.get(("ConfigMap", self.component.bundle_configmap_name))
        summaries = objects.parse_summaries(publication)
        deleted_secrets = [
            summaries[name] for name in summaries if name not in (*secrets, self.component.ca_secret_name)
        ]
        injection_targets = [
            manifest
            for manifest in self.objects.values()
            if parse_source_secret(manifest)[0] == NAMESPACE and not self.are_targets_unknown
        ]
        return ComponentState(
            self.component,
            NAMESPACE,
            ca_secret,
            publication,
            tuple(secrets.values()),
            tuple(deleted_secrets),
            tuple(injection_targets),
            self.are_targets_unknown,
            unwritable=frozenset(self.unwritable),
        )

    def apply_writes(self) -> Iterator[Write]:
        """Yield each planned write after applying it, until no further write is planned."""
        while write := plan_next_write(self.build_state(), self.now, PROPAGATION_DELAY):
            self.apply(write)
            yield write

    def apply_all_writes(self) -> list[Write]:
        return list(self.apply_writes())

    def apply(self, write: Write) -> None:
        """Apply a planned write, and fail if it was planned for an older version of the object."""
        kind, name = write.target
        body = copy.deepcopy(write.body)
        if write.is_create:
            assert write.target not in self.objects
            self.put_object(kind, name, body)
            return
        current = self.objects[write.target]
        assert body["metadata"].pop("resourceVersion") == current["metadata"]["resourceVersion"]
        self.put_object(kind, name, apply_merge_patch(current, body))

    def get_secret(self, name: str) -> Object:
        return self.objects["Secret", name]

    def get_serial(self, name: str) -> str:
        pair = component_state.get_current_key_pair(self.get_secret(name))
        assert pair
        return key_pairs.format_serial(pair.parsed_certificate)

    def get_certificate(self, name: str) -> str:
        """Return the certificate that this server presents to its clients."""
        return objects.decode_entry(self.get_secret(name), objects.CERTIFICATE_ENTRY)

    def list_trusted_cas(self) -> list[str]:
        """Return the CA certificates that clients read from the published bundle."""
        return component_state.parse_published_bundle(
            self.objects.get(("ConfigMap", self.component.bundle_configmap_name))
        )

    def is_trusted(self, name: str, bundle: list[str] | None = None) -> bool:
        """Return whether a client trusts a server, with the published CA bundle or with an earlier `bundle`."""
        certificate = self.get_certificate(name)
        signers = self.list_trusted_cas() if bundle is None else bundle
        return any(
            key_pairs.is_signed_by(certificate, signer) and key_pairs.is_valid(signer, self.now) for signer in signers
        )


def apply_merge_patch(original: Any, patch: Any) -> Any:
    """Return the object with a JSON merge patch (RFC 7396) applied."""
    if not isinstance(patch, dict):
        return patch
    patched = dict(original) if isinstance(original, dict) else {}
    for key, value in patch.items():
        if value is None:
            patched.pop(key, None)
        else:
            patched[key] = apply_merge_patch(patched.get(key), value)
    return patched
