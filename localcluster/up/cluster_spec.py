"""The specification of the cluster that a user requests with `make up`, which is passed to the supervisor as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from localcluster.components import selection
from localcluster.errors import LocalClusterError
from localcluster.nodes import preflight


@dataclass(frozen=True)
class ClusterSpec:
    """The specification of one cluster with the product on it.

    Attributes:
        nodes: The number of fake nodes.
        control_planes: The number of fake nodes that are control-plane nodes.
        engine: The engine that delivers the events.
        components: The installed components.
        fakes: The mode of the fakes (`SIMULATORS`), one of `selection.FAKE_MODES`.
        real_nodes: The number of real nodes besides the fake ones.
    """

    nodes: int = 3
    control_planes: int = 0
    engine: str = "local"
    components: Sequence[str] = selection.DEFAULT_COMPONENTS
    fakes: str = selection.FAKES_OFF
    real_nodes: int = 0

    def validate(self) -> None:
        """Raise `LocalClusterError` if parts of the specification contradict each other."""
        if self.control_planes >= self.nodes:
            reason = f"CONTROL_PLANES={self.control_planes} leaves no worker node of NODES={self.nodes}"
            raise LocalClusterError(f"{reason}: increase NODES")
        if self.real_nodes:
            preflight.check_host()
        selection.check_fakes(self.components, self.fakes)

    def format_title(self) -> str:
        """Return the specification as `make` variables; equal specifications have equal titles."""
        control_planes = f" CONTROL_PLANES={self.control_planes}" if self.control_planes else ""
        is_default = tuple(self.components) == selection.DEFAULT_COMPONENTS
        components = "" if is_default else f" COMPONENTS={','.join(self.components)}"
        simulators = "" if self.fakes == selection.FAKES_OFF else f" SIMULATORS={self.fakes}"
        real = f" REAL={self.real_nodes}" if self.real_nodes else ""
        return f"NODES={self.nodes}{control_planes} DELIVERY={self.engine}{components}{simulators}{real}"

    def to_json(self) -> str:
        """Return the specification as one command line argument."""
        return json.dumps(asdict(self))


def parse_spec(text: str) -> ClusterSpec:
    """Return the specification that `ClusterSpec.to_json` wrote."""
    return ClusterSpec(**json.loads(text))
