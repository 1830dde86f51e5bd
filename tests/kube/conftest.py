"""The administrator's door to the one cluster."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kube.door.sync_client import Cluster
from localcluster.cluster import LocalCluster


@pytest.fixture(scope="session")
def admin(installed: LocalCluster) -> Iterator[Cluster]:
    """Give the administrator's door, closed at the end of the run."""
    door = Cluster(str(installed.kubeconfig))
    yield door
    door.close()
