"""Fixtures of the chain tests, which have their own cluster: other tests need one without a running product.

The cluster stops after the last test of this package, because an idle cluster uses a tenth of a core.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.chain.running_product import at_work
from tests.chain.environment import Resting, Scene


@pytest.fixture(scope="package")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """Yield a cluster with all three NodeMaintenance APIs and the running product."""
    folder = tmp_path_factory.mktemp("chain")
    with at_work(folder) as (cluster, product):
        scene = Scene(cluster, product)
        yield scene
        scene.admin.close()


@pytest.fixture(scope="package")
def resting(scene: Scene) -> Iterator[Resting]:
    """Yield three finished maintenances, which exist from the first test that uses them until the package ends."""
    with Resting(scene) as resting:
        yield resting
