"""In-memory objects of a component, which only the planned writes change."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

from kube.certificates import certificate_objects, key_pairs
from kube.certificates.components import COMPONENTS, LABEL
from kube.certificates.ca_injection import asked_from
from kube.certificates.planning import next_write
from kube.certificates.state import State
from kube.certificates.writes import Write
from kube.paths import Object

NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)
PAUSE = timedelta(minutes=10)
SPACE = "somewhere"


class World:
    """Scenario of one component in one namespace, with a clock that the test sets."""

    def __init__(self, component: str = "kubevirt", *servers: str) -> None:
        self.component = COMPONENTS[component]
        self.now = NOW
        self.objects: dict[tuple[str, str], Object] = {}
        self.refused: set[tuple[str, str]] = set()
        self.is_blind = False
        self._versions = itertools.count(1)
        for name in servers:
            self.add_server(name)

    def add_server(self, name: str, names: str = "", data: dict[str, str] | None = None) -> None:
        metadata = {"labels": {LABEL: self.component.name}, "annotations": {certificate_objects.NAMES: names or f"{name}.svc"}}
        self.put("Secret", name, {"metadata": metadata, "type": "Opaque", "data": certificate_objects.encoded(data or {})})

    def put(self, kind: str, name: str, item: Object) -> None:
        metadata = {**item["metadata"], "name": name, "resourceVersion": str(next(self._versions))}
        self.objects[kind, name] = {**item, "kind": kind, "metadata": metadata}

    def state(self) -> State:
        """Return the state as `lookup` would read it from the API server."""
        secrets = {name: item for (kind, name), item in self.objects.items() if kind == "Secret"}
        authority = secrets.pop(self.component.authority, None)
        publication = self.objects.get(("ConfigMap", self.component.publication))
        known = certificate_objects.remembered(publication)
        gone = [known[name] for name in known if name not in (*secrets, self.component.authority)]
        carriers = [item for item in self.objects.values() if asked_from(item)[0] == SPACE and not self.is_blind]
        return State(
            self.component,
            SPACE,
            authority,
            publication,
            tuple(secrets.values()),
            tuple(gone),
            tuple(carriers),
            self.is_blind,
            refused=frozenset(self.refused),
        )

    def writes(self) -> Iterator[Write]:
        """Yield each planned write after applying it, until nothing is left to do."""
        while write := next_write(self.state(), self.now, PAUSE):
            self.do(write)
            yield write

    def settle(self) -> list[Write]:
        return list(self.writes())

    def do(self, write: Write) -> None:
        """Apply a write; it fails if it was planned for an older version of the object."""
        kind, name = write.of
        body = copy.deepcopy(write.body)
        if write.creates:
            assert write.of not in self.objects
            self.put(kind, name, body)
            return
        there = self.objects[write.of]
        assert body["metadata"].pop("resourceVersion") == there["metadata"]["resourceVersion"]
        self.put(kind, name, merged(there, body))

    def secret(self, name: str) -> Object:
        return self.objects["Secret", name]

    def serial(self, name: str) -> str:
        pair = certificate_objects.current(self.secret(name))
        assert pair
        return key_pairs.serial(pair.parsed)

    def shown(self, name: str) -> str:
        """Return the certificate that a server presents."""
        return certificate_objects.text(self.secret(name), certificate_objects.CERTIFICATE)

    def trusted(self) -> list[str]:
        """Return the CA certificates that clients read."""
        return certificate_objects.bundle_of(self.objects.get(("ConfigMap", self.component.publication)))

    def accepts(self, name: str, trusted: list[str] | None = None) -> bool:
        """Return whether a client trusts a server, with the published bundle or with one that it read earlier."""
        shown = self.shown(name)
        signers = self.trusted() if trusted is None else trusted
        return any(key_pairs.is_signed_by(shown, each) and key_pairs.is_valid(each, self.now) for each in signers)


def merged(there: Any, patch: Any) -> Any:
    """Return the object with a JSON merge patch (RFC 7396) applied."""
    if not isinstance(patch, dict):
        return patch
    found = dict(there) if isinstance(there, dict) else {}
    for key, value in patch.items():
        if value is None:
            found.pop(key, None)
        else:
            found[key] = merged(found.get(key), value)
    return found
