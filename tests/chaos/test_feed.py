"""The observer of a run sees all of it, or says that it did not."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaos.feed import Observer
from localcluster.cluster import LocalCluster


def test_an_observer_that_has_failed_does_not_pass_for_one_that_saw_nothing(
    installed: LocalCluster, tmp_path: Path
) -> None:
    log = tmp_path / "audit.log"
    log.touch()

    with pytest.raises(FileNotFoundError, match="audit"), Observer(installed.kubeconfig, log, print):
        log.unlink()
