"""Tests for the benchmark's errors if another operator cannot be measured.

tests/e2e/test_bench.py tests a successful measurement.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench import peer_operator
from localcluster.cluster import LocalCluster
from localcluster.errors import LocalClusterError

ROOT = Path(__file__).parents[2]
CRDS_DIR = ROOT / "manifests" / "base" / "crds"
CRD_FILE = CRDS_DIR / "nodemaintenance.medik8s.io.yaml"
OTHER_CRD_FILE = CRDS_DIR / "nodemaintenance.kubevirt.io.yaml"

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def bare_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Yield a cluster with one node and nothing installed."""
    with LocalCluster(tmp_path_factory.mktemp("bare"), nodes=1) as cluster:
        yield cluster


def test_rejected_crd_is_reported_with_reason(bare_cluster: LocalCluster, tmp_path: Path) -> None:
    crd_file = tmp_path / "crd.yaml"
    crd_file.write_text(CRD_FILE.read_text().replace("scope: Cluster", "scope: Everywhere"))

    with pytest.raises(
        LocalClusterError, match=rf'^OPERATOR_CRD={crd_file}: .*"Everywhere".*: set the file with the Custom.*\Z'
    ):
        peer_operator.install_crd(bare_cluster, crd_file)


def test_crd_of_other_kind_is_reported(bare_cluster: LocalCluster) -> None:
    reason_pattern = (
        r'"nodemaintenances\.nodemaintenance\.medik8s\.io" not found: '
        r"set the file with the Custom.* of nodemaintenances\.v1beta1"
    )
    with pytest.raises(LocalClusterError, match=rf"^OPERATOR_CRD={OTHER_CRD_FILE}: .*{reason_pattern}"):
        peer_operator.install_crd(bare_cluster, OTHER_CRD_FILE)


def test_exit_of_operator_is_reported_with_end_of_log(bare_cluster: LocalCluster) -> None:
    """Check that an operator's exit is reported with the end of its log, and that the log file is kept."""
    peer_operator.install_crd(bare_cluster, CRD_FILE)
    operator = peer_operator.Operator((sys.executable, "-c", "print('unknown flag')"), CRD_FILE)

    with (
        pytest.raises(
            LocalClusterError,
            match=r"^OPERATOR=.*: the operator exited: .*last lines of .*operator\.log:\n +unknown flag",
        ),
        peer_operator.run_operator(bare_cluster, operator, "node-1"),
    ):
        pass
    assert peer_operator.LOG_FILE.read_text() == "unknown flag\n"
