"""All that is known of a component's certificates in a namespace, and what follows from it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from kube.certificates import holders, issuing
from kube.certificates.components import Component
from kube.certificates.holders import TRUSTED, Held
from kube.certificates.injection import trusted
from kube.certificates.issuing import Pair
from kube.certificates.server_names import unusable
from kube.paths import Object

MOST = 10
"""Authorities in a bundle beyond which nobody gets another one by asking: all of them are read by all clients."""


@dataclass(frozen=True)
class State:
    """All that is known of a component in a namespace, as it was read.

    Attributes:
        authority: the Secret of its authority, None where there is none.
        publication: the ConfigMap with what clients trust, None where there is none.
        servers: its other Secrets.
        gone: Secrets of servers that the ConfigMap remembers and that are not there; `is_cut` where it remembers more
            than are made again.
        carriers: what asks for the bundle by its annotation; `is_blind` where it cannot be told.
        refused: kind and name of what the API server lets nobody, or not us, write.
    """

    component: Component
    namespace: str
    authority: Object | None = field(repr=False)  # keys are in it
    publication: Object | None
    servers: tuple[Object, ...] = field(repr=False)
    gone: tuple[Held, ...] = ()
    carriers: tuple[Object, ...] = ()
    is_blind: bool = False
    is_cut: bool = False
    refused: frozenset[tuple[str, str]] = frozenset()
    known: Mapping[str, Held] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "known", holders.remembered(self.publication))

    @property
    def current(self) -> Pair | None:
        """The authority that signs; None where it is missing, corrupt, or no authority."""
        return _authority(holders.current(self.authority)) if self.authority else None

    @property
    def upcoming(self) -> Pair | None:
        """The authority that will sign; None for none."""
        return _authority(holders.upcoming(self.authority)) if self.authority else None

    def signs(self, now: datetime) -> bool:
        """Whether there is an authority that signs what clients take."""
        return self.current is not None and issuing.is_valid(self.current.certificate, now)

    @property
    def secrets(self) -> tuple[Object, ...]:
        """All that are there."""
        return (*([self.authority] if self.authority else []), *self.servers)


def kind_and_name(item: Object) -> tuple[str, str]:
    """What tells the objects of a state apart; what has no kind is a Secret."""
    return str(item.get("kind") or "Secret"), holders.name_of(item)


def bundle(state: State, now: datetime) -> list[str]:
    """What clients are to trust: the next authority, the one that signs, and all that somebody may still need.

    Those are the ones before, until they expire; and where a server's certificate is of somebody else, who has signed
    it, as far as its Secret tells. The ones before are in the authority's Secret; the ConfigMap, which more people may
    write, is believed where that Secret is lost.
    """
    ours = [cert for pair in (state.upcoming, state.current) if pair for cert in issuing.certificates(pair.certificate)]
    before = issuing.certificates(holders.text(state.authority, TRUSTED)) if state.authority else []
    theirs = [signer for server in state.servers for signer in _signers(server)]
    found = dict.fromkeys([*ours, *(before or holders.bundle_of(state.publication)), *theirs])
    return [each for each in found if issuing.ends(each) > now]


def counted(state: State, now: datetime) -> list[str]:
    """Fingerprints of what counts as published once it is in the ConfigMap: all, but for the next authority where its
    pause may not run."""
    waiting = state.upcoming.certificate if state.upcoming and not _may_count(state, state.upcoming, now) else ""
    return [issuing.fingerprint(each) for each in bundle(state, now) if each != waiting]


def is_held_back(state: State, now: datetime) -> bool:
    """Whether there is a next authority that must not sign now: somebody who works by us cannot be told of it, or
    nobody can tell whether there is such a one."""
    return state.upcoming is not None and (state.is_blind or _is_behind(state, state.upcoming, now))


def is_crowded(state: State, now: datetime) -> bool:
    """Whether the bundle has enough authorities."""
    return len(bundle(state, now)) >= MOST


def nameless(state: State) -> set[str]:
    """Names of Secrets that no certificate can be issued for: nothing says what their servers are called."""
    return {holders.name_of(server) for server in state.servers if not holders.names_of(server, state.known)}


def misnamed(state: State) -> dict[str, tuple[str, ...]]:
    """Names of Secrets whose annotation has what no server is reached by, each with that."""
    wrong = {holders.name_of(server): unusable(holders.annotated_names(server)) for server in state.servers}
    return {name: names for name, names in wrong.items() if names}


def _may_count(state: State, upcoming: Pair, now: datetime) -> bool:
    """Whether the pause of the next authority may begin, or go on: nobody is left behind.

    Where that cannot be told, one that has begun goes on: else a slow list now and then would begin it anew for ever.
    """
    if _is_behind(state, upcoming, now):
        return False
    return not state.is_blind or issuing.fingerprint(upcoming.certificate) in holders.published(state.publication, now)


def _is_behind(state: State, upcoming: Pair, now: datetime) -> bool:
    """Whether somebody is known who believes a server that works, and cannot be told of the next authority."""
    read = [
        issuing.certificates(trusted(carrier)) for carrier in state.carriers if kind_and_name(carrier) in state.refused
    ]
    frozen = [server for server in state.servers if kind_and_name(server) in state.refused]
    read += [issuing.certificates(holders.text(server, TRUSTED)) for server in frozen]
    shown = [holders.current(server) for server in state.servers if server not in frozen]
    working = [pair.certificate for pair in shown if pair and issuing.is_valid(pair.certificate, now)]
    return any(
        upcoming.certificate not in known
        and any(issuing.is_signed_by(certificate, each) for certificate in working for each in known)
        for known in read
    )


def _authority(pair: Pair | None) -> Pair | None:
    return pair if pair and issuing.may_sign(pair) else None


def _signers(server: Object) -> Iterator[str]:
    """Who has signed a server's certificate, of those in its Secret, itself included."""
    shown = holders.current(server)
    if shown:
        for each in issuing.certificates(shown.certificate + holders.text(server, TRUSTED)):
            if issuing.is_signed_by(issuing.certificates(shown.certificate)[0], each):
                yield each
