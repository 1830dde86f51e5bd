"""The shipped image, built by buildah on a Debian of its own, where no registry is asked."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.real.engine import Engine, Image


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """Give buildah with storage of its own, and the base image in it."""
    engine = Engine(tmp_path_factory.mktemp("engine"))
    yield engine
    engine.close()


@pytest.fixture(scope="session")
def image(engine: Engine) -> Image:
    """Give the image as `make image` builds it."""
    return engine.make_image()
