"""The state of a component's certificates in a namespace, and the facts that follow from it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from kube.certificates import certificate_objects, key_pairs
from kube.certificates.components import Component
from kube.certificates.certificate_objects import TRUSTED, Held
from kube.certificates.ca_injection import trusted
from kube.certificates.key_pairs import Pair
from kube.certificates.server_names import unusable
from kube.paths import Object

MOST = 10
"""Number of CAs in a bundle at which requests for a new CA must wait, because all clients read all CAs."""


@dataclass(frozen=True)
class State:
    """The state of a component in a namespace, as it was read.

    Attributes:
        authority: Secret of the CA, None if there is none.
        publication: ConfigMap with the certificates that clients trust, None if there is none.
        servers: The component's other Secrets.
        gone: Server Secrets that the ConfigMap lists and that do not exist.
        carriers: CA injection targets that request the bundle.
        is_blind: Whether the CA injection targets are unknown.
        is_cut: Whether the ConfigMap lists more missing Secrets than are created again.
        refused: Kind and name of the objects that cannot be written.
        known: Data about the Secrets in the ConfigMap, by name.
    """

    component: Component
    namespace: str
    authority: Object | None = field(repr=False)  # contains keys
    publication: Object | None
    servers: tuple[Object, ...] = field(repr=False)
    gone: tuple[Held, ...] = ()
    carriers: tuple[Object, ...] = ()
    is_blind: bool = False
    is_cut: bool = False
    refused: frozenset[tuple[str, str]] = frozenset()
    known: Mapping[str, Held] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "known", certificate_objects.remembered(self.publication))

    @property
    def current(self) -> Pair | None:
        """Return the CA that signs; None if it is missing, corrupt, or not a CA."""
        return _authority(certificate_objects.current(self.authority)) if self.authority else None

    @property
    def upcoming(self) -> Pair | None:
        """Return the CA that will sign next, or None."""
        return _authority(certificate_objects.upcoming(self.authority)) if self.authority else None

    def signs(self, now: datetime) -> bool:
        """Return whether there is a CA that signs, and its certificate is valid now."""
        return self.current is not None and key_pairs.is_valid(self.current.certificate, now)

    @property
    def secrets(self) -> tuple[Object, ...]:
        """Return all existing Secrets of the component."""
        return (*([self.authority] if self.authority else []), *self.servers)


def kind_and_name(item: Object) -> tuple[str, str]:
    """Return what identifies an object within a state; an object without a kind is a Secret."""
    return str(item.get("kind") or "Secret"), certificate_objects.name_of(item)


def bundle(state: State, now: datetime) -> list[str]:
    """Return the certificates that clients must trust: the next CA, the one that signs, and others in use.

    The others are previous CAs until they expire, and the signers of certificates from another issuer, as far as a
    server's Secret contains them. Previous CAs are read from the CA's Secret. If that is lost, they are read from the
    ConfigMap, which more clients may write.
    """
    ours = [cert for pair in (state.upcoming, state.current) if pair for cert in key_pairs.certificates(pair.certificate)]
    before = key_pairs.certificates(certificate_objects.text(state.authority, TRUSTED)) if state.authority else []
    theirs = [signer for server in state.servers for signer in _signers(server)]
    found = dict.fromkeys([*ours, *(before or certificate_objects.bundle_of(state.publication)), *theirs])
    return [each for each in found if key_pairs.ends(each) > now]


def counted(state: State, now: datetime) -> list[str]:
    """Return the fingerprints of the certificates that count as published once they are in the ConfigMap.

    These are all, except for the next CA while its waiting period must not run.
    """
    waiting = state.upcoming.certificate if state.upcoming and not _may_count(state, state.upcoming, now) else ""
    return [key_pairs.fingerprint(each) for each in bundle(state, now) if each != waiting]


def is_held_back(state: State, now: datetime) -> bool:
    """Return whether there is a next CA that must not sign now.

    That is so if a client that trusts our certificates cannot receive the next CA, or if such clients are unknown.
    """
    return state.upcoming is not None and (state.is_blind or _is_behind(state, state.upcoming, now))


def is_crowded(state: State, now: datetime) -> bool:
    """Return whether the bundle has the maximum number of CAs."""
    return len(bundle(state, now)) >= MOST


def nameless(state: State) -> set[str]:
    """Return the names of Secrets whose servers have no known name, so that no certificate can be issued."""
    return {certificate_objects.name_of(server) for server in state.servers if not certificate_objects.names_of(server, state.known)}


def misnamed(state: State) -> dict[str, tuple[str, ...]]:
    """Return the invalid server names in the annotations of Secrets, by the Secret's name."""
    wrong = {certificate_objects.name_of(server): unusable(certificate_objects.annotated_names(server)) for server in state.servers}
    return {name: names for name, names in wrong.items() if names}


def _may_count(state: State, upcoming: Pair, now: datetime) -> bool:
    """Return whether the waiting period of the next CA may start or continue: every client can receive that CA.

    If that is unknown, a period that has started continues. Otherwise, an occasional slow list would restart it
    forever.
    """
    if _is_behind(state, upcoming, now):
        return False
    return not state.is_blind or key_pairs.fingerprint(upcoming.certificate) in certificate_objects.published(state.publication, now)


def _is_behind(state: State, upcoming: Pair, now: datetime) -> bool:
    """Return whether a client is known that trusts a working server and cannot receive the next CA."""
    read = [
        key_pairs.certificates(trusted(carrier)) for carrier in state.carriers if kind_and_name(carrier) in state.refused
    ]
    frozen = [server for server in state.servers if kind_and_name(server) in state.refused]
    read += [key_pairs.certificates(certificate_objects.text(server, TRUSTED)) for server in frozen]
    shown = [certificate_objects.current(server) for server in state.servers if server not in frozen]
    working = [pair.certificate for pair in shown if pair and key_pairs.is_valid(pair.certificate, now)]
    return any(
        upcoming.certificate not in known
        and any(key_pairs.is_signed_by(certificate, each) for certificate in working for each in known)
        for known in read
    )


def _authority(pair: Pair | None) -> Pair | None:
    return pair if pair and key_pairs.may_sign(pair) else None


def _signers(server: Object) -> Iterator[str]:
    """Yield the certificates in a server's Secret that signed the server's certificate, which may be itself."""
    shown = certificate_objects.current(server)
    if shown:
        for each in key_pairs.certificates(shown.certificate + certificate_objects.text(server, TRUSTED)):
            if key_pairs.is_signed_by(key_pairs.certificates(shown.certificate)[0], each):
                yield each
