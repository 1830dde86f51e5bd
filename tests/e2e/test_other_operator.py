"""Tests of the bench's errors for an operator that cannot be measured; tests/e2e/test_bench.py measures one."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench import peer_operator
from localcluster.cluster import LocalCluster
from localcluster.errors import LocalClusterError

ROOT = Path(__file__).parents[2]
CRDS = ROOT / "manifests" / "base" / "crds"
CRD = CRDS / "nodemaintenance.medik8s.io.yaml"
OTHER_CRD = CRDS / "nodemaintenance.kubevirt.io.yaml"

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Yield a cluster of one node without any installation."""
    with LocalCluster(tmp_path_factory.mktemp("bare"), nodes=1) as running:
        yield running


def test_a_crd_that_the_api_server_refuses_is_named_with_its_reason(bare: LocalCluster, tmp_path: Path) -> None:
    wrong = tmp_path / "crd.yaml"
    wrong.write_text(CRD.read_text().replace("scope: Cluster", "scope: Everywhere"))

    with pytest.raises(LocalClusterError, match=rf'^OPERATOR_CRD={wrong}: .*"Everywhere".*; give the Custom.*\Z'):
        peer_operator.install(bare, wrong)


def test_a_crd_of_another_kind_is_named(bare: LocalCluster) -> None:
    reason = (
        r'"nodemaintenances\.nodemaintenance\.medik8s\.io" not found; give the Custom.* of nodemaintenances\.v1beta1'
    )
    with pytest.raises(LocalClusterError, match=rf"^OPERATOR_CRD={OTHER_CRD}: .*{reason}"):
        peer_operator.install(bare, OTHER_CRD)


def test_an_operator_that_ends_is_named_with_its_last_words(bare: LocalCluster) -> None:
    """Operators that exit are reported with the end of their log, which remains in a file."""
    peer_operator.install(bare, CRD)
    ending = peer_operator.Operator((sys.executable, "-c", "print('no flag of that name')"), CRD)

    with (
        pytest.raises(
            LocalClusterError, match=r"^OPERATOR=.*: it ended; give .*operator\.log ends:\n +no flag of that"
        ),
        peer_operator.serving(bare, ending, "node-1"),
    ):
        pass
    assert peer_operator.LOG.read_text() == "no flag of that name\n"
