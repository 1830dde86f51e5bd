"""Fetches and installs the CRDs of the Prometheus operator that the component `monitoring` needs."""

from __future__ import annotations

from pathlib import Path

from localcluster.cluster import LocalCluster
from localcluster.programs import build

OPERATOR_MODULE = "github.com/prometheus-operator/prometheus-operator@v0.85.0"
CRD_PLURALS = ("podmonitors", "prometheusrules")


def install_crds(cluster: LocalCluster) -> None:
    """Apply the CRDs of the Prometheus operator, and wait until they are served."""
    for file in fetch_crds():
        cluster.kubectl("apply", "--server-side", "-f", file)
    cluster.wait_for_crds(*(f"{kind}.monitoring.coreos.com" for kind in CRD_PLURALS))


def fetch_crds() -> list[Path]:
    """Return the files of the Prometheus operator's CRDs; download them if necessary."""
    # The download runs outside of this repository's Go modules, so that the modules stay unchanged.
    module = build.download_module(OPERATOR_MODULE, build.get_cache_dir(), GOFLAGS="-mod=mod")
    folder = module / "example" / "prometheus-operator-crd"
    return [folder / f"monitoring.coreos.com_{kind}.yaml" for kind in CRD_PLURALS]
