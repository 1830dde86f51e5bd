"""Builds and fetches what the end-to-end tests need, whose workers reach no other machine.

Run it by `python -m tests.e2e.builds`.
"""

from __future__ import annotations

from localcluster import deliveries
from localcluster.knative import install
from localcluster.programs import build
from localcluster.wings.choice import KNOWN
from tests.e2e.conftest import ENGINES
from tests.manifests.rendering import rabbitmq_crd


def main() -> None:
    """Call what the fixtures call, which builds nothing twice."""
    for name in ENGINES:
        deliveries.named(name).build(KNOWN)
    for part in (install.EVENTING, install.SERVING):
        build.servers(part.tools)
        part.manifests()
    rabbitmq_crd()


if __name__ == "__main__":
    main()
