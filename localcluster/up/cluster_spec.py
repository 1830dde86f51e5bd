"""The cluster that a user requests with `make up`, in the form in which it is passed to the supervisor."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from localcluster.nodes import preflight
from localcluster.errors import LocalClusterError
from localcluster.components import selection


@dataclass(frozen=True)
class Wish:
    """The specification of one cluster with the product on it.

    Attributes:
        nodes: The number of fake nodes.
        control_planes: How many of them are control-plane nodes.
        wings: The installed components.
        actors: Which fakes of the components' dependencies run, one of `choice.ACTORS`.
        real: The number of real nodes besides the fake ones.
    """

    nodes: int = 3
    control_planes: int = 0
    delivery: str = "local"
    wings: Sequence[str] = selection.DEFAULT
    actors: str = selection.OFF
    real: int = 0

    def check(self) -> None:
        """Raise `LocalClusterError` if parts of the specification contradict each other."""
        if self.control_planes >= self.nodes:
            short = f"CONTROL_PLANES={self.control_planes} leaves none of NODES={self.nodes} for pods"
            raise LocalClusterError(f"{short}: raise NODES")
        if self.real:
            preflight.check()
        selection.check_actors(self.wings, self.actors)

    def title(self) -> str:
        """Return the specification in the variables of `make`; equal specifications have equal titles."""
        control_planes = f" CONTROL_PLANES={self.control_planes}" if self.control_planes else ""
        wings = "" if tuple(self.wings) == selection.DEFAULT else f" WINGS={','.join(self.wings)}"
        actors = "" if self.actors == selection.OFF else f" ACTORS={self.actors}"
        real = f" REAL={self.real}" if self.real else ""
        return f"NODES={self.nodes}{control_planes} DELIVERY={self.delivery}{wings}{actors}{real}"

    def text(self) -> str:
        """Return the specification as one command line argument."""
        return json.dumps(asdict(self))


def read(text: str) -> Wish:
    """Return the specification that `Wish.text` wrote."""
    return Wish(**json.loads(text))
