"""A cluster of the chain's own: elsewhere functions are tested one by one, and nothing else may act there.

It ends with the last test of this folder: an idle cluster takes a tenth of a core from the tests that follow.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.chain.at_work import at_work
from tests.chain.scene import Resting, Scene


@pytest.fixture(scope="package")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """Give a cluster with all three NodeMaintenance APIs and the product at work."""
    folder = tmp_path_factory.mktemp("chain")
    with at_work(folder) as (cluster, product):
        scene = Scene(cluster, product)
        yield scene
        scene.admin.close()


@pytest.fixture(scope="package")
def resting(scene: Scene) -> Iterator[Resting]:
    """Give three maintenances that have ended, from the first test that wants them to the end of this folder."""
    with Resting(scene) as resting:
        yield resting
