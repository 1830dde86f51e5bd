"""What a person asks `make up` for, on its way to the supervisor."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from localcluster.nodes import machine
from localcluster.trouble import LocalClusterError
from localcluster.wings import choice


@dataclass(frozen=True)
class Wish:
    """One cluster with the product on it.

    Attributes:
        control_planes: how many of the nodes belong to the control plane.
        actors: whether what the wings stand on is played, one of `choice.ACTORS`.
        real: how many real nodes there are beside these.
    """

    nodes: int = 3
    control_planes: int = 0
    delivery: str = "local"
    wings: Sequence[str] = choice.DEFAULT
    actors: str = choice.OFF
    real: int = 0

    def check(self) -> None:
        """Raise `LocalClusterError` where two parts of it do not go together."""
        if self.control_planes >= self.nodes:
            short = f"CONTROL_PLANES={self.control_planes} leaves none of NODES={self.nodes} for pods"
            raise LocalClusterError(f"{short}: raise NODES")
        if self.real:
            machine.check()
        choice.check_actors(self.wings, self.actors)

    def title(self) -> str:
        """What it is in the words of `make`: two wishes of one title are the same."""
        control_planes = f" CONTROL_PLANES={self.control_planes}" if self.control_planes else ""
        wings = "" if tuple(self.wings) == choice.DEFAULT else f" WINGS={','.join(self.wings)}"
        actors = "" if self.actors == choice.OFF else f" ACTORS={self.actors}"
        real = f" REAL={self.real}" if self.real else ""
        return f"NODES={self.nodes}{control_planes} DELIVERY={self.delivery}{wings}{actors}{real}"

    def text(self) -> str:
        """Give it as one word of a command line."""
        return json.dumps(asdict(self))


def read(text: str) -> Wish:
    """Give a wish as `Wish.text` wrote it."""
    return Wish(**json.loads(text))
