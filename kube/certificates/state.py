"""All that is known of a component's certificates in a namespace, and what follows from it. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime

from kube.certificates import holders, issuing
from kube.certificates.components import Component
from kube.certificates.holders import TRUSTED, Held
from kube.certificates.injection import trusts
from kube.certificates.issuing import Pair
from kube.paths import Object


@dataclass(frozen=True)
class State:
    """All that is known of a component in a namespace, as it was read.

    Attributes:
        authority: the Secret of its authority, None where there is none.
        publication: the ConfigMap with what clients trust, None where there is none.
        servers: its other Secrets.
        gone: Secrets of servers that the ConfigMap remembers and that are not there.
        carriers: what asks for the bundle by its annotation.
    """

    component: Component
    namespace: str
    authority: Object | None
    publication: Object | None
    servers: tuple[Object, ...]
    gone: tuple[Held, ...] = ()
    carriers: tuple[Object, ...] = ()
    known: dict[str, Held] = field(init=False)

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

    @property
    def secrets(self) -> tuple[Object, ...]:
        """All that are there."""
        return (*([self.authority] if self.authority else []), *self.servers)


def without(state: State, carrier: tuple[str, str]) -> State:
    """The state without a carrier, which we may not write."""
    return replace(state, carriers=tuple(item for item in state.carriers if _kind_and_name(item) != carrier))


def relies(state: State, carrier: tuple[str, str]) -> bool:
    """Whether a carrier works by the authority that signs: then no other one may sign before it knows of that."""
    signs = issuing.certificates(state.current.certificate) if state.current else []
    found = [item for item in state.carriers if _kind_and_name(item) == carrier]
    return any(trusts(item, certificate) for item in found for certificate in signs)


def _kind_and_name(item: Object) -> tuple[str, str]:
    return str(item["kind"]), holders.name_of(item)


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


def nameless(state: State) -> list[str]:
    """Names of Secrets that no certificate can be issued for: nothing says what their servers are called."""
    return [holders.name_of(server) for server in state.servers if not holders.names_of(server, state.known)]


def _authority(pair: Pair | None) -> Pair | None:
    return pair if pair and issuing.may_sign(pair.certificate) else None


def _signers(server: Object) -> Iterator[str]:
    """Who has signed a server's certificate, of those in its Secret, itself included."""
    shown = holders.current(server)
    if shown:
        for each in issuing.certificates(shown.certificate + holders.text(server, TRUSTED)):
            if issuing.is_signed_by(issuing.certificates(shown.certificate)[0], each):
                yield each
